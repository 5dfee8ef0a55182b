"""What reading a launch line gives: typed values with their place, and everything that was not understood, by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ppsim.sglang.flags import defaults
from ppsim.sglang.source import Source


@dataclass(frozen=True, slots=True)
class Given:
    """A value that the text gives. ``spelling`` is the flag, variable or field as written."""

    value: Any
    spelling: str
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    """A warning or an error and its place."""

    text: str
    line: int
    spelling: str = ""

    def __str__(self) -> str:
        where = f"line {self.line}" + (f", {self.spelling}" if self.spelling else "")
        return f"{where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that hangs on a variable or placeholder that the text leaves open. ``name`` is None outside the flags."""

    name: str | None
    text: str
    variables: tuple[str, ...]
    line: int

    @property
    def label(self) -> str:
        return self.name or (self.variables[0] if self.variables else self.text)


@dataclass(frozen=True, slots=True)
class UnknownFlag:
    """A flag that the engine's table does not have, with the words behind it and the nearest known name."""

    spelling: str
    values: tuple[str, ...]
    line: int
    nearest: str | None


@dataclass(slots=True)
class LaunchLine:
    """One server. ``values`` has what is given; ``get`` falls back to the engine's default (None: engine decides)."""

    engine: str
    program: str
    variant: str
    line: int
    values: dict[str, Given] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    unknown_flags: list[UnknownFlag] = field(default_factory=list)
    unresolved: list[Unresolved] = field(default_factory=list)
    warnings: list[Note] = field(default_factory=list)
    errors: list[Note] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    source: Source | None = None  # the command as it was given; None where a dump gave the values

    @property
    def role(self) -> str | None:
        """``prefill`` or ``decode`` where the line says so."""
        mode = self.get("disaggregation_mode")
        roles = {"prefill": "prefill", "decode": "decode", "kv_producer": "prefill", "kv_consumer": "decode"}
        return roles.get(mode) if isinstance(mode, str) else None

    def is_given(self, name: str) -> bool:
        return name in self.values

    def is_unresolved(self, name: str) -> bool:
        return any(hole.name == name for hole in self.unresolved)

    def get(self, name: str) -> Any:
        given = self.values.get(name)
        return given.value if given else defaults(self.engine).get(name)

    def warn(self, text: str, line: int, spelling: str = "") -> None:
        note = Note(text, line, spelling)
        if note not in self.warnings:
            self.warnings.append(note)

    def fail(self, text: str, line: int, spelling: str = "") -> None:
        self.errors.append(Note(text, line, spelling))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        known = defaults(self.engine)
        return {
            "engine": self.engine,
            "variant": self.variant,
            "program": self.program,
            "role": self.role,
            "line": self.line,
            "values": {name: plain(given.value) for name, given in self.values.items()},
            "defaults": {name: plain(known[name]) for name in known if name not in self.values},
            "env": dict(self.env),
            "unknown_flags": [
                {"flag": u.spelling, "values": list(u.values), "line": u.line, "nearest": u.nearest}
                for u in self.unknown_flags
            ],
            "unresolved": [
                {"name": u.name, "text": u.text, "variables": list(u.variables), "line": u.line}
                for u in self.unresolved
            ],
            "warnings": [str(note) for note in self.warnings],
            "errors": [str(note) for note in self.errors],
            "notes": [str(note) for note in self.notes],
        }


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
