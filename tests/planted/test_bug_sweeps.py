"""What entries of the catalogue ask of more than one run: sweeps over times, depths, stages and policies.

Each expectation is derived from the loop (an iteration b is harvested in b + L - 1, a vote of iteration m is applied in
m + P - 1, a round is the sum of its stage times) or compared with the run of one stage.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from ppsim.core.config import RankConfig
from ppsim.core.effects import Recv
from ppsim.core.exchange import Exchange
from ppsim.core.messages import Output
from ppsim.core.parts import build_rank
from ppsim.core.rank import Rank
from ppsim.plugin import load
from ppsim.recording import Recording
from ppsim.scenario.load import load_scenario
from ppsim.world.driver import SimulatedRank
from ppsim.world.simulate import simulate
from tests.planted.catalogue import BARE, FOLDER, entries
from tests.worlds.making import changed, forward_starts, launches, tokens_of

ENTRIES = entries()
MS = 1_000_000


def entry(number: str) -> str:
    """Name of the scenario of B17 and so on."""
    return next(name for name in ENTRIES if name.startswith(number.lower() + "_"))


def passed(number: str, *overrides: str, bugs: tuple[str, ...] = ()) -> Recording:
    result = ENTRIES[entry(number)].run(*overrides, bugs=bugs)
    assert result.verdict.kind == "pass", result.verdict.message
    return result.recording


# --- tokens do not depend on how they are made -----------------------------------------------------------------------


def test_b12_streams_are_those_of_one_stage_without_chunks_for_every_chunk_size_and_depth() -> None:
    reference = tokens_of(passed("B12", "cluster.pp_size=1", "cluster.pp_async_batch_depth=0"))
    for chunk, depth in product((64, 128, 300), (0, 1, 2)):
        sets = (f"scheduler.chunked_prefill_size={chunk}", f"cluster.pp_async_batch_depth={depth}")
        assert tokens_of(passed("B12", *sets)) == reference


def test_b12_the_bug_is_not_seen_with_one_request() -> None:
    one = 'workload.requests=[{rid="R1", prompt=300, output=6, at_iteration=0}]'
    assert ENTRIES[entry("B12")].run(one, bug=True).verdict.kind == "pass"


def test_b53_streams_are_the_same_at_every_depth_and_the_bug_needs_depth_two() -> None:
    reference = tokens_of(passed("B53", "cluster.pp_size=1", "cluster.pp_async_batch_depth=0"))
    for depth in range(4):
        assert tokens_of(passed("B53", f"cluster.pp_async_batch_depth={depth}")) == reference
        bug = ENTRIES[entry("B53")].run(f"cluster.pp_async_batch_depth={depth}", bug=True)
        assert (bug.verdict.kind == "fail") is (depth >= 2)


@pytest.mark.parametrize("number", ["B17", "B31", "B54", "B68"])
def test_b31_the_same_scenario_gives_the_same_streams_with_any_number_of_stages(number: str) -> None:
    sets = ("workload.aborts=[]",)
    reference = tokens_of(passed(number, "cluster.pp_size=1", *sets))
    for stages in (2, 3, 4, 8):
        assert tokens_of(passed(number, f"cluster.pp_size={stages}", *sets)) == reference


def test_b31_two_stages_hide_the_relay_fault() -> None:
    for stages, kind in ((1, "pass"), (2, "pass"), (3, "fail"), (4, "fail"), (8, "fail")):
        assert ENTRIES[entry("B31")].run(f"cluster.pp_size={stages}", bug=True).verdict.kind == kind


def test_b54_the_typed_inbox_alone_sorts_out_hidden_states_that_come_too_early() -> None:
    for stages in (2, 3, 4):
        sets = (f"cluster.pp_size={stages}", *BARE)
        assert tokens_of(passed("B54", *sets, bugs=("hidden_before_relay",))) == tokens_of(passed("B54", *sets))


def test_b57_every_relay_carries_the_logprobs_of_one_row_in_each_of_four_batches() -> None:
    seen: dict[int, list[int]] = defaultdict(list)

    class Count(Exchange):
        def output_to_send(self, rank: Rank) -> Output | None:
            output = super().output_to_send(rank)
            if output is not None:
                seen[rank.config.pp_rank].append(output.num_logprobs)
            return output

    scenario = load_scenario(str(FOLDER / "b57_logprobs.toml"), ("cluster.pp_size=3",))
    assert simulate(scenario, change=changed(Count)).verdict.kind == "pass"
    assert dict(seen) == {rank: [1, 1, 1, 1] for rank in range(3)}


# --- stages ----------------------------------------------------------------------------------------------------------


def test_b18_even_and_odd_ranks_never_lock_each_other() -> None:
    for stages in (2, 3, 4, 5):
        rows = ", ".join(f'{{rid="R{n}", prompt=16, output=4, at_iteration=0}}' for n in range(stages))  # a full ring
        sets = (f"cluster.pp_size={stages}", f"workload.requests=[{rows}]")
        assert passed("B18", *sets).replies
        verdict = ENTRIES[entry("B18")].run(*sets, bug=True).verdict
        # To blame is a rank that receives first by the rule and sends first here: of an even number of stages the last,
        # which has an output to send and one to receive in iteration P - 1; else rank 1, which has both in iteration P.
        guilty = (stages - 1, stages - 1) if stages % 2 == 0 else (1, stages)
        assert (verdict.invariant, verdict.rank, verdict.iteration) == ("INV-40", *guilty)
        assert "wait-for cycle: " + " -> ".join(map(str, [*range(stages), 0])) in verdict.message


@pytest.mark.parametrize(
    ("layers", "offsets"),
    [
        ([21, 23], [0, 21]),
        ([15, 15, 15, 16], [0, 15, 30, 45]),
        ([7, 7, 7, 8, 8, 8, 8, 8], [0, 7, 14, 21, 29, 37, 45, 53]),
    ],
)
def test_b64_a_stage_begins_where_the_one_before_it_ends(layers: list[int], offsets: list[int]) -> None:
    sets = (
        f"model.layer_partition={layers}",
        f"model.num_hidden_layers={sum(layers)}",
        f"cluster.pp_size={len(layers)}",
    )
    assert passed("B64", *sets).replies
    ranks = [build_rank(RankConfig(rank, len(layers), layers=tuple(layers))) for rank in range(len(layers))]
    assert [rank.first_layer for rank in ranks] == offsets
    broken = ENTRIES[entry("B64")].run(*sets, bug=True).verdict
    assert broken.kind == "fail"
    assert f"hidden states behind {layers[broken.rank or 0] * (broken.rank or 0)} layers" in broken.message


# --- aborts ----------------------------------------------------------------------------------------------------------


def test_b46_every_time_of_an_abort_leaves_full_pools_and_one_reply() -> None:
    for at in range(7):
        recording = passed("B46", f'workload.aborts=[{{rid="R1", at_iteration={at}}}]')
        assert len([reply for reply in recording.replies if reply.status != "token"]) == 1


def test_b60_an_abort_one_iteration_later_comes_after_one_token() -> None:
    recording = passed("B60", 'workload.aborts=[{rid="R1", at_iteration=2}]')
    assert [reply.status for reply in recording.replies] == ["token", "aborted"]


def test_b65_a_prompt_between_two_chunks_ends_with_the_others() -> None:
    """R5 has four chunks of 100, from iteration 18 on: three of them are in flight, in three slots, when all end."""
    rows = ", ".join(f'{{rid="R{n}", prompt=4, output=100}}' for n in range(1, 5))
    sets = (
        "scheduler.pp_max_micro_batch_size=2",
        "scheduler.chunked_prefill_size=100",
        f'workload.requests=[{rows}, {{rid="R5", prompt=400, output=4, at_iteration=18}}]',
    )
    whole = launches(passed("B65", *sets, "workload.aborts=[]"))["R5"]
    assert whole[:4] == [18, 19, 20, 21]
    recording = passed("B65", *sets, "workload.aborts=[{abort_all=true, at_iteration=21}]")
    assert launches(recording)["R5"] == [18, 19, 20]
    ends = {rid: h.iteration for h in recording.harvests[-1] for rid in h.finished}
    assert set(ends) == {f"R{n}" for n in range(1, 6)}
    assert ends["R5"] == 20 + 4 - 1 == max(ends.values())
    assert [r.status for r in recording.replies if r.status != "token"] == ["aborted"] * 5


def test_b65_two_slots_do_not_show_the_bug() -> None:
    sets = (
        "cluster.pp_size=2",
        'workload.requests=[{rid="R1", prompt=4, output=100}, {rid="R2", prompt=4, output=100}]',
    )
    assert ENTRIES[entry("B65")].run(*sets, bug=True).verdict.kind == "pass"


def test_b68_any_abort_in_any_iteration_changes_no_other_stream() -> None:
    reference = tokens_of(passed("B68", "workload.aborts=[]"))
    for number, at in product(range(1, 9), range(14)):
        rid = f"R{number}"
        mine = tokens_of(passed("B68", f'workload.aborts=[{{rid="{rid}", at_iteration={at}}}]'))
        assert {key: mine[key] for key in mine if key != rid} == {
            key: reference[key] for key in reference if key != rid
        }
        assert reference[rid][: len(mine.get(rid, ()))] == mine.get(rid, ())


# --- votes -----------------------------------------------------------------------------------------------------------


def test_b79_a_request_runs_two_iterations_after_both_ranks_are_ready_whatever_the_delays() -> None:
    for first, second in product(range(11), range(11)):
        fact = f'observations.listed=[{{what="bootstrap", rid="R1", at=[{first}, {second}]}}]'
        assert launches(passed("B79", fact))["R1"] == [max(first, second) + 2]
        bug = ENTRIES[entry("B79")].run(fact, bug=True).verdict
        assert (bug.kind == "fail") is (first < second)


@pytest.mark.parametrize("what", ["plain", "prefill", "decode"])
def test_b74_the_waiting_limit_holds_in_every_loop(what: str) -> None:
    fact = {"plain": "grammar", "prefill": "bootstrap", "decode": "handshake"}[what]
    grammar = ', grammar="json"' if what == "plain" else ""
    recording = passed(
        "B74",
        f'disaggregation.role="{what}"',
        f'workload.requests=[{{rid="R1", prompt=16, output=1, at_iteration=0{grammar}}}]',
        f'observations.listed=[{{what="{fact}", rid="R1", at=[1000000, 1000000]}}]',
    )
    ends = [[h.iteration for h in rank if "R1" in h.finished] for rank in recording.harvests]
    assert ends == [[22], [22]]


def test_b83_a_barrier_costs_the_stages_three_to_two_to_one_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: dict[int, int] = defaultdict(int)
    receive = SimulatedRank._recv

    def timed(r: SimulatedRank, effect: Recv) -> object:
        before = r.now
        reply = receive(r, effect)
        if r.phase() == "barrier":
            waits[r.rank_id] += r.now - before
        return reply

    monkeypatch.setattr(SimulatedRank, "_recv", timed)
    ENTRIES[entry("B83")].run("run.max_agreement_wait_ms=0", bug=True)
    assert waits[3] == 0
    assert {rank: waits[rank] // waits[2] for rank in range(4)} == {0: 3, 1: 2, 2: 1, 3: 0}


# --- two pipelines ---------------------------------------------------------------------------------------------------


def test_b34_no_write_begins_before_its_forward_pass_has_ended() -> None:
    prefill = passed("B34").peer
    assert prefill is not None
    for spans in prefill.spans:
        ends = {span.iteration: span.end_ns for span in spans if span.stream == "forward"}
        begins = sorted(span.start_ns for span in spans if span.stream == "kv")
        assert len(begins) == 3
        assert all(begin >= end for begin, end in zip(begins, sorted(ends.values()), strict=True))


@pytest.mark.parametrize(("abort_ms", "free_ms"), [(12.0, 12.0), (8.0, 10.7)])
def test_b38_pages_are_free_when_the_abort_and_the_end_of_the_write_have_both_come(
    abort_ms: float, free_ms: float
) -> None:
    """The write takes from 2.7 to 10.7 ms; a request whose KV has come decodes until the abort."""
    recording = passed(
        "B38",
        "disaggregation.kv_faults=[]",
        f'workload.aborts=[{{rid="R1", at_ms={abort_ms}, side="decode"}}]',
        'workload.requests=[{rid="R1", prompt=16, output=20, at_ms=0.0}]',
    )
    [reply] = [reply for reply in recording.replies if reply.status != "token"]
    assert reply.status == "aborted"
    assert free_ms <= reply.time_ns / MS <= free_ms + 2.5


# --- time ------------------------------------------------------------------------------------------------------------


def test_b55_a_graph_waits_for_its_buffer_and_an_eager_batch_does_not() -> None:
    """Steady state of the launches on rank 0: 2 + 5 ms as graphs, max(2, 5) ms without, outputs of 8 bytes aside."""
    for graph, period_ms in (("true", 7.0), ("false", 5.0)):
        starts = forward_starts(passed("B55", f"cluster.cuda_graph={graph}"), 0)
        mean = (starts[140] - starts[60]) / 80 / MS
        assert mean == pytest.approx(period_ms, rel=0.01)


def test_b02_the_limit_is_crossed_in_the_first_iteration_that_begins_after_it() -> None:
    recording = passed("B02")
    clock = {seen.iteration: seen.values[0] for seen in recording.observations[0] if seen.what == "clock_ms"}
    assert not [seen for seen in recording.observations[1] if seen.what == "clock_ms"]
    first_seen = clock[1]  # launched in iteration 0, so running when the clock is read next
    crossed = min(i for i, now in clock.items() if now - first_seen > 305)
    assert [h.iteration for h in recording.harvests[0] if "R3" in h.finished] == [crossed]


# --- starvation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "in_slot"), [(1, 4), (2, 4), (2, 2)])
def test_b86_the_fourth_prompt_starts_behind_the_chunks_before_it_however_long_the_outputs_are(
    stages: int, in_slot: int
) -> None:
    starts = set()
    for output in (10, 80):
        rows = ", ".join(f'{{rid="R{n}", prompt=3000, output={output}, at_iteration=0}}' for n in range(1, 5))
        sets = (f"cluster.pp_size={stages}", f"scheduler.pp_max_micro_batch_size={in_slot}")
        starts.add(launches(passed("B86", *sets, f"workload.requests=[{rows}]"))["R4"][0])
    assert len(starts) == 1
    assert starts <= {4, 5}


def gaps(recording: Recording, num_slots: int) -> int:
    """Longest run of visits of a slot without a decode batch, while D1 to D8 decode."""
    longest = 0
    for slot in range(num_slots):
        last = None
        for d in recording.decisions[0]:
            if d.slot != slot or d.iteration > 60:
                continue
            if d.mode == "decode":
                longest = max(longest, 0 if last is None else (d.iteration - last) // num_slots - 1)
                last = d.iteration
    return longest


def test_b87_the_gap_between_two_decodes_is_bounded_by_the_limit_and_grows_with_the_stream_without_one() -> None:
    for limit in (1, 4):
        assert gaps(passed("B87", f"scheduler.max_consecutive_prefills={limit}"), 2) <= limit
    endless = passed("B87", "scheduler.max_consecutive_prefills=0")
    decodes = [d.iteration for d in endless.decisions[0] if d.mode == "decode" and d.slot == 0]
    assert decodes[:2] == [2, 64]  # prompts come in iterations 4 to 63


def test_b88_the_short_prompt_waits_for_all_chunks_or_for_one_and_the_long_one_ends_no_later() -> None:
    for stages in (1, 4):
        ends = {}
        for limit, first in ((0, 36), (1, 2)):
            recording = passed("B88", f"cluster.pp_size={stages}", f"scheduler.max_consecutive_chunks={limit}")
            mine = launches(recording)
            assert mine["S1"][0] == first
            ends[limit] = (len(mine["L1"]), mine["L1"][-1])
        assert ends == {0: (37, 36), 1: (37, 36)}


def test_b92_strict_order_makes_the_short_request_wait_for_the_last_chunk() -> None:
    """200000 tokens in 13 chunks from iteration 2 on: the last one is launched in 14, with room for S1."""
    assert launches(passed("B92", "scheduler.max_consecutive_chunks=0"))["S1"][0] == 14


def test_b90_a_larger_pool_gives_the_same_streams_and_b48_too() -> None:
    for number in ("B48", "B90"):
        roomy = passed(number, "scheduler.max_total_tokens=4000")
        assert tokens_of(passed(number)) == tokens_of(roomy)
        assert not any(d.retracted for d in roomy.decisions[0])


def test_b30_the_same_silence_as_a_fault_of_the_world_names_the_same_rank() -> None:
    scenario = load_scenario(
        str(FOLDER / "b30_silent_rank.toml"), ("faults.pauses=[{rank=2, at_iteration=50}]", "run.invariants=false")
    )
    verdict = simulate(scenario, change=load(()).change).verdict
    assert (verdict.kind, verdict.rank, verdict.iteration) == ("fail", 2, 50)


# --- the rank consensus checker, which real ranks can run too ---------------------------------------------------------

# Entry -> the iteration of the first call that differs. It is that of the audit, but for B02 (the look at the clock is
# no call; the abort is, when the limit is crossed) and B80 (the conclusion of 8 is applied in 9).
DIVERGENCES = {
    "B01": 3, "B02": 30, "B04": 0, "B06": 8, "B07": 6, "B08": 7,
    "B12": 4, "B15": 5, "B16": 5, "B75": 20, "B80": 9, "B85": 15,
}  # fmt: skip


@pytest.mark.parametrize("number", DIVERGENCES)
def test_comparing_calls_alone_names_a_divergence_where_it_begins(number: str) -> None:
    """Without lockstep and audit, which no real rank can have. Five of these bugs are not noticed at all without it."""
    alone = ("run.consensus_check_interval=1", *BARE)
    right = ENTRIES[entry(number)].run(*alone)
    assert right.verdict.kind == "pass", right.verdict.message
    verdict = ENTRIES[entry(number)].run(*alone, bug=True).verdict
    assert (verdict.kind, verdict.iteration) == ("fail", DIVERGENCES[number]), verdict.message
    assert "differs between ranks" in verdict.message
    assert number in ("B02", "B80") or DIVERGENCES[number] == ENTRIES[entry(number)].outcome.iteration
