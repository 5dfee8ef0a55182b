"""Shell words of a text, with what a shell would have filled in kept as holes.

Written for text that people paste, not for a shell: an unknown ``$VAR`` stays visible, ``<PLACEHOLDER>`` is a hole and
not a redirection, an apostrophe inside a word is a letter, and a quote that is never closed costs its own line only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from ppsim.sglang.programs import has_program

PLACEHOLDER = re.compile(r"<[A-Za-z_][\w .:/-]{0,60}>|\{\{[^{}\n]{0,80}\}\}")
VARIABLE = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)|\((?P<kube>[A-Z_][A-Z0-9_]*)\)|\{(?P<braced>[A-Za-z_]\w*)(?P<array>\[[@*]\])?\}"
    r"|(?P<special>[0-9@*#?!$-]))"
)
BEGINS = re.compile(PLACEHOLDER.pattern + r"|\$")
NEXT_FLAG = re.compile(r"\s+(?=--?[A-Za-z])|\s*\\\s*$")
OPERATORS = ("&&", "||", ";;", "&>>", "&>", "|&", ";", "|", "&", "(", ")")
REDIRECTION = re.compile(r"(?:>>|>&|>\||<<<|<<-?|<&|>|<)\d?")
CONTINUATION = re.compile(r"\\(?P<rest>[^\S\n]*(?:(?<=\s)#.*)?)$")
PLAIN = re.compile(r"[^\s'\"\\$`<>{|&;()]+")
PLAIN_QUOTED = re.compile(r"[^'\"\\$`<{]+")
TARGET = re.compile(r"[ \t]*[^\s;|&()]*")
MAX_QUOTE_LINES = 200


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word. ``hole``: a placeholder or a command's output, which no text can resolve.

    ``name``: of the variable; of ``expand`` (``${...}``) and ``arith`` (``$((...))``) what stands in the brackets.
    """

    kind: Literal["text", "var", "array", "expand", "arith", "hole"]
    text: str  # as written
    name: str = ""
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Word:
    parts: tuple[Part, ...]
    line: int

    @property
    def raw(self) -> str:
        return "".join(part.text for part in self.parts)


@dataclass(frozen=True, slots=True)
class Op:
    """An operator, or a redirection with its target already dropped."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Problem:
    text: str
    line: int


class Cursor:
    """Scans logical lines. A quote may run over physical lines; ``scan`` says where it stopped."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.problems: list[Problem] = []  # what a shell would refuse
        self.notes: list[Problem] = []  # what a shell would take otherwise
        self.never_closed: set[tuple[int, int]] = set()  # places of quotes

    def scan(self, start: int, text: str) -> tuple[list[Word | Op], int, bool]:
        """Words of line ``start`` (given as ``text``), the last line used, and whether that one is continued."""
        while True:
            scanner = Scanner(self, start, text)
            if scanner.run():
                return scanner.tokens, scanner.row, scanner.continued
            self.never_closed.add(scanner.opened)
            said = (
                "a quote is opened here and never closed (is the text cut?): nothing of it is used up to the next flag"
            )
            self.problems.append(Problem(said, scanner.opened[0] + 1))


