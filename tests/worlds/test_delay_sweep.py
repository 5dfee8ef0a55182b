"""Every rank sees a local fact later than it happened, by 0 to 10 iterations, each rank on its own: for every vote.

Rank k sees the fact from its iteration a_k on. With two passes round the ring a good set is an intersection, so the
vote of iteration max(a) is the first to name the request, and all ranks apply it in iteration max(a) + P - 1; a bad
set is a union, so min(a) counts (protocol.md 6.3, 2.3). Nothing else may depend on the delays: the ranks stay in step
(checked in every run), nobody is left over, one reply.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

from ppsim.core.consensus import Rids, unite
from ppsim.core.disagg.ballots import RETRACT, view_retract
from ppsim.core.effects import Effects
from ppsim.core.loop import Loop
from ppsim.core.messages import Conclusion
from ppsim.core.rank import Plan, Rank
from ppsim.core.votes import Voting
from ppsim.plugin.plans import behind, instead
from ppsim.world import SimulationResult
from tests.worlds.making import UNIT, changed, launches, run, situations
from tests.worlds.pd_making import ends

DELAYS = range(11)

BASE = {
    **UNIT,
    "cost.unit_ms": 0.01,
    "host.schedule_us": 10.0,
    "disaggregation.num_reserved_decode_tokens": 4,
    "workload.requests": [{"rid": "R1", "prompt": 4, "output": 2, "ignore_eos": True}],
}

# vote -> (role, bootstrap, the local fact)
VOTES = {
    "bootstrap": ("prefill", "vote", "bootstrap"),
    "release": ("prefill", "store", "transfer"),
    "prealloc": ("decode", "store", "handshake"),
    "transferred": ("decode", "store", "receive"),
}


def observed(vote: str, at: tuple[int, ...], *, failed: bool = False, **changes: Any) -> SimulationResult:
    """A run in which rank k sees the fact of this vote in iteration at[k]."""
    role, bootstrap, what = VOTES[vote]
    result = run(
        {
            "cluster.pp_size": len(at),
            "disaggregation.role": role,
            "disaggregation.bootstrap": bootstrap,
            "observations.listed": [{"what": what, "rid": "R1", "at": list(at), "failed": failed}],
            **changes,
        },
        BASE,
    )
    assert result.verdict.kind == "pass", (vote, at, result.verdict.message)
    assert [len(replies) for replies in ends(result.recording).values()] == [1]
    return result


@cache
def first_look(vote: str, pp_size: int) -> int:
    """The first iteration in which the fact can count: found with a fact that is true from the start."""
    return applied(vote, observed(vote, (0,) * pp_size)) - pp_size + 1


def applied(vote: str, result: SimulationResult) -> int:
    """The iteration in which the first rank applied the conclusion."""
    mark = {"bootstrap": "admitted", "prealloc": "allocated"}.get(vote)
    if mark is None:  # the first reply leaves with the conclusion
        return result.recording.replies[0].iteration
    iteration = next(m.iteration for m in result.recording.marks if m.what == mark)
    return iteration - (vote == "bootstrap")  # that mark names the iteration that may schedule


@pytest.mark.parametrize("vote", VOTES)
def test_at_pp_2_every_pair_of_delays_is_agreed_when_the_later_rank_has_seen_it(vote: str) -> None:
    begin = first_look(vote, 2)
    for pair in product(DELAYS, DELAYS):
        at = tuple(begin + delay for delay in pair)
        assert applied(vote, observed(vote, at)) == max(at) + 1, at


@pytest.mark.parametrize("vote", VOTES)
def test_at_pp_4_each_rank_alone_can_delay_everybody(vote: str) -> None:
    begin = first_look(vote, 4)
    for rank, delay in product(range(4), DELAYS):
        at = tuple(begin + (delay if k == rank else 0) for k in range(4))
        assert applied(vote, observed(vote, at)) == begin + delay + 3, at


MIXED = [(10, 0, 3, 7), (0, 10, 0, 10), (1, 2, 3, 4), (4, 3, 2, 1), (9, 9, 0, 9), (5, 10, 5, 0)]


@pytest.mark.parametrize("vote", VOTES)
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_mixed_delays_with_all_invariants(vote: str, depth: int) -> None:
    shape: dict[str, Any] = {"cluster.pp_async_batch_depth": depth, "run.invariants": True}
    base = applied(vote, observed(vote, (0,) * 4, **shape)) - 3
    for delays in MIXED:
        at = tuple(base + delay for delay in delays)
        assert applied(vote, observed(vote, at, **shape)) == max(at) + 3, at


@pytest.mark.parametrize(("vote", "counts"), [("bootstrap", min), ("prealloc", min), ("release", max)])
def test_a_failure_counts_when_anybody_has_seen_it_but_kv_is_held_until_everybody_has(vote: str, counts: Any) -> None:
    """bad by union; and a terminal state is one only where it is terminal on all ranks."""
    for delays in [(0, 0), (0, 5), (5, 0), (3, 10), (10, 3)]:
        at = tuple(first_look(vote, 2) + delay for delay in delays)
        result = observed(vote, at, failed=True)
        assert ends(result.recording)["R1"][0][0] == "aborted"
        assert result.recording.replies[0].iteration == counts(at) + 1, at


# --- retract: the fourth vote. Its view is replicated state, so the delay is put into the view ----------------------


def retracting(at: tuple[int, ...]) -> tuple[SimulationResult, dict[int, int]]:
    """R2 is put out of memory; rank k names it from its iteration at[k] on. When each rank let it resume."""
    resumed: dict[int, int] = {}

    class Late(Loop):
        def plan(self) -> Plan:
            late = self.voting.first(replace(RETRACT, view=self.view))
            return behind(instead(super().plan(), "first_pass_retract", late), "apply_retract", self.note)

        def view(self, rank: Rank) -> Effects[tuple[Rids, Rids]]:
            good, bad = yield from view_retract(rank)
            return (good if rank.iteration >= at[self.config.pp_rank] else ()), bad

        def note(self, rank: Rank) -> Effects[None]:
            if situations(rank)["resumed"]:
                resumed.setdefault(self.config.pp_rank, rank.iteration)
            yield from ()

    # The double hides from the vote who waits, which is what INV-47 and INV-79 look for; what is asked here is when.
    result = run({"cluster.pp_size": len(at), "run.invariants": False}, TIGHT, change=changed(Late))
    assert result.verdict.kind == "pass", (at, result.verdict.message)
    assert [len(replies) for replies in ends(result.recording).values()] == [1, 1]
    assert result.recording.decisions[0] == result.recording.decisions[-1]
    return result, resumed


TIGHT = {
    **BASE,
    "disaggregation.role": "decode",
    "disaggregation.num_reserved_decode_tokens": 2,
    "scheduler.pp_max_micro_batch_size": 4,
    "scheduler.max_total_tokens": 28,
    "scheduler.clip_max_new_tokens": 4,
    "workload.requests": [
        {"rid": "R1", "prompt": 8, "output": 9, "ignore_eos": True},
        {"rid": "R2", "prompt": 8, "output": 12, "ignore_eos": True},
    ],
    "run.invariants": True,
}
"""Two requests share a slot, and outgrow the pool shortly before R1 ends and leaves all of it to R2."""


@pytest.mark.parametrize("pp_size", [2, 4])
def test_retract_is_agreed_in_the_first_visit_of_its_slot_in_which_all_ranks_name_it(pp_size: int) -> None:
    """A retracted request is bound to one slot: only every L-th vote is about it (invariant 53)."""
    result, resumed = retracting((0,) * pp_size)
    assert sum(len(d.retracted) for d in result.recording.decisions[0]) == 1
    begin = resumed[0] - pp_size + 1
    pairs = product(DELAYS, DELAYS) if pp_size == 2 else [(d, 0) for d in DELAYS] + [(0, d) for d in DELAYS] + MIXED
    for delays in pairs:
        at = tuple(begin + delay for delay in (*delays, 0, 0)[:pp_size])
        agreed = next(m for m in range(max(at), max(at) + pp_size) if (m - begin) % pp_size == 0)
        assert set(retracting(at)[1].items()) == {(k, agreed + pp_size - 1) for k in range(pp_size)}, delays


# --- the store: the first rank looks at what has been replicated to it ---------------------------------------------


@pytest.mark.parametrize("lag_us", [0.0, 35.0])
def test_with_the_store_every_pair_of_delays_is_admitted_by_the_first_rank_alone(lag_us: float) -> None:
    """In its first visit from which its own fact is true and rank 1's has been replicated; no round trip is added."""
    store = {"disaggregation.role": "prefill", "disaggregation.store_lag_us": lag_us, "cost.unit_ms": 0.0}
    for own, other in product(DELAYS, DELAYS):
        listed = [{"what": "bootstrap", "rid": "R1", "at": [2 + own, 2 + other]}]
        result = run({**store, "observations.listed": listed}, BASE)
        assert result.verdict.kind == "pass", result.verdict.message
        (launched,) = launches(result.recording)["R1"]
        first, second = (simulated.iteration_starts for simulated in result.setting.ranks)
        seen_ns = second[2 + other] + round(lag_us * 1000)
        assert launched == next(i for i, start in enumerate(first) if i >= 2 + own and start >= seen_ns), (own, other)


