"""Reads the words of a draft by its engine's flag table into values, and names everything else.

A flag that is not in the table is listed with its words, never dropped; a value that cannot be read is an error with
its place; a value with a hole is unresolved and gives no value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ppsim.sglang import flags
from ppsim.sglang.commands import FLAG, Draft
from ppsim.sglang.flags import Flag, Match
from ppsim.sglang.programs import image_engine
from ppsim.sglang.result import Given, LaunchLine, Note, UnknownFlag, Unresolved
from ppsim.sglang.source import Source, kept_environment, shell_word
from ppsim.sglang.variables import Hole, Resolved

ELLIPSIS = ("...", "\u2026", "[...]")
PLACEHOLDER_TEXT = re.compile(r"^(?:YOUR[_-].*|<.*>|\{[A-Za-z_ ]+\}|X{2,}|x{3,}|\?+)$")


def read_draft(draft: Draft) -> LaunchLine:
    """A draft with its flags, variables and holes read."""
    engine, variant, guessed = choose_engine(draft)
    program = draft.program
    line = LaunchLine(engine, program.name if program else "", program.variant if program else variant, draft.line)
    line.warnings += [Note(problem.text, problem.line) for problem in draft.warnings]
    line.errors += [Note(problem.text, problem.line) for problem in draft.errors]
    if guessed:
        line.warn(guessed, draft.line)
    if program is not None and program.variant == "fork":
        line.warn(f"{program.name} is not SGLang's own module: read with SGLang's flags", draft.line)
    if program is None and not draft.images:
        line.warn("no program is named: the flags alone are read", draft.line)
    arguments = Arguments(draft, line)
    arguments.read()
    line.source = source_of(draft, line, arguments)
    read_environment(draft, line)
    read_json_values(line)
    for word in draft.loose:
        add_holes(line, None, word)
    return line


def choose_engine(draft: Draft) -> tuple[str, str, str]:
    """Engine, variant, and a sentence where nothing but the spelling of the flags tells it."""
    if draft.program is not None:
        return draft.program.engine, "", ""
    for image in draft.images:
        found = image_engine(image)
        if found:
            return found[0], found[1], ""
    for engine, prefix in (("sglang", "SGLANG_"), ("vllm", "VLLM_")):
        if any(name.startswith(prefix) for name in draft.env):
            return engine, "", ""
    votes = {"sglang": 0, "vllm": 0}
    underscores = False
    for spelling in sorted(draft.flags()):
        known = {engine: flags.exact(engine, spelling) is not None for engine in votes}
        for engine in votes:
            votes[engine] += known[engine] and not known["vllm" if engine == "sglang" else "sglang"]
        underscores = underscores or (known["vllm"] and "_" in spelling)
    if votes["vllm"] > votes["sglang"]:
        return "vllm", "", "the engine is not named: these spellings are vLLM's"
    if votes["sglang"] > votes["vllm"]:
        return "sglang", "", "the engine is not named: these spellings are SGLang's"
    if underscores and votes["sglang"] == 0:
        return "vllm", "", "the engine is not named: only vLLM takes underscores in flags"
    return "sglang", "", "the engine is not named and every flag is known to both: read as SGLang"


class Arguments:
    """One pass over the words."""

    def __init__(self, draft: Draft, line: LaunchLine) -> None:
        self.words = split_glued(draft.words, line)
        self.line = line
        self.extra = draft.program.extra if draft.program else ()
        serves = draft.program is not None and draft.program.name.endswith(" serve")
        self.takes_model = line.engine == "vllm" or serves or (draft.program is None and bool(draft.images))
        self.cut = draft.cut
        self.spans: dict[str, list[tuple[int, int]]] = {}
        self.at = 0
        self.dest = ""  # of the flag that is being read

    def read(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            begin = self.at
            self.at += 1
            self.dest = ""
            if FLAG.match(word.text):
                self.flag(word)
            else:
                self.stray(word)
            if self.dest:
                self.spans.setdefault(self.dest, []).append((begin, self.at))

    def positional_model(self, word: Resolved) -> bool:
        """``vllm serve MODEL``, ``sglang serve MODEL``: the first word that belongs to no flag is the model."""
        if not self.takes_model or word.text in ELLIPSIS or not re.match(r"[\w./~$<{]", word.text):
            return False
        if self.line.is_given("model_path") or self.line.is_unresolved("model_path"):
            return False
        self.takes_model, self.dest = False, ""
        self.store(flags.rows(self.line.engine, "flag")["--model"], "MODEL", [word], word.line)
        return True

    def at_end(self) -> bool:
        """Nothing follows, neither here nor in the text."""
        return self.cut and self.at >= len(self.words)

    def stray(self, word: Resolved) -> None:
        if self.at_end() and word.text in ("-", "--"):
            self.line.warn("the text is cut here: a flag begins and its name is missing", word.line, word.text)
        elif self.positional_model(word):
            return
        elif word.holes:
            add_holes(self.line, None, word)
        elif word.text in ELLIPSIS:
            self.line.warn("the text leaves words out here", word.line, word.text)
        else:
            self.line.warn(f"{word.text!r} belongs to no flag", word.line)

    def flag(self, word: Resolved) -> None:
        spelling, equals, tail = word.text.partition("=")
        match = flags.find(self.line.engine, spelling, self.extra)
        if self.cut_flag(match, spelling, equals, tail, word):
            return
        if match is None:
            self.unknown(word, spelling, tail if equals else None)
            return
        self.dest = match.flag.dest
        self.explain(match, spelling, word.line)
        inline = [Resolved(tail, word.line, word.holes)] if equals else []
        if not match.flag.takes_value:
            self.switch(match, spelling, inline, word.line)
            return
        values = inline or self.take(match.flag)
        if not values:
            follows = f"and {self.words[self.at].text} follows" if self.at < len(self.words) else "and the words end"
            self.line.fail(f"expected {expected(match.flag)} behind the flag, {follows}", word.line, spelling)
            return
        self.store(match.flag, spelling, values, word.line)

    def cut_flag(self, match: Match | None, spelling: str, equals: str, tail: str, word: Resolved) -> bool:
        """The text ends in the middle of a flag, or before its value: told, and nothing is made of it."""
        if not self.at_end() or tail or not spelling.startswith("--"):
            return False
        if match is None:
            dashed = spelling.replace("_", "-") if self.line.engine == "vllm" else spelling
            could = sorted(
                {flag.name for name, flag in flags.rows(self.line.engine, "flag").items() if name.startswith(dashed)}
            )
            if not could or equals:
                return False
            self.line.warn(
                f"the text is cut in the middle of a flag ({' or '.join(could[:6])}): it is not used",
                word.line,
                spelling,
            )
            return True
        if match.how == "abbreviation" and not equals:
            said = f"the text is cut in the middle of a flag ({match.flag.name}, perhaps): it is not used"
        elif match.flag.takes_value:
            said = f"the text is cut here: expected {expected(match.flag)} behind the flag, and the words end"
        else:
            return False
        self.line.warn(said, word.line, spelling)
        self.line.unresolved.append(Unresolved(match.flag.dest, f"{word.text} (the text is cut)", (), word.line))
        return True

    def take(self, flag: Flag) -> list[Resolved]:
        """The words that are the flag's value: one, or for a list all up to the next flag."""
        taken: list[Resolved] = []
        while self.at < len(self.words) and (flag.type == "list" or not taken):
            word = self.words[self.at]
            if FLAG.match(word.text):
                break
            taken.append(word)
            self.at += 1
        return taken

    def switch(self, match: Match, spelling: str, inline: list[Resolved], line: int) -> None:
        value = not match.negated
        if inline:
            try:
                value = flags.read_bool(inline[0].text) != match.negated
            except ValueError as error:
                self.line.fail(str(error), line, spelling)
                return
            self.line.warn("is a switch and takes no value", line, spelling)
        self.put(match.flag.dest, value, spelling, line)

    def store(self, flag: Flag, spelling: str, words: list[Resolved], line: int) -> None:
        holes = [word for word in words if word.holes or PLACEHOLDER_TEXT.match(word.text)]
        if holes:
            for word in holes:
                add_holes(self.line, flag.dest, word)
            return
        try:
            value = flags.read_value(flag.type, [word.text for word in words])
        except ValueError as error:
            if flag.type == "json" and words[0].text not in ELLIPSIS:
                self.line.warn(f"{error}: kept as text", line, spelling)
                value = words[0].text
            else:
                self.line.fail(str(error), line, spelling)
                return
        self.put(flag.dest, value, spelling, line)

    def put(self, dest: str, value: Any, spelling: str, line: int) -> None:
        before = self.line.values.get(dest)
        if before is not None and before.value != value:
            text = f"{dest} is given twice, {before.value!r} by {before.spelling} and {value!r}: the later one holds"
            self.line.warn(text, line, spelling)
        self.line.values[dest] = Given(value, spelling, line)

    def explain(self, match: Match, spelling: str, line: int) -> None:
        flag = match.flag
        if match.how == "old":
            self.line.warn(f"is the old name of {flag.name}", line, spelling)
        if match.how == "abbreviation":
            text = f"is an abbreviation of {flag.name}"
            if match.rivals:
                rivals = ", ".join(rival.name for rival in match.rivals)
                text += f", and ambiguous in versions that have {rivals}"
            self.line.warn(text, line, spelling)
        if match.underscores and self.line.engine == "sglang":
            self.line.warn(f"SGLang spells it {flag.name}: underscores are refused", line, spelling)
        if flag.note.startswith("deprecated"):
            self.line.warn(f"is {flag.note}", line, spelling)

    def unknown(self, word: Resolved, spelling: str, tail: str | None) -> None:
        values = [tail] if tail is not None else []
        while tail is None and self.at < len(self.words) and not FLAG.match(self.words[self.at].text):
            values.append(self.words[self.at].text)
            add_holes(self.line, None, self.words[self.at])
            self.at += 1
        add_holes(self.line, None, word)
        near = flags.nearest(self.line.engine, spelling)
        self.line.unknown_flags.append(UnknownFlag(spelling, tuple(values), word.line, near))


