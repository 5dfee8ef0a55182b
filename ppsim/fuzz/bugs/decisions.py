"""Bugs of the scheduler: later ranks decide by a rule of their own. Invariants 9 to 21."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ppsim.core.config import RankConfig
from ppsim.core.loop import Loop
from ppsim.core.memory.kv import KVCache
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.admission import PrefillAdder
from ppsim.core.schedule.batch import Piece
from ppsim.core.schedule.journal import Journal
from ppsim.core.schedule.request import Request, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot, SlotRing
from ppsim.plugin import planted
from ppsim.plugin.plans import before, behind, does


@planted("watermark_on_later_ranks", breaks="INV-09", profile="plain", source="protocol.md 12, invariant 9")
class WatermarkOnLaterRanks(Scheduler):
    """Later ranks start no prompt in an empty slot while less than half of the pool is free."""

    def may_prefill(self, slot: Slot) -> bool:
        pool = self.kv.pool
        return self.config.is_first or bool(slot.running) or 2 * pool.free_tokens >= pool.capacity_tokens


@planted("one_prompt_a_batch", breaks="INV-10", profile="plain", source="protocol.md 12, invariant 10")
class OnePromptABatch(Scheduler):
    """Later ranks admit one request to a prefill batch."""

    def __init__(
        self, config: RankConfig, kv: KVCache, slots: SlotRing, policy: Policy, journal: Journal | None = None
    ) -> None:
        mine = config if config.is_first else replace(config, prefill_max_requests=1)
        super().__init__(mine, kv, slots, policy, journal)


@planted("mixed_tokens_not_charged", breaks="INV-11", profile="chunked", source="protocol.md 4.3, 4.8")
class MixedTokensNotCharged(Scheduler):
    """Later ranks give the whole chunk budget to the prompt, although decode tokens ride along."""

    def _adder(self, slot: Slot, num_mixed: int) -> PrefillAdder:
        return super()._adder(slot, num_mixed if self.config.is_first else 0)


@planted("logprob_wish_lost", breaks="INV-12", profile="chunked", source="protocol.md 2.4")
class LogprobWishLost(Scheduler):
    """Later ranks ask nobody for logprobs before they skip an exchange, which the first rank waits for."""

    def may_skip_output(self, pieces: list[Piece[Request]]) -> bool:
        is_middle = len(pieces) == 1 and not pieces[0].is_last_chunk
        return super().may_skip_output(pieces) or (is_middle and not self.config.is_first)


@planted("middle_chunk_counted_twice", breaks="INV-13", profile="chunked", source="protocol.md 4.4")
class MiddleChunkCountedTwice(Loop):
    """Later ranks count a middle chunk as harvested while another one is still in flight."""

    def plan(self) -> Plan:
        steps = super().plan()

        def count_again(rank: Rank) -> None:
            for request in rank.scheduler.requests.values():
                if not rank.config.is_first and request.inflight_middle_chunks > 1:
                    request.inflight_middle_chunks -= 1

        return before(steps, "send_hidden_late", does(count_again))


@planted("queue_limit_on_later_ranks", breaks="INV-14", profile="plain", source="protocol.md 7.2")
class QueueLimitOnLaterRanks(Loop):
    """Later ranks drop the youngest of more than two waiting requests while they are busy."""

    def plan(self) -> Plan:
        steps = super().plan()

        def drop_one(rank: Rank) -> None:
            scheduler = rank.scheduler
            if not rank.config.is_first and len(scheduler.waiting) > 2:
                request = scheduler.waiting.pop()
                del scheduler.requests[request.rid]

        return before(steps, "schedule", does(drop_one))


@planted("joins_another_slot", breaks="INV-80", profile="plain", source="protocol.md 4.4")
class JoinsAnotherSlot(Loop):
    """On later ranks a request that has just begun to decode goes on in the slot before its own."""

    def plan(self) -> Plan:
        steps = super().plan()

        def move(rank: Rank) -> None:
            slots = rank.scheduler.slots
            slot = slots.current(rank.iteration)
            young = [r for r in slot.running if r.state is State.DECODE and len(r.output_ids) == 1]
            if not rank.config.is_first and young:
                slot.running.remove(young[0])
                slots.slots[slot.index - 1].running.append(young[0])

        return behind(steps, "schedule", does(move))


@planted("full_flag_stays", breaks="INV-16", profile="plain", source="bugs.md B86")
class FullFlagStays(Scheduler):
    """On later ranks batch_is_full never falls."""

    def reopen(self, slot: Slot) -> None:
        if self.config.is_first or self.role.clears_full_flag:
            super().reopen(slot)


@planted("ratio_decays_twice", breaks="INV-17", profile="plain", source="protocol.md 4.3")
class RatioDecaysTwice(Loop):
    """Later ranks lower new_token_ratio by two steps for each batch of their own."""

    def plan(self) -> Plan:
        steps = super().plan()

        def decay_again(rank: Rank) -> None:
            if not rank.config.is_first and rank.batch is not None:
                rank.scheduler.ratio.decay()

        return behind(steps, "schedule", does(decay_again))


@planted("retracts_the_first", breaks="INV-18", profile="plain", source="protocol.md 4.5")
class RetractsTheFirst(Policy):
    """Later ranks retract the most preferred request first."""

    def retraction_order(self, running: list[Request]) -> list[Request]:
        order = super().retraction_order(running)
        return order[::-1] if self.pp_rank else order


@planted("decodes_first", breaks="INV-19", profile="plain", source="protocol.md 4.1")
class DecodesFirst(Policy):
    """Later ranks decode first where a slot has something to decode."""

    def may_prefill(self, running: Sequence[Request], waiting: Sequence[Request], free_tokens: int) -> bool:
        return self.pp_rank == 0 or not running


@planted("chunk_sizes_refitted", breaks="INV-20", profile="chunked", source="protocol.md 5.1, 12 invariant 20")
class ChunkSizesRefitted(Policy):
    """Later ranks fit the chunk sizes to times of their own, and come to half of what was planned."""

    def chunk_size(self, prefix_len: int, planned: int) -> int:
        return planned if self.pp_rank == 0 else max(planned // 2, 1)


@planted("limit_changes_later", breaks="INV-21", profile="plain", source="protocol.md 12, invariant 21")
class LimitChangesLater(Loop):
    """pp_max_micro_batch_size falls to 1 in iteration 4 of the first rank, and one iteration later on each next one."""

    def plan(self) -> Plan:
        steps = super().plan()

        def lower(rank: Rank) -> None:
            if rank.iteration == 4 + self.config.pp_rank:
                rank.scheduler.config = replace(rank.scheduler.config, max_micro_batch_size=1)

        return before(steps, "schedule", does(lower))
