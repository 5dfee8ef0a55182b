"""Runs recorded from SGLang's own scheduler (``data/README.md``), and the naive scheduler driven over them.

A run is one JSON object: the configuration, the requests with the tokens that were sampled for them, and what SGLang
did in each visit. The tokens are given, so that every difference is a difference of a decision.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from ppsim.core.config import RankConfig
from ppsim.core.messages import Input, NewRequest
from ppsim.core.tokens import pack
from tests.interactions.reference_scheduler import ReferenceScheduler

Run: TypeAlias = dict[str, Any]
Visit: TypeAlias = dict[str, Any]

HERE = Path(__file__).parent
TWENTY = HERE / "data" / "sglang_scheduler.jsonl.gz"
EIGHTY = HERE.parents[2] / "shared" / "data" / "sglang" / "runs" / "scheduler.jsonl"  # only where it lies beside us

MIDDLE_CHUNK_TOKEN = 77  # thrown away by every scheduler that is right


def load_runs(path: Path) -> list[Run]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        return [json.loads(line) for line in lines]


def config_of(run: Run) -> RankConfig:
    """Every key of the recorded configuration is honoured; one that RankConfig does not know is a TypeError."""
    given = dict(run["config"])
    del given["max_total_tokens"]
    return RankConfig(
        pp_rank=0,
        enable_radix_cache=given.pop("radix_cache"),
        chunk_table=tuple((start, size) for start, size in given.pop("chunk_table")),
        **given,
    )


def request_of(spec: dict[str, Any]) -> NewRequest:
    return NewRequest(spec["rid"], pack(spec["prompt"]), spec["max_new_tokens"], tuple(spec["stop_token_ids"]))


def naive_visits(run: Run, rules: str = "sglang") -> list[Visit]:
    """What the naive scheduler does in the visits of a run."""
    naive = ReferenceScheduler(config_of(run), run["config"]["max_total_tokens"], rules)
    samples = {spec["rid"]: spec["samples"] for spec in run["requests"]}
    return [
        visit(
            naive,
            iteration,
            [request_of(spec) for spec in run["requests"] if spec["at_iteration"] == iteration],
            lambda rid, position: samples[rid][position - 1],
        )
        for iteration in range(len(run["visits"]))
    ]


def visit(
    naive: ReferenceScheduler, iteration: int, inputs: Iterable[Input], sampled: Callable[[str, int], int]
) -> Visit:
    """One iteration, in the fields of the recording. ``sampled(rid, n)`` is the n-th output token, from 1 on."""
    naive.arrive(inputs)
    num_dropped = len(naive.dropped)
    batch, retracted = naive.schedule(iteration)
    running = naive.slots[iteration % len(naive.slots)].running
    decided = {
        "mode": batch.mode if batch else "empty",
        "pieces": [[row.job.rid, row.start, row.num] for row in batch.rows] if batch else [],
        "retracted": retracted,
        "aborted": naive.dropped[num_dropped:],
        "chunked": naive.chunked.rid if naive.chunked else None,
        "waiting": [job.rid for job in naive.queue],
        "running": [job.rid for job in running.jobs],
        "full": running.full,
        "ratio": naive.ratio,
        "free": naive.free,
        "ev": naive.tree.evictable,
    }
    launched = naive.slots[(iteration + 1) % len(naive.slots)].launched
    rows = launched.rows if launched else []
    tokens = [sampled(row.job.rid, len(row.job.out) + 1) if row.last else MIDDLE_CHUNK_TOKEN for row in rows]
    naive.absorb(iteration, tuple(tokens))
    naive.end_of_iteration(iteration, batch is not None)
    return decided | {"free2": naive.free, "ev2": naive.tree.evictable}


def first_difference(run: Run, visits: list[Visit]) -> str:
    """Empty if every field of every visit is equal; else the first difference, for a person to read."""
    for iteration, (theirs, ours) in enumerate(zip(run["visits"], visits, strict=True)):
        assert theirs.keys() == ours.keys()
        for field, value in theirs.items():
            same = abs(value - ours[field]) < 1e-9 if field == "ratio" else value == ours[field]  # theirs is a float
            if not same:
                return f"seed {run['seed']}, visit {iteration}, {field}: SGLang {value}, naive {ours[field]}"
    return ""
