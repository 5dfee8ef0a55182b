"""The command that was given, kept as words, so that it can be changed in place and printed back.

What no change touches stays as it was written: flags that nobody here understands, their order, wrappers in front.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from ppsim.sglang import flags
from ppsim.sglang.variables import Resolved

KEPT_ENV = ("SGLANG_", "VLLM_", "NCCL_", "CUDA_")
Span = tuple[int, int]


@dataclass(slots=True)
class Source:
    """``words`` behind ``head`` (the program and what stands before it) are as a shell takes them; ``spans``: the
    words of each value that was read, flag included, in their order."""

    engine: str
    env: dict[str, str] = field(default_factory=dict)
    head: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        env = [f"{name}={value}" for name, value in self.env.items()]
        return " ".join([*env, *self.head, *(word for word in self.words if word)])

    def change(self, dest: str, value: Any) -> bool:
        """Give a value another one, or None to take it out; False where the engine has no flag for it."""
        flag = next(
            (f for f in flags.table() if f.engine == self.engine and f.kind in ("flag", "env") and f.dest == dest), None
        )
        if flag is None:
            return False
        if flag.kind == "env":
            self.change_env(flag.name, None if value is None else spelled(value))
        else:
            self.change_words(flag, dest, value)
        return True

    def change_env(self, name: str, text: str | None) -> None:
        before = self.env.pop(name, None)
        if text is not None:
            self.env[name] = shlex.quote(text)
        self.tell(f"{name}={before}" if before else "", f"{name}={text}" if text is not None else "")

    def change_words(self, flag: flags.Flag, dest: str, value: Any) -> None:
        spans = self.spans.get(dest, [])
        old = [" ".join(self.words[a:b]) for a, b in spans]
        first = self.words[spans[-1][0]] if spans else ""
        name, glued, _ = first.partition("=")
        new = self.spell(flag, name if name.startswith("-") and flag.takes_value else flag.name, value, bool(glued))
        for a, b in spans:
            self.words[a:b] = [""] * (b - a)
        if spans and new:
            a, b = spans[-1]
            self.words[a:b] = [" ".join(new), *[""] * (b - a - 1)]
            self.spans[dest] = [(a, b)]
        elif new:
            self.words.append(" ".join(new))
            self.spans[dest] = [(len(self.words) - 1, len(self.words))]
        self.tell(" ".join(old), " ".join(new))

    @staticmethod
    def spell(flag: flags.Flag, name: str, value: Any, glued: bool) -> list[str]:
        if value is None or (value is False and flag.type == "switch"):
            return []
        if not flag.takes_value:
            return [name if value else "--no-" + name.removeprefix("--")]
        if flag.type == "list" and isinstance(value, tuple):
            return [name, *(shlex.quote(str(part)) for part in value)]
        text = shlex.quote(json.dumps(value) if flag.type == "json" and not isinstance(value, str) else spelled(value))
        return [f"{name}={text}"] if glued else [name, text]

    def tell(self, old: str, new: str) -> None:
        """A row of the diff."""
        if old != new:
            self.changes += [f"- {old}"] if old else []
            self.changes += [f"+ {new}"] if new else []


def from_values(engine: str, values: dict[str, Any]) -> Source:
    """The command of a dump, which has values and no words: those that it has, and no other."""
    source = Source(engine, head=[engine, "serve"])
    for dest, value in values.items():
        if value is not None:
            source.change(dest, value)
    source.changes.clear()
    return source


def spelled(value: Any) -> str:
    """A value as a flag has it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (tuple, list)):
        return ",".join(str(part) for part in value)
    return f"{int(value)}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)


def shell_word(word: Resolved) -> str:
    """A word that reads back to the same: what it leaves open is not quoted away."""
    if not word.holes:
        return shlex.quote(word.text)
    return '"' + word.text.replace('"', '\\"') + '"' if re.search(r"[\s<>{}()&|;'\"]", word.text) else word.text


def kept_environment(engine: str, env: dict[str, Resolved], head: list[Resolved]) -> dict[str, str]:
    """Variables of the engine that the command itself does not set."""
    known, here = flags.rows(engine, "env"), {word.text.partition("=")[0].removeprefix("-e") for word in head}
    return {
        name: shell_word(word)
        for name, word in env.items()
        if (name in known or name.startswith(KEPT_ENV)) and name not in here and f"--env={name}" not in here
    }
