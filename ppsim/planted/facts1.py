"""Bugs that keep every flag right and all ranks alike: only the fact shows them. Invariants 74 to 79."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ppsim.core.consensus import KVPoll
from ppsim.core.effects import Effect, Reply, Send
from ppsim.core.hooks import Hooks
from ppsim.core.loop import Plan
from ppsim.core.messages import Hidden
from ppsim.core.pd_decode import DecodeRole
from ppsim.core.pd_prefill import PrefillRole
from ppsim.core.phases import absorb_outputs, report_harvest
from ppsim.core.rank import Rank
from ppsim.core.request import State
from ppsim.planted.plans import before, behind, does, edited, instead
from ppsim.planted.registry import planted

# --- KV between two servers ------------------------------------------------------------------------------------------


@planted("promised_and_not_sent", breaks="INV-74", profile="pair", source="sglang #30322")
class PromisedAndNotSent(Hooks):
    """The first half of a prompt counts as known to the other side: it is never sent.

    The write behind it is flagged as the last one, so both sides count the transfer as complete.
    """

    def plan(self, steps: Plan) -> Plan:
        def promise(rank: Rank) -> None:
            page = rank.config.page_size
            for request in rank.scheduler.waiting if isinstance(rank.scheduler.role, PrefillRole) else ():
                if request.state is State.WAITING and not request.sent_len:
                    request.sent_len = request.prompt_len // 2 // page * page

        return before(steps, "schedule", does(promise))


@planted("page_sent_again", breaks="INV-74", profile="pair", source="protocol.md 6.5")
class PageSentAgain(Hooks):
    """The first chunk is counted a page short once it is handed to the transfer: its last page is sent twice."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.short: dict[str, int] = {}

    def plan(self, steps: Plan) -> Plan:
        def forget(rank: Rank) -> None:
            for request in rank.scheduler.requests.values() if isinstance(rank.scheduler.role, PrefillRole) else ():
                if request.sent_len and self.short.get(request.rid) != request.arrived:
                    self.short[request.rid] = request.arrived
                    request.sent_len -= rank.config.page_size

        return behind(steps, "schedule", does(forget))


@planted("pages_moved_after_the_handshake", breaks="INV-75", profile="pd", source="protocol.md 6.6")
class PagesMovedAfterTheHandshake(Hooks):
    """The decode side orders the pages of a prompt anew after it has told the senders where to write."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.moved: dict[str, int] = {}

    def plan(self, steps: Plan) -> Plan:
        def move(rank: Rank) -> None:
            role = rank.scheduler.role
            for request in role.transfer if isinstance(role, DecodeRole) else ():
                if self.moved.get(request.rid) != request.arrived:
                    self.moved[request.rid] = request.arrived
                    request.pages.reverse()

        return before(steps, "send_inputs", does(move))


# --- replies ---------------------------------------------------------------------------------------------------------


def answers(steps: Plan, change: Callable[[list[Reply]], list[Reply]]) -> Plan:
    """Change what is told of the tokens of an iteration, right before it is handed out."""

    def run(rank: Rank) -> None:
        if rank.scheduler.outbox:
            rank.scheduler.outbox[:] = change(rank.scheduler.outbox)

    return before(instead(steps, "harvest", absorb_outputs, report_harvest), "report_harvest", does(run))


@planted("tokens_told_twice", breaks="INV-76", profile="plain", source="TensorRT-LLM #12623")
class TokensToldTwice(Hooks):
    """A client is told each token again with the next record."""

    def plan(self, steps: Plan) -> Plan:
        return answers(steps, lambda told: [r for r in told for _ in range(2 if r.status == "token" else 1)])


@planted("second_tokens_untold", breaks="INV-76", profile="plain", source="bugs.md I12")
class SecondTokensUntold(Hooks):
    """Every second token of a request is lost on its way to the client; the end is told."""

    def plan(self, steps: Plan) -> Plan:
        return answers(steps, lambda told: [r for r in told if r.status != "token" or r.num_output_tokens % 2])


@planted("limit_off_by_one", breaks="INV-77", profile="plain", source="protocol.md 7.3")
class LimitOffByOne(Hooks):
    """All ranks alike let a request run a token behind its limit."""

    def plan(self, steps: Plan) -> Plan:
        def widen(rank: Rank) -> None:
            for request in rank.scheduler.requests.values():
                if request.arrived == rank.iteration and not request.output_ids:
                    request.spec = replace(request.spec, max_new_tokens=request.spec.max_new_tokens + 1)

        return behind(steps, "apply_inputs", does(widen))


# --- what a launch reads ---------------------------------------------------------------------------------------------


@planted("tensor_of_the_batch_before", breaks="INV-78", profile="plain", source="sglang #30015")
class TensorOfTheBatchBefore(Hooks):
    """A stage sends the hidden states of the batch before under this batch's address; their shapes agree."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.before: Hidden | None = None

    def plan(self, steps: Plan) -> Plan:
        def swap(rank: Rank, effect: Effect) -> Effect:
            if not isinstance(effect, Send) or not isinstance(effect.message, Hidden):
                return effect
            message, old = effect.message, self.before
            self.before = message
            if old is None or old.num_tokens != message.num_tokens:
                return effect
            return Send(effect.dst, replace(message, payload=old.payload), effect.paired)

        return tuple(edited(phase, swap) for phase in steps)


@planted("pages_of_each_other", breaks="INV-78", profile="plain", source="protocol.md 4.9")
class PagesOfEachOther(Hooks):
    """Two requests that decode exchange their first pages, on all ranks alike: no page is lost or held twice."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        super().__init__(pp_rank, tp_rank)
        self.done = False

    def plan(self, steps: Plan) -> Plan:
        def exchange(rank: Rank) -> None:
            decoding = [r for r in rank.scheduler.requests.values() if r.state is State.DECODE and not r.cached_len]
            if len(decoding) > 1 and not self.done:
                one, other = decoding[:2]
                one.pages[0], other.pages[0] = other.pages[0], one.pages[0]
                self.done = True

        return before(steps, "schedule", does(exchange))


# --- the store -------------------------------------------------------------------------------------------------------


@planted("store_takes_the_first", breaks="INV-79", profile="pd", source="protocol.md 6.4")
class StoreTakesTheFirst(Hooks):
    """Once every rank has told something the first rank's own status decides: half replicated, half local."""

    def store_decision(self, statuses: Sequence[int | None]) -> int:
        first = statuses[0]
        return KVPoll.BOOTSTRAPPING if first is None or None in statuses else first
