"""Variables of a text: what a word becomes once everything that the text defines is filled in.

What the text leaves open stays in the word as written and is a hole: placeholders, output of commands, variables that
nothing sets. Variables that every shell sets are no holes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ppsim.sglang.expansion import Scope, parameter
from ppsim.sglang.shell_words import Cursor, Part, Word, literal

ASSIGNMENT = re.compile(r"^(?P<name>[A-Za-z_]\w*)(?P<plus>\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*")
QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
MAX_DEPTH = 8  # of braces within braces
MAX_EXPANSION = 4096  # characters
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
        self.depth = 0

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
        splits = only is not None and only.kind in ("var", "expand") and not only.quoted and not value.holes
        if splits and not value.text.strip():
            return []
        if splits and re.search(r"\s", value.text.strip()):
            text = re.sub(r"\\?\n", " ", value.text)
            tokens, _, _ = Cursor([text]).scan(0, text)
            return [self.one(replace(token, line=word.line)) for token in tokens if isinstance(token, Word)]
        return [value]

    def part(self, part: Part, line: int) -> Resolved:
        if part.kind == "text":
            return Resolved(part.text, line)
        if part.kind == "hole":
            return Resolved(part.text, line, (Hole(part.text),))
        if part.kind in ("expand", "arith"):
            return self.computed(part, line)
        if part.kind == "var":
            value = self.lookup(part.name)
            if value is not None:
                return value
        if part.name in SET_BY_SHELL:
            return Resolved(part.text, line)
        return Resolved(part.text, line, (Hole(part.text, part.name),))

    def lookup(self, name: str) -> Resolved | None:
        return self.values.get(name, self.late.get(name))

    def computed(self, part: Part, line: int) -> Resolved:
        """``${...}`` or ``$((...))``; a hole as written where the text does not settle it."""
        scope = Scope(self.settled, self.settled_array, self.fill, self.keep)
        try:
            if self.depth > MAX_DEPTH or len(part.text) > MAX_EXPANSION:
                raise ValueError("too long or too deep")
            self.depth += 1
            text = str(scope.whole(self.fill(part.name))) if part.kind == "arith" else parameter(part.name, scope)
        except ValueError:
            name = NAME.search(part.name)
            return Resolved(part.text, line, (Hole(part.text, name.group() if name else ""),))
        finally:
            self.depth -= 1
        return Resolved(text, line)

    def settled(self, name: str) -> str | None:
        """The text of a variable, None where nothing sets it. Raises ValueError where what sets it is open."""
        value = self.lookup(name)
        if value is None:
            return None
        if value.holes or len(value.text) > MAX_EXPANSION:
            raise ValueError(f"{name} is open")
        return value.text

    def settled_array(self, name: str) -> list[str] | None:
        if name not in self.arrays:
            return None
        self.used_arrays.append(name)
        found = [piece for word in self.arrays[name] for piece in self.expand(word)]
        if any(piece.holes for piece in found):
            raise ValueError(f"{name} is open")
        return [piece.text for piece in found]

    def fill(self, text: str) -> str:
        """A word inside braces, with its own variables and quotes. Raises ValueError where one of them is open."""
        value = self.one(literal(text, 0))
        if value.holes:
            raise ValueError(f"{text!r} is open")
        return QUOTED.sub(lambda found: found[1] if found[1] is not None else found[2], value.text)

    def keep(self, name: str, text: str) -> None:
        self.values[name] = Resolved(text, 0)


def assignment_name(word: Word, *, quoted: bool = False) -> str:
    first = word.parts[0] if word.parts else None
    if first is None or first.kind != "text" or (first.quoted and not quoted):
        return ""
    found = ASSIGNMENT.match(first.text)
    return found["name"] if found else ""


def adds(word: Word) -> bool:
    """``NAME+=more``."""
    found = ASSIGNMENT.match(word.parts[0].text) if word.parts else None
    return bool(found and found["plus"])


def without_name(word: Word) -> Word:
    first = word.parts[0]
    found = ASSIGNMENT.match(first.text)
    rest = first.text[found.end() :] if found else first.text
    return replace(word, parts=(replace(first, text=rest), *word.parts[1:]))
