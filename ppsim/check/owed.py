"""Messages that are owed: somebody waits for one, and its sender has passed the point where it was due.

Rule: when a message leaves is protocol (protocol.md 1.3 to 1.8): from the kind, the iteration that it is of and the
stage of its sender follows the iteration in which the sender sends it. A sender that is in a later iteration by now
will not send it any more. One that is in that iteration or before it may still do so: ranks that are all before their
sends wait for each other (invariant 40).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ppsim.check.blame import Debt, Departure, rule_of
from ppsim.core.config import RankConfig
from ppsim.core.messages import Kind, Lane

SENT_IN = {Kind.HIDDEN: "send_hidden_late", Kind.META: "send_inputs", Kind.VOTE: "send_votes"}
"""Phases that send; the others are those that receive, but for one word."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A rank stands in a receive: which message it waits for, and where the sender of that message is now."""

    rank: int
    phase: str
    src: int
    lane: Lane
    kind: Kind
    iteration: int  # that the message is of
    slot: int
    sender: RankConfig
    sender_iteration: int


def due_iteration(wait: Wait) -> int:
    """The iteration in which the sender sends it."""
    config, m = wait.sender, wait.iteration
    if wait.lane is Lane.START:  # of no iteration: who stands in its first one may be before it
        return 0
    if wait.kind is Kind.OUTPUT:  # released by the last rank, by the others one iteration after they received it
        return m + (config.pp_async_batch_depth if config.is_last else config.num_slots)
    if wait.kind is Kind.CONCLUSION and wait.lane is Lane.TP:  # from a leader, when it takes it
        return m + config.pp_size - 1
    if wait.kind is Kind.CONCLUSION:
        return m if config.is_last else m + config.pp_size
    return m


def overdue(waits: Iterable[Wait], departures: Sequence[Departure]) -> Departure | None:
    """The first message that somebody waits for in vain, as the departure of the rank that owes it.

    ``departures`` know better in which phase it was due: a right rank has been seen to send it.
    """
    late = [(due_iteration(wait), wait.src, wait) for wait in waits if wait.sender_iteration > due_iteration(wait)]
    if not late:
        return None
    due, src, wait = min(late, key=lambda item: item[:2])
    parted = next((d for d in departures if d.rank == src), None)
    unsent = parted.unsent if parted is not None else None
    phase = SENT_IN.get(wait.kind) or wait.phase.replace("receive", "send")
    if unsent is not None and (unsent.dst, unsent.kind) == (wait.rank, wait.kind):
        phase = unsent.phase
    what = f"{wait.kind.value} message of iteration {wait.iteration}, slot {wait.slot}, on lane {wait.lane.value}"
    rule, slot = rule_of(wait.kind, wait.lane, phase), due % wait.sender.num_slots
    debt = Debt(wait.rank, wait.kind, rule, what, due, slot, phase)
    expected = f"sends the {debt.what} to rank {debt.dst}"
    return Departure(src, debt.iteration, debt.slot, debt.phase, "", expected, "goes on without sending it", (debt,))
