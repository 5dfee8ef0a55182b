"""Pure middle chunks need no output message: nobody waits for their tokens (protocol.md 2.4).

With the rule on, every output of a batch of one unfinished prompt chunk is left out on each of its hops; nothing else
changes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.core.effects import Send
from ppsim.core.messages import Kind
from ppsim.recording import Recording
from ppsim.world.driver import SimulatedRank
from tests.worlds.making import passed, requests, tokens_of

SKIP = "scheduler.skip_pure_chunked_output_comm"


class Counted:
    """Messages of each kind that were sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kinds: Counter[Kind] = Counter()
        send = SimulatedRank._send

        def watched(rank: SimulatedRank, effect: Send) -> Any:
            if rank.waits_for is None:
                self.kinds[effect.message.kind] += 1
            return send(rank, effect)

        monkeypatch.setattr(SimulatedRank, "_send", watched)

    def of(self, scenario: dict[str, Any]) -> tuple[Counter[Kind], Recording]:
        self.kinds = Counter()
        recording = passed(scenario)
        return self.kinds, recording


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("pp_size", [2, 3, 4])
def test_k_chunks_save_k_minus_1_outputs_on_every_hop_of_the_ring(
    pp_size: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An output passes P links: last to first, and on to the last again."""
    counted = Counted(monkeypatch)
    num_chunks, output = 6, 3
    base = {
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": depth,
        "workload.requests": requests(1, prompt=4 * num_chunks, output=output),
    }
    full, expected = counted.of(base)
    few, recording = counted.of({**base, SKIP: True})
    assert full[Kind.OUTPUT] == pp_size * (num_chunks + output - 1)
    assert few[Kind.OUTPUT] == pp_size * output
    assert few[Kind.HIDDEN] == full[Kind.HIDDEN] == (pp_size - 1) * (num_chunks + output - 1)
    assert tokens_of(recording) == tokens_of(expected)
    assert recording.decisions == expected.decisions


def test_a_chunk_that_shares_its_batch_or_wants_logprobs_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    logprobs = {"workload.requests": requests(1, prompt=24, output=1, return_logprob=True), SKIP: True}
    assert counted.of(logprobs)[0][Kind.OUTPUT] == 2 * 6
    # R1 ends inside the first batch and R2 begins there: that batch has two rows and a token that counts.
    shared = [*requests(1, prompt=2), {"rid": "R2", "prompt": 10, "output": 1, "ignore_eos": True}]
    two_rows = {"workload.requests": shared, SKIP: True, "scheduler.pp_max_micro_batch_size": 4}
    kinds, recording = counted.of(two_rows)
    assert [d.pieces for d in recording.decisions[0]][:3] == [
        (("R1", 0, 2), ("R2", 0, 2)),
        (("R2", 2, 4),),
        (("R2", 6, 4),),
    ]
    assert kinds[Kind.OUTPUT] == 2 * 2


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_over_random_loads_the_rule_changes_no_decision_and_no_token_and_never_hangs(data: st.DataObject) -> None:
    pp_size = data.draw(st.integers(1, 4))
    rows = [
        {
            "rid": f"R{n}",
            "prompt": data.draw(st.integers(1, 30)),
            "output": data.draw(st.integers(1, 5)),
            "at_iteration": data.draw(st.integers(0, 15)),
            "ignore_eos": True,
            "return_logprob": data.draw(st.booleans()),
        }
        for n in range(data.draw(st.integers(1, 6)))
    ]
    base = {
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": data.draw(st.integers(0, 3)),
        "scheduler.pp_max_micro_batch_size": data.draw(st.integers(1, 3)),
        "scheduler.enable_mixed_chunk": data.draw(st.booleans()),
        "scheduler.max_total_tokens": data.draw(st.sampled_from([48, 4096])),
        "links.latency_us": data.draw(st.sampled_from([0.0, 250.0])),
        "links.send": data.draw(st.sampled_from(["eager", "rendezvous"])),
        "scheduler.exchange_order": "parity",
        "workload.requests": rows,
    }
    plain, skipping = passed(base), passed({**base, SKIP: True})
    assert skipping.decisions == plain.decisions
    assert skipping.harvests == plain.harvests
    assert tokens_of(skipping) == tokens_of(plain)
