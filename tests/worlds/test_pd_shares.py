"""Where the time to the first token goes, and what an admission costs on a busy pipeline of P stages.

Unit model: tau for every batch on every stage. Depth 0 and one stream: the last stage harvests behind its own pass
(docs/streams.md), so on a busy pipeline each visit lasts tau and the host's time, and the last stage is P - 1 visits
behind the first. Then, from "ready everywhere" on,

    two passes round the ring   the first rank may schedule it P + 1 visits later: a look, P - 1 to come back, applied
                                at the end of a visit; the last rank P - 1 visits after that, 2 P in all
    store and leader chain      one visit later; the last rank P - 1 visits after that, P in all, which the forward
                                pass needs anyway

With an order for each link the last stage's host is a visit ahead of its stage: P - 2, 2 P - 1 and P - 1.

bugs.md B105 and P02 give "about 2 pp iterations" for the votes; P01 asks for the split of TTFT.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.recording import PASS, Recording
from ppsim.recording.folder import open_run, prepare_folder, write_run
from ppsim.recording.shares import SHARES, admissions, instants, shares_of, ttft_shares
from ppsim.recording.summary import request_lives, summarize
from ppsim.report.table import summary_text
from ppsim.world import SimulationResult
from tests.worlds.making import UNIT, passed
from tests.worlds.pd_making import MS, PAIR, US, at, passed_pair, prefill_of

TAU = 1 * MS
HOST = 10 * US

# --- they add up -------------------------------------------------------------------------------------------------


def check_sums(recording: Recording) -> None:
    """Shares are not negative, and those of each request add up to its TTFT, to the nanosecond."""
    lives = [life for life in request_lives(recording) if life.token_ns]
    shares = ttft_shares(recording, lives)
    assert len(shares) == len(lives) > 0
    for life, mine in zip(lives, shares, strict=True):
        assert life.arrived_ns is not None
        assert min(mine.values()) >= 0
        assert sum(mine.values()) == life.token_ns[0] - life.arrived_ns


def test_the_cuts_on_paper() -> None:
    marks = {
        "read": 3, "agreed": 10, "allocated": 25, "ready": 27, "admitted": 34, "started": 50,
        "computed": 100, "sent": 108, "landed": 130, "received": 133, "token": 140,
    }  # fmt: skip
    assert shares_of(1, marks) == {
        "queueing": 2 + 15 + 16,
        "control": 7 + 2 + 7 + 8,
        "compute": 50,
        "transfer": 22 + 3,
        "release": 7,
    }
    # What is missing goes to the next share; what comes too late or too early is cut to its place.
    assert shares_of(0, {"read": 4, "admitted": 2, "landed": 99, "token": 10}) == {
        "queueing": 4,
        "control": 0,
        "compute": 0,
        "transfer": 6,
        "release": 0,
    }


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("bootstrap", ["store", "vote"])
def test_the_shares_of_a_single_role_add_up(role: str, bootstrap: str) -> None:
    rows = [at(0.4 * n, 5 + 3 * n, 3, f"R{n}") for n in range(5)]
    changes = {
        "disaggregation.role": role,
        "disaggregation.bootstrap": bootstrap,
        "observations.max_delay": 4,
        "cluster.pp_size": 3,
        "workload.requests": rows,
    }
    check_sums(passed(changes, PAIR))


@given(
    pp_size=st.integers(1, 3),
    one_stage=st.booleans(),
    bootstrap=st.sampled_from(["store", "vote"]),
    pool=st.sampled_from([48, 1024]),
    latency_us=st.sampled_from([0.0, 900.0]),
    bandwidth=st.sampled_from([0.0, 0.1]),
    requests=st.lists(st.tuples(st.integers(0, 9), st.integers(1, 24), st.integers(1, 4)), min_size=1, max_size=4),
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_shares_of_two_pipelines_add_up(
    pp_size: int,
    one_stage: bool,
    bootstrap: str,
    pool: int,
    latency_us: float,
    bandwidth: float,
    requests: list[tuple[int, int, int]],
) -> None:
    changes = {
        "cluster.pp_size": pp_size,
        "disaggregation.decode_pp_size": 1 if one_stage else pp_size,
        "disaggregation.bootstrap": bootstrap,
        "disaggregation.decode_max_total_tokens": pool,
        "disaggregation.control_latency_us": latency_us,
        "disaggregation.kv_bandwidth_gb_per_s": bandwidth,
        "scheduler.max_total_tokens": pool,
        "workload.requests": [at(ms, prompt, output, f"R{n}") for n, (ms, prompt, output) in enumerate(requests)],
    }
    result = passed_pair(changes)
    check_sums(result.recording)
    check_sums(prefill_of(result))


# --- what an admission costs ---------------------------------------------------------------------------------------


@cache
def busy(pp_size: int, bootstrap: str, order: str = "stream") -> SimulationResult:
    """R arrives while the prefill side works through a prompt of 5 P chunks: each visit lasts tau."""
    return passed_pair(
        {
            "cluster.pp_size": pp_size,
            "disaggregation.decode_pp_size": 1,
            "disaggregation.bootstrap": bootstrap,
            "links.order": order,
            "scheduler.max_total_tokens": 8192,
            "disaggregation.decode_max_total_tokens": 8192,
            "workload.requests": [at(0, 4 * 5 * pp_size, rid="long"), at(pp_size + 0.5, rid="R")],
        }
    )


def in_tau(ns: int) -> float:
    return ns / TAU


LAGS = [("stream", 1, TAU + HOST), ("link", 0, TAU)]
"""Order of payloads; visits that the last stage is behind the first beyond P - 2; time of a visit."""


@pytest.mark.parametrize(("order", "behind", "visit_ns"), LAGS)
@pytest.mark.parametrize("pp_size", [4, 8, 16])
def test_two_passes_cost_about_two_visits_a_stage_and_the_leader_chain_does_not(
    pp_size: int, order: str, behind: int, visit_ns: int
) -> None:
    print(f"pp {pp_size}, order {order}, from ready everywhere, in visits of a busy pipeline:")
    for bootstrap, visits in (("vote", pp_size + 1), ("store", 1)):
        result = busy(pp_size, bootstrap, order)
        vote = next(a for a in admissions(prefill_of(result)) if a.rid == "R")
        first, last = vote.first_rank_ns / visit_ns, vote.all_ranks_ns / visit_ns
        print(f"  {bootstrap:>5}: first rank {first:.2f}, all ranks {last:.2f}")
        assert vote.iterations == visits
        assert first == pytest.approx(visits, abs=0.2)
        # The mark of a vote is the end of the visit before the one that may schedule.
        whole = (2 * pp_size - 1) if bootstrap == "vote" else pp_size - 1
        assert last == pytest.approx(whole + behind, abs=0.2)


@pytest.mark.parametrize(("order", "behind", "visit_ns"), LAGS)
@pytest.mark.parametrize("pp_size", [4, 8, 16])
def test_the_votes_show_in_the_control_share_of_ttft(pp_size: int, order: str, behind: int, visit_ns: int) -> None:
    """The list goes down the chain first, P - 2 visits or one more; then P + 1 visits of the vote, or 1 of the leader
    chain. Host time is paid in all of P visits, or of P passes, but the one that is under way."""
    control = {}
    for bootstrap in ("vote", "store"):
        result = busy(pp_size, bootstrap, order)
        lives = [life for life in request_lives(result.recording) if life.rid == "R"]
        (shares,) = ttft_shares(result.recording, lives)
        control[bootstrap] = shares["control"] / visit_ns
        assert shares["compute"] == pytest.approx(pp_size * TAU + behind * (pp_size - 1) * HOST, abs=HOST)
    assert control["vote"] == pytest.approx(2 * pp_size - 1 + behind, abs=0.3)
    assert control["store"] == pytest.approx(pp_size - 1 + behind, abs=0.3)
    more_ns = (control["vote"] - control["store"]) * visit_ns
    assert more_ns == pytest.approx(pp_size * TAU + behind * (pp_size - 1) * HOST, abs=HOST)


@pytest.mark.parametrize("pp_size", [2, 4, 8])
def test_on_a_busy_prefill_server_the_answer_leaves_a_round_after_the_last_pass(pp_size: int) -> None:
    """The token's way to all ranks and the release vote go round together: P visits from the end of the last pass."""
    rows = [at(0, rid="R"), at(0, 4 * 3 * pp_size, rid="long")]
    changes = {
        "disaggregation.role": "prefill",
        "cluster.pp_size": pp_size,
        "scheduler.max_total_tokens": 8192,
        "host.schedule_us": 10.0,
        "observations.listed": [{"what": "transfer", "rid": "R", "at": [0] * pp_size}],
        "workload.requests": rows,
    }
    recording = passed(changes, UNIT)
    lives = {life.rid: life for life in request_lives(recording)}
    assert in_tau(lives["R"].token_ns[0] - instants(recording)["R"]["computed"]) == pytest.approx(pp_size, abs=0.1)


