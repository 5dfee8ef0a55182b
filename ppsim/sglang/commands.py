"""From lines to drafts: which words belong to which server, under which environment.

A shell gives each command its own words and the exports made before it. People also write flags without a program,
exports behind the command, arrays that are used later, lists in YAML, and several roles in one text. The rules:

- a program of the table starts a draft; its words end where the shell ends the command;
- a line that starts with a flag goes on with the draft before it (a shell would not: said once);
- without a program, a block behind a blank line starts a new draft if it repeats a flag of the draft before it;
- an assignment inside such a block is of that block; others hold for what follows; those behind the last command are
  taken for it (a shell would not: said once).

Over 400 lines because the rules share one state, the command that is open and what was assigned before it: a reader of
two files would have to hold both in mind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from ppsim.sglang.flags import exact
from ppsim.sglang.programs import Program, docker_arguments, find_program, has_program, image_engine
from ppsim.sglang.shell_words import Cursor, Op, Part, Problem, Word, literal
from ppsim.sglang.unwrap import COMMAND_KEYS, FOLDED, Line, Unwrapper
from ppsim.sglang.variables import Hole, Resolved, Variables, adds, assignment_name, without_name

FLAG = re.compile(r"^--?[A-Za-z]")
EXPORTS = ("export", "set", "setenv", "declare", "typeset", "readonly", "local", "ENV")
ENGINE_ENV = ("SGLANG_", "VLLM_")
MAX_DEPTH = 3
EMPTY = Word((), 0)
OPENS, CLOSES = ("if", "case", "for", "while", "until", "select"), ("fi", "esac", "done")
KEYWORDS = (*OPENS[:1], "while", "until", "then", "else", "elif", "do", "!", "{", "}", "time", *CLOSES)
TESTS = ("[", "[[", "test", "grep", "command")


@dataclass(slots=True)
class Draft:
    """What one server was started with, before its flags are read."""

    program: Program | None
    line: int
    words: list[Resolved] = field(default_factory=list)
    env: dict[str, Resolved] = field(default_factory=dict)
    images: list[str] = field(default_factory=list)
    loose: list[Resolved] = field(default_factory=list)  # holes of the words around the command
    warnings: list[Problem] = field(default_factory=list)
    errors: list[Problem] = field(default_factory=list)
    head: list[Resolved] = field(default_factory=list)  # the program and the words before it
    cut: bool = False  # the text ends with the last of the words

    def flags(self) -> set[str]:
        return {word.text.partition("=")[0] for word in self.words if FLAG.match(word.text)}


class Reader:
    """Reads one text. ``drafts`` are in the order of the text."""

    def __init__(self, lines: list[str], depth: int = 0, late: dict[str, Resolved] | None = None) -> None:
        self.lines, self.depth = lines, depth
        self.variables = Variables(late or {})
        self.listed_env: dict[str, Resolved] = {}
        self.cursor = Cursor(lines)
        self.unwrapper = Unwrapper(lines)
        self.drafts: list[Draft] = []
        self.current: Draft | None = None
        self.boundary = False  # a blank line or a comment since the last flag
        self.after: dict[str, Resolved] = {}  # assigned since the last draft began
        self.loose: list[Resolved] = []
        self.warnings: list[Problem] = []
        self.pending: list[Word] = []  # words of the command being collected
        self.listed: list[tuple[str, list[Word]]] = []  # words of a YAML list by its key
        self.list_env: dict[str, Resolved] = {}
        self.array: tuple[str, list[Word]] | None = None
        self.folding = False
        self.conditions = 0  # conditions and loops that are open
        self.guarded = False  # the command stands behind a test and && or ||
        self.last_row = max((i + 1 for i, text in enumerate(lines) if text.strip()), default=0)

    # -- lines -------------------------------------------------------------------------------------------------------

    def read(self) -> list[Draft]:
        row, continued = 0, False
        while row < len(self.lines):
            text = self.lines[row]
            if not text.strip() or (text.lstrip().startswith("#") and not self.unwrapper.all_quoted):
                continued = self.gap(row, text, continued)
                row += 1
                continue
            line = self.unwrapper.open(row, text, continued=continued)
            self.warnings += [Problem(note, row + 1) for note in line.notes]
            last, continued = self.take(row, line)
            row = last + 1
        if continued:
            self.warnings.append(Problem("the text ends in a continued line: it is cut here", max(self.last_row, 1)))
        if self.folding:
            self.end_fold()
        self.end_command()
        if self.array:
            self.close_array(Problem("an array is opened here and never closed", self.first_row(self.array[1])))
        self.end_list()
        self.finish()
        return self.drafts

    def gap(self, row: int, text: str, continued: bool) -> bool:
        """A blank line or a comment. A comment does not end a continued command here, though it would in a shell."""
        if continued and text.strip():
            self.warnings.append(Problem("a comment stands inside a continued command: a shell would end it", row + 1))
            return True
        if not self.array and not self.folding:
            self.end_command()
            self.boundary = True
        return False

    def take(self, row: int, line: Line) -> tuple[int, bool]:
        if line.name != FOLDED and self.folding:
            self.end_fold()
        if line.kind == "skip":
            if line.name in COMMAND_KEYS:
                self.open_list(line.name)
            return row, False
        if line.kind in ("assign", "unresolved_assign"):
            self.take_listed_env(row, line)
            return row, False
        if line.kind == "words" and not self.array:
            self.add_listed(line.name, line.words)
            return row, False
        if line.kind == "words":
            self.feed(list(line.words))
            return row, False
        tokens, last, continued = self.cursor.scan(row, line.text)
        if line.kind == "item" and not self.array:
            words = [token for token in tokens if isinstance(token, Word)]
            self.add_listed(line.name, words)
            return last, False
        self.folding = line.name == FOLDED
        if self.listed and not self.array and not self.folding:
            self.end_list()
        self.feed(tokens)
        if self.folding:
            return last, continued
        if not continued and not self.array:
            self.end_command()
        return last, continued

    def end_fold(self) -> None:
        """A scalar over several lines ends: a command of its own, or more of the list that it stands in."""
        self.folding = False
        texts = [word.raw for word in self.pending]
        if self.listed and not find_program(texts) and not assignment_name(self.pending[0] if texts else EMPTY):
            words, self.pending = self.pending, []
            self.listed[-1][1].extend(words)
        else:
            self.end_command()

    def feed(self, tokens: list[Word | Op] | list[Word]) -> None:
        for token in tokens:
            if isinstance(token, Word):
                (self.array[1] if self.array else self.pending).append(token)
            elif token.text == "(" and not self.array and self.opens_array():
                name = self.pending.pop().raw.rstrip("=")
                self.array = (name, [])
            elif token.text == ")" and self.array:
                self.close_array(None)
            elif token.text not in ("(", ")") and not self.array:
                tests = bool(self.pending) and self.pending[0].raw in (*TESTS, *KEYWORDS)
                self.end_command()
                self.guarded = token.text == "||" or (token.text == "&&" and (tests or self.guarded))

    def opens_array(self) -> bool:
        return bool(self.pending) and bool(re.fullmatch(r"[A-Za-z_]\w*\+?=", self.pending[-1].raw))

    def close_array(self, problem: Problem | None) -> None:
        assert self.array is not None
        name, words = self.array
        self.array = None
        arrays = self.variables.arrays
        more, name = name.endswith("+"), name.rstrip("+")
        arrays[name] = [*arrays.get(name, []), *words] if more else words
        if problem:
            self.warnings.append(problem)

    # -- lists of YAML -----------------------------------------------------------------------------------------------

    def open_list(self, key: str) -> None:
        if any(name == key for name, _ in self.listed):
            self.end_list()
        self.listed.append((key, []))

    def add_listed(self, key: str, words: list[Word]) -> None:
        self.end_command()
        if key or not self.listed:
            self.open_list(key)
        self.listed[-1][1].extend(words)

    def take_listed_env(self, row: int, line: Line) -> None:
        if line.kind == "unresolved_assign":
            self.list_env[line.name] = Resolved("", row + 1, (Hole(f"value of {line.name} from elsewhere", line.name),))
            return
        self.list_env[line.name] = self.variables.one(literal(line.text, row + 1))
        self.listed_env[line.name] = self.list_env[line.name]

    def end_list(self) -> None:
        """The command of a container is its command followed by its args, whichever the file names first."""
        order = {"entrypoint": 0, "command": 1}
        parts = sorted(self.listed, key=lambda part: order.get(part[0], 2))
        self.listed = []
        words = [word for _, part in parts for word in part]
        env, self.list_env = self.list_env, {}
        before = len(self.drafts)
        if words:
            self.command(words, listed=True)
        if len(self.drafts) > before:
            self.drafts[-1].env.update(env)
        else:
            self.assign_all(env, exported=True)

    # -- commands ----------------------------------------------------------------------------------------------------

    def end_command(self) -> None:
        words, self.pending = self.pending, []
        if words:
            self.command(words)
        self.guarded = False

    def command(self, words: list[Word], *, listed: bool = False) -> None:
        while not listed and words and words[0].raw in KEYWORDS:
            self.conditions += (words[0].raw in OPENS) - (words[0].raw in CLOSES)
            words = words[1:]
        if not words or self.shell_builtin(words):
            return
        if words[0].raw in EXPORTS and len(words) > 1:
            self.assign_words(words[1:], exported=True)
            return
        leading = 0
        while leading < len(words) and assignment_name(words[leading]):
            leading += 1
        if leading == len(words):
            self.assign_words(words, exported=False)
            return
        resolved = [piece for word in words for piece in self.variables.expand(word)]
        if resolved:
            self.server(resolved, listed)

    def shell_builtin(self, words: list[Word]) -> bool:
        """``let``, ``for``, ``case``, ``read`` and ``unset``: commands that set variables."""
        first, names = words[0].raw, [word.raw for word in words[1:]]
        if first == "let" and names:
            for word in words[1:]:
                if assignment_name(word):
                    inner = without_name(word).raw
                    value = self.variables.one(Word((Part("arith", inner, inner),), word.line))
                    self.assign_all({assignment_name(word): value}, exported=False)
            return True
        if first in ("for", "select", "case"):
            self.conditions += 1
            if names and first != "case":
                several = len(names) != 3 or any(mark in names[-1] for mark in "$*?`{")
                self.forget(names[0], words[0].line) if several else self.set_one(names[0], words[-1])
            return True
        if first in ("read", "unset"):
            for name in names:
                self.forget(name, words[0].line)
            return True
        return False

    def forget(self, name: str, line: int) -> None:
        """A variable whose value is not in the text from here on."""
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            self.variables.values[name] = Resolved("$" + name, line, (Hole("$" + name, name),))

    def set_one(self, name: str, word: Word) -> None:
        self.variables.values[name] = self.variables.one(word)

    def server(self, words: list[Resolved], listed: bool) -> None:
        found = find_program([word.text for word in words])
        if found:
            program, start = found
            self.start(Draft(program, words[0].line, words[start:]), words[:start])
            return
        inner = next((word for word in words if " " in word.text.strip() and has_program(word.text)), None)
        if inner is not None and self.depth < MAX_DEPTH:
            self.nested(inner, words)
            return
        start_of_args = docker_arguments([word.text for word in words])
        if start_of_args is not None and any(FLAG.match(word.text) for word in words[start_of_args:]):
            draft = Draft(None, words[0].line, words[start_of_args:], images=[words[start_of_args - 1].text])
            self.start(draft, words[:start_of_args])
            return
        if FLAG.match(words[0].text):
            self.flag_line(words, listed)
            return
        if listed and self.model_first(words):
            self.start(Draft(None, words[0].line, list(words)), [])
            return
        quoted = next((hole for word in words for hole in word.holes if has_program(hole.text)), None)
        if quoted is not None and self.depth < MAX_DEPTH:
            code = quoted.text.removeprefix("$(").removesuffix(")").strip("`")
            self.nested(Resolved(code, words[0].line), words)
            return
        self.loose += [word for word in words if word.holes]

    def model_first(self, words: list[Resolved]) -> bool:
        """Arguments of a container that begin with the model: its image or its flags tell that it is a server."""
        if not any(FLAG.match(word.text) for word in words[1:]):
            return False
        if any(image_engine(image) for _, image in self.unwrapper.images):
            return True
        spelled = [word.text.partition("=")[0] for word in words if word.text.startswith("--")]
        return any(spelled) and any(all(exact(engine, flag) for flag in spelled) for engine in ("sglang", "vllm"))

    def start(self, draft: Draft, around: list[Resolved]) -> None:
        """Open a draft; ``around`` are the words before its own: wrappers, and variables given on the same line."""
        draft.env = {**self.variables.exported, **self.engine_variables()}
        draft.head = draft.head or list(around)
        for word in around:
            name, equals, value = strip_env_option(word.text).partition("=")
            if equals and re.fullmatch(r"[A-Za-z_]\w*", name):
                draft.env[name] = replace(word, text=value)
            elif word.holes:
                self.loose.append(word)
        images = [image for line, image in self.unwrapper.images if line <= draft.line]
        draft.images += images[-1:] or [image for _, image in self.unwrapper.images[:1]]
        draft.loose, self.loose = self.loose, []
        self.drafts.append(draft)
        self.current, self.boundary, self.after = draft, False, {}

    def nested(self, inner: Resolved, words: list[Resolved]) -> None:
        """A command inside a word, as in ``bash -c "..."``."""
        reader = Reader(inner.text.split("\n"), self.depth + 1, self.variables.late)
        reader.variables.values = dict(self.variables.values)
        reader.variables.exported = dict(self.variables.exported)
        for draft in reader.read():
            draft.line += inner.line - 1
            draft.cut = False
            draft.words = [replace(word, line=word.line + inner.line - 1) for word in draft.words]
            outer = draft.env
            self.start(draft, [word for word in words if word is not inner])
            draft.env.update(outer)

    def flag_line(self, words: list[Resolved], listed: bool) -> None:
        current = self.current
        flags = {word.text.partition("=")[0] for word in words if FLAG.match(word.text)}
        repeated = current is not None and self.boundary and bool(flags & current.flags())
        if current is None or listed or repeated:
            self.start(Draft(None, words[0].line, list(words)), [])
            return
        if current.program is not None and not self.flagged(current):
            text = "a line that starts with a flag is read as part of the command before it: a shell would not do so"
            current.warnings.append(Problem(text, words[0].line))
        current.words += words
        self.boundary = False

    @staticmethod
    def flagged(draft: Draft) -> bool:
        return any("starts with a flag" in problem.text for problem in draft.warnings)

    # -- variables ---------------------------------------------------------------------------------------------------

    def assign_words(self, words: list[Word], *, exported: bool) -> None:
        found: dict[str, Resolved] = {}
        for word in words:
            name = assignment_name(word, quoted=exported)
            if name:
                value = self.variables.one(without_name(word))
                start = found.get(name) or self.variables.lookup(name)
                if start is not None and adds(word):
                    value = replace(value, text=start.text + value.text, holes=(*start.holes, *value.holes))
                found[name] = value
            elif word.raw in self.variables.values:
                found[word.raw] = self.variables.values[word.raw]
        self.assign_all(found, exported=exported)

    def assign_all(self, found: dict[str, Resolved], *, exported: bool) -> None:
        in_block = self.current is not None and self.current.program is None and not self.boundary
        for name, value in found.items():
            if in_block and self.current is not None:
                self.current.env[name] = value
                if not name.startswith(ENGINE_ENV):
                    self.variables.values[name] = value
                continue
            before = self.variables.values.get(name)
            if (self.conditions or self.guarded) and (before is None or before.text != value.text):
                other = "unset" if before is None else repr(before.text)
                said = f"{name} is {value.text!r} or {other}: a condition decides, and it is left open here"
                self.warnings.append(Problem(said, value.line))
                value = Resolved("$" + name, value.line, (Hole("$" + name, name),))
            if before is not None and before.text != value.text and name.startswith(ENGINE_ENV):
                text = f"{name} is set twice, to {before.text!r} and to {value.text!r}: the later one holds"
                self.warnings.append(Problem(text, value.line))
            self.variables.values[name] = value
            self.after[name] = value
            if exported:
                self.variables.exported[name] = value

    def engine_variables(self) -> dict[str, Resolved]:
        return {name: value for name, value in self.variables.values.items() if name.startswith(ENGINE_ENV)}

    # -- end ---------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        self.unused_arrays()
        if self.drafts:
            self.attach_trailing(self.drafts[-1])
            self.drafts[-1].loose += self.loose
            last = self.drafts[-1].words[-1:]
            self.drafts[-1].cut |= bool(last) and last[0].line == self.last_row
        for draft in self.drafts:
            draft.warnings = [*self.warnings, *self.cursor.problems, *self.cursor.notes, *draft.warnings]

    def unused_arrays(self) -> None:
        """An array that no command uses is the command itself, if it holds a program, or else flags."""
        for name, words in list(self.variables.arrays.items()):
            if name in self.variables.used_arrays or not words:
                continue
            resolved = [piece for word in words for piece in self.variables.expand(word)]
            found = find_program([word.text for word in resolved])
            if found:
                self.start(Draft(found[0], words[0].line, resolved[found[1] :]), resolved[: found[1]])
            elif not self.drafts and FLAG.match(resolved[0].text):
                self.start(Draft(None, words[0].line, resolved), [])

    def attach_trailing(self, draft: Draft) -> None:
        late = {name: value for name, value in self.after.items() if name not in draft.env}
        named = [name for name in late if name in self.variables.exported or name.startswith(ENGINE_ENV)]
        for name in named:
            draft.env[name] = late[name]
            if draft.program is not None and name.startswith(ENGINE_ENV) and name not in self.listed_env:
                text = f"{name} is set behind the command and taken for it: a shell would not do so"
                draft.warnings.append(Problem(text, late[name].line))

    def first_row(self, words: list[Word]) -> int:
        return words[0].line if words else len(self.lines)


def strip_env_option(text: str) -> str:
    """``--env=NAME=VALUE`` and ``-eNAME=VALUE`` of a container runtime."""
    for option in ("--env=", "-e"):
        if text.startswith(option) and "=" in text[len(option) :]:
            return text[len(option) :]
    return text
