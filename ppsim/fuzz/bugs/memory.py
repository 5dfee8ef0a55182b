"""Bugs of KV and buffers: freed too early, twice, or never. bugs.md, class KV lifetime."""

from __future__ import annotations

from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.effects import Effects, drop
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.memory.kv import KVCache
from ppsim.core.messages import FlushCache
from ppsim.core.phases import commit_hidden
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.admission import PrefillAdder
from ppsim.core.schedule.batch import Mode
from ppsim.core.schedule.journal import Flushed, Journal
from ppsim.core.schedule.request import Request, State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import SlotRing
from ppsim.core.votes import Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import behind, does, instead


@planted("freed_at_first_harvest", breaks="INV-59", profile="abort", source="bugs.md B35")
class FreedAtFirstHarvest(Scheduler):
    """An aborted prompt gives its KV back at the next harvest, although later chunks of it are still in flight."""

    def __init__(
        self, config: RankConfig, kv: KVCache, slots: SlotRing, policy: Policy, journal: Journal | None = None
    ) -> None:
        super().__init__(config, kv, slots, policy, journal)
        self.in_flight: dict[str, int] = {}

    def may_end_now(self, request: Request) -> bool:
        before = self.in_flight.setdefault(request.rid, request.num_inflight)
        return request.num_inflight < before or request.num_inflight == 0


@planted("ends_twice", breaks="INV-23", profile="pd", source="bugs.md B37")
class EndsTwice(Loop):
    """An aborted request whose record is kept for its transfer goes through the release of pages twice."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        super().__init__(config, exchange, voting, chain)
        self.freed: list[str] = []

    def plan(self) -> Plan:
        steps = super().plan()

        def free(rank: Rank) -> None:
            role = rank.scheduler.role
            for request in role.inflight if isinstance(role, PrefillRole) else ():
                if request.to_abort and request.rid not in self.freed:
                    self.freed.append(request.rid)
                    rank.scheduler.kv.pool.release(request.pages)

        return behind(steps, "absorb_outputs", does(free))


@planted("flush_beside_launched", breaks="INV-73", profile="abort", source="bugs.md B45")
class FlushBesideLaunched(Scheduler):
    """The idle test looks at queues, running sets and the chunked prompt, not at batches in flight."""

    def _flush(self, item: FlushCache) -> None:
        waiting = self.waiting or self.grammar_queue or self.chunked is not None
        running = any(slot.running or slot.last_batch for slot in self.slots.slots)
        if waiting or running or self.kv.tree.protected_tokens:
            super()._flush(item)
            return
        self.kv.tree.reset()
        self.journal.add(Flushed(item.rid))


@planted("aborted_chunk_leaks", breaks="INV-23", profile="abort", source="bugs.md B46")
class AbortedChunkLeaks(Scheduler):
    """The pages of the chunk that was launched last are forgotten when its prompt is aborted."""

    def may_end_now(self, request: Request) -> bool:
        ends = super().may_end_now(request)
        if ends and request.state is State.PREFILL and request.cached_len:
            page_size = -(-request.kv_len // len(request.pages))
            del request.pages[request.cached_len // page_size :]
        return ends


@planted("retraction_without_effect", breaks="INV-66", profile="retraction", source="bugs.md B48")
class RetractionWithoutEffect(Scheduler):
    """A retracted request is taken out of the batch, and keeps its KV."""

    def put_out(self, request: Request) -> None:
        pass


@planted("skipped_step_keeps_growth", breaks="INV-66", profile="plain", source="bugs.md B52")
class SkippedStepKeepsGrowth(Loop):
    """A decode step is skipped while every other slot is empty, on all ranks; the KV it was given is not taken back."""

    def plan(self) -> Plan:
        steps = super().plan()
        return behind(steps, "schedule", does(skip_lonely_decode))


def skip_lonely_decode(rank: Rank) -> None:
    slots = rank.scheduler.slots
    slot = slots.current(rank.iteration)
    lonely = not any(other.running or other.in_flight for other in slots.slots if other is not slot)
    if rank.batch is None or not lonely or rank.batch.forward.mode is not Mode.DECODE:
        return
    for request in rank.batch.requests:
        request.num_inflight -= 1
    rank.batch = slot.launched = None
    slot.in_flight = False


@planted("hidden_given_up_when_deep", breaks="INV-38", profile="plain", source="bugs.md B53")
class HiddenGivenUpWhenDeep(Loop):
    """With an asynchronous depth above 1 hidden states are given up while they are still read."""

    def plan(self) -> Plan:
        steps = super().plan()
        return instead(steps, "commit_hidden", give_up_when_deep)


def give_up_when_deep(rank: Rank) -> Effects[None]:
    if rank.config.pp_async_batch_depth < 2:
        yield from commit_hidden(rank)
        return
    for work in rank.send_proxy_work:
        yield from drop(work)
    rank.send_proxy_work.clear()


class Unbounded(PrefillAdder):
    """A continued chunk is not checked against memory."""

    def add_chunked(self, request: Request) -> bool:
        assert self.rem_chunk is not None
        remaining = request.seq_len - request.kv_len
        new_tokens = min(remaining, self.rem_chunk)
        self._charge(request, new_tokens, remaining - new_tokens)
        return True


class AlwaysGrows(KVCache):
    """Memory for the next chunk of a prompt is taken for granted."""

    def can_grow(self, request: Request, num_tokens: int) -> bool:
        return request.state is State.PREFILL or super().can_grow(request, num_tokens)


@planted("chunk_beyond_memory", breaks="INV-23", profile="retraction", source="bugs.md B100", beside=(AlwaysGrows,))
class ChunkBeyondMemory(Scheduler):
    """The next chunk of a running prompt is launched by the chunk budget alone, whatever memory is left."""

    adder_class = Unbounded
