"""Whose turn it is: two optional limits against starvation, both off as the protocol is (protocol.md 4.1, 4.2).

    max_consecutive_prefills   a slot that has requests to decode runs at most so many prefill batches in a row. A
                               prompt that is being cut goes on, but nothing new is admitted beside it (bugs.md B87)
    max_consecutive_chunks     after so many chunks of one prompt in a row, requests that wait get the first chance of
                               a prefill batch if they fit as a whole; the prompt takes the rest (bugs.md B88, B92)

Both count what all ranks decided, so all ranks count the same.
"""

from __future__ import annotations

from collections.abc import Callable

from ppsim.core.schedule.admission import PrefillAdder
from ppsim.core.schedule.batch import Mode
from ppsim.core.schedule.intake import Intake
from ppsim.core.schedule.request import State
from ppsim.core.schedule.slots import LaunchedBatch, Slot


def decode_goes_first(scheduler: Intake, slot: Slot) -> bool:
    """Whether the slot has prefilled long enough beside requests that wait to decode."""
    limit = scheduler.config.max_consecutive_prefills
    if not limit:
        return False
    if not any(r.state is State.DECODE for r in slot.running):
        slot.num_prefills = 0
    return scheduler.policy.decode_goes_first(slot.num_prefills, limit)


def count_prefill(scheduler: Intake, slot: Slot, batch: LaunchedBatch | None) -> None:
    """A visit is decided: a pure prefill beside requests to decode is one more in a row. Asked only with a limit."""
    beside = any(r.state is State.DECODE for r in slot.running)
    slot.num_prefills = slot.num_prefills + 1 if beside and batch and batch.forward.mode is Mode.EXTEND else 0


def waiting_goes_first(scheduler: Intake) -> bool:
    """Whether the prompt that is being cut has had its chunks in a row, and others wait."""
    limit = scheduler.config.max_consecutive_chunks
    if not limit or scheduler.chunked is None or not scheduler.waiting:
        scheduler.num_chunks = 0
        return False
    return scheduler.policy.waiting_goes_first(scheduler.num_chunks, limit)


def continue_behind(scheduler: Intake, adder: PrefillAdder, admit_waiting: Callable[[], None]) -> None:
    """Waiting requests first, none of them cut; then the prompt that is being cut, in what is left of the budget.

    ``admit_waiting`` tries the waiting requests with this adder.
    """
    chunked = scheduler.chunked
    assert chunked is not None
    adder.new_chunked = chunked  # nobody else can be cut
    set_aside = adder.set_aside(chunked)
    admit_waiting()
    adder.total_offset -= set_aside
    if adder.admitted:
        scheduler.num_chunks = 0
    adder.new_chunked = None
    short = adder.admitted and adder.rem_total <= 0  # they take the last tokens: there is nothing to go on with
    if short or not adder.add_chunked(chunked):
        adder.new_chunked = chunked  # it waits for the next batch
