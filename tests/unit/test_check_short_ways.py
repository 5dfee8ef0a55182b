"""The short ways of the rules: where one says that all is well, the long way finds nothing.

The long ways are the oracles: ``misplaced`` looks at each request and all its places, ``wrong_holders`` counts page by
page, ``causes``, ``limits`` and ``state_parts`` name every value that they show.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.check import audit, one_place, tier_rules
from ppsim.check.one_place import counted, misplaced
from ppsim.check.shown import Values, behind_decision, behind_harvest, behind_inputs
from ppsim.check.tier_rules import TierRules, held_as_named, wrong_holders
from ppsim.check.together import Shown, Together
from ppsim.core.errors import InvariantViolation
from ppsim.core.memory.hicache import HiRadixCache
from ppsim.core.memory.pool import Pool
from ppsim.core.messages import NewRequest
from ppsim.core.policy import Policy
from ppsim.core.schedule.batch import ForwardBatch, Mode, Piece
from ppsim.core.schedule.request import Request, State
from ppsim.core.schedule.scheduler import Scheduler, causes, limits, state_parts
from ppsim.core.schedule.slots import LaunchedBatch, Slot
from ppsim.core.tokens import pack
from ppsim.fuzz.experiment import run_experiment
from ppsim.fuzz.generate import generated
from ppsim.fuzz.profiles import profile_named
from ppsim.fuzz.round import Order, run_round
from ppsim.plugin import all_bugs, load

# --- one place -------------------------------------------------------------------------------------------------------

PLACES = ("waits", "queued", "is cut", "runs 0", "runs 1", "joins 0", "row 0", "middle 0", "row 1", "middle 1")
Put = Sequence[tuple[Request, Sequence[str]]]


def standing(put: Put, live: Sequence[Request]) -> Any:
    """A scheduler with two slots in which requests stand in these places."""

    def those(place: str) -> list[Request]:
        return [request for request, places in put if place in places]

    slots = []
    for index in (0, 1):
        rows = [(q, True) for q in those(f"row {index}")] + [(q, False) for q in those(f"middle {index}")]
        pieces = tuple([Piece(q.rid, 0, 1, is_last, False, q) for q, is_last in rows])
        forward = ForwardBatch(index, index, Mode.EXTEND, pieces, len(pieces), False, False)
        launched = LaunchedBatch(forward, tuple([q for q, _ in rows]), None) if rows else None
        joining = those(f"joins {index}")
        before = ForwardBatch(index, index, Mode.EXTEND, (), 0, False, False)
        last = LaunchedBatch(before, tuple(joining), None) if joining else None
        slots.append(Slot(index, those(f"runs {index}"), False, launched, last, launched is not None))
    return SimpleNamespace(
        waiting=those("waits"),
        grammar_queue=[],
        role=SimpleNamespace(queues=lambda: {"bootstrap": those("queued")}),
        chunked=next(iter(those("is cut")), None),
        slots=SimpleNamespace(slots=slots),
        requests={q.rid: q for q in live},
    )


def request_in(rid: str, state: State, reason: str = "") -> Request:
    return Request(NewRequest(rid, pack([1, 2]), 2), state, to_abort=reason)


def every_standing() -> Iterator[tuple[Any, str]]:
    """One request in up to four places of all kinds, in each state, beside another one in its place or in none."""
    several = [places for num in range(5) for places in combinations(PLACES, num)]
    states = (State.PREFILL, State.DECODE, State.FINISHED)
    for places, state, reason, is_live in product(several, states, ("", "abort"), (True, False)):
        for beside in (None, (), ("waits",), ("row 0",), ("runs 1", "row 1")):  # None: there is no other one
            one, other = request_in("a", state, reason), request_in("b", State.DECODE)
            put = [(one, places)] if beside is None else [(one, places), (other, beside)]
            live = [one] * is_live + [other] * (beside is not None)
            yield standing(put, live), f"{places} {state} {reason} {is_live} {beside}"


def test_who_is_counted_in_one_place_is_found_in_one() -> None:
    right = 0
    for scheduler, text in every_standing():
        found = misplaced(scheduler)
        if counted(scheduler):
            right += 1
            assert found is None, text
    assert right > 100


@pytest.mark.parametrize("place", [("waits",), ("queued",), ("is cut",), ("runs 0",), ("runs 1", "row 1"), ("row 0",)])
def test_counting_is_enough_for_every_ordinary_place(place: tuple[str, ...]) -> None:
    one, other = request_in("a", State.DECODE), request_in("b", State.DECODE)
    assert counted(standing([(one, place), (other, ("waits",))], [one, other]))


def test_counting_is_enough_for_a_prompt_with_chunks_in_every_slot() -> None:
    one = request_in("a", State.PREFILL)
    assert counted(standing([(one, ("is cut", "middle 0", "middle 1"))], [one]))
    assert counted(standing([(one, ("middle 0", "row 1"))], [one]))
    assert not counted(standing([(one, ("middle 0", "middle 1"))], [one]))


def test_counting_is_enough_in_right_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would cost time and save none."""
    looked: Counter[bool] = Counter()

    def noted(scheduler: Scheduler) -> bool:
        looked[counted(scheduler)] += 1
        return counted(scheduler)

    monkeypatch.setattr(one_place, "counted", noted)
    for index in range(6):
        assert run_experiment(generated(profile_named("all"), 3, 0, index)).signature is None
    assert looked[True] > 100 * looked[False]


