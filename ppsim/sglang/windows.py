"""vLLM's periodic lines: means over a window whose length the line does not say.

The length is the distance to the window before it, never an assumed ten seconds: a busy engine prints late.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ppsim.sglang.stamps import gap_s, seconds_of

START = re.compile(r"Avg prompt throughput:")
WINDOW = re.compile(
    r"Avg prompt throughput: (?P<prompt>\d+(?:\.\d+)?) tokens/s, "
    r"Avg generation throughput: (?P<generation>\d+(?:\.\d+)?) tokens/s, "
    r"Running: (?P<running>\d+) reqs, (?:Swapped: (?P<swapped>\d+) reqs, )?"
    r"(?:Waiting|Pending): (?P<waiting>\d+) reqs(?:, [A-Za-z][\w ]*: [^,]+)*?, "
    r"GPU KV cache usage: (?P<usage>\d+(?:\.\d+)?)%"
)
ENGINE = re.compile(r"Engine (\d+)")


@dataclass(frozen=True, slots=True)
class Window:
    """Rates are tokens per second; ``length_s`` and ``prompt_tokens`` are None for the first window of an engine."""

    line: int
    engine: int
    time_s: float | None
    length_s: float | None
    prompt_per_s: float
    generation_per_s: float
    num_running: int
    num_waiting: int
    kv_usage: float

    @property
    def prompt_tokens(self) -> float | None:
        return None if self.length_s is None else self.prompt_per_s * self.length_s


def find_windows(rows: Sequence[str], last: int) -> tuple[list[Window], list[tuple[int, str]], list[tuple[int, str]]]:
    """Windows, cut lines and damaged lines (row from 1, text)."""
    windows: list[Window] = []
    cut: list[tuple[int, str]] = []
    damaged: list[tuple[int, str]] = []
    before: dict[int, float | None] = {}
    for row, text in enumerate(rows):
        start = START.search(text) if "Avg prompt" in text else None
        if start is None:
            continue
        found = WINDOW.search(text)
        if found is None:
            (cut if row == last else damaged).append((row + 1, text.strip()))
            continue
        number = ENGINE.search(text, 0, start.start())
        engine = int(number[1][:9]) if number else 0
        # two stamps: the inner one is the engine's own
        time = seconds_of(text[: start.start()][-300:])
        windows.append(
            Window(
                row + 1,
                engine,
                time,
                gap_s(before.get(engine), time) or None,
                float(found["prompt"]),
                float(found["generation"]),
                int(found["running"][:15]),
                int(found["waiting"][:15]),
                float(found["usage"]) / 100,
            )
        )
        before[engine] = time
    return windows, cut, damaged
