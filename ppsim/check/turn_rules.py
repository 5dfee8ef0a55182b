"""INV-83 where a scenario limits turns: decode beside a stream of prompts, short prompts beside a long one.

    max_consecutive_prefills   beyond the limit a slot with requests to decode launches only the next chunk of a prompt
                               that was being cut already (bugs.md B87)
    max_consecutive_chunks     a waiting request that fits as a whole is not passed over more often (bugs.md B88, B92)

The rules look at decisions only and count for themselves: what the scheduler counts may be what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ppsim.check.observers import Seat
from ppsim.core.effects import Decision
from ppsim.core.errors import InvariantViolation
from ppsim.core.rank import Rank
from ppsim.core.schedule.request import Request, State
from ppsim.core.schedule.slots import Slot

if TYPE_CHECKING:
    from ppsim.core.schedule.scheduler import Scheduler


@dataclass(slots=True)
class Turns:
    """What one rank has done so far."""

    cut_rid: str | None = None  # being cut after the decision before
    passed_rid: str = ""  # waiting first in line
    num_passed: int = 0  # chunks in a row that went before it
    refusals_left: dict[str, int] = field(default_factory=dict)  # by request: memory that the world still refuses it


class TurnRules:
    """One for each process."""

    def __init__(self) -> None:
        self.turns: dict[int, Turns] = {}
        self.num_prefills: dict[tuple[int, int], int] = {}  # (rank, slot) -> in a row beside requests to decode

    def begin(self, r: Seat) -> None:
        """Before a rank runs: what the world is going to refuse it."""
        self.turns[r.rank_id] = Turns(refusals_left=dict(r.rank.refusals))

    def launched(self, r: Seat) -> None:
        """Behind a launch the world may begin to refuse memory (chance.max_good_allocations)."""
        self.turns[r.rank_id].refusals_left = dict(r.rank.refusals)

    def decided(self, r: Seat, decision: Decision) -> None:
        """Raises InvariantViolation where a turn was not given."""
        scheduler = r.rank.scheduler
        turns = self.turns[r.rank_id]
        slot = scheduler.slots.current(decision.iteration)
        if scheduler.config.max_consecutive_prefills:
            self._prefills(r, decision, slot, turns)
        elif scheduler.config.max_consecutive_chunks:
            self._chunks(r, decision, slot, turns)
        turns.cut_rid = decision.chunked_rid

    def _prefills(self, r: Seat, decision: Decision, slot: Slot, turns: Turns) -> None:
        limit = r.rank.config.max_consecutive_prefills
        key = (r.rank_id, slot.index)
        beside = next((q.rid for q in slot.running if q.state is State.DECODE), "")
        count = self.num_prefills.get(key, 0) + 1 if decision.mode == "extend" and beside else 0
        self.num_prefills[key] = count
        goes_on = len(decision.pieces) == 1 and decision.pieces[0][0] == turns.cut_rid
        if count > limit and not goes_on:
            text = (
                f"slot {slot.index} launches prefill batch {count} in a row while it waits to decode, at most {limit} "
            )
            raise violation(r, beside, text + "are allowed")

    def _chunks(self, r: Seat, decision: Decision, slot: Slot, turns: Turns) -> None:
        scheduler, limit = r.rank.scheduler, r.rank.config.max_consecutive_chunks
        first = scheduler.waiting[0] if scheduler.waiting else None
        goes_on = bool(decision.pieces) and decision.pieces[0][0] == turns.cut_rid
        had_turn = first is not None and refused_memory(r.rank, turns, first.rid)
        not_ready = first is not None and first.rid in scheduler.kv.fetches  # it waits for storage, not for its turn
        if first is None or had_turn or not_ready or not goes_on or not fits_whole(scheduler, slot, first):
            turns.passed_rid, turns.num_passed = "", 0
            return
        turns.num_passed = turns.num_passed + 1 if turns.passed_rid == first.rid else 1
        turns.passed_rid = first.rid
        if turns.num_passed > limit:
            text = f"chunk {turns.num_passed} in a row of {turns.cut_rid} goes before it, at most {limit} are allowed"
            raise violation(r, first.rid, text)


def refused_memory(rank: Rank, turns: Turns, rid: str) -> bool:
    """Whether the world refused it memory in this visit (chance.max_failed_allocations): it had its turn."""
    before = turns.refusals_left.get(rid, 0)
    turns.refusals_left[rid] = now = rank.scheduler.refusals_left.get(rid, 0)
    return now < before


def fits_whole(scheduler: Scheduler, slot: Slot, request: Request) -> bool:
    """Surely: in one batch beside what decodes in the slot, in the slot, in the request table, in memory."""
    config, kv = scheduler.config, scheduler.kv
    budget = scheduler.last_chunk_budget
    assert budget is not None
    in_batch = request.seq_len + config.page_size + len(slot.running) <= min(budget, config.max_prefill_tokens)
    in_slot = not slot.batch_is_full and len(slot.running) < config.max_micro_batch_size and bool(kv.free_rows)
    holding = [q for q in scheduler.requests.values() if q.pages]
    growth = sum(max(q.prompt_len + q.spec.max_new_tokens - q.kv_len, 0) + 2 * config.page_size for q in holding)
    in_memory = request.seq_len + request.spec.max_new_tokens + 2 * config.page_size + growth < kv.available_tokens
    return in_batch and in_slot and in_memory


def violation(r: Seat, rid: str, text: str) -> InvariantViolation:
    return InvariantViolation("INV-83", r.rank_id, r.rank.iteration, r.rank.slot, rid, text)
