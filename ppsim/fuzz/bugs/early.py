"""Bugs alike on all ranks that turn somebody away, end it early or move it on for nothing (INV-48, 69, 79, 88-90)."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.agreed import Agreed, agree
from ppsim.core.chain import Answer, Chain, Question
from ppsim.core.consensus import Rids
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.effects import Effects
from ppsim.core.leader import GRAMMAR
from ppsim.core.rank import Rank
from ppsim.core.schedule.admission import PrefillAdder
from ppsim.core.schedule.request import Event, Request, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import LaunchedBatch, Slot
from ppsim.plugin import planted


@planted("refused_although_it_fits", breaks="INV-88", profile="plain", source="protocol.md 4.2")
class RefusedAlthoughItFits(Scheduler):
    """Half of the pool counts as all of it when a request arrives."""

    def _why_never(self, request: Request) -> str:
        half = self.kv.pool.capacity_tokens // 2
        too_long = request.prompt_len + request.spec.max_new_tokens > half
        return super()._why_never(request) or (f"it never fits {half} tokens" if too_long else "")


@planted("ends_as_unfit", breaks="INV-88", profile="plain", source="protocol.md 4.5")
class EndsAsUnfit(Scheduler):
    """A request that decodes alone in its slot ends for want of memory at its third token, whatever is free."""

    def _decode(self, slot: Slot, iteration: int) -> LaunchedBatch | None:
        alone = [r for r in slot.running if r.state is State.DECODE]
        if len(alone) == 1 and len(alone[0].output_ids) == 3:
            slot.running.remove(alone[0])
            self._abort_unfit(alone[0])
        return super()._decode(slot, iteration)


@planted("retracts_without_need", breaks="INV-89", profile="retraction", source="protocol.md 4.5")
class RetractsWithoutNeed(Scheduler):
    """Whoever decodes beside others is put out at its second token, as if the next ones did not fit."""

    def _decode_fits(self, running: list[Request]) -> bool:
        starts = any(len(r.output_ids) == 2 and not r.num_retractions for r in running)
        return super()._decode_fits(running) and not (starts and len(running) > 1)


class ForgetsTheRest(PrefillAdder):
    """What is cut of a prompt is the end of it."""

    def _charge(self, request: Request, new_tokens: int, rest: int) -> None:
        super()._charge(request, new_tokens, rest)
        if rest:
            self.admitted[-1] = replace(self.admitted[-1], is_last_chunk=True)
            self.new_chunked = None


@planted("middle_chunk_counts_as_last", breaks="INV-90", profile="chunked", source="protocol.md 4.4")
class MiddleChunkCountsAsLast(Scheduler):
    """The first chunk of a prompt is flagged as its last one: the request decodes behind half of its prompt."""

    adder_class = ForgetsTheRest


@planted("one_place_too_many", breaks="INV-69", profile="plain", source="protocol.md 4.2")
class OnePlaceTooMany(Scheduler):
    """A slot takes one request more than pp_max_micro_batch_size."""

    def num_places(self, slot: Slot, num_admitted: int, num_new_rows: int) -> int:
        places = super().num_places(slot, num_admitted, num_new_rows)
        return min(places + 1, len(self.kv.free_rows) - num_new_rows)


@planted("pending_counts_as_compiled", breaks="INV-79", profile="grammar", source="bugs.md B01 (its other half)")
class PendingCountsAsCompiled(Chain):
    """The first stage lets a request out of the grammar queue although its compile is not over there."""

    def stage_view(self, rank: Rank, question: Question, mine: Answer) -> Effects[Answer]:
        if question is GRAMMAR:
            failed = mine.values[1]
            queue = tuple(r.rid for r in rank.scheduler.grammar_queue)
            mine = Answer((tuple(rid for rid in queue if rid not in failed), failed))
        return (yield from super().stage_view(rank, question, mine))


@planted("failure_counts_as_success", breaks="INV-48", profile="pair", source="protocol.md 6.3")
class FailureCountsAsSuccess(PrefillRole):
    """Terminal is terminal: whoever's transfer has failed is told as sent."""

    def apply_release(self, good: Agreed[Rids], bad: Agreed[Rids]) -> None:
        super().apply_release(good, agree((), bad.origin))


@planted("resumes_without_a_vote", breaks="INV-79", profile="retraction", source="protocol.md 6.3")
class ResumesWithoutAVote(DecodeRole):
    """A request that was put out comes back as soon as there is room, and no conclusion is waited for."""

    def before_schedule(self, slot: Slot) -> None:
        kv = self.scheduler.kv
        for request in list(self.put_out):
            if kv.free_rows and kv.can_grow(request, request.seq_len):
                self.put_out.remove(request)
                kv.take_row(request)
                kv.grow(request, request.seq_len - 1)
                request.on(Event.RESUME)
                self.scheduler.waiting.append(request)
        super().before_schedule(slot)
