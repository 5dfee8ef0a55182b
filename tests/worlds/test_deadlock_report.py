"""A protocol that is cut short ends in a report, never in silence: who waits, in what, for whom, in which phase.

SimPy returns silently from an empty event queue (design decision 7; bugs.md B29, B30). Each test leaves something out
of the loop of some rank.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ppsim.core import phases
from ppsim.core.channels import Endpoint
from ppsim.core.effects import Effects, recv
from ppsim.core.loop import Phase, Plan, event_loop_pp
from ppsim.core.messages import Hidden, Kind, Lane, Message, Output
from ppsim.core.rank import Rank
from ppsim.recording import Verdict
from ppsim.world import SimulationResult
from ppsim.world.network import Network
from ppsim.world.streams import Streams
from tests.worlds.making import PLAIN, moved_behind, passed, planned, requests, run, tokens_of, without

LINE = re.compile(
    r"  rank (?P<rank>\d+): iteration (?P<iteration>-?\d+), slot (?P<slot>-?\d+), phase (?P<phase>\w+), "
    r"waits in (?P<effect>.+) for rank (?P<peer>\d+) since (?P<at>[\d.]+) s"
)


def waiting(verdict: Verdict, owed: str = "") -> dict[int, tuple[int, int, str, str, int]]:
    """From the report: rank -> (iteration, slot, phase, effect, peer). ``owed``: the rule of a message that is owed."""
    expected = ("fail", 1, owed) if owed else ("fail", 3, "INV-40")
    assert (verdict.kind, verdict.exit_code, verdict.invariant) == expected, verdict
    found = {}
    for match in LINE.finditer(verdict.message):
        rank, iteration, slot, phase, effect, peer, _ = match.groups()
        found[int(rank)] = (int(iteration), int(slot), phase, effect, int(peer))
    return found


def run_with(number: int, plan: Plan, pp_size: int) -> SimulationResult:
    """One rank runs another plan; every slot decodes a request."""
    change = planned(lambda pp_rank: plan if pp_rank == number else PLAIN)
    return run({"cluster.pp_size": pp_size, "workload.requests": requests(pp_size, output=40)}, change=change)


def test_hidden_states_that_are_never_sent() -> None:
    result = run_with(0, without(PLAIN, phases.send_hidden_late), 3)
    found = waiting(result.verdict, "INV-32")
    assert found[1] == (0, 0, "receive_hidden", "receive on lane tensor", 0)
    assert found[2] == (0, 0, "receive_hidden", "receive on lane tensor", 1)
    # The first rank goes on until its second request list has to be taken.
    assert found[0] == (2, 2, "forward_inputs", "commit of a send", 1)
    assert "wait-for cycle: 0 -> 1 -> 0" in result.verdict.message
    # It has passed the end of iteration 0, where they were due: no circle of waits, but a message that it owes.
    assert (result.verdict.rank, result.verdict.iteration, result.verdict.slot) == (0, 0, 0)
    assert "it owes rank 1 the hidden states of iteration 0, slot 0" in result.verdict.message


def stops_at(iteration: int) -> Phase:
    """A rank whose device hangs: it waits for a message that nobody sends."""

    def stop(rank: Rank) -> Effects[None]:
        if rank.iteration == iteration:
            yield from recv(rank.link.prev, Lane.GRAMMAR)

    return stop


def test_a_rank_that_stops_at_iteration_50_is_named_with_what_every_other_rank_waits_for() -> None:
    """bugs.md B30: pp = 4, rank 2 stops."""
    result = run_with(2, (stops_at(50), *PLAIN), 4)
    found = waiting(result.verdict)
    assert sorted(found) == [0, 1, 2, 3]
    assert found[2] == (50, 2, "stop", "receive on lane grammar", 1)
    assert found[3][4] == 2
    assert (result.verdict.rank, result.verdict.iteration, result.verdict.slot) == (2, 50, 2)
    cycle = result.verdict.message.splitlines()[-1]
    assert cycle == "  wait-for cycle: 1 -> 2 -> 1"


def test_a_rank_that_leaves_is_waited_for_without_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    def leaves_early(rank: Rank) -> Effects[None]:
        loop = event_loop_pp(rank)
        if rank.config.pp_rank != 1:
            yield from loop
            return
        reply = None
        while rank.iteration < 10:
            reply = yield loop.send(reply)

    monkeypatch.setattr("ppsim.world.driver.event_loop_pp", leaves_early)
    result = run({"cluster.pp_size": 3, "workload.requests": requests(3, output=40)})
    found = waiting(result.verdict)
    assert sorted(found) == [0, 2]
    assert found[0][4] == found[2][4] == 1
    assert "2 of 3 ranks wait for ever" in result.verdict.message
    assert "cycle" not in result.verdict.message


# --- messages that are missing, misshaped or of another kind -----------------------------------------------------


def lose(monkeypatch: pytest.MonkeyPatch, src: int, kind: Kind, iteration: int) -> None:
    """Planted: one message is taken off its link; its sender never knows."""
    post = Network.post

    def lossy(
        self: Network, src_: int, dst: int, message: Message, host_ns: int, streams: Streams, paired: bool = False
    ) -> int:
        work = post(self, src_, dst, message, host_ns, streams, paired)
        if (src_, message.kind, message.iteration) == (src, kind, iteration):
            self.queues[(src_, dst, message.lane)].pop().posted_ns = host_ns
        return work

    monkeypatch.setattr(Network, "post", lossy)


def test_an_output_that_the_last_rank_leaves_out_is_named_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """bugs.md B20: the receiver knows what is due, and the next message is not that."""
    lose(monkeypatch, 3, Kind.OUTPUT, 5)
    verdict = run({"cluster.pp_size": 4, "workload.requests": requests(4, output=9)}).verdict
    assert (verdict.exit_code, verdict.invariant, verdict.rank, verdict.slot) == (1, "INV-33", 0, 5 % 4)
    assert "expected output of iteration 5, slot 1, from rank 3, got output of iteration 6, slot 2" in verdict.message
    assert "rank 3 left a message out" in verdict.message


def test_the_last_message_of_a_run_that_gets_lost_is_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing comes after it that would not be what is due: the first rank waits for its last token."""
    lose(monkeypatch, 1, Kind.OUTPUT, 0)
    found = waiting(run().verdict, "INV-33")  # its sender has gone on
    assert found[0] == (1, 1, "exchange_if_shallow", "receive on lane tensor", 1)
    assert found[1][4] == 0


