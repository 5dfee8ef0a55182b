"""Bugs of what is sent, when and in which order. Invariants 31 to 40."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.effects import Effects, drop
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.plugin import planted
from ppsim.plugin.plans import behind, does, instead, moved_behind, named


@planted("conclusions_swapped", breaks="INV-31", profile="pd", source="protocol.md 1.8, step 9")
class ConclusionsSwapped(Loop):
    """One rank sends the conclusions of its first two votes in the other order."""

    def plan(self) -> Plan:
        steps = super().plan()
        places = [i for i, phase in enumerate(steps) if phase.__name__.startswith("second_send")][:2]
        if self.config.pp_rank != 1 or len(places) < 2:
            return steps
        swapped = list(steps)
        swapped[places[0]], swapped[places[1]] = swapped[places[1]], swapped[places[0]]
        return tuple(swapped)


@planted("padded_hidden_states", breaks="INV-32", profile="plain", source="bugs.md B29")
class PaddedHiddenStates(Loop):
    """Hidden states are sent with the rows that were padded on for the graph."""

    def plan(self) -> Plan:
        steps = super().plan()

        def pad(rank: Rank) -> None:
            if rank.hidden_out is not None:
                rows = -(-rank.hidden_out.num_tokens // 8) * 8
                rank.hidden_out = replace(rank.hidden_out, num_tokens=rows)

        return behind(steps, "launch_batch", does(pad))


@planted("skipped_output_sent", breaks="INV-33", profile="chunked", source="protocol.md 2.4")
class SkippedOutputSent(Loop):
    """The last rank sends the output of a pure middle chunk all the same, although nobody expects it."""

    def plan(self) -> Plan:
        steps = super().plan()
        for name in ("exchange_if_deep", "exchange_if_shallow"):
            for phase in named(steps, name):
                steps = instead(steps, name, self.without_skip(phase))
        return steps

    def without_skip(self, phase: Phase) -> Phase:
        def run(rank: Rank) -> Effects[None]:
            batch = rank.scheduler.slots.to_release(rank.iteration).launched
            if batch is None or not rank.config.is_last:
                yield from phase(rank)
                return
            decided = batch.forward
            batch.forward = replace(decided, skip_output_comm=False)
            yield from phase(rank)
            batch.forward = decided

        run.__name__ = phase.__name__
        return run


@planted("finished_rows_left_out", breaks="INV-34", profile="plain", source="bugs.md B11")
class FinishedRowsLeftOut(Loop):
    """The last rank leaves out the rows of requests that will end with this token."""

    def plan(self) -> Plan:
        steps = super().plan()

        def leave_out(rank: Rank) -> None:
            if rank.batch is None or not rank.config.is_last or len(rank.batch.requests) == 1:
                return
            going_on = [r for r in rank.batch.requests if len(r.output_ids) + 1 < r.spec.max_new_tokens]
            output = rank.last_rank_comm_queue[-1]
            rank.last_rank_comm_queue[-1] = replace(output, num_rows=len(going_on))

        return behind(steps, "launch_batch", does(leave_out))


@planted("newest_output_first", breaks="INV-35", profile="plain", source="protocol.md 1.5")
class NewestOutputFirst(Loop):
    """The last rank releases the output that it has computed last."""

    def plan(self) -> Plan:
        steps = super().plan()

        def turn_round(rank: Rank) -> None:
            rank.last_rank_comm_queue.reverse()

        return behind(steps, "launch_batch", does(turn_round))


@planted("hidden_before_relay", breaks="INV-36", profile="plain", source="protocol.md 1.9, 2.5")
class HiddenBeforeRelay(Loop):
    """Hidden states leave right after the launch, before the output that has to be passed on."""

    def plan(self) -> Plan:
        steps = super().plan()
        return moved_behind(steps, "send_hidden_late", "launch_batch")


@planted("conclusion_not_repeated", breaks="INV-37", profile="pd", source="protocol.md 2.2")
class ConclusionNotRepeated(Loop):
    """The last rank sends a conclusion only if it says something, or if it is the first."""

    def plan(self) -> Plan:
        steps = super().plan()
        for phase in [phase for phase in steps if phase.__name__.startswith("second_send")]:
            steps = instead(steps, phase.__name__, self.only_news(phase))
        return steps

    def only_news(self, phase: Phase) -> Phase:
        vote = phase.__name__.removeprefix("second_send_")

        def run(rank: Rank) -> Effects[None]:
            good, bad = rank.first_pass.get(vote, ((), ()))
            first = rank.iteration == rank.config.pp_async_batch_depth
            if first or good or bad or not rank.config.is_last:
                yield from phase(rank)

        run.__name__ = phase.__name__
        return run


@planted("buffers_given_up", breaks="INV-38", profile="plain", source="protocol.md 3.1")
class BuffersGivenUp(Loop):
    """Nobody waits for the send of hidden states before their buffer is given up."""

    def plan(self) -> Plan:
        return instead(super().plan(), "commit_hidden", give_up)


def give_up(rank: Rank) -> Effects[None]:
    for work in rank.send_proxy_work:
        yield from drop(work)
    rank.send_proxy_work.clear()


@planted("commit_after_launch", breaks="INV-39", profile="plain", source="bugs.md B55")
class CommitAfterLaunch(Loop):
    """The hidden states of the iteration before are waited for behind the launch that overwrites their buffer."""

    def plan(self) -> Plan:
        steps = super().plan()
        return moved_behind(steps, "commit_hidden", "launch_batch")


@planted("all_send_first", breaks="INV-40", profile="blocking", source="protocol.md 1.9, 3.4, bugs.md B18")
class AllSendFirst(Exchange):
    """Every rank sends its output before it receives one, on links that block until a send is taken."""

    def sends_first(self, rank: Rank) -> bool:
        return True
