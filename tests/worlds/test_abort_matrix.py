"""An abort in every situation a request can be in, for every role, pp_size 2 and 4, depth 0, 1 and 2.

A first run without aborts tells when the first rank reads inputs, and in which situation each request is then. For each
situation one more run puts an abort there. It must find the request in that situation (the scheduler counts them), end
it with one reply, leave the others' tokens as they were, and leave the pools full (the verdict checks it).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ppsim.core.effects import Effects, Reply, reply
from ppsim.core.loop import Loop
from ppsim.core.messages import AbortReq
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.journal import AbortFound
from ppsim.core.schedule.request import Request, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.plugin.plans import before, behind
from ppsim.recording import Recording
from ppsim.world import SimulationResult
from ppsim.world.run_setting import Setting
from tests.worlds.making import UNIT, changed, launches, run, situations, tokens_of
from tests.worlds.pd_making import PAIR, at, ends

SHAPES = [(pp_size, depth) for pp_size in (2, 4) for depth in (0, 1, 2)]

Seen = dict[tuple[str, str], tuple[str, int]]
"""(role, situation) -> the request that is in it first, and the iteration."""
Found = list[tuple[str, str, int, str]]
"""Of each abort that found its request: role, request, iteration, situation."""


def situation(scheduler: Scheduler, request: Request, iteration: int) -> str:
    """As ``ppsim.fuzz.coverage`` counts it, and where the request is launched: in which visits before this one.

    The batch of the slot that is visited now was harvested one visit ago, so what is in flight is in other slots:
    "1 ago" is the slot before this one, "L-1 ago" the one behind it.
    """
    place = request.state.value
    if request is scheduler.chunked:
        place = "chunked"
    elif request.state is State.PREFILL:
        place = "last chunk"
    slots = scheduler.slots.slots
    launched = [s.launched for s in slots if s.in_flight and s.launched and request in s.launched.requests]
    assert len(launched) == request.num_inflight
    what = f"{place} {'in flight' if launched else 'at rest'}"
    if launched:
        what += " of " + ", ".join(str(n) for n in sorted(iteration - batch.iteration for batch in launched)) + " ago"
    elif request in scheduler.slots.current(iteration).running:
        what += " in this slot"
    return what + (", was put out" if request.num_retractions else "")


def as_noted(what: str) -> str:
    """The part of a situation that ``ppsim.fuzz.coverage`` counts."""
    words = what.removesuffix(", was put out").removesuffix(" in this slot")
    return words.partition(" of ")[0]


class Spy(Loop):
    """Looks at every live request right before inputs are applied, on the first rank, and at whom aborts will find."""

    seen: Seen = {}
    found: Found = []

    def plan(self) -> Plan:
        def look(rank: Rank) -> Effects[None]:
            yield from ()
            scheduler, role = rank.scheduler, rank.config.role
            aborted = [item.rid for item in rank.inputs if isinstance(item, AbortReq)]
            for request in scheduler.requests.values():
                what = situation(scheduler, request, rank.iteration)
                Spy.seen.setdefault((role, what), (request.rid, rank.iteration))
                if request.rid in aborted:
                    Spy.found.append((role, request.rid, rank.iteration, what))

        return super().plan() if self.config.pp_rank else before(super().plan(), "apply_inputs", look)


def spied(changes: dict[str, Any], base: dict[str, Any]) -> tuple[SimulationResult, Seen, Found]:
    Spy.seen, Spy.found = {}, []
    result = run(changes, base, change=changed(Spy))
    assert result.verdict.kind == "pass", result.verdict.message
    return result, Spy.seen, Spy.found


def scheduler_of(setting: Setting) -> Scheduler:
    return setting.ranks[0].rank.scheduler


# --- one role ------------------------------------------------------------------------------------------------------

TIGHT = {
    **UNIT,
    "scheduler.chunked_prefill_size": 16,
    "scheduler.max_total_tokens": 52,
    "scheduler.page_size": 2,
    "scheduler.pp_max_micro_batch_size": 6,
    "scheduler.max_running_requests": 6,
    "scheduler.disable_radix_cache": True,
    "scheduler.schedule_conservativeness": 0.1,
    "disaggregation.num_reserved_decode_tokens": 2,
    "observations.max_delay": 2,
    "run.invariants": True,
    "workload.requests": [
        {"rid": "A", "prompt": 8, "output": 11},
        {"rid": "B", "prompt": 8, "output": 9},
        {"rid": "C", "prompt": 7, "output": 7, "grammar": "json"},
        {"rid": "D", "prompt": 18, "output": 5, "at_iteration": 2},
    ],
}
"""Found by search: in every shape a decoding request is put out of memory and comes back, and all finish."""

EXPECTED = {
    "plain": [
        "grammar",
        "waiting",
        "chunked",
        "last chunk",
        "decode at rest in this slot",
        "waiting at rest, was put out",
    ],
    "prefill": ["grammar", "bootstrap", "waiting", "chunked", "last chunk", "inflight"],
    "decode": ["grammar", "prealloc", "transfer", "waiting", "decode at rest in this slot", "retracted"],
}
"""Situations that must occur, by the beginning of their name; "at rest in this slot": its batch was harvested last."""


def check_occurrence(role: str, seen: Seen, num_slots: int, parts: list[str]) -> None:
    """The situations above, and every other slot in which a request may be launched when its abort is read."""
    mine = [what for side, what in seen if side == role]
    for part in parts:
        assert any(what.startswith(part) for what in mine), f"{role}: {part} never occurs: {sorted(mine)}"
    launched = [what for what in mine if " in flight of " in what and what.startswith(LAUNCHED[role])]
    visits_ago = {n for what in launched for n in re.findall(r"\d+", what)}
    assert visits_ago == {str(n) for n in range(1, num_slots)}, f"{role}: {sorted(mine)}"


LAUNCHED = {"plain": ("decode",), "prefill": ("chunked", "last chunk"), "decode": ("decode",)}


def compiled(num_ranks: int) -> dict[str, Any]:
    """The grammar of C is ready in iteration 4 of every rank."""
    return {"observations.listed": [{"what": "grammar", "rid": "C", "at": [4] * num_ranks}]}


def shape_of(pp_size: int, depth: int, role: str) -> dict[str, Any]:
    return {
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": depth,
        "disaggregation.role": role,
        # With small chunks the prompts of a prefill server wait for each other.
        "scheduler.chunked_prefill_size": 4 if role == "prefill" else 16,
        **compiled(pp_size),
    }


def check_aborted(clean: SimulationResult, result: SimulationResult, rid: str, what: str) -> None:
    """One reply for everybody, the others untouched, the aborted one cut short."""
    assert result.verdict.kind == "pass", result.verdict.message
    check_replies(clean.recording, result.recording, rid)
    assert ends(result.recording)[rid][0][0] == "aborted"
    for simulated in result.setting.ranks:
        met = situations(simulated.rank)
        assert met[f"abort {what}"] == 1, met


NO_MEMORY = "out of KV memory"
"""Another order of events may leave a decoding request alone in its slot and without memory; that is said clearly."""


def check_replies(clean: Recording, recording: Recording, rid: str) -> None:
    before, after = tokens_of(clean), tokens_of(recording)
    replies = ends(recording)
    assert set(replies) == set(ends(clean))
    assert all(len(mine) == 1 for mine in replies.values())
    for other in replies:
        got = after[other]
        assert before[other][: len(got)] == got
        if other != rid:
            assert got == before[other] or replies[other][0][1].startswith(NO_MEMORY)


@pytest.mark.parametrize(("pp_size", "depth"), SHAPES)
@pytest.mark.parametrize("role", EXPECTED)
def test_an_abort_in_every_situation_of_a_role(role: str, pp_size: int, depth: int) -> None:
    shape = shape_of(pp_size, depth, role)
    clean, seen, _ = spied(shape, TIGHT)
    check_occurrence(role, seen, pp_size + depth, EXPECTED[role])
    for (_, what), (rid, iteration) in seen.items():
        abort = {"rid": rid, "at_iteration": iteration}
        result, _, found = spied({**shape, "workload.aborts": [abort]}, TIGHT)
        assert found == [(role, rid, iteration, what)]
        assert max(launches(result.recording).get(rid, [-1])) < iteration
        check_aborted(clean, result, rid, as_noted(what))


@pytest.mark.parametrize(("pp_size", "depth"), SHAPES)
@pytest.mark.parametrize("role", EXPECTED)
def test_abort_all_at_a_few_moments(role: str, pp_size: int, depth: int) -> None:
    """Everybody who is there ends, whatever it is doing; who comes later is served."""
    shape = shape_of(pp_size, depth, role)
    for iteration in (1, 3 * pp_size):
        result = run({**shape, "workload.aborts": [{"abort_all": True, "at_iteration": iteration}]}, TIGHT)
        assert result.verdict.kind == "pass", result.verdict.message
        replies = ends(result.recording)
        assert all(len(mine) == 1 for mine in replies.values())
        assert set(replies) == {"A", "B", "C", "D"}
        if iteration == 1:
            assert {rid: mine[0][0] for rid, mine in replies.items()} == {
                "A": "aborted",
                "B": "aborted",
                "C": "aborted",
                "D": "finished",
            }


@pytest.mark.parametrize(("pp_size", "depth"), SHAPES)
@pytest.mark.parametrize("role", EXPECTED)
@pytest.mark.parametrize("twice", [False, True])
def test_an_abort_of_an_unknown_a_finished_or_an_already_aborted_request_is_counted_and_changes_nothing(
    role: str, twice: bool, pp_size: int, depth: int
) -> None:
    aborts = [{"rid": "nobody", "at_iteration": 3}, {"rid": "A", "at_iteration": 400}]
    if twice:
        aborts += [{"rid": "A", "at_iteration": 2}, {"rid": "A", "at_iteration": 3}, {"rid": "A", "at_iteration": 60}]
    shape = shape_of(pp_size, depth, role)
    clean = run(shape, TIGHT)
    result = run({**shape, "workload.aborts": aborts}, TIGHT)
    assert result.verdict.kind == "pass", result.verdict.message
    assert all(len(mine) == 1 for mine in ends(result.recording).values())
    assert ends(result.recording)["A"][0][0] == ("aborted" if twice else "finished")
    if not twice:
        assert tokens_of(result.recording) == tokens_of(clean.recording)
    for simulated in result.setting.ranks:  # an abort that finds its request marked already changes nothing either
        met = situations(simulated.rank)
        assert simulated.rank.scheduler.num_ignored_aborts + met["abort twice"] == (4 if twice else 2)


@pytest.mark.parametrize("role", EXPECTED)
def test_an_abort_that_is_read_with_its_request_ends_it_before_anything_is_done(role: str) -> None:
    result = run({**shape_of(2, 0, role), "workload.aborts": [{"rid": "D", "at_iteration": 2}]}, TIGHT)
    assert result.verdict.kind == "pass", result.verdict.message
    assert ends(result.recording)["D"][0][0] == "aborted"
    assert not any(rid == "D" for d in result.recording.decisions[0] for rid, _, _ in d.pieces)


class EverybodyAnswers(Loop):
    """Planted: a later rank that finds an abort answers the client as well."""

    def plan(self) -> Plan:
        def answer(rank: Rank) -> Effects[None]:
            for found in rank.journal.of(AbortFound) if self.config.pp_rank else ():
                yield from reply(Reply(found.rid, "aborted", reason=found.reason))

        return behind(super().plan(), "apply_inputs", answer)


@pytest.mark.parametrize("role", EXPECTED)
def test_a_reply_of_a_later_rank_is_named(role: str) -> None:
    shape = {**shape_of(4, 0, role), "workload.aborts": [{"rid": "A", "at_iteration": 3}]}
    verdict = run(shape, TIGHT, change=changed(EverybodyAnswers)).verdict
    assert (verdict.kind, verdict.invariant, verdict.rid) == ("fail", "INV-61", "A")
    assert verdict.rank == 1
    assert "only the first rank has clients" in verdict.message


# --- two pipelines ---------------------------------------------------------------------------------------------------

TWO_SIDES = {
    **PAIR,
    "scheduler.chunked_prefill_size": 8,
    "scheduler.max_total_tokens": 256,
    "scheduler.page_size": 2,
    "scheduler.pp_max_micro_batch_size": 6,
    "scheduler.max_running_requests": 6,
    "disaggregation.num_reserved_decode_tokens": 2,
    "disaggregation.control_latency_us": 300.0,
    "disaggregation.kv_bandwidth_gb_per_s": 0.4,
    "disaggregation.kv_latency_us": 400.0,
    "host.schedule_us": 100.0,
    "observations.max_delay": 2,
    "run.invariants": True,
    "workload.requests": [
        at(0, 8, 17, "A"),
        at(0, 7, 8, "B"),
        at(0, 3, 8, "C", grammar="json"),
        at(1, 22, 2, "D"),
    ],
}
"""Found by search, like the pools of the decode side: a request is put out of memory in every shape."""

DECODE_POOL = dict.fromkeys(SHAPES, 54) | {(2, 1): 52, (2, 2): 56, (4, 1): 58}


@dataclass(frozen=True)
class Moment:
    """A visit of a side's first rank, and the request that is in a situation then."""

    side: str
    what: str
    rid: str
    iteration: int
    at_ms: float