@pytest.mark.parametrize("pp_size", [4, 8])
def test_b85_pages_are_released_in_one_iteration_not_before_the_last_rank_has_seen_the_end(pp_size: int) -> None:
    """Transfer done in [5, 6, 6, 7, 9, 6, 5, 8], after the prompt is computed; free pages are compared in every run."""
    begin = first_look("release", pp_size)
    at = tuple(begin + n for n in (5, 6, 6, 7, 9, 6, 5, 8)[:pp_size])
    result = observed("release", at, **{"run.invariants": True})
    for rank in range(pp_size):
        free = {h.iteration: h.free_tokens + h.evictable_tokens for h in result.recording.harvests[rank]}
        ended = next(h.iteration for h in result.recording.harvests[rank] if "R1" in h.finished)
        assert ended == max(at) + pp_size - 1
        assert free[ended] == 4096 > free[ended - 1]


# --- the sweep can fail ----------------------------------------------------------------------------------------------


class AnybodyIsEnough(Voting):
    """Planted: the good sets are united."""

    def reduce_good(self, upstream: Rids, local: Rids) -> Rids:
        return unite(upstream, local)


class TellsLess(Voting):
    """Planted: what a rank passes on of a conclusion names nobody."""

    def forwarded(self, conclusion: Conclusion) -> Conclusion:
        return replace(conclusion, good=())


@pytest.mark.parametrize("voting", [AnybodyIsEnough, TellsLess])
def test_the_sweep_finds_a_vote_that_counts_wrongly(voting: type[Voting]) -> None:
    begin = first_look("release", 4)
    kinds = set()
    for delays in MIXED:
        listed = [{"what": "transfer", "rid": "R1", "at": [begin + d for d in delays]}]
        changes = {"cluster.pp_size": 4, "disaggregation.role": "prefill", "observations.listed": listed}
        verdict = run({**changes, "run.invariants": True}, BASE, change=changed(voting)).verdict
        kinds.add(verdict.kind)
    assert "fail" in kinds
