"""Any order, any pp_size, any depth, any chunk size: the same text. And the sequences of messages of protocol.md.

The ranks are a deterministic dataflow network (Kahn): between observations of the world the order in which they run
cannot matter. The oracle of the text is the model itself, applied to prompt and output (``ring.expected_stream``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ppsim.core import effects as fx
from ppsim.core.agreed import Agreed, agree
from ppsim.core.config import RankConfig
from ppsim.core.messages import Hidden, Lane, Meta, Output
from ppsim.core.parts import Change, Parts
from ppsim.core.rank import Rank
from tests.interactions.experiment import ORDINARY, TIGHT, TURNS, Experiment, experiments, request
from tests.interactions.ring import MIDDLE_CHUNK_TOKEN, Node, Ring, expected_stream, tape
from tests.interactions.settings import num_examples
from tests.interactions.test_termination import everything_is_given_back


def ring_of(experiment: Experiment, order: bytes = b"", **changes: Any) -> Ring:
    inputs = {i: experiment.due(i) for i in range(experiment.last_arrival + 1) if experiment.due(i)}
    config = replace(experiment.config, **changes)
    return Ring(config, inputs, tape(order), (experiment.capacity_tokens,))


def check_text(ring: Ring, experiment: Experiment) -> None:
    """Finished requests have the whole text of the model, aborted ones a part of it, and nothing is left over."""
    ends = ring.last_replies
    for arrival in experiment.arrivals:
        rid, text = arrival.request.rid, expected_stream(arrival.request)
        came = ring.streams.get(rid, [])
        assert came == text[: len(came)]
        assert len(came) == len(text) or ends[rid] != "finished"
        assert MIDDLE_CHUNK_TOKEN not in came
    for node in ring.nodes:
        everything_is_given_back(node.rank.scheduler)
    assert not any(ring.queues.values())
    assert not ring.uncommitted, "INV-38: every send is waited for"


@settings(max_examples=num_examples(40), deadline=None, derandomize=True)
@given(
    experiments(ORDINARY) | experiments(TIGHT),
    st.binary(max_size=24),
    st.booleans(),
    st.sampled_from([1, 1, 2]),
    TURNS,
)
def test_in_any_order_the_client_gets_the_text_of_the_model_and_all_ranks_decide_the_same(
    experiment: Experiment, order: bytes, commits_wait: bool, tp_replicas: int, turns: dict[str, Any]
) -> None:
    ring = ring_of(experiment, order, **turns, tp_replicas=tp_replicas)
    ring.commits_wait = commits_wait
    ring.run()
    check_text(ring, experiment)
    first = ring.nodes[0]
    for node in ring.nodes[1:]:
        assert node.decisions == first.decisions
        assert node.harvests == first.harvests
    straight = ring_of(experiment, tp_replicas=tp_replicas, **turns).run()
    assert straight.replies == ring.replies


ROOMY = RankConfig(0, 1, chunked_prefill_size=16, max_running_requests=64, max_micro_batch_size=64)


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_b53_no_depth_changes_the_text(depth: int) -> None:
    """12 requests of 40 tokens and 8 new ones, pp = 4."""
    specs = tuple(request(f"R{n}", [10 + n] * 40, 8) for n in range(12))
    ring = Ring(replace(ROOMY, pp_size=4, pp_async_batch_depth=depth), {0: specs}, tape(b"\x03\x01\x02")).run()
    assert ring.streams == {spec.rid: expected_stream(spec) for spec in specs}


@pytest.mark.parametrize("chunk", [None, 1, 7, 16, 64])
@pytest.mark.parametrize("pp_size", [1, 2, 5])
def test_b12_no_chunk_size_changes_the_text(pp_size: int, chunk: int | None) -> None:
    specs = tuple(request(f"R{n}", [1, 2, 3, 4 + n % 3] * 7 + [9] * n, 6) for n in range(9))
    config = replace(ROOMY, pp_size=pp_size, chunked_prefill_size=chunk, enable_mixed_chunk=chunk == 7)
    ring = Ring(config, {0: specs[:5], 3: specs[5:]}, tape(b"\x01\x00\x02\x04")).run()
    assert ring.streams == {spec.rid: expected_stream(spec) for spec in specs}


# --- capacity (bugs.md B04) --------------------------------------------------------------------------------------

B04 = {
    0: (request("R1", [1] * 600, 1),),
    5: (request("R2", [2] * 420, 1),),
    10: (request("R3", [1] * 600, 1),),
}


def hits(ring: Ring, rid: str) -> list[int]:
    """Cached prefix of a request at its admission, rank by rank."""
    return [next(p[1] for d in node.decisions for p in d.pieces if p[0] == rid) for node in ring.nodes]


def test_b04_the_smallest_pool_of_all_ranks_is_everybodys_pool() -> None:
    ring = Ring(RankConfig(0, 2), B04, capacities=(1000, 1040)).run()
    assert [node.rank.scheduler.kv.pool.capacity_tokens for node in ring.nodes] == [1000, 1000]
    assert hits(ring, "R3") == [0, 0], "R2 needs 420 of 400 free tokens, so R1 went out of both caches"


def test_b04_with_pools_of_their_own_the_ranks_hit_differently() -> None:
    class OwnPool(Rank):
        def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] | None = None) -> None:
            super().start(agree(self.local_tokens[0], "nobody else"), host_tokens)

    ring = Ring(RankConfig(0, 2), B04, capacities=(1000, 1040), change=Change(Parts(rank=OwnPool)))
    with pytest.raises(Exception, match="hidden states with 1 rows"):
        ring.run()
    decided = [{d.iteration: d for d in node.decisions} for node in ring.nodes]
    shared = sorted(set(decided[0]) & set(decided[1]))
    differ = [i for i in shared if decided[0][i].pieces != decided[1][i].pieces]
    assert differ == [10], "seen at R3's admission"
    roots = [i for i in shared if decided[0][i].state_digest != decided[1][i].state_digest]
    assert roots[0] == 0, "pools of different size differ from the start; the cache differs from R2 on"


# --- sequences (protocol.md section 12) --------------------------------------------------------------------------


def watch(ring: Ring, node: Node, effect: fx.Effect) -> None:
    """What must hold at every single step, in any order."""
    places = [n.rank.iteration for n in ring.nodes]
    if isinstance(effect, fx.Decided):
        i = effect.decision.iteration
        assert node.rank_id == 0 or places[node.rank_id - 1] >= i, "INV-07: no rank overtakes the one before"
        assert node.rank.link.inbox_size == 0, "INV-36"
        assert len(node.decisions) == i, "INV-04: no visit is left out"
        if ring.commits_wait and node.rank_id + 1 < len(ring.nodes):
            assert places[node.rank_id + 1] >= i - 1, "INV-08: a committed send bounds the lead"
        if node.rank.config.is_last:
            depth = ring.config.pp_async_batch_depth
            launched = [d.iteration for d in node.decisions if d.mode != "empty"]
            queue = [output.iteration for output in node.rank.last_rank_comm_queue]
            assert queue == [b for b in launched if b + depth >= i], "INV-35"
    if isinstance(effect, fx.Launch):
        for old in node.rank.scheduler.slots.slots:
            if old.launched is not None and old.in_flight and old.launched.forward is not effect.batch:
                assert old.index != effect.batch.slot, "INV-06: the slot's last batch is not harvested"


def messages(ring: Ring, kind: type, src: int, *, arrived: bool = False) -> list[tuple[int, int]]:
    """(iteration, size) of all messages of a kind that leave a rank (or arrive from it), over all lanes."""
    log = ring.received if arrived else ring.sent
    return [
        (m.iteration, m.num_tokens if isinstance(m, Hidden) else m.num_rows if isinstance(m, Output) else 0)
        for (sender, _, lane), queue in log.items()
        for m in queue
        if sender == src and isinstance(m, kind) and lane is not Lane.START
    ]


@settings(max_examples=num_examples(40), deadline=None, derandomize=True)
@given(experiments(ORDINARY), st.integers(2, 4), st.binary(max_size=24), st.booleans())
def test_message_sequences_are_those_of_the_protocol(
    experiment: Experiment, pp_size: int, order: bytes, commits_wait: bool
) -> None:
    ring = ring_of(experiment, order, pp_size=pp_size)
    ring.commits_wait, ring.watch = commits_wait, watch
    ring.run()
    slots = ring.config.num_slots
    assert ring.sent == ring.received, "INV-31: what is sent is received, in order, lane by lane"
    first, last = ring.nodes[0], ring.nodes[-1]
    count = len(first.decisions)
    launched = {
        d.iteration: (sum(new for _, _, new in d.pieces), len(d.pieces)) for d in first.decisions if d.mode != "empty"
    }
    skipped = [
        e.effect.batch.iteration
        for e in ring.events
        if e.rank == last.rank_id and isinstance(e.effect, fx.Launch)
        if e.effect.batch.skip_output_comm
    ]
    for node in ring.nodes:
        metas = [] if node is last else list(range(count + 1))  # the last one carries Shutdown
        assert [i for i, _ in messages(ring, Meta, node.rank_id)] == metas, "INV-02"
        hidden = [] if node is last else [(i, tokens) for i, (tokens, _) in launched.items()]
        assert messages(ring, Hidden, node.rank_id) == hidden, "INV-32"
        outputs = [(i, rows) for i, (_, rows) in launched.items() if i not in skipped]
        assert messages(ring, Output, node.rank_id) == outputs, "INV-33, INV-34: once round the ring, nothing twice"
        harvested = [(h.harvested, h.iteration) for h in node.harvests if h.harvested is not None]
        assert harvested == [(b, b + slots - 1) for b in launched], "INV-05"
    inputs = [[e.reply for e in ring.events if e.rank == 0 and isinstance(e.effect, fx.Ingest)]]
    inputs += [
        [m.inputs for m in ring.received[k - 1, k, Lane.CONTROL] if isinstance(m, Meta)] for k in range(1, pp_size)
    ]
    assert all(lists == inputs[0] for lists in inputs), "INV-01"
