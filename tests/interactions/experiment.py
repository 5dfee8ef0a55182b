"""Random experiments for the scheduler: a configuration, a pool and a list of requests, drawn to be crowded and odd.

Small alphabets and shared prompt families make cache hits, splits and equal output continuations ordinary; small pools
make eviction, retraction and parking ordinary. A drawn value of 0 is always the plain case, so that examples shrink
towards it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from zlib import crc32

import hypothesis.strategies as st

from ppsim.core.config import RankConfig
from ppsim.core.messages import AbortReq, Input, NewRequest
from ppsim.core.tokens import pack

ALPHABET = 3  # sampled tokens; more would hide shared continuations
STOP = 1


@dataclass(frozen=True)
class Arrival:
    iteration: int
    request: NewRequest


@dataclass(frozen=True)
class Experiment:
    """``capacity_tokens`` need not be whole pages."""

    config: RankConfig
    capacity_tokens: int
    arrivals: tuple[Arrival, ...]
    aborts: tuple[tuple[int, AbortReq], ...] = ()

    def due(self, iteration: int) -> tuple[Input, ...]:
        """What is read in an iteration: requests, then aborts."""
        requests = tuple(a.request for a in self.arrivals if a.iteration == iteration)
        return requests + tuple(abort for at, abort in self.aborts if at == iteration)

    @property
    def last_arrival(self) -> int:
        return max([a.iteration for a in self.arrivals] + [at for at, _ in self.aborts], default=-1)

    @property
    def max_iterations(self) -> int:
        """Liveness bound: every request alone, chunk by chunk and token by token, once for each time it is put back.

        A decode visit yields a token or puts a request back, and who is put back yields a token when it returns; so
        nothing needs more than L iterations for each chunk of each possible re-prefill.
        """
        slots = self.config.num_slots
        work = 0
        for arrival in self.arrivals:
            length = len(arrival.request.prompt) // 4 + arrival.request.max_new_tokens
            chunk = min(self.config.chunked_prefill_size or length, self.config.page_size)
            work += arrival.request.max_new_tokens * (2 + length // chunk)
        return self.last_arrival + slots * (2 + work) * (1 + self.config.prefill_decode_interval)


def sampled(rid: str, position: int) -> int:
    """The ``position``-th output token of a request: fixed, so that it does not depend on who schedules it when."""
    return crc32(f"{rid}/{position}".encode()) % ALPHABET


def request(
    rid: str,
    prompt: list[int],
    max_new_tokens: int,
    *,
    stops: bool = False,
    ignore_eos: bool = False,
    return_logprob: bool = False,
) -> NewRequest:
    return NewRequest(
        rid,
        pack(prompt),
        max_new_tokens,
        (STOP,) if stops else (),
        ignore_eos=ignore_eos,
        return_logprob=return_logprob,
    )


def family(number: int, length: int) -> list[int]:
    """Prompts of one family share their leading tokens; two families differ from the first or the third token on."""
    return [(number % 2), 2, (number // 2), *([2] * length)][:length]


@dataclass(frozen=True)
class Mix:
    """What kind of requests an experiment has; ``longest`` bounds the prompts, ``outputs`` are the max_new_tokens."""

    longest: int
    shared: tuple[int, ...]
    outputs: tuple[int, ...]
    gaps: tuple[int, ...]


MIXES = (
    Mix(6, (0, 3), (1, 2, 5, 12), (0, 0, 1, 2)),
    Mix(4, (0, 3), (9, 20, 30), (0, 0, 1, 3)),  # decode heavy: growth outruns the admission
    Mix(24, (0, 3, 17), (1, 9, 25), (0, 0, 2, 4)),  # long prompts meet growing outputs: parked chunks
    Mix(20, (0, 3, 8, 17), (1, 3, 9), (0, 0, 0, 1, 5)),
    Mix(60, (0, 17, 32, 33, 40), (1, 2, 6), (0, 0, 1, 9)),
    Mix(48, (32, 33, 40, 40), (1, 4), (0, 0, 0, 5)),  # prefix heavy: longest prefix match and eviction
)


@st.composite
def arrivals(draw: st.DrawFn, mix: Mix, num_requests: int) -> tuple[Arrival, ...]:
    out: list[Arrival] = []
    iteration = 0
    for number in range(num_requests):
        iteration += draw(st.sampled_from(mix.gaps))
        shared = draw(st.sampled_from(mix.shared))
        prompt = family(draw(st.integers(0, 3)), shared) + [5 + number] * draw(st.integers(0, mix.longest - shared))
        bits = draw(st.integers(0, 15))
        spec = request(
            f"R{number}",
            prompt or [4],
            draw(st.sampled_from(mix.outputs)),
            stops=bits in (1, 2, 3),
            ignore_eos=bits == 3,
            return_logprob=bits == 4,
        )
        out.append(Arrival(iteration, spec))
    return tuple(out)


ORDINARY, TIGHT, CROWD = "ordinary", "tight", "crowd"

# Limits against starvation (turns.py). The naive scheduler does not know them: they are drawn where only the outcome of
# a run is looked at.
TURNS = st.fixed_dictionaries(
    {"max_consecutive_prefills": st.sampled_from([0, 1, 3]), "max_consecutive_chunks": st.sampled_from([0, 1, 2])}
)


@st.composite
def experiments(draw: st.DrawFn, kind: str = ORDINARY) -> Experiment:
    """``tight``: the pool holds little more than the largest request alone. ``crowd``: many decode in few slots."""
    crowd = kind == CROWD
    page = draw(st.sampled_from([1, 1, 2, 3] if crowd else [1, 1, 2, 4, 16]))
    chunk = draw(st.sampled_from([None, 1, 2, 4, 4, 8]))
    table: tuple[tuple[int, int], ...] = ()
    if chunk is not None:
        chunk = chunk * page
        table = draw(st.sampled_from([(), (), ((0, 2 * page), (3 * page, page)), ((page, 3 * page), (4 * page, 0))]))
    mix = draw(st.sampled_from(MIXES[1:3] if crowd else MIXES))
    requests = draw(arrivals(mix, draw(st.integers(5 if crowd else 1, 12))))
    config = RankConfig(
        0,
        draw(st.sampled_from([1, 2] if crowd else [1, 1, 2, 3, 4])),
        pp_async_batch_depth=draw(st.sampled_from([0] if crowd else [0, 0, 1, 2])),
        schedule_policy=draw(st.sampled_from(["fcfs", "lpm"])),
        chunked_prefill_size=chunk,
        max_prefill_tokens=draw(st.sampled_from([16384, 24, 7])),
        prefill_max_requests=draw(st.sampled_from([None, None, 1, 2])),
        enable_mixed_chunk=draw(st.booleans()),
        prefill_decode_interval=draw(st.sampled_from([0, 0, 1, 3])),
        max_running_requests=draw(st.sampled_from([16, 16, 6, 3, 1])),
        max_micro_batch_size=draw(st.sampled_from([8] if crowd else [8, 8, 4, 2, 1])),
        page_size=page,
        enable_radix_cache=draw(st.sampled_from([True, True, False])),
        context_length=draw(st.sampled_from([131072, 131072, 131072, 40])),
        clip_max_new_tokens=draw(st.sampled_from([4096, 3])),
        reserve_all_slots=draw(st.sampled_from([False, False, False, True])),
        skip_pure_chunk_output=draw(st.booleans()),
        new_token_ratio_decay_steps=draw(st.sampled_from([600, 3])),
        retract_decode_steps=draw(st.sampled_from([20, 0])),
        init_new_token_ratio=draw(st.sampled_from([Fraction(1, 7)] if crowd else [Fraction(7, 10), Fraction(1)])),
        min_new_token_ratio=Fraction(98, 1000),
        chunk_table=table,
    )
    aborts: list[tuple[int, int]] = []
    if draw(st.sampled_from([False, False, True])):
        aborts = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, len(requests))), min_size=1, max_size=5))
    needs = [len(a.request.prompt) // 4 + a.request.max_new_tokens for a in requests]
    slack = draw(st.sampled_from([0, 1, 2, 5] if kind == TIGHT else [0, 2, 10, 20] if crowd else [0, 3, 10, 40, 400]))
    return Experiment(
        config,
        max(needs) + page * (2 + slack),
        requests,
        tuple((at, AbortReq(f"R{n}", abort_all=n == len(requests))) for at, n in sorted(aborts)),
    )
