"""Make the trace that comes with ppsim: ``python -m ppsim.workload.make_trace [FILE]``. Same code, same bytes.

Mooncake's format, and the published statistics of its conversation trace (12,031 requests; Qin et al., Mooncake, FAST
2025), but no row of it: lengths, times and sessions are all drawn here.

    lengths      one value for each of NUM_REQUESTS equal steps of the distribution, shuffled, so that 400 requests
                 have the quantiles of 12,031. The published quantiles are joined by bent log-linear pieces; BEND and
                 the shortest prompt are not published and are set so that the mean comes out
    arrivals     a Poisson process of the published rate, conditioned on its number of arrivals
    prefixes     every prompt starts with block 0 (a system prompt); whenever the share of prompt tokens that an
                 infinite cache would have found falls below the published one, a request continues the session of an
                 earlier request that is short enough: its prompt is the earlier prompt, the earlier output and more
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from ppsim.workload.draws import Stream
from ppsim.workload.trace import SHIPPED

SEED = 2025
NUM_REQUESTS = 400
RATE_PER_S = 3.40
BLOCK_TOKENS = 512
HIT_SHARE = 0.374
THINK_MS = 5_000  # the user reads the answer before the next turn

# (share of requests, prompt tokens): p50, p90, 6.9 % over 32K, p99 and the longest are published
INPUT_QUANTILES = ((0.0, 600), (0.5, 6909), (0.9, 27367), (0.931, 32768), (0.99, 85400), (1.0, 126195))
BEND = 1.18
OUTPUT_MEAN = 343
OUTPUT_SHAPE = 1.5  # of a Weibull distribution; only the mean is published


@dataclass(frozen=True, slots=True)
class Turn:
    """The last request of a session: what the next one can continue."""

    at_ms: int
    num_tokens: int  # prompt and output
    full_blocks: tuple[int, ...]  # ids of the prompt's full blocks


def input_length(u: float) -> int:
    """Quantile function of the prompt length, u in [0, 1]."""
    for (u0, low), (u1, high) in pairwise(INPUT_QUANTILES):
        if u <= u1:
            return round(low * math.pow(high / low, math.pow((u - u0) / (u1 - u0), BEND)))
    raise ValueError(f"expected a share from 0 to 1, got {u}")


def output_length(u: float) -> int:
    """Quantile function of the output length, u in [0, 1)."""
    scale = OUTPUT_MEAN / math.gamma(1 + 1 / OUTPUT_SHAPE)
    return max(1, round(scale * math.pow(-math.log1p(-u), 1 / OUTPUT_SHAPE)))


def shuffled(values: list[int], stream: Stream) -> list[int]:
    """Fisher and Yates."""
    for i in range(len(values) - 1, 0, -1):
        j = stream.below(i + 1)
        values[i], values[j] = values[j], values[i]
    return values


def arrival_times_ms() -> list[int]:
    """Between the first at 0 and the last, given their number, the arrivals of a Poisson process are uniform."""
    stream = Stream(SEED, "make_trace.arrivals")
    last = (NUM_REQUESTS - 1) / RATE_PER_S * 1000
    inner = sorted(round(stream.uniform() * last) for _ in range(NUM_REQUESTS - 2))
    return [0, *inner, round(last)]


def make_rows() -> list[dict[str, int | list[int]]]:
    """The requests of the trace, in order of arrival."""
    steps = range(NUM_REQUESTS)
    inputs = shuffled([input_length(i / (NUM_REQUESTS - 1)) for i in steps], Stream(SEED, "make_trace.inputs"))
    outputs = shuffled([output_length((i + 0.5) / NUM_REQUESTS) for i in steps], Stream(SEED, "make_trace.outputs"))
    choice = Stream(SEED, "make_trace.sessions")
    sessions: list[Turn] = []
    rows: list[dict[str, int | list[int]]] = []
    num_hit = num_tokens = 0
    next_id = 1
    for at_ms, length, output in zip(arrival_times_ms(), inputs, outputs):
        leading: tuple[int, ...] = (0,)
        num_tokens += length
        open_turns = [t for t in sessions if t.at_ms + THINK_MS <= at_ms and t.num_tokens < length]
        if open_turns and num_hit < HIT_SHARE * num_tokens:
            turn = open_turns[choice.below(len(open_turns))]
            sessions.remove(turn)
            leading = turn.full_blocks
        num_hit += len(leading) * BLOCK_TOKENS if rows else 0
        num_new = -(-length // BLOCK_TOKENS) - len(leading)
        hash_ids = [*leading, *range(next_id, next_id + num_new)]
        next_id += num_new
        sessions.append(Turn(at_ms, length + output, tuple(hash_ids[: length // BLOCK_TOKENS])))
        rows.append({"timestamp": at_ms, "input_length": length, "output_length": output, "hash_ids": hash_ids})
    return rows


def trace_text() -> str:
    """The whole file."""
    return "".join(json.dumps(row) + "\n" for row in make_rows())


def main(arguments: list[str]) -> None:
    """Write the trace to the named file, without one to the place that it is shipped from."""
    path = Path(arguments[0]) if arguments else Path(__file__).resolve().parents[1] / "data" / SHIPPED
    try:
        path.write_bytes(trace_text().encode())
    except OSError as error:
        raise SystemExit(f"{path}: the trace cannot be written: {error.strerror}") from None


if __name__ == "__main__":
    main(sys.argv[1:])
