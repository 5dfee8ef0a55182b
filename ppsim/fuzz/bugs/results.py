"""Bugs of tokens, ends and replies. Invariants 41 to 45, 61, 62."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.effects import Effects
from ppsim.core.loop import Loop
from ppsim.core.phases import absorb_outputs, report_harvest
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan, Rank
from ppsim.core.schedule.request import Request
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import LaunchedBatch
from ppsim.plugin import planted
from ppsim.plugin.plans import before, behind, does, instead


@planted("other_tokens", breaks="INV-41", profile="plain", source="protocol.md 12, invariant 41")
class OtherTokens(Scheduler):
    """Later ranks append the token after the one that was sampled."""

    def rows_of(self, batch: LaunchedBatch, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        return token_ids if self.config.is_first else tuple(token + 1 for token in token_ids)


@planted("stop_tokens_ignored", breaks="INV-42", profile="plain", source="protocol.md 12, invariant 42")
class StopTokensIgnored(Loop):
    """Later ranks do not know the stop tokens of a request."""

    def plan(self) -> Plan:
        steps = super().plan()

        def forget(rank: Rank) -> None:
            for request in rank.scheduler.requests.values():
                if not rank.config.is_first and request.spec.stop_token_ids:
                    request.spec = replace(request.spec, stop_token_ids=())

        return behind(steps, "apply_inputs", does(forget))


@planted("local_grammar_cache", breaks="INV-43", profile="grammar", source="bugs.md I8")
class LocalGrammarCache(Loop):
    """Later ranks have the grammar in a cache of their own, and leave the queue and its exchange out."""

    def plan(self) -> Plan:
        steps = super().plan()

        def hit(rank: Rank) -> None:
            scheduler = rank.scheduler
            for request in list(scheduler.grammar_queue):
                if not rank.config.is_first and not request.to_abort:
                    scheduler.grammar_queue.remove(request)
                    scheduler.role.enqueue(request)

        return behind(steps, "apply_inputs", does(hit))


@planted("first_rank_samples", breaks="INV-44", profile="plain", source="protocol.md 12, invariant 44")
class FirstRankSamples(Loop):
    """The first rank draws the tokens itself instead of taking those of the last rank."""

    def plan(self) -> Plan:
        steps = super().plan()

        def draw(rank: Rank) -> Effects[None]:
            if rank.received is not None and rank.config.is_first:
                rank.received = replace(rank.received, sender=rank.link.rank_id)
            yield from ()

        return behind(behind(steps, "exchange_if_shallow", draw), "exchange_if_deep", draw)


@planted("middle_chunks_are_tokens", breaks="INV-45", profile="chunked", source="protocol.md 2.4")
class MiddleChunksAreTokens(Scheduler):
    """The row of a middle chunk whose exchange was skipped is taken for a token."""

    def is_middle_chunk(self, request: Request) -> bool:
        batch = self.slots.to_harvest(self.iteration).last_batch
        was_skipped = batch is not None and batch.forward.skip_output_comm
        return super().is_middle_chunk(request) and not was_skipped


@planted("last_reply_twice", breaks="INV-61", profile="plain", source="bugs.md I12")
class LastReplyTwice(Loop):
    """The terminal reply of a request is sent twice."""

    def plan(self) -> Plan:
        steps = super().plan()

        def twice(rank: Rank) -> None:
            for reply in rank.journal.due_replies:
                if reply.status in ("finished", "aborted"):
                    rank.journal.add(reply)

        steps = instead(steps, "harvest", absorb_outputs, report_harvest)
        return before(steps, "report_harvest", does(twice))


@planted("hash_order", breaks="INV-62", profile="plain", source="bugs.md B16")
class HashOrder(Policy):
    """Waiting requests come out of an unordered container: later ranks try them in another order."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return waiting[::-1] if self.pp_rank else waiting
