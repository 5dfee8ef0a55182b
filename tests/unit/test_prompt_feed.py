"""The tuner's feed puts the very pieces into each visit that the scheduler of ``core`` chooses, no world in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ppsim.core.agreed import agree
from ppsim.core.config import RankConfig
from ppsim.core.messages import NewRequest
from ppsim.core.parts import build_rank
from ppsim.core.schedule.slots import LaunchedBatch
from ppsim.core.tokens import pack
from ppsim.cost.stage import QuadraticCost
from ppsim.plan.array_cost import array_cost
from ppsim.plan.chunk_rule import ChunkRule
from ppsim.plan.prompt_feed import Limits, PromptFeed

Visit = tuple[int, int, int]  # new tokens, pieces, prompts that end


@dataclass(frozen=True)
class Case:
    """Prompts and the visit in which each arrives; several pools side by side."""

    prompts: tuple[int, ...]
    arrivals: tuple[int, ...]
    pools: tuple[int, ...]
    page_size: int
    chunk: int
    num_stages: int
    depth: int
    max_prefill_tokens: int
    max_rows: int
    in_slot: int
    prefill_max: int | None
    reopen: bool
    counts_twice: bool
    radix_cache: bool

    @property
    def num_visits(self) -> int:
        return self.arrivals[-1] + 8 + (sum(self.prompts) // self.chunk + 4 * len(self.prompts)) * 8


@st.composite
def cases(draw: st.DrawFn) -> Case:
    page_size = draw(st.sampled_from([1, 1, 16, 64]))
    chunk = draw(st.sampled_from([64, 256, 320]))
    prompts = draw(st.lists(st.integers(1, 60) | st.integers(1, 700), min_size=1, max_size=8))
    gaps = draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 9]), min_size=len(prompts), max_size=len(prompts)))
    least = -(-(max(*prompts, chunk) + 3 * page_size) // page_size) * page_size
    rooms = draw(st.lists(st.sampled_from([0, 1, 2, 7, 400, 5000]), min_size=1, max_size=3))
    return Case(
        prompts=tuple(prompts),
        arrivals=tuple(sum(gaps[: i + 1]) for i in range(len(prompts))),
        pools=tuple(least + room // page_size * page_size for room in rooms),
        page_size=page_size,
        chunk=chunk,
        num_stages=draw(st.integers(1, 4)),
        depth=draw(st.integers(0, 2)),
        max_prefill_tokens=draw(st.sampled_from([100, 256, 16384])),
        max_rows=draw(st.sampled_from([1, 2, 3, 64])),
        in_slot=draw(st.sampled_from([1, 2, 64])),
        prefill_max=draw(st.sampled_from([None, None, 1, 2])),
        reopen=draw(st.booleans()),
        counts_twice=draw(st.booleans()),
        radix_cache=draw(st.booleans()),
    )


def of_the_scheduler(case: Case, pool: int) -> list[Visit]:
    """What the scheduler of a first rank launches in each visit; outputs come back where the loop harvests them."""
    config = RankConfig(
        0,
        case.num_stages,
        pp_async_batch_depth=case.depth,
        chunked_prefill_size=case.chunk,
        max_prefill_tokens=case.max_prefill_tokens,
        prefill_max_requests=case.prefill_max,
        max_running_requests=case.max_rows,
        max_micro_batch_size=case.in_slot,
        page_size=case.page_size,
        enable_radix_cache=case.radix_cache,
        reopen_empty_slots=case.reopen,
        chunk_counts_as_row=case.counts_twice,
    )
    rank = build_rank(config)
    rank.start(agree(pool, "minimum over the stages"))
    scheduler, found = rank.scheduler, []
    for i in range(case.num_visits):
        scheduler.iteration = i
        scheduler.apply(request(n, case.prompts[n]) for n, at in enumerate(case.arrivals) if at == i)
        batch, _ = scheduler.schedule(i)
        found.append(counted(batch))
        due = scheduler.slots.to_harvest(i)
        harvested = due.launched if due.in_flight else None
        scheduler.absorb(i, None if harvested is None else (7,) * len(harvested.requests))
        replies = scheduler.journal.take_replies()
        assert all(reply.status == "finished" for reply in replies), replies
        scheduler.journal.flush()
    return found


def request(n: int, length: int) -> NewRequest:
    """Prompt ``n`` begins like no other one, so no prefix is shared."""
    return NewRequest(f"R{n}", pack([n + 1] * length), 1)


def counted(batch: LaunchedBatch | None) -> Visit:
    if batch is None:
        return 0, 0, 0
    pieces = batch.forward.pieces
    return sum(p.new_tokens for p in pieces), len(pieces), sum(p.is_last_chunk for p in pieces)


def of_the_feed(case: Case) -> list[list[Visit]]:
    """The same of the feed, all pools at once; its clock counts visits."""
    n, num_slots = len(case.pools), case.num_stages + case.depth
    pieces = min(case.in_slot, case.prefill_max or case.in_slot)
    limits = Limits(
        float(case.page_size),
        float(case.max_prefill_tokens),
        np.full(n, float(case.max_rows)),
        np.full(n, float(pieces)),
        np.array(case.pools, dtype=np.float64),
        case.reopen,
        case.counts_twice,
    )
    cost = array_cost([QuadraticCost((1.0 / case.num_stages,) * case.num_stages)]).take(np.zeros(n, dtype=np.int64))
    rule = ChunkRule.of([None] * n, [case.chunk] * n)
    feed = PromptFeed(cost, rule, limits, *(np.array(v, dtype=np.float64) for v in (case.prompts, case.arrivals)))
    launched: list[Any] = []
    found: list[list[Visit]] = [[] for _ in case.pools]
    for i in range(case.num_visits):
        batch = feed.next_batch(np.full(n, float(i)), i % num_slots)
        launched.append(batch)
        ends = np.broadcast_to(batch.num_ending, n)
        for visits, tokens, rows, ending in zip(found, np.broadcast_to(batch.tokens, n), batch.rows, ends):
            visits.append((int(tokens), int(rows), int(ending)))
        if i >= num_slots - 1 and launched[i - num_slots + 1].any_ends:
            feed.free(launched[i - num_slots + 1].ending_tokens, launched[i - num_slots + 1].num_ending)
    return found


SMALL_PIECES = Case(  # 10, 20 and 20 tokens in a batch of at most 100: two of them are two pages of 64 already
    prompts=(330, 20, 20),
    arrivals=(0, 0, 0),
    pools=(5000,),
    page_size=64,
    chunk=320,
    num_stages=2,
    depth=0,
    max_prefill_tokens=100,
    max_rows=64,
    in_slot=64,
    prefill_max=None,
    reopen=False,
    counts_twice=True,
    radix_cache=False,
)


@given(cases())
@example(SMALL_PIECES)
@settings(max_examples=150, deadline=None)
def test_every_visit_launches_what_the_scheduler_chooses(case: Case) -> None:
    for pool, visits in zip(case.pools, of_the_feed(case)):
        expected = of_the_scheduler(case, pool)
        assert visits == expected
        assert sum(visit[2] for visit in expected) == len(case.prompts), "every prompt came to its end"
