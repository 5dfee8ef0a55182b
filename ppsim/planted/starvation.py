"""Bugs that leave somebody waiting although nothing stands in the way: bugs.md, classes starvation and deadlock."""

from __future__ import annotations

from ppsim.core.consensus import Rids
from ppsim.core.effects import Effects, recv
from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.messages import Lane
from ppsim.core.pd_phases import first, view_release
from ppsim.core.rank import Rank
from ppsim.core.scheduler import Scheduler
from ppsim.core.slots import Slot
from ppsim.planted.plans import before, instead
from ppsim.planted.registry import planted


@planted("chunk_needs_a_place", breaks="INV-85", profile="chunked", source="bugs.md B17")
class ChunkNeedsAPlace(Hooks):
    """A prompt that is being cut goes on only where a request could be admitted, and it holds the last row itself."""

    def may_continue_chunk(self, scheduler: Scheduler, slot: Slot, num_places: int) -> bool:
        return num_places > 0


@planted("polls_only_when_busy", breaks="INV-85", profile="pd", source="bugs.md B44")
class PollsOnlyWhenBusy(Hooks):
    """Finished transfers are collected only in iterations that run something, on all ranks alike."""

    def plan(self, steps: Plan) -> Plan:
        return instead(steps, "first_pass_release", first("release", view_if_busy))


def view_if_busy(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    if rank.scheduler.slots.drained:
        return (), ()
    return (yield from view_release(rank))


@planted("chunk_row_counted_twice", breaks="INV-69", profile="fairness", source="bugs.md B86")
class ChunkRowCountedTwice(Hooks):
    """A continued prompt is counted against the free rows, although it has its row: the slot is closed too early."""

    def rows_taken(self, num_admitted: int, num_new_rows: int) -> int:
        return num_admitted


@planted("prefill_limit_ignored", breaks="INV-83", profile="fairness", source="bugs.md B87")
class PrefillLimitIgnored(Hooks):
    """Prefill comes first for ever: the limit on prefill batches in a row is not looked at."""

    def decode_goes_first(self, num_prefills: int, limit: int) -> bool:
        return False


@planted("running_prompt_first", breaks="INV-83", profile="fairness", source="bugs.md B88, B92")
class RunningPromptFirst(Hooks):
    """The chunks of a running prompt come before all that wait, however many there are."""

    def waiting_goes_first(self, num_chunks: int, limit: int) -> bool:
        return False


@planted("admits_by_next_chunk", breaks="INV-69", profile="chunked", source="bugs.md B90")
class AdmitsByNextChunk(Hooks):
    """A request is admitted if its next chunk fits, whatever comes after it."""

    def context_to_fit(self, new_tokens: int, chunk_budget: int | None) -> int:
        return new_tokens if chunk_budget is None else min(new_tokens, chunk_budget)


@planted("silent_rank", breaks="INV-40", profile="plain", source="bugs.md B30")
class SilentRank(Hooks):
    """The last rank but one stops in iteration 50: its process lives and waits for something that never comes."""

    def plan(self, steps: Plan) -> Plan:
        return before(steps, "receive_hidden", stop_at_50)


def stop_at_50(rank: Rank) -> Effects[None]:
    if rank.iteration == 50 and rank.config.pp_rank == max(rank.config.pp_size - 2, 0):
        yield from recv(rank.link.rank_id, Lane.HICACHE)