# --- what ranks show -------------------------------------------------------------------------------------------------


def named(parts: Sequence[tuple[str, str, object]]) -> Values:
    return tuple([value for _, _, value in parts])


def test_bare_values_are_those_that_the_scheduler_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every visit of generated runs of all roles, in which something is aborted, fails, and moves on."""
    seen: Counter[int] = Counter()

    def inputs(scheduler: Scheduler, items: Any, iteration: int) -> Values:
        values = behind_inputs(scheduler, items, iteration)
        assert values[0] == tuple([str(item) for item in items])
        assert values[1:] == named((*causes(scheduler), *limits(scheduler, iteration)))
        return values

    def decision(scheduler: Scheduler, iteration: int) -> Values:
        values = behind_decision(scheduler, iteration)
        assert values == named(state_parts(scheduler, iteration))
        seen.update([place for place, value in enumerate(values) if value])
        return values

    def harvest(scheduler: Scheduler) -> Values:
        values = behind_harvest(scheduler)
        assert values == named(causes(scheduler))
        seen.update([100 + place for place, value in enumerate(values) if value])
        return values

    monkeypatch.setattr(audit, "behind_inputs", inputs)
    monkeypatch.setattr(audit, "behind_decision", decision)
    monkeypatch.setattr(audit, "behind_harvest", harvest)
    for profile, num in (("all", 12), ("retraction", 6), ("grammar", 4)):
        for index in range(num):
            outcome = run_experiment(generated(profile_named(profile), 1, 0, index))
            assert outcome.signature is None, outcome.verdict.message
    assert seen.keys() >= {*range(13), *range(100, 106)}, seen  # each value was something at least once


VALUES = (("INV-14", "waiting queue", ("a",)), ("INV-17", "new_token_ratio", 1))


def test_the_short_way_of_comparing_takes_what_is_alike_and_nothing_else() -> None:
    together = Together(3, check=True, audited=True)
    assert together.shows_the_same("parts", 4, (("a",), 1))
    assert not together.shows_the_same("parts", 4, (("a",), 2))
    assert together.shows_the_same("parts", 4, (("a",), 1))
    assert together.shows_the_same("parts", 5, (("b",), 2))  # another iteration
    assert together.firsts == {("parts", 4): ((("a",), 1), 2), ("parts", 5): ((("b",), 2), 1)}
    with pytest.raises(InvariantViolation) as caught:
        together.take(Shown(2, 4, 1, "parts", 4, (VALUES[0], ("INV-17", "new_token_ratio", 2)), "schedule"))
    assert (caught.value.invariant, caught.value.rank, caught.value.phase) == ("INV-17", 2, "schedule")
    assert caught.value.detail == "new_token_ratio: this rank has 2, the first had 1"
    assert ("parts", 4) not in together.firsts  # all three were there


def test_both_ways_of_showing_go_together() -> None:
    together = Together(2, check=True, audited=True)
    together.take(Shown(0, 4, 1, "parts", 4, VALUES))
    assert together.shows_the_same("parts", 4, (("a",), 1))
    assert not together.firsts


def test_a_difference_between_ranks_is_told_with_its_phase() -> None:
    """Records have none while the ranks are at hand: it is where the loop of the rank stands."""
    bug = all_bugs()["queue_limit_on_later_ranks"]
    change, profile = load((bug.name,), None, ()).change, profile_named(bug.profile)
    verdicts = [run_experiment(generated(profile, 0, 0, index), change).verdict for index in range(6)]
    broken = [verdict for verdict in verdicts if verdict.kind == "fail"]
    assert broken[0].invariant == "INV-14"
    assert {verdict.phase for verdict in broken} == {"schedule"}


# --- host pages ------------------------------------------------------------------------------------------------------


def filled_tiers() -> HiRadixCache:
    """Two prompts on the device and in host memory, one of them still being written."""
    pool = Pool(40, 1)
    tiers = HiRadixCache(pool, Policy(), 20, "write_through")
    for prompt in ([1, 2, 3], [4, 5]):
        tiers.take_acks(len(tiers.writes), 0)
        pages = pool.alloc(len(prompt))
        tiers.insert(pack(prompt), pages)
        pool.release(pages)
    assert len(nodes_with_pages(tiers)) == 2
    assert len(tiers.writes) == 1
    return tiers


def nodes_with_pages(tiers: HiRadixCache) -> list[Any]:
    stack, found = [tiers.root], []
    while stack:
        node = stack.pop()
        stack += node.children.values()
        if node.host_pages:
            found.append(node)
    return found


def one_holder_more(tiers: HiRadixCache) -> None:
    tiers.host.share(nodes_with_pages(tiers)[0].host_pages[:1])


def one_holder_less(tiers: HiRadixCache) -> None:
    tiers.host.release(nodes_with_pages(tiers)[0].host_pages[:1])


def held_by_nobody(tiers: HiRadixCache) -> None:
    nodes_with_pages(tiers)[0].host_pages = []


def in_two_nodes(tiers: HiRadixCache) -> None:
    one, other = nodes_with_pages(tiers)[:2]
    other.host_pages = one.host_pages


FAULTS = (one_holder_more, one_holder_less, held_by_nobody, in_two_nodes)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.__name__)
def test_what_is_wrong_with_host_pages_is_not_passed_over(
    fault: Callable[[HiRadixCache], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiers = filled_tiers()
    assert held_as_named(tiers)
    fault(tiers)
    assert not held_as_named(tiers)
    short = wrong_holders(tiers)
    monkeypatch.setattr(tier_rules, "held_as_named", lambda _: False)
    assert short == wrong_holders(tiers) != ""


def test_a_silent_change_of_host_pages_is_found_at_the_next_audit() -> None:
    """Nothing in clock, number of nodes, pool and queues shows it: the pages themselves are counted each time."""
    tiers = filled_tiers()
    rules = TierRules()
    observers = SimpleNamespace(before=lambda *_: None, after=lambda *_: None)
    config, scheduler = SimpleNamespace(hicache_write_policy="write_through"), SimpleNamespace(kv=SimpleNamespace())
    scheduler.kv.tiers = tiers
    rank = SimpleNamespace(config=config, started=scheduler, iteration=9, slot=0)
    seat: Any = SimpleNamespace(rank=rank, rank_id=0, observers=observers)
    rules.watch(seat)
    rules.audit(seat)
    one_holder_more(tiers)
    with pytest.raises(InvariantViolation, match="is kept too long"):
        rules.audit(seat)


# --- a campaign ------------------------------------------------------------------------------------------------------


def test_a_round_leaves_the_garbage_collector_as_it_was() -> None:
    before = gc.get_threshold()
    assert run_round(Order("plain", 1, 2), 0, 2).num_examples == 2
    assert gc.get_threshold() == before
