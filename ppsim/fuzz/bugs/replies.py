"""Bugs of what a client is told, alike on all ranks: tokens twice, not at all, or one too many (INV-76, INV-77)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ppsim.core.effects import Reply
from ppsim.core.loop import Loop
from ppsim.core.phases import absorb_outputs, report_harvest
from ppsim.core.rank import Plan, Rank
from ppsim.plugin import planted
from ppsim.plugin.plans import before, behind, does, instead


def answers(steps: Plan, change: Callable[[list[Reply]], list[Reply]]) -> Plan:
    """Change what is told of the tokens of an iteration, right before it is handed out."""

    def run(rank: Rank) -> None:
        for reply in change(rank.journal.take_replies()):
            rank.journal.add(reply)

    return before(instead(steps, "harvest", absorb_outputs, report_harvest), "report_harvest", does(run))


@planted("tokens_told_twice", breaks="INV-76", profile="plain", source="TensorRT-LLM #12623")
class TokensToldTwice(Loop):
    """A client is told each token again with the next record."""

    def plan(self) -> Plan:
        steps = super().plan()

        return answers(steps, lambda told: [r for r in told for _ in range(2 if r.status == "token" else 1)])


@planted("second_tokens_untold", breaks="INV-76", profile="plain", source="bugs.md I12")
class SecondTokensUntold(Loop):
    """Every second token of a request is lost on its way to the client; the end is told."""

    def plan(self) -> Plan:
        steps = super().plan()

        return answers(steps, lambda told: [r for r in told if r.status != "token" or r.num_output_tokens % 2])


@planted("limit_off_by_one", breaks="INV-77", profile="plain", source="protocol.md 7.3")
class LimitOffByOne(Loop):
    """All ranks alike let a request run a token behind its limit."""

    def plan(self) -> Plan:
        steps = super().plan()

        def widen(rank: Rank) -> None:
            for request in rank.scheduler.requests.values():
                if request.arrived == rank.iteration and not request.output_ids:
                    request.spec = replace(request.spec, max_new_tokens=request.spec.max_new_tokens + 1)

        return behind(steps, "apply_inputs", does(widen))