def source_of(draft: Draft, line: LaunchLine, arguments: Arguments) -> Source:
    """The command as words. A container that names no program starts its image's own."""
    head = [shell_word(word) for word in draft.head]
    env = kept_environment(line.engine, draft.env, draft.head)
    if not head and (draft.images or env):  # an image's own program, or variables that need a command behind them
        head = [line.engine, "serve"]
    return Source(line.engine, env, head, [shell_word(word) for word in arguments.words], arguments.spans)


def split_glued(words: list[Resolved], line: LaunchLine) -> list[Resolved]:
    """A list element that holds a flag and its value is two arguments for the reader and one for the engine."""
    found: list[Resolved] = []
    for word in words:
        head, blank, rest = word.text.strip().partition(" ")
        if blank and FLAG.match(head) and "=" not in head and not word.holes:
            line.warn("flag and value stand in one argument: the engine would refuse it", word.line, head)
            found += [Resolved(head, word.line), Resolved(rest.strip(), word.line)]
        else:
            found.append(word)
    return found


def expected(flag: Flag) -> str:
    return {"int": "a whole number", "float": "a number", "json": "JSON", "human": "a size"}.get(flag.type, "a value")


def add_holes(line: LaunchLine, name: str | None, word: Resolved) -> None:
    holes = word.holes or ((Hole(word.text),) if name else ())
    if not holes:
        return
    variables = tuple(dict.fromkeys(hole.variable for hole in holes if hole.variable))
    text = word.text if name and word.text else " ".join(dict.fromkeys(hole.text for hole in holes))
    hole = Unresolved(name, text, variables, word.line)
    if hole not in line.unresolved:
        line.unresolved.append(hole)


