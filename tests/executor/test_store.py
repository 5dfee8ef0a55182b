"""The consensus store over ZeroMQ, and the roles that need it, on real threads and processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from executor.launch import execute
from executor.store import BROKEN, ConsensusStore
from ppsim.core.loop import Loop
from ppsim.core.rank import Plan
from ppsim.errors import RankDied, ScenarioError
from ppsim.scenario.load import validate


def eventually(test: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if test():
            return True
        time.sleep(0.005)
    return test()


def test_a_status_of_every_rank_reaches_the_first_one_and_a_missing_one_stays_missing() -> None:
    first = ConsensusStore(0, 3)
    second, third = ConsensusStore(1, 3, first.endpoint), ConsensusStore(2, 3, first.endpoint)
    try:
        first.put("R1", 2)
        second.put("R1", 1)
        assert eventually(lambda: first.collect("R1") == [2, 1, None])
        third.put("R1", 2)
        second.put("R1", 2)
        assert eventually(lambda: first.collect("R1") == [2, 2, 2])
        second.delete("R1")
        assert eventually(lambda: first.collect("R1") == [2, None, 2])
        second.put("R1", 1)  # the room is used again: PUT and DELETE of one rank share one order
        assert eventually(lambda: first.collect("R1") == [2, 1, 2])
        assert first.collect("R2") == [None, None, None]
    finally:
        for store in (second, third, first):
            store.close()


@pytest.mark.parametrize(
    "message",
    [b"", b"not json", b"[]", b'["put", 1, "R1"]', b'["put", 9, "R1", 2]', b'["lift", 1, "R1", 2]', b'["put", 1, 7, 2]',
     b'["put", 1, "R1", "2"]', b'{"kind": "put"}', b'["put", 0, "R1", 2]'],
)  # fmt: skip
def test_what_cannot_be_understood_is_dropped_and_counted(message: bytes) -> None:
    store = ConsensusStore(0, 2)
    try:
        store.apply(message)
        assert store.num_dropped == 1
        assert store.collect("R1") == [None, None]
    finally:
        store.close()


def test_a_broken_background_thread_ends_the_process_at_once() -> None:
    script = (
        "import time\n"
        "from executor.store import ConsensusStore\n"
        "store = ConsensusStore(0, 2)\n"
        "store.apply = lambda message: 1 / 0\n"
        "peer = ConsensusStore(1, 2, store.endpoint)\n"
        "peer.put('R1', 2)\n"
        "time.sleep(20)\n"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == BROKEN
    assert "rank 0: the consensus store's thread broke: ZeroDivisionError" in done.stderr
    assert time.monotonic() - started < 15


def raw(**more: Any) -> dict[str, Any]:
    """A prefill server of two stages with observations that come late."""
    return {
        "name": "store",
        "cluster": {"pp_size": 2},
        "model": {
            "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 64, "dtype_bytes": 4,
        },
        "scheduler": {"chunked_prefill_size": 8, "max_total_tokens": 256, "max_running_requests": 4},
        "observations": {"max_delay": 3},
        "workload": {
            "source": "requests",
            "requests": [
                {"rid": "R1", "at_iteration": 0, "prompt": 20, "output": 3},
                {"rid": "R2", "at_iteration": 1, "prompt": 12, "output": 3},
                {"rid": "R3", "at_iteration": 1, "prompt": 9, "output": 3},
            ],
            "aborts": [{"rid": "R3", "at_iteration": 6}, {"rid": "unknown", "at_iteration": 2}],
        },
        **more,
    }  # fmt: skip


@pytest.mark.parametrize("bootstrap", ["store", "vote"])
def test_a_prefill_server_agrees_over_real_processes(bootstrap: str) -> None:
    scenario = validate(raw(disaggregation={"role": "prefill", "bootstrap": bootstrap}))
    result = execute(scenario, start_method="forkserver")
    assert result.verdict.kind == "pass", result.verdict.message
    ends = {r.rid: r.status for r in result.recording.replies if r.status != "token"}
    assert ends == {"R1": "finished", "R2": "finished", "R3": "aborted"}
    assert result.recording.decisions[0] == result.recording.decisions[1]


def test_grammars_are_agreed_over_real_processes() -> None:
    content = raw()
    content["workload"]["requests"][0]["grammar"] = "json"
    result = execute(validate(content), start_method="forkserver")
    assert result.verdict.kind == "pass", result.verdict.message
    looked = [o.what for o in result.recording.observations[0]]
    assert "grammar" in looked
    assert {r.rid for r in result.recording.replies if r.status == "finished"} >= {"R1", "R2"}


def test_a_decode_server_is_refused_with_the_reason() -> None:
    with pytest.raises(ScenarioError, match=r"disaggregation\.role: 'decode': the executor has no KV transport"):
        execute(validate(raw(disaggregation={"role": "decode"})))


class BreaksTheStore(Loop):
    """Planted: the first rank's background thread meets something that it does not expect."""

    def plan(self) -> Plan:
        if self.config.is_first:
            ConsensusStore.apply = lambda store, message: 1 / 0  # type: ignore[assignment, method-assign]
        return super().plan()


def test_a_rank_whose_store_breaks_ends_the_run_at_once_and_is_named() -> None:
    """Silence would leave every handshake Bootstrapping for ever: no limit, no watchdog is set here."""
    started = time.monotonic()
    with pytest.raises(RankDied, match=rf"rank 0 of 2 ended with exit code {BROKEN}"):
        execute(
            validate(raw(disaggregation={"role": "prefill"})),
            start_method="forkserver",
            changes=(f"{__name__}:BreaksTheStore",),
        )
    assert time.monotonic() - started < 40
