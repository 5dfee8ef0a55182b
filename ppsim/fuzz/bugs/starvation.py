"""Bugs that leave somebody waiting although nothing stands in the way: bugs.md, classes starvation and deadlock."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.consensus import Rids
from ppsim.core.disagg.ballots import RELEASE, view_release
from ppsim.core.effects import Effects, recv
from ppsim.core.loop import Loop
from ppsim.core.messages import Lane
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.admission import PrefillAdder
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot
from ppsim.plugin import planted
from ppsim.plugin.plans import before, instead


@planted("chunk_needs_a_place", breaks="INV-85", profile="chunked", source="bugs.md B17")
class ChunkNeedsAPlace(Scheduler):
    """A prompt that is being cut goes on only where a request could be admitted, and it holds the last row itself."""

    def may_continue_chunk(self, slot: Slot, num_places: int) -> bool:
        return super().may_continue_chunk(slot, num_places) and num_places > 0


@planted("polls_only_when_busy", breaks="INV-85", profile="pd", source="bugs.md B44")
class PollsOnlyWhenBusy(Loop):
    """Finished transfers are collected only in iterations that run something, on all ranks alike."""

    def plan(self) -> Plan:
        steps = super().plan()
        return instead(steps, "first_pass_release", self.voting.first(replace(RELEASE, view=view_if_busy)))


def view_if_busy(rank: Rank) -> Effects[tuple[Rids, Rids]]:
    if rank.scheduler.slots.drained:
        return (), ()
    return (yield from view_release(rank))


@planted("chunk_row_counted_twice", breaks="INV-69", profile="fairness", source="bugs.md B86")
class ChunkRowCountedTwice(Scheduler):
    """A continued prompt is counted against the free rows, although it has its row: the slot is closed too early."""

    def num_places(self, slot: Slot, num_admitted: int, num_new_rows: int) -> int:
        return super().num_places(slot, num_admitted, num_admitted)


@planted("prefill_limit_ignored", breaks="INV-83", profile="fairness", source="bugs.md B87")
class PrefillLimitIgnored(Policy):
    """Prefill comes first for ever: the limit on prefill batches in a row is not looked at."""

    def decode_goes_first(self, num_prefills: int, limit: int) -> bool:
        return False


@planted("running_prompt_first", breaks="INV-83", profile="fairness", source="bugs.md B88, B92")
class RunningPromptFirst(Policy):
    """The chunks of a running prompt come before all that wait, however many there are."""

    def waiting_goes_first(self, num_chunks: int, limit: int) -> bool:
        return False


class NextChunkOnly(PrefillAdder):
    """What comes behind the next chunk needs no memory."""

    def context_to_fit(self, new_tokens: int) -> int:
        return new_tokens if self.rem_chunk is None else min(new_tokens, self.rem_chunk)


@planted("admits_by_next_chunk", breaks="INV-69", profile="chunked", source="bugs.md B90")
class AdmitsByNextChunk(Scheduler):
    """A request is admitted if its next chunk fits, whatever comes after it."""

    adder_class = NextChunkOnly


@planted("silent_rank", breaks="INV-40", profile="plain", source="bugs.md B30")
class SilentRank(Loop):
    """The last rank but one stops in iteration 50: its process lives and waits for something that never comes."""

    def plan(self) -> Plan:
        steps = super().plan()
        return before(steps, "receive_hidden", stop_at_50)


def stop_at_50(rank: Rank) -> Effects[None]:
    if rank.iteration == 50 and rank.config.pp_rank == max(rank.config.pp_size - 2, 0):
        yield from recv(rank.link.rank_id, Lane.HICACHE)
