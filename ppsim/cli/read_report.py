"""What ``ppsim read`` says of one file."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import Any

MAX_SENTENCES = 60  # of a kind of thing; --json has all
MAX_EXAMPLES = 3


@dataclass(slots=True)
class Told:
    """``kind``: what the file is, empty where nothing is recognised. ``read``: a sentence for each thing that was read.

    ``unread``: (line or element, beginning) of what was not understood; ``num_lines``: all that are not blank.
    ``give_to``: commands that take the file. ``data``: the same for programs.
    """

    file: str
    kind: str = ""
    read: list[str] = field(default_factory=list)
    unread: list[tuple[int, str]] = field(default_factory=list)
    num_lines: int = 0
    give_to: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def give(self, command: str, why: str = "") -> None:
        """Name a command that takes the file; ``{}`` stands for its name."""
        told = command.format(shlex.quote(self.file)) + (f"  ({why})" if why else "")
        if told not in self.give_to:
            self.give_to.append(told)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "file": self.file,
            "kind": self.kind,
            "lines": self.num_lines,
            "read": self.read,
            "not_understood": {
                "lines": len(self.unread),
                "examples": [{"line": line, "text": text} for line, text in self.unread[:MAX_EXAMPLES]],
            },
            "give_to": self.give_to,
            "data": self.data,
        }

    def text(self) -> str:
        """For people."""
        out = [f"{self.file}: {self.kind or 'not recognised'}, {counted(self.num_lines, 'line')}"]
        out += [f"  {sentence}" for sentence in self.read[:MAX_SENTENCES]]
        if len(self.read) > MAX_SENTENCES:
            out.append(f"  ... {len(self.read) - MAX_SENTENCES} more; --json has all")
        what = "flag or hole" if self.kind == "launch line" else "line"
        out.append(f"  not understood: {counted(len(self.unread), what) if self.unread else 'nothing'}")
        out += [f"    line {line}: {text}" for line, text in self.unread[:MAX_EXAMPLES]]
        if len(self.unread) > MAX_EXAMPLES:
            out.append(f"    ... {len(self.unread) - MAX_EXAMPLES} more")
        out += [f"  give it to: {command}" for command in self.give_to]
        if not self.give_to:
            out.append("  no command takes it")
        return "\n".join(out)


def counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
