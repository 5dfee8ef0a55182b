"""What the check at the end of a run finds: a reply that is missing, and whatever a rank has not given back.

Everything that was read is owed a terminal reply. The others are leaks of each kind, planted on one rank when it reads
Shutdown, so that nothing but this check can see them: pools full, rows and buffers free, nothing locked, copied, parked
or unsent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from ppsim.core.loop import Loop
from ppsim.core.memory.hicache import Operation
from ppsim.core.messages import Hidden, Kind, Lane, NewRequest, Output, Shutdown
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import Request
from ppsim.core.tokens import pack
from ppsim.plugin.plans import before, behind, does
from ppsim.world import SimulationResult
from tests.worlds.making import UNIT, changed, requests, run

LATE = {"prompt": 4, "output": 1, "ignore_eos": True}


def losing(iteration: int) -> type[Loop]:
    """The loop of ranks that forget what they would answer in this iteration, before they answer."""

    class Loses(Loop):
        def plan(self) -> Plan:
            def lose(rank: Rank) -> None:
                if rank.iteration == iteration:
                    rank.journal.take_replies()
                    if rank.flushes:
                        rank.flushes[-1] = (rank.flushes[-1][0], ())  # the answer that is held for the last rank

            return before(super().plan(), "schedule", does(lose))

    return Loses


def flushed(iterations: tuple[int, ...], lost: int | None, **more: Any) -> SimulationResult:
    """Flushes, all under the id F, and the replies of one iteration lost."""
    changes = {
        "workload.requests": [*requests(1), {"rid": "R2", "at_iteration": 40, **LATE}],
        "workload.flushes": [{"rid": "F", "at_iteration": i} for i in iterations],
        **more,
    }
    return run(changes, change=changed(*(() if lost is None else (losing(lost),))))


@pytest.mark.parametrize(("iterations", "lost"), [((20,), 20), ((20, 30), 20), ((20, 30), 30)])
def test_a_flush_without_a_reply_is_found_also_beside_one_of_the_same_id(
    iterations: tuple[int, ...], lost: int
) -> None:
    """A client that flushes twice waits twice (invariant 61); its id is no request's, so no arrival speaks for it."""
    assert flushed(iterations, None).verdict.kind == "pass"
    verdict = flushed(iterations, lost).verdict
    assert (verdict.kind, verdict.invariant) == ("fail", "INV-61")
    assert "1 requests or flushes got no terminal reply: ['F']" in verdict.message


# --- leaks -----------------------------------------------------------------------------------------------------------

Leak = Callable[[Rank], object]


def leaking(leak: Leak) -> type[Loop]:
    """The loop of ranks of which the second one leaks when it reads Shutdown."""

    class Leaks(Loop):
        def plan(self) -> Plan:
            def at_the_end(rank: Rank) -> None:
                if rank.config.pp_rank == 1 and any(isinstance(item, Shutdown) for item in rank.inputs):
                    leak(rank)

            return behind(super().plan(), "ingest_inputs", does(at_the_end))

    return Leaks


def keeps_a_request(rank: Rank) -> None:
    rank.scheduler.requests["X"] = Request(NewRequest("X", pack([1]), 1))


def keeps_an_output(rank: Rank) -> None:
    rank.last_rank_comm_queue.append(Output(1, 9, 1, 1))


def parks_a_message(rank: Rank) -> None:
    rank.link._inbox[0, Lane.TENSOR, Kind.HIDDEN] = deque([Hidden(0, 9, 1, 4)])


def counts_too_much_as_cached(rank: Rank) -> None:
    rank.scheduler.kv.tree.evictable_tokens += 1


def keeps_a_lock(rank: Rank) -> None:
    tree = rank.scheduler.kv.tree
    tree.lock(next(iter(tree.root.children.values())))


def keeps_a_page(rank: Rank) -> None:
    rank.scheduler.kv.pool.alloc(1)


def keeps_a_row(rank: Rank) -> None:
    rank.scheduler.kv.free_rows.pop()


def keeps_a_buffer(rank: Rank) -> None:
    rank.scheduler.role.num_buffers -= 1


def forgets_a_copy(rank: Rank) -> None:
    tiers = rank.scheduler.kv.tiers
    assert tiers is not None
    tiers.writes.append(Operation("write:R1#9", []))


def keeps_a_host_page(rank: Rank) -> None:
    tiers = rank.scheduler.kv.tiers
    assert tiers is not None
    tiers.host.alloc(1)


TIERS = {"hicache.enabled": True, "hicache.host_tokens": 64}
LEAKS: list[tuple[Leak, str, str, dict[str, Any]]] = [
    (keeps_a_request, "INV-46", "requests are left in the queues: ['X']", {}),
    (keeps_an_output, "INV-35", "1 outputs were never released", {}),
    (parks_a_message, "INV-36", "1 messages were received and never used", {}),
    (counts_too_much_as_cached, "INV-23", "free + 5 cached tokens exceed 4096", {}),
    (keeps_a_lock, "INV-25", "4 cached tokens are still locked", {}),
    (keeps_a_page, "INV-23", "only 4095 of 4096 KV tokens are free at the end", {}),
    (keeps_a_row, "INV-24", "only 63 of 64 request rows are free", {}),
    (keeps_a_buffer, "INV-24", "127 of 128 metadata buffers are free", {"disaggregation.role": "prefill"}),
    (forgets_a_copy, "INV-28", "copies between the tiers are still under way: ('write:R1#9',)", TIERS),
    (keeps_a_host_page, "INV-28", "of 64 host tokens are free at the end", TIERS),
]


@pytest.mark.parametrize(("leak", "invariant", "text", "changes"), LEAKS, ids=lambda x: getattr(x, "__name__", ""))
def test_what_a_rank_does_not_give_back_is_found_at_the_end(
    leak: Leak, invariant: str, text: str, changes: dict[str, Any]
) -> None:
    assert run(changes).verdict.kind == "pass"
    verdict = run({**changes, "run.check": False}, change=changed(leaking(leak))).verdict
    assert (verdict.kind, verdict.invariant, verdict.rank) == ("fail", invariant, 1), verdict.message
    assert text in verdict.message


def test_a_send_that_nobody_waited_for_is_found_at_the_end() -> None:
    """The first rank forgets that it has sent the list before Shutdown (invariant 38: its buffer is still held)."""

    class Forgets(Loop):
        def plan(self) -> Plan:
            def forget(rank: Rank) -> None:
                if rank.config.is_first and any(isinstance(item, Shutdown) for item in rank.inputs):
                    rank.send_req_work.clear()

            return before(super().plan(), "forward_inputs", does(forget))

    verdict = run({"run.check": False}, UNIT, change=changed(Forgets)).verdict
    assert (verdict.kind, verdict.invariant, verdict.rank) == ("fail", "INV-38", 0)
    assert "the send of a meta message was never committed" in verdict.message
