"""Two schedulers, one text: every decision of the real one against the naive one (tests/interactions/reference_*).

Both with SGLang's rules and with the mended ones (scenario key ``scheduler.rules``). A difference is told with the
iteration, the field, the core's value first and the naive one second. To look at a seed again, cut down to the requests
that the difference needs:

    python -c "from tests.interactions.test_reference_scheduler import report; print(report('full', 17, 'sglang'))"
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ppsim.core.config import RankConfig
from ppsim.core.schedule.request import State
from ppsim.core.tokens import unpack
from ppsim.scenario import load_scenario
from ppsim.scenario.rank import rank_config
from tests.interactions.experiment import KINDS, Experiment, experiments, seeded_experiment
from tests.interactions.one_rank import OneRank, Visit
from tests.interactions.reference_scheduler import ReferenceScheduler
from tests.interactions.settings import num_examples
from tests.interactions.walk import ownership_problem, picture

RULES = ("sglang", "mended")


@cache
def settings_of(rules: str) -> dict[str, Any]:
    """What the scenario key changes in the configuration of a rank, whatever it is called there."""
    one, other = (rank_config(load_scenario("unit", [f"scheduler.rules={name}"]), 0) for name in RULES)
    changed = [f.name for f in fields(RankConfig) if getattr(one, f.name) != getattr(other, f.name)]
    assert changed, "scheduler.rules changes nothing"
    return {name: getattr(one if rules == RULES[0] else other, name) for name in changed}


def compare(experiment: Experiment, rules: str) -> OneRank:
    """Run both side by side and stop at the first difference."""
    experiment = replace(experiment, config=replace(experiment.config, **settings_of(rules)))
    real = OneRank(experiment)
    naive = ReferenceScheduler(experiment.config, experiment.capacity_tokens, rules)
    num_dropped = 0
    for visit in real.visits():
        naive.arrive(experiment.due(visit.iteration))
        batch, retracted = naive.schedule(visit.iteration)
        where = f"iteration {visit.iteration}"
        rows = batch.rows if batch else []
        same(where, "mode", visit.decision.mode, batch.mode if batch else "empty")
        same(where, "pieces", list(visit.decision.pieces), [(row.job.rid, row.start, row.num) for row in rows])
        forward = visit.batch.forward.pieces if visit.batch else ()
        same(where, "last chunks", [piece.is_last_chunk for piece in forward], [row.last for row in rows])
        same(where, "retracted", list(visit.decision.retracted), retracted)
        same(where, "chunked", visit.decision.chunked_rid, naive.chunked.rid if naive.chunked else None)
        harvest(real, naive, visit, num_dropped)
        num_dropped = len(naive.dropped)
        naive.end_of_iteration(visit.iteration, batch is not None)
        same_state(real, naive, f"after {where}")
        if batch is not None or visit.harvest.delivered:
            same_memory(real, naive, f"after {where}")
    same("at the end", "replies", [(r.rid, r.status, r.num_output_tokens) for r in real.replies], naive.replies)
    return real


def same(where: str, what: str, core: object, naive: object) -> None:
    if core != naive:
        raise AssertionError(f"{where}, {what}: core {core}, naive {naive}")


def harvest(real: OneRank, naive: ReferenceScheduler, visit: Visit, num_dropped: int) -> None:
    launched = naive.slots[(visit.iteration + 1) % len(naive.slots)].launched
    tokens = real.tokens[launched.iteration] if launched else None
    iteration, delivered, finished = naive.absorb(visit.iteration, tokens)
    where, came = f"harvest of iteration {visit.iteration}", visit.harvest
    same(where, "batch", came.harvested, iteration)
    same(where, "delivered", list(came.delivered), delivered)
    same(where, "finished", list(came.finished), naive.dropped[num_dropped:] + finished)
    same(where, "free, evictable", (came.free_tokens, came.evictable_tokens), (naive.free, naive.tree.evictable))


def same_state(real: OneRank, naive: ReferenceScheduler, where: str) -> None:
    """All that a later decision can depend on."""
    s, slots = real.scheduler, list(zip(real.scheduler.slots.slots, naive.slots, strict=True))
    same(where, "waiting", [r.rid for r in s.waiting], [job.rid for job in naive.queue])
    for number, (core, slot) in enumerate(slots):
        same(where, f"running of slot {number}", [r.rid for r in core.running], [job.rid for job in slot.running.jobs])
        if slot.running.jobs or not naive.mended:  # mended: an empty set is open, whatever its flag says
            same(where, f"batch_is_full of slot {number}", core.batch_is_full, slot.running.full)
    same(where, "ratio", s.ratio.value, naive.ratio)
    same(where, "free rows", s.kv.free_rows, naive.rows)
    same(where, "rows", [r.req_slot for r in s.requests.values()], [job.row for job in naive.jobs])
    same(where, "visits without prefill", s.decode_turns, naive.owed)
    same(where, "number of replies", len(real.replies), len(naive.replies))


def same_memory(real: OneRank, naive: ReferenceScheduler, where: str) -> None:
    """The cache node by node, and every page with its holders."""
    s = real.scheduler
    same(where, "cache", picture(s.kv.tree), naive.tree.picture())
    assert ownership_problem(s.kv.pool, s.kv.tree, s.requests.values()) == "", where
    assert all(r.inflight_middle_chunks == 0 or r.state is State.PREFILL for r in s.requests.values()), where
    for slot in s.slots.slots:  # what a launched batch writes stays held until its harvest (bugs.md B35)
        for piece in slot.launched.forward.pieces if slot.in_flight and slot.launched else ():
            assert len(piece.kv.pages) * s.config.page_size >= piece.prefix_len + piece.new_tokens, where


def difference(experiment: Experiment, rules: str) -> str:
    """Empty if both decide the same to the end."""
    try:
        compare(experiment, rules)
    except AssertionError as error:
        return str(error)
    return ""


def report(kind: str, seed: int, rules: str) -> str:
    """The difference of a seed with as few requests and aborts as it needs, or that there is none."""
    experiment = seeded_experiment(kind, seed)
    text = difference(experiment, rules)
    if not text:
        return f"{kind}, seed {seed}, {rules}: no difference"
    for arrival in reversed(experiment.arrivals):
        smaller = replace(experiment, arrivals=tuple(a for a in experiment.arrivals if a is not arrival))
        if found := difference(smaller, rules):
            experiment, text = smaller, found
    if found := difference(replace(experiment, aborts=()), rules):
        experiment, text = replace(experiment, aborts=()), found
    lines = [f"{kind}, seed {seed}, {rules}: {text}", f"{experiment.capacity_tokens} tokens of KV, {experiment.config}"]
    for at, spec in ((a.iteration, a.request) for a in experiment.arrivals):
        ends = f"ignore_eos {spec.ignore_eos}, stops {spec.stop_token_ids}, logprob {spec.return_logprob}"
        lines.append(f"  at {at}: {spec.rid}, prompt {unpack(spec.prompt)}, {spec.max_new_tokens} new tokens, {ends}")
    return "\n".join([*lines, *(f"  at {at}: {abort}" for at, abort in experiment.aborts)])


@pytest.mark.parametrize("kind", KINDS)
def test_both_schedulers_decide_the_same(kind: str) -> None:
    """Drawn by hypothesis, which shrinks what fails."""

    @settings(max_examples=num_examples(100), deadline=None, derandomize=True)
    @given(experiments(kind), st.sampled_from(RULES))
    def check(experiment: Experiment, rules: str) -> None:
        compare(experiment, rules)

    check()


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_both_schedulers_decide_the_same_for_seeds(kind: str, rules: str) -> None:
    """Drawn by seeds, which differ more from each other: rules that need many things at once are reached here."""
    for seed in range(num_examples(40)):
        if difference(seeded_experiment(kind, seed), rules):
            pytest.fail(report(kind, seed, rules))
