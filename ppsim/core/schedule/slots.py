"""The slot ring: L = pp_size + pp_async_batch_depth microbatch slots, visited 0..L-1 for ever (protocol.md 1.2).

The iteration is the logical clock of a rank: it says which slot is visited, harvested and released. A batch that is
launched in a slot is harvested right before its next visit, so a slot never holds two launched batches (invariants 4
to 6).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.core.schedule.batch import ForwardBatch, Mode
from ppsim.core.schedule.request import Request


@dataclass(slots=True, eq=False)
class LaunchedBatch:
    """A batch as it was launched. Its composition never changes before the harvest (invariant 59)."""

    forward: ForwardBatch
    requests: tuple[Request, ...]  # row order, as ``forward.pieces``
    chunked_rid: str | None  # the request that was left unfinished when this batch was made
    num_logprobs: int = 0  # rows whose requests asked for logprobs

    @property
    def iteration(self) -> int:
        return self.forward.iteration

    @property
    def is_extend(self) -> bool:
        return self.forward.mode is not Mode.DECODE


@dataclass(slots=True, eq=False)
class Slot:
    """One microbatch slot. ``running`` is its decode set: a request decodes in the slot that ran its last chunk."""

    index: int
    running: list[Request] = field(default_factory=list)
    batch_is_full: bool = False
    launched: LaunchedBatch | None = None  # mbs: batch of the latest visit, overwritten only at the next one
    last_batch: LaunchedBatch | None = None  # last_mbs: harvested extend batch that is still to be merged
    in_flight: bool = False  # launched and not yet harvested
    closed_since: int = -1  # iteration since when no visit could run anything: full, with nothing running; -1: open
    num_prefills: int = 0  # pure prefill batches in a row while its decode set waited (max_consecutive_prefills)


class SlotRing:
    """All slots of a rank, addressed by iteration (protocol.md 0.2: j, n, f)."""

    def __init__(self, pp_size: int, depth: int) -> None:
        self.pp_size = pp_size
        self.depth = depth
        self.slots = [Slot(i) for i in range(pp_size + depth)]

    def __len__(self) -> int:
        return len(self.slots)

    def current(self, iteration: int) -> Slot:
        """Slot j, visited in this iteration."""
        return self.slots[iteration % len(self.slots)]

    def to_harvest(self, iteration: int) -> Slot:
        """Slot n = j + 1: launched L-1 iterations ago, scheduled again in the next one."""
        return self.slots[(iteration + 1) % len(self.slots)]

    def to_release(self, iteration: int) -> Slot:
        """Slot f = j + P: launched ``depth`` iterations ago; the last rank sends its output now."""
        return self.slots[(iteration + self.pp_size) % len(self.slots)]

    @property
    def drained(self) -> bool:
        """No batch is launched and unharvested in any slot (bugs.md B45)."""
        return not any(slot.in_flight for slot in self.slots)