def read_environment(draft: Draft, line: LaunchLine) -> None:
    """Variables that the engine reads become values; variables of an application only where no flag says it."""
    for name, word in draft.env.items():
        line.env[name] = word.text
        flag = flags.rows(line.engine, "env").get(name)
        if flag is not None and word.holes:
            add_holes(line, flag.dest, word)
        elif flag is not None:
            read_variable(flag, name, word, line)
        else:
            add_holes(line, None, word)


def read_variable(flag: Flag, name: str, word: Resolved, line: LaunchLine) -> None:
    try:
        line.values[flag.dest] = Given(flags.read_value(flag.type, [word.text]), name, word.line)
    except ValueError as error:
        line.fail(str(error), word.line, name)


def read_application(env: Mapping[str, Resolved]) -> LaunchLine | None:
    """A text with nothing but the variables of an application that starts the engine."""
    for engine in ("vllm", "sglang"):
        known = flags.rows(engine, "app")
        if any(name in env for name in known):
            first = min(word.line for name, word in env.items() if name in known)
            line = LaunchLine(engine, "", "", first)
            line.env = {name: word.text for name, word in env.items()}
            line.warn("no server is started here: these are variables of an application", first)
            for name, word in env.items():
                if name in known and word.holes:
                    add_holes(line, known[name].dest, word)
                elif name in known:
                    read_variable(known[name], name, word, line)
            return line
    return None


def read_json_values(line: LaunchLine) -> None:
    """Values that sit inside the JSON of another flag, such as vLLM-Ascend's dynamic chunking."""
    for path, flag in flags.rows(line.engine, "json").items():
        outer, *inner = path.split(".")
        given = line.values.get(outer)
        value = given.value if given else None
        for key in inner:
            value = value.get(key) if isinstance(value, dict) else None
        if given is None or value is None:
            continue
        try:
            read = value if isinstance(value, (bool, int, float)) else flags.read_value(flag.type, [str(value)])
        except ValueError as error:
            line.fail(str(error), given.line, f"{given.spelling} {'.'.join(inner)}")
            continue
        line.values[flag.dest] = Given(read, given.spelling, given.line)
        if "profiling_chunk_config" in inner:
            line.variant = "ascend"