class Scanner:
    def __init__(self, cursor: Cursor, row: int, text: str) -> None:
        self.cursor, self.row, self.text, self.at = cursor, row, text, 0
        self.tokens: list[Word | Op] = []
        self.parts: list[Part] = []
        self.plain: list[str] = []
        self.plain_quoted = False
        self.in_word = False
        self.word_row = row
        self.continued = False
        self.opened = (row, 0)

    def run(self) -> bool:
        """Scan to the end of the line; False where a quote is never closed."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\r\f\v\u00a0":
                self.end_word()
                self.at += 1
            elif char == "#" and not self.in_word:
                break
            elif char == "\\":
                if self.backslash():
                    return True
            elif (self.row, self.at) in self.cursor.never_closed:
                self.open_end()
            elif char in "'\"" and self.opens_quote(char):
                if not self.quoted(char):
                    return False
            elif not self.operator():
                self.literal_or_variable(quoted=False)
        self.end_word()
        return True

    def backslash(self) -> bool:
        """True at a continuation: nothing but blanks or a comment follows."""
        end = CONTINUATION.match(self.text, self.at)
        if end:
            if end["rest"]:
                self.note("blanks or a comment follow the backslash: a shell would end the command here")
            self.end_word()
            self.continued = True
            return True
        if not self.in_word and self.text[self.at + 1].isspace():
            self.note("a backslash stands before blanks on one line, as where lines were joined: read as a blank")
            self.at += 1
            return False
        self.put(self.text[self.at + 1])
        self.at += 2
        return False

    def opens_quote(self, char: str) -> bool:
        before = self.text[self.at - 1] if self.at else ""
        after = self.text[self.at + 1 : self.at + 2]
        return not (char == "'" and before.isalpha() and after.isalpha())

    def open_end(self) -> None:
        """What follows a quote that is never closed is a hole up to the next flag; only the mark, before a program."""
        end = NEXT_FLAG.search(self.text, self.at)
        text = self.text[self.at : end.start() if end else len(self.text)]
        if has_program(text) or not (self.in_word or self.tokens):
            self.at += 1
        else:
            self.hole(text, True)

    def quoted(self, quote: str) -> bool:
        self.opened = (self.row, self.at)
        self.at += 1
        self.start_word()
        while True:
            if self.at >= len(self.text):
                if self.row + 1 >= len(self.cursor.lines) or self.row - self.opened[0] >= MAX_QUOTE_LINES:
                    return False
                self.put("\n", quoted=True)
                self.row += 1
                self.text, self.at = self.cursor.lines[self.row], 0
                continue
            run = PLAIN_QUOTED.match(self.text, self.at)
            if run:
                self.put(run.group(), quoted=True)
                self.at = run.end()
                continue
            char = self.text[self.at]
            if char == quote:
                self.at += 1
                return True
            if quote == '"' and char == "\\" and self.text[self.at + 1 : self.at + 2] in ('"', "\\", "$", "`"):
                self.put(self.text[self.at + 1], quoted=True)
                self.at += 2
            elif quote == '"' and char in "$`<{":
                self.literal_or_variable(quoted=True)
            else:
                self.put(char, quoted=True)
                self.at += 1

    def operator(self) -> bool:
        if self.text[self.at] not in "<>|&;(){":
            return False
        found = PLACEHOLDER.match(self.text, self.at)
        if found:
            return False
        redirect = REDIRECTION.match(self.text, self.at) if self.text[self.at] in "<>" else None
        if redirect:
            if self.parts or "".join(self.plain) not in ("0", "1", "2"):
                self.end_word()
            self.plain, self.in_word = [], False  # the number of a stream is no word
            self.at = redirect.end()
            self.skip_target()
            return True
        if self.text.startswith("((", self.at) and not self.in_word and self.begins_command():
            end = closing(self.text, self.at)
            inner = re.sub(r"^\s*(\w+)\s*=\s*(?!=)", r"\1=", self.text[self.at : end].strip("()"))
            self.tokens += [Word((Part("text", "let"),), self.row + 1), Word((Part("text", inner),), self.row + 1)]
            self.at = end
            return True
        for operator in OPERATORS:
            if self.text.startswith(operator, self.at):
                if operator == "(" and self.in_word and not self.ends_assignment():
                    return False
                self.end_word()
                self.at += len(operator)
                if operator in ("&>", "&>>"):
                    self.skip_target()
                else:
                    self.tokens.append(Op(operator, self.row + 1))
                return True
        return False

    def begins_command(self) -> bool:
        return not self.tokens or isinstance(self.tokens[-1], Op)

    def ends_assignment(self) -> bool:
        return bool(self.plain) and self.plain[-1].endswith("=")

    def skip_target(self) -> None:
        target = TARGET.match(self.text, self.at)
        self.at = target.end() if target else self.at

    def literal_or_variable(self, *, quoted: bool) -> None:
        char = self.text[self.at]
        if char == "$":
            self.dollar(quoted)
            return
        if char == "`":
            end = self.text.find("`", self.at + 1)
            self.hole(self.text[self.at : end + 1] if end > 0 else char, quoted)
            return
        found = PLACEHOLDER.match(self.text, self.at)
        if found:
            self.hole(found.group(), quoted)
            return
        run = None if quoted else PLAIN.match(self.text, self.at)
        self.put(run.group() if run else char, quoted=quoted)
        self.at += len(run.group()) if run else 1

    def dollar(self, quoted: bool) -> None:
        if not quoted and self.text[self.at + 1 : self.at + 2] in ("'", '"'):
            self.at += 1  # $'...' and $"..." are quotes
            return
        found = dollar_part(self.text, self.at, quoted)
        if found is None:
            self.put("$", quoted=quoted)
            self.at += 1
            return
        self.flush()
        part, self.at = found
        self.parts.append(part)
        self.start_word()

    def hole(self, text: str, quoted: bool) -> None:
        self.flush()
        self.parts.append(Part("hole", text, quoted=quoted))
        self.start_word()
        self.at += len(text)

    def put(self, text: str, *, quoted: bool = False) -> None:
        if self.plain and quoted != self.plain_quoted:
            self.flush()
        self.start_word()
        self.plain.append(text)
        self.plain_quoted = quoted

    def start_word(self) -> None:
        if not self.in_word:
            self.in_word, self.word_row = True, self.row

    def flush(self) -> None:
        if self.plain:
            self.parts.append(Part("text", "".join(self.plain), quoted=self.plain_quoted))
            self.plain = []

    def end_word(self) -> None:
        if not self.in_word:
            return
        self.flush()
        self.tokens.append(Word(tuple(self.parts), self.word_row + 1))
        self.parts, self.in_word = [], False

    def note(self, text: str) -> None:
        self.cursor.notes.append(Problem(text, self.row + 1))


def dollar_part(text: str, at: int, quoted: bool) -> tuple[Part, int] | None:
    """What the ``$`` at ``at`` begins, and the place behind it; None where it is a plain character."""
    if text.startswith("$((", at):
        end = closing(text, at + 1)
        if text[end - 2 : end] == "))":
            return Part("arith", text[at:end], text[at + 3 : end - 2], quoted), end
    found = VARIABLE.match(text, at)
    if found:
        name = found["name"] or found["kube"] or found["braced"] or found["special"]
        kind: Literal["array", "var"] = "array" if found["array"] or name in ("@", "*") else "var"
        return Part(kind, found.group(), name, quoted), found.end()
    if text.startswith("$(", at):
        end = closing(text, at + 1)
        return Part("hole", text[at:end], quoted=quoted), end
    if text.startswith("$[", at) and "]" in text[at:]:
        end = text.index("]", at) + 1
        return Part("arith", text[at:end], text[at + 2 : end - 1], quoted), end
    if text.startswith("${", at):
        end = closing(text, at + 1, "{}")
        if text[end - 1] == "}" and "\n" not in text[at:end]:
            return Part("expand", text[at:end], text[at + 2 : end - 1], quoted), end
    return None


def closing(text: str, at: int, brackets: str = "()") -> int:
    """Place behind the bracket that closes the one at ``at``; end of the text where it is missing."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == brackets[0]) - (text[i] == brackets[1])
        if depth == 0:
            return i + 1
    return len(text)


def literal(text: str, line: int) -> Word:
    """A word of plain text, as a list element of YAML or JSON gives it."""
    parts: list[Part] = []
    begin = at = 0

    def plain(end: int) -> None:
        if end > begin:
            parts.append(Part("text", text[begin:end], quoted=True))

    while found := BEGINS.search(text, at):
        at = found.end()
        read: tuple[Part, int] | None = (Part("hole", found.group(), quoted=True), at)
        if found.group() == "$":
            read = dollar_part(text, found.start(), True)
        if read is not None:
            plain(found.start())
            parts.append(read[0])
            begin = at = read[1]
    plain(len(text))
    return Word(tuple(parts) or (Part("text", "", quoted=True),), line)
