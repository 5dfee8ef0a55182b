"""``ppsim layers``: each way to cut the layers against exhaustive search, the event simulation, and sums by hand."""

from __future__ import annotations

import json
from itertools import combinations, pairwise
from typing import Any

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.cost.config_json import load_model
from ppsim.cost.gpu import load_gpu
from ppsim.cost.layer_report import LayerQuestion, layer_report, middle_chunk, partition_by_time
from ppsim.cost.memory import model_capacity
from ppsim.cost.roofline import RooflineCost
from ppsim.scenario import load_scenario
from ppsim.studies.paper import makespan_s


def printed(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["layers", *words])
    return result.exit_code, result.stdout, result.stderr


def rows_of(*words: str) -> dict[str, dict[str, Any]]:
    code, out, err = printed(*words, "--json")
    assert code == 0, err
    return {row["how"]: row for row in json.loads(out)}


def every_partition(num_layers: int, pp_size: int) -> list[tuple[int, ...]]:
    cuts = combinations(range(1, num_layers), pp_size - 1)
    return [tuple(b - a for a, b in pairwise((0, *cut, num_layers))) for cut in cuts]


@pytest.mark.parametrize(("model", "gpu", "tp"), [("qwen3-8b", "l4", 1), ("llama-3.1-8b", "l4", 1)])
def test_by_memory_and_by_time_are_the_best_of_all_ways(model: str, gpu: str, tp: int) -> None:
    """Oracle: every way to cut 32 or 36 layers into three stages, some 600 of them."""
    q = LayerQuestion(model, gpu, 3, tp, prompt=2048, chunk=1024)
    found = {row.how: row for row in layer_report(q)}
    shape, table = load_model(model), load_gpu(gpu)
    ways = every_partition(shape.num_layers, 3)
    most = max(model_capacity(shape, table, way, tp, q.mem_fraction).num_tokens for way in ways)
    assert found["memory"].capacity.num_tokens == most
    slowest = {}
    for way in ways:
        cost = RooflineCost(shape, table, tp, way, q.rates())
        slowest[way] = max(cost.batch_ns(k, 0, [middle_chunk(q.prompt)]) for k in range(3))
    by_cost = partition_by_time(shape, table, tp, q.rates(), 3, q.prompt)
    assert slowest[by_cost] <= min(slowest.values()) * (1 + 1e-6)  # a nanosecond of rounding a layer
    assert found["time"].layers in (by_cost, found["even"].layers, found["memory"].layers)


@pytest.mark.parametrize("prompt", ["1024", "8192"])
@pytest.mark.parametrize(("model", "pp"), [("qwen3-235b-a22b", "8"), ("llama-3.1-8b", "3"), ("deepseek-v3.1", "4")])
def test_no_other_row_has_its_first_token_before_the_one_by_time(model: str, pp: str, prompt: str) -> None:
    rows = rows_of("--model", model, "--pp", pp, "--prompt", prompt, "--tp", "4")
    assert rows["time"]["ttft_s"] == min(row["ttft_s"] for row in rows.values())


def test_the_time_to_the_first_token_is_that_of_the_event_simulation() -> None:
    rows = rows_of("--model", "deepseek-v3.1", "--partition", "16,15,15,15")
    for how, layers in (("even", "[15,15,15,16]"), ("given", "[16,15,15,15]")):
        s = load_scenario("paper/deepseek_v31_h20_pp4_fixed_4096", [f"model.layer_partition={layers}"])
        assert rows[how]["ttft_s"] == pytest.approx(makespan_s(s), rel=1e-6)
    assert rows["even"]["ttft_s"] < rows["given"]["ttft_s"]  # the larger slice belongs to the last stage


def test_the_capacity_is_that_of_the_limiting_stage_and_embedding_and_head_are_counted() -> None:
    """Llama-3.1-70B, two bytes a weight, on eight stages: the end stages carry 2.1 GB of embedding or head more."""
    rows = rows_of("--model", "llama-3.1-70b", "--gpu", "l4", "--pp", "8", "--tp", "1", "--prompt", "512")
    even = rows["even"]
    weights = [stage["weights_gb"] for stage in even["stages"]]
    extra = 128256 * 8192 * 2 / 1e9
    assert weights[0] - weights[1] == pytest.approx(extra)
    assert weights[7] - weights[6] == pytest.approx(extra)
    for stage in even["stages"]:
        left = 24 * 0.85 - stage["weights_gb"]
        assert stage["free_gb"] == pytest.approx(left)
        assert stage["num_tokens"] == int(left * 1e9 / (10 * 2 * 8 * 128 * 2))
    assert even["num_tokens"] == min(stage["num_tokens"] for stage in even["stages"])
    assert even["limiting_stage"] == 0
    assert rows["memory"]["num_tokens"] > 1.2 * even["num_tokens"]  # the gain of bugs.md P04, with more room
    assert rows["memory"]["layers"][0] < 10


def test_what_does_not_fit_says_which_stage_lacks_how_much() -> None:
    code, out, _ = printed("--model", "deepseek-v3.1", "--pp", "1")
    assert code == 0
    assert "even does not fit: stage 0 lacks 11.73 GB: 61 layers need 84.12 GB of weights" in out
    assert "SGLANG_PP_LAYER_PARTITION=61" in out
    assert "memory" not in {row.how for row in layer_report(LayerQuestion("deepseek-v3.1", pp_size=1))}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--pp", "0"), "layers.pp_size: must be at least 1, got 0"),
        (("--pp", "62"), "62 stages cannot be cut from 61 layers"),
        (("--tp", "3"), "3 does not divide the 128 attention heads"),
        (("--partition", "1,2,3"), "1,2,3 has 3 entries for 4 stages"),
        (("--partition", "20,20,20,20"), "sums to 80, but there are 61 layers"),
        (("--partition", "a,b"), "must be numbers with commas between"),
        (("--mem-fraction", "nan"), "gpu.mem_fraction_static: must be in (0, 1]"),
        (("--gpu", "h201"), "nearest: h20"),
        (("--efficiency", "nan"), "cost.efficiency"),
        (("--prompt", "-1"), "layers.prompt"),
    ],
)
def test_bad_input_is_one_message(words: tuple[str, ...], told: str) -> None:
    code, out, err = printed("--model", "deepseek-v3.1", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1


def test_the_time_of_a_decode_step_is_told_to_be_a_lower_bound() -> None:
    code, out, err = printed("--model", "qwen3-8b", "--pp", "2", "--tp", "1")
    assert code == 0, err
    assert "decode ms is a lower bound: no kernel costs anything to start" in out
