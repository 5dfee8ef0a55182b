"""What a replay tells of ranks that waited for each other when the recorded run ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ppsim.cli.replay_run import cycles_of, verdict_lines
from ppsim.core.outcome import Stand
from ppsim.recording import Verdict

CIRCLE, ROW = (1, 0), (None, 0)
HUNG = Verdict("fail", 3, "INV-40: deadlock", "INV-40")
KILLED = Verdict("fail", 3, "rank 1 of 2 was killed by signal 9 (SIGKILL)")
CUT = Verdict("unknown", 5, "")


def side(recorded: tuple[int | None, ...], replayed: tuple[int | None, ...]) -> Any:
    stands = [
        [Stand(rank, 3, 1, "waits", peer, 0) for rank, peer in enumerate(peers)] for peers in (recorded, replayed)
    ]
    ours, again = (SimpleNamespace(stands=each) for each in stands)
    return cast(Any, SimpleNamespace(recorded=ours, replayed=SimpleNamespace(recording=again)))


@pytest.mark.parametrize("verdict", [KILLED, CUT])
def test_two_ranks_that_waited_when_the_run_was_cut_off_are_no_circle(verdict: Verdict) -> None:
    assert cycles_of(side(CIRCLE, ROW), verdict) == []


@pytest.mark.parametrize("verdict", [HUNG, KILLED, CUT])
def test_a_circle_that_comes_back_is_told(verdict: Verdict) -> None:
    assert cycles_of(side(CIRCLE, CIRCLE), verdict) == ["recorded wait-for cycle: 0 -> 1 -> 0; the same in the replay"]


def test_a_circle_that_a_rule_named_and_that_does_not_come_back_is_told() -> None:
    assert cycles_of(side(CIRCLE, ROW), HUNG) == ["recorded wait-for cycle: 0 -> 1 -> 0; in the replay: none"]


def test_a_replay_that_passes_is_not_called_what_a_killed_run_was_recorded_as() -> None:
    passed = Verdict("pass", 0, "")
    assert verdict_lines(KILLED, passed) == ["verdict: pass, as far as it goes"]
    assert verdict_lines(passed, passed) == ["verdict: pass, as recorded"]
