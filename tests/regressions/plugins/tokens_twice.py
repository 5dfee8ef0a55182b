"""What belongs to an iteration's result is sent again with the next one's (TensorRT-LLM #12623)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ppsim.core.effects import Harvest, Reply
from ppsim.core.exchange import Exchange
from ppsim.core.messages import Output
from ppsim.core.rank import Rank
from ppsim.core.schedule.journal import Journal
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.plugin import planted


@planted("logprobs_twice", breaks="INV-71", profile="plain", source="TensorRT-LLM #12623")
class LogprobsTwice(Exchange):
    """On the wire: an output carries the logprobs of the output before it once more."""

    def __init__(self) -> None:
        self.before = 0

    def release(self, rank: Rank) -> Output | None:
        output = super().release(rank)
        if output is None or rank.config.pp_size == 1:
            return output
        again, self.before = self.before, output.num_logprobs
        return replace(output, num_logprobs=output.num_logprobs + again)


def told_anew(journal: Journal, times: Callable[[Reply], int]) -> None:
    """Each reply that is still to be handed out is handed out so many times."""
    for reply in journal.take_replies():
        for _ in range(times(reply)):
            journal.add(reply)


@planted("tokens_twice", breaks="INV-76", profile="plain", source="TensorRT-LLM #12623")
class TokensTwice(Scheduler):
    """To the client: the difference record of the next iteration repeats what was delivered in this one."""

    def harvest(self, iteration: int) -> Harvest:
        told_anew(self.journal, lambda reply: 2 if reply.status == "token" else 1)
        return super().harvest(iteration)


@planted("tokens_swapped", breaks="INV-76", profile="plain", source="bugs.md I12")
class TokensLost(Scheduler):
    """To the client: every second token reply is lost on the way out."""

    def harvest(self, iteration: int) -> Harvest:
        told_anew(self.journal, lambda reply: reply.status != "token" or reply.num_output_tokens % 2)
        return super().harvest(iteration)
