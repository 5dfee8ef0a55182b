"""Random experiments for the scheduler: a configuration, a pool and a list of requests, drawn to be crowded and odd.

Small alphabets and shared prompt families make cache hits, splits and equal output continuations ordinary; small pools
make eviction, retraction and parking ordinary. A drawn value of 0 is always the plain case, so that examples shrink
towards it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Protocol, TypeVar
from zlib import crc32

import hypothesis.strategies as st

from ppsim.core.config import RankConfig
from ppsim.core.messages import AbortReq, Input, NewRequest
from ppsim.core.tokens import pack

T = TypeVar("T")

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
    """What kind of requests an experiment has; ``outputs`` are the max_new_tokens."""

    longest: int
    shared: tuple[int, ...]
    outputs: tuple[int, ...]
    gaps: tuple[int, ...]
    shortest: int = 0  # prompt


MIXES = (
    Mix(6, (0, 3), (1, 2, 5, 12), (0, 0, 1, 2)),
    Mix(4, (0, 3), (9, 20, 30), (0, 0, 1, 3)),  # decode heavy: growth outruns the admission
    Mix(24, (0, 3, 17), (1, 9, 25), (0, 0, 2, 4)),  # long prompts meet growing outputs: parked chunks
    Mix(20, (0, 3, 8, 17), (1, 3, 9), (0, 0, 0, 1, 5)),
    Mix(60, (0, 17, 32, 33, 40), (1, 2, 6), (0, 0, 1, 9)),
    Mix(48, (32, 33, 40, 40), (1, 4), (0, 0, 0, 5)),  # prefix heavy: longest prefix match and eviction
)


@dataclass(frozen=True)
class Kind:
    """What is drawn for an experiment of this kind; the first value is the plain one. ``slacks`` are pages of room."""

    mixes: tuple[Mix, ...] = MIXES
    num_requests: tuple[int, int] = (1, 12)
    ignoring: tuple[int, ...] = (3,)  # of 16 numbers, those whose request has ignore_eos
    pages: tuple[int, ...] = (1, 1, 2, 4, 16)
    chunks: tuple[int | None, ...] = (None, 1, 2, 4, 4, 8)  # in pages
    pp_sizes: tuple[int, ...] = (1, 1, 2, 3, 4)
    depths: tuple[int, ...] = (0, 0, 1, 2)
    places: tuple[int, ...] = (8, 8, 4, 2, 1)
    rows: tuple[int, ...] = (16, 16, 6, 3, 1)
    clips: tuple[int, ...] = (4096, 3)
    ratios: tuple[Fraction, ...] = (Fraction(7, 10), Fraction(1))
    policies: tuple[str, ...] = ("fcfs", "lpm")
    most: tuple[int | None, ...] = (None, None, 1, 2)  # prefill_max_requests
    radix_cache: tuple[bool, ...] = (True, True, False)
    reserve: tuple[bool, ...] = (False, False, False, True)  # reserve_all_slots
    slacks: tuple[int, ...] = (0, 3, 10, 40, 400)


ORDINARY, TIGHT, CROWD = "ordinary", "tight", "crowd"
LARGE, FULL, PINCHED, SHARED, IGNORING = "large", "full", "pinched", "shared", "ignoring"

DECODING = Mix(5, (0, 3), (6, 17, 40), (0, 0, 1, 4))
LONG = Mix(120, (0, 33, 64, 97), (1, 7, 20), (0, 1, 3, 12))

KINDS = {
    ORDINARY: Kind(),
    TIGHT: Kind(slacks=(0, 1, 2, 5)),  # the pool holds little more than the largest request alone
    CROWD: Kind(  # many decode in few slots
        mixes=MIXES[1:3],
        num_requests=(5, 12),
        pages=(1, 1, 2, 3),
        pp_sizes=(1, 2),
        depths=(0,),
        places=(8,),
        ratios=(Fraction(1, 7),),
        slacks=(0, 2, 10, 20),
    ),
    LARGE: Kind(  # many requests, long prompts, all of the cache and of the slots in use
        mixes=(LONG, LONG, DECODING, *MIXES[3:]),
        num_requests=(8, 24),
        chunks=(None, 8, 16, 32, 40),
        ignoring=(3, 8, 9, 10, 11, 12, 13, 14, 15),
        rows=(16, 24, 6),
        slacks=(2, 8, 20, 60, 150),
    ),
    FULL: Kind(  # slots that hold many and a pool that holds few: retractions, closed slots, used up chunk budgets
        mixes=(DECODING, DECODING, MIXES[2]),
        num_requests=(10, 24),
        ignoring=(3, 8, 9, 10, 11),
        pages=(1, 2, 1, 4),
        pp_sizes=(1, 2, 3),
        depths=(0, 1),
        places=(8, 12, 4),
        rows=(24, 16),
        ratios=(Fraction(1, 7), Fraction(7, 10), Fraction(3, 10)),
        slacks=(0, 4, 12, 30),
    ),
    PINCHED: Kind(  # chunks that run in slots which decode, while the other slots take what was thought to be free
        mixes=(Mix(40, (0, 3), (30, 2, 20, 1), (0, 0, 1, 2), 12), Mix(20, (0,), (14, 4, 40), (0, 0, 0, 1), 10)),
        num_requests=(4, 12),
        pages=(1, 1, 1, 2),
        chunks=(8, 5, 16, 10),
        pp_sizes=(2, 2, 1, 3),
        depths=(0, 0, 1),
        places=(8, 8, 4),
        rows=(16,),
        clips=(4096,),
        ratios=(Fraction(7, 10), Fraction(9, 10), Fraction(3, 10)),
        reserve=(False,),
        slacks=(8, 6, 3, 11, 20),
    ),
    SHARED: Kind(  # whole prompts in the cache, and many that wait for the few places: longest prefix match
        mixes=(Mix(36, (33, 33, 36, 20), (1, 4, 12), (0, 0, 1, 6)), Mix(9, (3, 8, 9, 9), (1, 4), (0, 0, 1, 4))),
        num_requests=(6, 16),
        policies=("lpm", "lpm", "lpm", "fcfs"),
        pages=(1, 1, 2, 4),
        chunks=(None, 8, 40),
        places=(2, 1, 4),
        rows=(4, 2, 8),
        radix_cache=(True,),
        slacks=(1, 6, 15, 40),
    ),
    IGNORING: Kind(  # rule 8: ends that are known, without a cache
        mixes=(DECODING, Mix(20, (0,), (1, 9, 30), (0, 0, 0, 2))),
        num_requests=(4, 16),
        ignoring=(0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12),
        pages=(1, 1, 2, 4),
        chunks=(None, None, 6, 16, 30),
        places=(8, 16),
        rows=(24,),
        most=(None, None, None, 2),
        radix_cache=(False,),
        reserve=(False, False, False, False, True),
        slacks=(0, 6, 20, 60),
    ),
}


class Dice(Protocol):
    """Who decides: hypothesis, which shrinks what fails, or a seeded generator, whose examples differ more."""

    def choice(self, values: Sequence[T], /) -> T: ...

    def randint(self, low: int, high: int, /) -> int: ...


@dataclass(frozen=True)
class Drawn:
    """The dice of hypothesis."""

    draw: st.DrawFn

    def choice(self, values: Sequence[T], /) -> T:
        return self.draw(st.sampled_from(values))

    def randint(self, low: int, high: int, /) -> int:
        return self.draw(st.integers(low, high))


def arrivals(dice: Dice, kind: Kind) -> tuple[Arrival, ...]:
    mix = dice.choice(kind.mixes)
    out: list[Arrival] = []
    iteration = 0
    for number in range(dice.randint(*kind.num_requests)):
        iteration += dice.choice(mix.gaps)
        shared = dice.choice(mix.shared)
        alone = dice.randint(max(mix.shortest - shared, 0), mix.longest - shared)
        prompt = family(dice.randint(0, 3), shared) + [5 + number] * alone
        bits = dice.randint(0, 15)
        spec = request(
            f"R{number}",
            prompt or [4],
            dice.choice(mix.outputs),
            stops=bits in (1, 2, 3),
            ignore_eos=bits in kind.ignoring,
            return_logprob=bits == 4,
        )
        out.append(Arrival(iteration, spec))
    return tuple(out)


# Limits against starvation (fairness.py). The naive scheduler does not know them: drawn where only the outcome of
# a run is looked at.
TURNS = st.fixed_dictionaries(
    {"max_consecutive_prefills": st.sampled_from([0, 1, 3]), "max_consecutive_chunks": st.sampled_from([0, 1, 2])}
)


@st.composite
def experiments(draw: st.DrawFn, name: str = ORDINARY) -> Experiment:
    """Experiments of a kind (``KINDS``), drawn by hypothesis."""
    return one_experiment(Drawn(draw), name)


def seeded_experiment(name: str, seed: int) -> Experiment:
    """The same experiment for the same seed, in any process."""
    return one_experiment(Random(f"{name}/{seed}"), name)


def one_experiment(dice: Dice, name: str) -> Experiment:
    kind = KINDS[name]
    page = dice.choice(kind.pages)
    chunk = dice.choice(kind.chunks)
    table: tuple[tuple[int, int], ...] = ()
    if chunk is not None:
        chunk = chunk * page
        table = dice.choice([(), (), ((0, 2 * page), (3 * page, page)), ((page, 3 * page), (4 * page, 0))])
    requests = arrivals(dice, kind)
    config = RankConfig(
        0,
        dice.choice(kind.pp_sizes),
        pp_async_batch_depth=dice.choice(kind.depths),
        schedule_policy=dice.choice(kind.policies),
        chunked_prefill_size=chunk,
        max_prefill_tokens=dice.choice([16384, 24, 7]),
        prefill_max_requests=dice.choice(kind.most),
        enable_mixed_chunk=dice.choice([False, True]),
        prefill_decode_interval=dice.choice([0, 0, 1, 3]),
        max_running_requests=dice.choice(kind.rows),
        max_micro_batch_size=dice.choice(kind.places),
        page_size=page,
        enable_radix_cache=dice.choice(kind.radix_cache),
        context_length=dice.choice([131072, 131072, 131072, 40]),
        clip_max_new_tokens=dice.choice(kind.clips),
        reserve_all_slots=dice.choice(kind.reserve),
        skip_pure_chunk_output=dice.choice([False, True]),
        new_token_ratio_decay_steps=dice.choice([600, 3]),
        retract_decode_steps=dice.choice([20, 0]),
        init_new_token_ratio=dice.choice(kind.ratios),
        min_new_token_ratio=Fraction(98, 1000),
        chunk_table=table,
    )
    num_aborts = dice.choice([0, 0, 0, 0, 1, 5])
    aborts = [(dice.randint(0, 60), dice.randint(0, len(requests))) for _ in range(num_aborts)]
    needs = [len(a.request.prompt) // 4 + a.request.max_new_tokens for a in requests]
    slack = dice.choice(kind.slacks)
    return Experiment(
        config,
        max(needs) + page * (2 + slack),
        requests,
        tuple((at, AbortReq(f"R{n}", abort_all=n == len(requests))) for at, n in sorted(aborts)),
    )
