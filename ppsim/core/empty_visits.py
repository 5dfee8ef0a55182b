"""Jump over visits of empty slots: what a rank does in them follows from nothing but their number.

Rule: passing ``num`` visits at once leaves the same state and the same records as making them one by one, as long as no
input comes in them. A visit is passed only where nothing can happen: nobody waits, no prompt is being cut, the visited
slot runs nobody, the slot that is due holds nothing, and no output is to be sent on.

What a rank exchanges in such a visit (an empty request list, the commits of earlier sends) is up to who drives it.
"""

from __future__ import annotations

from ppsim.core.config import RankConfig
from ppsim.core.disagg.roles import Role
from ppsim.core.effects import Decision, Harvest
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.core.schedule.slots import Slot


def num_empty_visits(rank: Rank) -> int:
    """How many visits from ``rank.iteration`` on are empty if no input comes: at most one of each slot.

    For a first rank that stands before its look at the inputs of an iteration. 0 also where the code of somebody else
    decides (a policy, a role).
    """
    s, config, slots = rank.scheduler, rank.config, rank.scheduler.slots
    if slots.to_harvest(rank.iteration).in_flight or slots.current(rank.iteration).running:
        return 0  # most often it is one of these
    if s.waiting or s.chunked is not None or s.grammar_queue or s.journal.entries:
        return 0
    if rank.pp_outputs is not None or rank.flushes or rank.checker is not None or s.kv.tiers is not None:
        return 0
    if type(s.role) is not Role or type(rank.policy) is not Policy:
        return 0
    num = 0
    for iteration in range(rank.iteration, rank.iteration + config.num_slots):
        releases = config.is_last and slots.to_release(iteration).in_flight
        if slots.to_harvest(iteration).in_flight or releases or not is_empty(slots.current(iteration), config):
            break
        num += 1
    return num


def is_empty(slot: Slot, config: RankConfig) -> bool:
    """Nobody runs here or joins those that do, and the slot is open: what is closed says so in its record."""
    nobody = not slot.running and slot.last_batch is None and not slot.in_flight
    return nobody and (config.reopen_empty_slots or not slot.batch_is_full)


def pass_empty_visits(rank: Rank, num: int) -> list[tuple[Decision, Harvest]]:
    """Pass ``num`` visits, not more than ``num_empty_visits``; the records of each."""
    s, ring = rank.scheduler, rank.scheduler.slots.slots
    num_slots = len(ring)
    found: list[tuple[Decision, Harvest]] = []
    free, evictable = s.kv.pool.free_tokens, s.kv.tree.evictable_tokens
    digests: dict[bool, str] = {}  # by what of a slot is part of the state
    for iteration in range(rank.iteration, rank.iteration + num):
        index = iteration % num_slots
        slot = ring[index]
        visit(rank, slot)
        state = digests.get(slot.batch_is_full)
        if state is None:
            state = digests[slot.batch_is_full] = s.empty_decision(iteration, slot).state_digest
        due = index + 1 if index + 1 < num_slots else 0
        decision = Decision(iteration, index, "empty", (), (), None, state)
        found.append((decision, Harvest(iteration, due, None, (), (), (), free, evictable)))
        if due == 0:
            if not rank.sweep_had_batch:
                s.on_idle()
                digests.clear()
            rank.sweep_had_batch = False
    if num:
        s.iteration = rank.iteration + num - 1
        rank.iteration += num
        leave(rank)
    return found


def visit(rank: Rank, slot: Slot) -> None:
    """What the scheduler keeps of a visit that runs nothing; the last one that ran something has left all else so."""
    s = rank.scheduler
    if rank.config.reopen_empty_slots:
        slot.batch_is_full = False
    if s.decode_turns and s.role.defers_prefill:
        s.decode_turns -= 1


def leave(rank: Rank) -> None:
    """What lives for one iteration, after one in which nothing was."""
    rank.inputs = ()
    rank.batch = rank.hidden = rank.hidden_out = rank.received = None
    rank.send_proxy_work.clear()
    rank.send_output_work.clear()
