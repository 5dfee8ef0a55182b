"""Two schedulers, one text: every decision of the real one against the naive one (tests/interactions/reference_*)."""

from __future__ import annotations

from hypothesis import given, settings

from ppsim.core.request import State
from tests.interactions.experiment import CROWD, ORDINARY, TIGHT, Experiment, experiments
from tests.interactions.one_rank import OneRank, Visit
from tests.interactions.reference_scheduler import ReferenceScheduler
from tests.interactions.settings import num_examples
from tests.interactions.walk import ownership_problem, picture


def compare(experiment: Experiment) -> OneRank:
    """Run both side by side and stop at the first difference."""
    real = OneRank(experiment)
    naive = ReferenceScheduler(experiment.config, experiment.capacity_tokens)
    idle_sweep, num_dropped = True, 0
    for visit in real.visits():
        naive.arrive(experiment.due(visit.iteration))
        batch, retracted = naive.schedule(visit.iteration)
        expected = {
            "mode": batch.mode if batch else "empty",
            "pieces": [(row.job.rid, row.start, row.num) for row in batch.rows] if batch else [],
            "last": [row.last for row in batch.rows] if batch else [],
            "retracted": retracted,
            "chunked": naive.chunked.rid if naive.chunked else None,
        }
        came = {
            "mode": visit.decision.mode,
            "pieces": list(visit.decision.pieces),
            "last": [piece.is_last_chunk for piece in visit.batch.forward.pieces] if visit.batch else [],
            "retracted": list(visit.decision.retracted),
            "chunked": visit.decision.chunked_rid,
        }
        assert came == expected, f"iteration {visit.iteration}"
        idle_sweep &= batch is None
        harvest(real, naive, visit, num_dropped)
        num_dropped = len(naive.dropped)
        if (visit.iteration + 1) % len(naive.slots) == 0:
            if idle_sweep:
                naive.on_idle()
            idle_sweep = True
        same_state(real, naive, visit.iteration)
        if batch is not None or visit.harvest.delivered:
            same_memory(real, naive, visit.iteration)
    assert [(r.rid, r.status, r.num_output_tokens) for r in real.replies] == naive.replies
    return real


def harvest(real: OneRank, naive: ReferenceScheduler, visit: Visit, num_dropped: int) -> None:
    launched = naive.slots[(visit.iteration + 1) % len(naive.slots)].launched
    tokens = real.tokens[launched.iteration] if launched else None
    iteration, delivered, finished = naive.absorb(visit.iteration, tokens)
    assert visit.harvest.harvested == iteration, f"iteration {visit.iteration}"
    assert list(visit.harvest.delivered) == delivered, f"iteration {visit.iteration}"
    assert list(visit.harvest.finished) == naive.dropped[num_dropped:] + finished, f"iteration {visit.iteration}"
    assert (visit.harvest.free_tokens, visit.harvest.evictable_tokens) == (naive.free, naive.tree.evictable)


def same_state(real: OneRank, naive: ReferenceScheduler, iteration: int) -> None:
    """All that a later decision can depend on."""
    s = real.scheduler
    where = f"after iteration {iteration}"
    assert [r.rid for r in s.waiting] == [job.rid for job in naive.queue], where
    assert [[r.rid for r in slot.running] for slot in s.slots.slots] == [
        [job.rid for job in slot.running] for slot in naive.slots
    ], where
    assert [slot.batch_is_full for slot in s.slots.slots] == [slot.full for slot in naive.slots], where
    assert s.ratio.value == naive.ratio, where
    assert s.kv.free_rows == naive.rows, where
    assert [r.req_slot for r in s.requests.values()] == [job.row for job in naive.jobs], where
    assert s.decode_turns == naive.owed, where
    assert len(real.replies) == len(naive.replies), where


def same_memory(real: OneRank, naive: ReferenceScheduler, iteration: int) -> None:
    """The cache node by node, and every page with its holders."""
    s = real.scheduler
    where = f"after iteration {iteration}"
    assert picture(s.kv.tree) == naive.tree.picture(), where
    assert ownership_problem(s.kv.pool, s.kv.tree, s.requests.values()) == "", where
    assert all(r.inflight_middle_chunks == 0 or r.state is State.PREFILL for r in s.requests.values()), where
    for slot in s.slots.slots:  # what a launched batch writes stays held until its harvest (bugs.md B35)
        for piece in slot.launched.forward.pieces if slot.in_flight and slot.launched else ():
            assert len(piece.kv.pages) * s.config.page_size >= piece.prefix_len + piece.new_tokens, where


@settings(max_examples=num_examples(250), deadline=None, derandomize=True)
@given(experiments(ORDINARY))
def test_both_schedulers_decide_the_same_in_ordinary_pools(experiment: Experiment) -> None:
    compare(experiment)


@settings(max_examples=num_examples(200), deadline=None, derandomize=True)
@given(experiments(TIGHT))
def test_both_schedulers_decide_the_same_in_tight_pools(experiment: Experiment) -> None:
    compare(experiment)


@settings(max_examples=num_examples(200), deadline=None, derandomize=True)
@given(experiments(CROWD))
def test_both_schedulers_decide_the_same_where_outputs_outgrow_the_pool(experiment: Experiment) -> None:
    compare(experiment)
