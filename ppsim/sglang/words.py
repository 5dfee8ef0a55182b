"""Shell words of a text, with what a shell would have filled in kept as holes.

Written for text that people paste, not for a shell: an unknown ``$VAR`` stays visible, ``<PLACEHOLDER>`` is a hole and
not a redirection, an apostrophe inside a word is a letter, and a quote that is never closed costs its own line only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

PLACEHOLDER = re.compile(r"<[A-Za-z_][\w .:/-]{0,60}>|\{\{[^{}\n]{0,80}\}\}")
VARIABLE = re.compile(
    r"\$(?:(?P<name>[A-Za-z_]\w*)|\((?P<kube>[A-Z_][A-Z0-9_]*)\)|\{(?P<braced>[A-Za-z_]\w*)(?P<array>\[[@*]\])?(?:(?P<how>:?[-=?+])(?P<word>[^{}\n]*))?\}"
    r"|(?P<special>[0-9@*#?!$-]))"
)
LITERAL = re.compile(PLACEHOLDER.pattern + "|" + VARIABLE.pattern)
ODD_VARIABLE = re.compile(r"\$\{[^{}\n]*\}")
OPERATORS = ("&&", "||", ";;", "&>>", "&>", "|&", ";", "|", "&", "(", ")")
REDIRECTION = re.compile(r"(?:>>|>&|>\||<<<|<<-?|<&|>|<)\d?")
CONTINUATION = re.compile(r"\\(?P<rest>[^\S\n]*(?:(?<=\s)#.*)?)$")
PLAIN = re.compile(r"[^\s'\"\\$`<>{|&;()]+")
PLAIN_QUOTED = re.compile(r"[^'\"\\$`<{]+")
TARGET = re.compile(r"[ \t]*[^\s;|&()]*")
MAX_QUOTE_LINES = 200


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a word. ``hole``: a placeholder or a command's output, which no text can resolve."""

    kind: Literal["text", "var", "array", "hole"]
    text: str  # as written
    name: str = ""
    default: str | None = None
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
        self.literal: set[tuple[int, int]] = set()  # quotes that are never closed: plain characters

    def scan(self, start: int, text: str) -> tuple[list[Word | Op], int, bool]:
        """Words of line ``start`` (given as ``text``), the last line used, and whether that one is continued."""
        while True:
            scanner = Scanner(self, start, text)
            if scanner.run():
                return scanner.tokens, scanner.row, scanner.continued
            self.literal.add(scanner.opened)
            line = scanner.opened[0] + 1
            self.problems.append(Problem("a quote is opened here and never closed: read as a plain character", line))


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
        self.put(self.text[self.at + 1])
        self.at += 2
        return False

    def opens_quote(self, char: str) -> bool:
        if (self.row, self.at) in self.cursor.literal:
            return False
        before = self.text[self.at - 1] if self.at else ""
        after = self.text[self.at + 1 : self.at + 2]
        return not (char == "'" and before.isalpha() and after.isalpha())

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
        found = VARIABLE.match(self.text, self.at)
        if not found and self.text.startswith("$(", self.at):
            self.hole(self.text[self.at : closing(self.text, self.at + 1)], quoted)
            return
        if not found:
            odd = ODD_VARIABLE.match(self.text, self.at)
            if odd:
                self.hole(odd.group(), quoted)
            else:
                self.put("$", quoted=quoted)
                self.at += 1
            return
        self.flush()
        name = found["name"] or found["kube"] or found["braced"] or found["special"]
        default = found["word"] if found["how"] in (":-", "-", ":=", "=") else None
        kind: Literal["array", "var"] = "array" if found["array"] or name in ("@", "*") else "var"
        self.parts.append(Part(kind, found.group(), name, default, quoted))
        self.start_word()
        self.at = found.end()

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


def closing(text: str, at: int) -> int:
    """Place behind the bracket that closes the one at ``at``; end of the text where it is missing."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i + 1
    return len(text)


def literal(text: str, line: int) -> Word:
    """A word of plain text, as a list element of YAML or JSON gives it."""
    parts: list[Part] = []
    at = 0
    for found in LITERAL.finditer(text):
        if found.start() > at:
            parts.append(Part("text", text[at : found.start()], quoted=True))
        name = found["name"] or found["kube"] or found["braced"] or ""
        default = found["word"] if found["how"] in (":-", "-", ":=", "=") else None
        parts.append(Part("var" if name else "hole", found.group(), name, default, quoted=True))
        at = found.end()
    if at < len(text) or not parts:
        parts.append(Part("text", text[at:], quoted=True))
    return Word(tuple(parts), line)
