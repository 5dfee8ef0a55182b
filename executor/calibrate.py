"""What a real run says about the cost of a forward pass: a sample for each prefill piece alone and decode batch.

The spans and the decisions of a recording are joined by iteration; nothing else is needed, so a saved run will do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ppsim.recording import Recording


@dataclass(frozen=True, slots=True)
class ForwardSample:
    """One forward pass of one stage. ``prefix_len`` + ``new_tokens`` per piece, summed over a decode batch."""

    rank: int
    iteration: int
    mode: str  # extend: one piece; decode: ``num_rows`` rows of one token each
    prefix_len: int
    new_tokens: int
    num_rows: int
    duration_ns: int


def forward_samples(recording: Recording, rank: int) -> Iterator[ForwardSample]:
    """Samples of a rank in order. Batches that mix pieces of unequal kind say nothing about one of them: left out."""
    duration_ns = {s.iteration: s.end_ns - s.start_ns for s in recording.spans[rank] if s.stream == "forward"}
    for decision in recording.decisions[rank]:
        took_ns = duration_ns.get(decision.iteration)
        alone = decision.mode == "extend" and len(decision.pieces) == 1
        if took_ns is None or not (alone or decision.mode == "decode"):
            continue
        prefix_len = sum(prefix for _, prefix, _ in decision.pieces)
        new_tokens = sum(new for _, _, new in decision.pieces)
        rows = len(decision.pieces)
        yield ForwardSample(rank, decision.iteration, decision.mode, prefix_len, new_tokens, rows, took_ns)


def write_samples(recording: Recording, path: Path) -> int:
    """Write the samples of all ranks as JSON lines; returns how many."""
    lines = [json.dumps(asdict(s)) for rank in range(recording.pp_size) for s in forward_samples(recording, rank)]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return len(lines)
