"""Decode in ``ppsim compare``: formulas by hand, the event simulation, and what a published report says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.plan.compare import Question, compare
from ppsim.plan.compare_decode import DecodeStanding, Served, serving_scenario, slot_sizes, steady_itl_s
from ppsim.plan.compare_field import Field
from ppsim.plan.compare_links import Overheads
from ppsim.plan.compare_question import Decode
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Scenario

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP, VOCAB = 126, 16384, 128, 8, 128, 53248, 128256  # Llama-3.1-405B
HBM, LINK, NIC = 0.8 * 3350e9, 450e9, 50e9  # H100 SXM
PROMPT, OUTPUT, ROWS = 1024, 128, 64
CONTEXT = PROMPT + OUTPUT // 2


def question(**changes: object) -> Question:
    asked: dict[str, object] = {"decode": Decode(ROWS, OUTPUT), **changes}
    return Question("llama-3.1-405b", "h100", 16, PROMPT, **asked)  # type: ignore[arg-type]


def stage_s(layers: int, rows: int, tp: int, nic: float, last: bool) -> float:
    """Weights and cache read once, two all-reduces a layer, and what layers and calls cost. Bound by memory."""
    weights = HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * HIDDEN * MLP
    bytes_read = 2.0 * (layers * weights + last * VOCAB * HIDDEN) / tp
    bytes_read += rows * CONTEXT * layers * 2 * KV_HEADS * HEAD_DIM * 2.0 / min(tp, KV_HEADS)
    hidden = rows * HIDDEN * 2.0
    reduce_s = 2 * 7 / 8 * hidden / LINK + (6.8 + 14 * 0.6) * 1e-6
    if tp == 16:
        reduce_s += hidden / 8 / nic + 2 * 5.0 * 1e-6
    return bytes_read / HBM + layers * (2 * reduce_s + 35e-6)


@pytest.mark.parametrize("nic_gb_per_s", [5.0, 50.0, 200.0])
def test_steady_decode_is_the_formula_worked_out_by_hand(nic_gb_per_s: float) -> None:
    found = compare(question(nic_gb_per_s=(nic_gb_per_s,))).decode
    assert found is not None
    itl = {s.way: s.itl_s for s in found.standings}
    nic = nic_gb_per_s * 1e9
    assert itl["tp"] == pytest.approx(stage_s(126, ROWS, 16, nic, last=True), rel=0.002)
    halves = [stage_s(63, ROWS // 2, 8, nic, last=last) for last in (False, True)]
    hop = ROWS // 2 * HIDDEN * 2.0 * (1 / (8 * nic) + 7 / 8 / LINK)
    assert itl["pp"] == pytest.approx(max(sum(halves) + hop + 10e-6, 2 * (halves[0] + hop), 2 * halves[1]), rel=0.002)
    assert found.base.itl_s == pytest.approx(stage_s(126, ROWS, 8, nic, last=True), rel=0.002)
    for s in found.standings:
        assert s.output_tokens_per_s == pytest.approx(ROWS / s.itl_s)
        assert s.speedup == pytest.approx(found.base.itl_s / s.itl_s)


@pytest.mark.parametrize("nic_gb_per_s", [1.0, 50.0])
def test_steady_decode_is_what_the_event_simulation_does(nic_gb_per_s: float) -> None:
    """A long output and no second wave: the mean over the run is the steady state at half of the output."""
    q = Question("llama-3.1-70b", "h100", 16, 64, nic_gb_per_s=(nic_gb_per_s,), decode=Decode(16, 400, 16), chunk=1024)
    found = compare(q).decode
    assert found is not None
    for s in found.standings:
        assert s.served is not None
        assert s.served.itl_s == pytest.approx(s.itl_s, rel=0.03), s.way
        assert s.served.output_tokens_per_s == pytest.approx(s.output_tokens_per_s, rel=0.06)


@pytest.mark.parametrize(
    "changes", [{}, {"nics_per_node": 2, "nic_gb_per_s": (25.0,)}, {"link_gb_per_s": (12.5,)}, {"gpus_per_node": 4}]
)
def test_what_is_served_costs_what_the_steady_state_costs(changes: dict[str, object]) -> None:
    """The scenario that is simulated has the very stage times of the comparison, prefill and decode."""
    field = Field(question(**changes))
    link = (changes.get("nic_gb_per_s") or changes.get("link_gb_per_s") or (50.0,))[0]  # type: ignore[index]
    batches = ([(CONTEXT, 1, True)] * 9, [(0, 1024, False)], [(2048, 512, False), (70, 1, True)])
    for way in field.ways:
        split = field.splits[way]
        mine, served = field.cost(split, link, decode=True), stage_cost(serving_scenario(field, split, link))
        for stage in range(split.pp_size):
            for work in batches:
                assert served.batch_ns(stage, 0, work) == mine.batch_ns(stage, 0, work), (way, changes)


def test_requests_are_dealt_evenly_over_the_slots() -> None:
    assert slot_sizes(10, 4) == [3, 3, 2, 2]
    assert slot_sizes(3, 4) == [1, 1, 1]  # a pipeline with fewer requests than stages has empty slots
    assert sum(slot_sizes(1001, 7)) == 1001


def test_one_request_gains_nothing_from_stages_and_everything_from_ranks() -> None:
    """Its token passes all stages one after the other: PP2 reads all weights over eight GPUs, TP16 over sixteen."""
    found = compare(question(decode=Decode(1, OUTPUT), nic_gb_per_s=(50.0,))).decode
    assert found is not None
    itl = {s.way: s.itl_s for s in found.standings}
    assert itl["pp"] == pytest.approx(found.base.itl_s, rel=0.01)
    assert itl["tp"] < 0.65 * found.base.itl_s


def test_more_requests_and_slower_links_take_longer_and_overheads_add_up() -> None:
    field = Field(question())
    for way in field.ways:
        split = field.splits[way]
        times = [steady_itl_s(field, split, float(b)) for b in np.geomspace(0.5, 400.0, 8)]
        assert times == sorted(times, reverse=True)
        rows = [steady_itl_s(Field(question(decode=Decode(n, OUTPUT))), split, 50.0) for n in (1, 2, 8, 64, 512)]
        assert rows == sorted(rows)
        none = Field(question(overheads=Overheads(0.0, 0.0, 0.0, 0.0)))
        assert steady_itl_s(none, split, 50.0) < steady_itl_s(field, split, 50.0)
    told = compare(question(overheads=Overheads(0.0, 0.0, 0.0, 0.0))).notes
    assert any("a lower bound" in note for note in told)


def standings(nics: int, nic: float) -> dict[str, DecodeStanding]:
    decode = Decode(128, 128, 192)
    found = compare(question(nics_per_node=nics, nic_gb_per_s=(nic,), decode=decode, chunk=1024)).decode
    assert found is not None
    return {s.way: s for s in found.standings}


def test_two_nodes_of_h100_say_what_the_published_report_says() -> None:
    """vLLM, "Announcing Llama 3.1 Support in vLLM", 2024-07-23: 405B in BF16 on 16 H100, about 1024 tokens in and 128
    out. PP2 x TP8 over TP16: 6.6 times without InfiniBand, similar with it. The link without InfiniBand is not
    published; one 100 Gb/s NIC a node is assumed. Both within a factor of 1.5."""
    with_it, without = standings(8, 50.0), standings(1, 12.5)
    ratios = []
    for ways in (with_it, without):
        pp, tp = ways["pp"].served, ways["tp"].served
        assert pp is not None
        assert tp is not None
        ratios.append(pp.requests_per_s / tp.requests_per_s)
    assert 1 / 1.5 < ratios[0] < 1.5
    assert 6.6 / 1.5 < ratios[1] < 6.6 * 1.5


# --- the command ----------------------------------------------------------------------------------------------------

WORDS = ("compare", "--model", "qwen3-8b", "--gpu", "h100", "--gpus", "16", "--prompt", "512", "--requests", "2")


def test_the_command_prints_decode_and_nodes_in_json_and_in_words() -> None:
    more = ("--concurrency", "4", "--output-tokens", "8", "--serve", "4", "--nics-per-node", "4")
    result = CliRunner().invoke(app, [*WORDS, *more, "--json"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["nodes"] == {"gpus_per_node": 8, "nics_per_node": 4}
    assert found["decode"]["concurrency"] == 4
    for row in found["decode"]["ways"]:
        assert row["link_gb_per_s"] == 50
        assert row["served"]["requests_per_s"] * 8 == pytest.approx(row["served"]["output_tokens_per_s"])
    text = CliRunner().invoke(app, [*WORDS, *more]).stdout
    assert "decode: 4 requests at once, 8 tokens each; 4 requests served, simulated" in text
    assert "NIC GB/s" in text
    assert "PP over TP at 50 GB/s" in text


def test_without_decode_nothing_is_said_of_it() -> None:
    found = json.loads(CliRunner().invoke(app, [*WORDS, "--link-gb-per-s", "50", "--json"]).stdout)
    assert "decode" not in found
    assert "nodes" not in found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output-tokens", "8"], "--output-tokens 8: nothing decodes without --concurrency"),
        (["--serve", "8"], "--serve 8: nothing decodes without --concurrency"),
        (["--serve", "0", "--concurrency", "4"], "--serve 0: expected 1 or more"),
        (["--concurrency", "0"], "--concurrency 0: expected 1 to"),
        (["--nics-per-node", "0"], "--nics-per-node 0"),
        (["--nic-gb-per-s", "nan"], "--nic-gb-per-s nan"),
        (["--nic-gb-per-s", "50", "--link-gb-per-s", "5"], "--link-gb-per-s is one link"),
        (["--all-reduce-us", "-1"], "--all-reduce-us -1"),
    ],
)
def test_flags_that_mean_nothing_are_refused_by_name(words: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [*WORDS, *words])
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


MAMBA2_27B = {
    "model_type": "mamba2",
    "architectures": ["Mamba2ForCausalLM"],
    "hidden_size": 2560,
    "num_hidden_layers": 64,
    "vocab_size": 50288,
    "state_size": 128,
    "num_heads": 80,
    "head_dim": 64,
    "expand": 2,
    "n_groups": 1,
    "conv_kernel": 4,
    "tie_word_embeddings": True,
}


def test_requests_that_fit_are_those_whose_states_fit(tmp_path: Path) -> None:
    """Mamba-2 2.7B keeps no KV: 80 heads x 64 x 128 states of 4 bytes and 3 inputs of 5,376 channels a layer. They have
    0.9 / 1.9 of what the weights leave of 0.85 x 80 GB; tp 2 cuts both."""
    (tmp_path / "config.json").write_text(json.dumps(MAMBA2_27B))
    found = compare(Question(str(tmp_path), "h100", 4, PROMPT, tp_size=2, decode=Decode(8, 16))).decode
    assert found is not None
    state = 64 * (80 * 64 * 128 * 4 + 3 * 5376 * 2) / 2
    assert found.base.num_fit == pytest.approx((0.85 * 80e9 - 2.7e9 * 2 / 2) * 0.9 / 1.9 / state, abs=1)


def test_of_a_model_that_does_not_fit_no_request_fits() -> None:
    found = compare(Question("deepseek-v3.1", "h20", 32, link_gb_per_s=(50.0,), decode=Decode(8, 16))).decode
    assert found is not None
    assert found.base.num_fit == 0
    assert {s.way: s.num_fit for s in found.standings}["pp"] not in (0, None)


def test_ctrl_c_keeps_what_was_simulated_and_names_what_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base and one way are simulated, then somebody interrupts: the formulas of the others are all there."""
    calls: list[str] = []

    def served(scenario: Scenario, fast: bool | None) -> Served:
        calls.append(scenario.name)
        if len(calls) > 2:
            raise KeyboardInterrupt
        return Served(1.0, 2.0, 3.0, 0.5, 0)

    monkeypatch.setattr("ppsim.plan.compare_decode.serve", served)
    line = "compare --model llama-3.1-8b --gpu h20 --gpus 16 --prompt 4096 --link-gb-per-s 50 --concurrency 4 --serve 4"
    result = CliRunner().invoke(app, [*line.split(), "--json"])
    assert result.exit_code == 130, result.stderr
    assert "interrupted: what is not simulated any more is named above" in result.stderr
    decode = json.loads(result.stdout)["decode"]
    rows = [decode["base"], *decode["ways"]]
    assert [row["served"] is not None for row in rows] == [True, True, *[False] * (len(rows) - 2)]
    assert {row["why_not_served"] for row in rows[2:]} == {"interrupted before it was simulated"}
    assert all(row["itl_s"] > 0 for row in rows)
    assert len(calls) == 3  # nothing is simulated behind it