@pytest.mark.parametrize(("rows", "hidden"), [(3, True), (5, True), (2, False)])
def test_a_message_of_another_size_stops_the_run_with_both_sizes(
    rows: int, hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bugs.md B29: never two operations that silently fail to match."""
    send = Endpoint.send

    def resized(self: Endpoint, dst: int, message: Message, paired: bool = False) -> Effects[int]:
        if hidden and isinstance(message, Hidden):
            message = replace(message, num_tokens=rows)
        if not hidden and isinstance(message, Output):
            message = replace(message, num_rows=rows)
        return (yield from send(self, dst, message, paired))

    monkeypatch.setattr(Endpoint, "send", resized)
    verdict = run({"cluster.pp_size": 3}).verdict
    assert (verdict.exit_code, verdict.invariant) == (1, "INV-32" if hidden else "INV-34")
    if hidden:
        place, expected = (
            "rank 1, iteration 0, slot 0, phase receive_hidden, request R1: ",
            f"expected hidden states with 4 rows (R1), got {rows} rows; rank 0",
        )
    else:
        place, expected = (
            "rank 0, iteration 2, slot 0, phase exchange_if_shallow, request R1: ",
            f"expected output with 1 rows (R1), got {rows} rows; rank 2",
        )
    assert place + expected in verdict.message


def test_a_message_of_another_kind_waits_in_the_inbox_and_is_used_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """bugs.md B54: hidden states that overtake an output on the same link are not taken for it."""
    early = moved_behind(PLAIN, phases.send_hidden_late, phases.launch_batch)
    most = [0]
    next_of_kind = Endpoint._next_of_kind

    def watched(self: Endpoint, *args: object) -> Effects[Message]:
        message = yield from next_of_kind(self, *args)  # type: ignore[arg-type]
        most[0] = max(most[0], self.inbox_size)
        return message

    load = {"cluster.pp_size": 3, "workload.requests": requests(3, output=5)}
    expected = tokens_of(passed(load))
    monkeypatch.setattr(Endpoint, "_next_of_kind", watched)
    passed(load)
    assert most == [0]  # in the right order the inbox stays empty
    change = planned(lambda pp_rank: early if pp_rank == 0 else PLAIN)
    assert tokens_of(passed(load, change=change)) == expected
    assert most == [1]