def moments(clean: SimulationResult, seen: Seen) -> Iterator[Moment]:
    assert clean.setting.peer is not None
    for (side, what), (rid, iteration) in seen.items():
        setting = clean.setting.peer if side == "prefill" else clean.setting
        # The visit begins after the one before has been decided and has cost its host time; the abort comes between.
        starts = setting.ranks[0].iteration_starts
        yield Moment(side, what, rid, iteration, (starts[iteration - 1] + 1) / 1e6 if iteration else 0.0)


@pytest.mark.parametrize(("pp_size", "depth"), SHAPES)
def test_an_abort_on_either_of_two_sides_ends_the_request_on_both(pp_size: int, depth: int) -> None:
    decode_pp_size = 2 if (pp_size, depth) == (2, 1) else 1
    shape = {
        **compiled(pp_size + decode_pp_size),
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": depth,
        "disaggregation.decode_pp_size": decode_pp_size,
        "disaggregation.decode_max_total_tokens": DECODE_POOL[pp_size, depth],
        "disaggregation.decode_pp_async_batch_depth": depth,
        "disaggregation.bootstrap": "vote" if depth else "store",
    }
    clean, seen, _ = spied(shape, TWO_SIDES)
    check_occurrence("prefill", seen, pp_size + depth, EXPECTED["prefill"])
    check_occurrence("decode", seen, decode_pp_size + depth, EXPECTED["decode"])
    for moment in moments(clean, seen):
        abort = {"rid": moment.rid, "at_ms": moment.at_ms, "side": moment.side}
        result, _, found = spied({**shape, "workload.aborts": [abort]}, TWO_SIDES)
        assert found == [(moment.side, moment.rid, moment.iteration, moment.what)]
        check_pair(clean, result, moment)


def check_pair(clean: SimulationResult, result: SimulationResult, moment: Moment) -> None:
    assert result.verdict.kind == "pass", (moment, result.verdict.message)
    prefill, decode = result.setting.peer, result.setting
    assert prefill is not None
    here = prefill if moment.side == "prefill" else decode
    check_own_side(here, moment)
    for setting in (prefill, decode):
        replies = ends(setting.recording)
        assert set(replies) == {"A", "B", "C", "D"}
        assert all(len(mine) == 1 for mine in replies.values())
    check_replies(clean.recording, decode.recording, moment.rid)
    if moment.side == "decode" or "inflight" not in moment.what:  # then all its KV may have left already
        assert ends(decode.recording)[moment.rid][0][0] == "aborted"


def check_own_side(here: Setting, moment: Moment) -> None:
    """The abort found the request as the first run said, and answered it."""
    met = situations(here.ranks[0].rank)
    assert met[f"abort {as_noted(moment.what)}"] == 1, (moment, met)
    assert ends(here.recording)[moment.rid][0][0] == "aborted"
