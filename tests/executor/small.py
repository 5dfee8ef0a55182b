"""Small models and hand-made batches for the executor's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ppsim.core.schedule.batch import ForwardBatch, Mode, Piece
from ppsim.scenario import Scenario
from ppsim.scenario.load import validate

VOCAB = 211


def small_scenario(architecture: str = "llama", **sections: Any) -> Scenario:
    """Five layers, grouped-query attention, odd vocabulary, float32; ``sections`` are put on top."""
    raw: dict[str, Any] = {
        "name": "small",
        "seed": 7,
        "model": {
            "architecture": architecture,
            "num_hidden_layers": 5,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "vocab_size": VOCAB,
            "dtype_bytes": 4,
        },
        "cluster": {"pp_size": 2},
        "scheduler": {"page_size": 4, "chunked_prefill_size": 16, "context_length": 512, "max_total_tokens": 1024},
    }
    for name, section in sections.items():
        raw[name] = {**raw.get(name, {}), **section}
    return validate(raw)


def prompt_ids(seed: int, length: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(VOCAB) for _ in range(length)]


@dataclass
class Row:
    """A request's row of the page table, written by hand."""

    rid: str
    tokens: list[int]
    pages: list[int] = field(default_factory=list)

    def input_ids(self, start: int, stop: int) -> list[int]:
        return self.tokens[start:stop]


def batch_of(pieces: Sequence[tuple[Row, int, int]], iteration: int = 0) -> ForwardBatch:
    """A batch of (row, prefix_len, new_tokens)."""
    made = tuple(Piece(row.rid, prefix, new, True, new == 1, row) for row, prefix, new in pieces)
    return ForwardBatch(iteration, 0, Mode.MIXED, made, sum(new for _, _, new in pieces), False, False)
