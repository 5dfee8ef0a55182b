"""Variables of a text: what a word becomes once everything that the text defines is filled in.

What the text leaves open stays in the word as written and is a hole: placeholders, output of commands, variables that
nothing sets. Variables that every shell sets are no holes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ppsim.sglang.words import Cursor, Part, Word

ASSIGNMENT = re.compile(r"^(?P<name>[A-Za-z_]\w*)(?P<plus>\+?)=")
SET_BY_SHELL = ("HOME", "PWD", "USER", "HOSTNAME", "PATH", "SHELL", "UID", "LOGNAME", "OLDPWD", "RANDOM")


@dataclass(frozen=True, slots=True)
class Hole:
    """Something that the text leaves open: as written, and the name of the variable if it is one."""

    text: str
    variable: str = ""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A word after variables: holes are still in ``text`` as written."""

    text: str
    line: int
    holes: tuple[Hole, ...] = ()


class Variables:
    """``late``: what a list of the same text sets behind its use, as a container's variables may stand."""

    def __init__(self, late: dict[str, Resolved]) -> None:
        self.late = late
        self.values: dict[str, Resolved] = {}
        self.exported: dict[str, Resolved] = {}
        self.arrays: dict[str, list[Word]] = {}
        self.used_arrays: list[str] = []

    def one(self, word: Word) -> Resolved:
        """A word as one text, unsplit."""
        texts: list[str] = []
        holes: list[Hole] = []
        for part in word.parts:
            value = self.part(part, word.line)
            texts.append(value.text)
            holes += value.holes
        return Resolved("".join(texts), word.line, tuple(holes))

    def expand(self, word: Word) -> list[Resolved]:
        """A word as arguments: an array gives its elements, an unquoted variable is split."""
        only = word.parts[0] if len(word.parts) == 1 else None
        if only and only.kind == "array" and only.name in self.arrays:
            self.used_arrays.append(only.name)
            elements = self.arrays[only.name]
            if any(part.kind == "array" and part.name == only.name for element in elements for part in element.parts):
                return [Resolved(only.text, word.line, (Hole(only.text, only.name),))]
            return [piece for element in elements for piece in self.expand(element)]
        value = self.one(word)
        if only and only.kind == "var" and not only.quoted and not value.holes and " " in value.text.strip():
            tokens, _, _ = Cursor([value.text]).scan(0, value.text)
            return [self.one(replace(token, line=word.line)) for token in tokens if isinstance(token, Word)]
        return [value]

    def part(self, part: Part, line: int) -> Resolved:
        if part.kind == "text":
            return Resolved(part.text, line)
        if part.kind == "hole":
            return Resolved(part.text, line, (Hole(part.text),))
        if part.name in self.values and part.kind == "var":
            return self.values[part.name]
        if part.default is not None:
            return Resolved(part.default, line)
        if part.name in self.late and part.kind == "var":
            return self.late[part.name]
        if part.name in SET_BY_SHELL:
            return Resolved(part.text, line)
        return Resolved(part.text, line, (Hole(part.text, part.name),))


def assignment_name(word: Word, *, quoted: bool = False) -> str:
    first = word.parts[0] if word.parts else None
    if first is None or first.kind != "text" or (first.quoted and not quoted):
        return ""
    found = ASSIGNMENT.match(first.text)
    return found["name"] if found else ""


def without_name(word: Word) -> Word:
    first = word.parts[0]
    found = ASSIGNMENT.match(first.text)
    rest = first.text[found.end() :] if found else first.text
    return replace(word, parts=(replace(first, text=rest), *word.parts[1:]))