def test_waiting_for_memory_of_the_decode_side_is_queueing_not_control() -> None:
    """R1 has to wait until R0 has decoded: 40 tokens, one every two visits of 1 ms."""
    result = passed_pair(
        {
            "disaggregation.decode_max_total_tokens": 64,
            "workload.requests": [at(0, 16, 40, rid="R0"), at(1, 50, 1, rid="R1")],
        }
    )
    lives = {life.rid: life for life in request_lives(result.recording)}
    marks = instants(result.recording)["R1"]
    assert lives["R0"].ended_ns is not None
    assert marks["allocated"] > lives["R0"].ended_ns > marks["agreed"] + 70 * MS
    (shares,) = ttft_shares(result.recording, [lives["R1"]])
    assert shares["queueing"] >= marks["allocated"] - marks["agreed"]


# --- how it is shown -------------------------------------------------------------------------------------------------


def test_the_summary_gives_the_shares_and_their_means_add_up_to_the_mean_ttft() -> None:
    result = busy(4, "vote")
    summary = summarize(result.recording, PASS)
    assert tuple(summary["ttft_shares_s"]) == SHARES
    total = sum(share["mean"] for share in summary["ttft_shares_s"].values())
    assert total == pytest.approx(summary["ttft_s"]["mean"], rel=1e-12)
    assert summary["admission_iterations"]["p99"] == 5
    assert summary["prefill"]["stages"][3]["busy_s"] == 0.021  # 20 chunks and one
    text = summary_text(summary)
    for word in (*SHARES, "iterations of the first rank", "prefill 3"):
        assert word in text


def test_a_plain_run_has_no_shares() -> None:
    summary = summarize(passed(), PASS)
    assert not {"ttft_shares_s", "admission_s", "prefill"} & set(summary)


def test_a_saved_run_shows_the_same(tmp_path: Path) -> None:
    result = busy(2, "store")
    summary = summarize(result.recording, PASS)
    folder = prepare_folder(str(tmp_path / "run"), "x", 0)
    write_run(folder, {}, result.recording, summary, PASS)
    assert summarize(open_run(str(folder.path)), PASS) == summary
    shown = CliRunner().invoke(app, ["show", str(folder.path)])
    assert shown.exit_code == 0
    assert "release" in shown.stdout
    assert "admission   1.0 iterations of the first rank" in shown.stdout
