"""``model.key``, ``[gpu]`` and types mean something whatever the cost source, and nothing made up is recommended."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.cost.config_json import load_model
from ppsim.cost.gpu import known_gpus, load_gpu
from ppsim.errors import ScenarioError
from ppsim.scenario.layers import partition_of
from ppsim.scenario.rank import local_capacity_tokens, rank_config, running_limit
from tests.worlds.making import passed, requests, run, scenario

MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
DEEPSEEK = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.1 --tp 8 --pp-size 4"
PRICED = {"cost.prefill_b_ms_per_token": 0.1, "cost.prefill_a_ms_per_token2": 1e-6, "cost.prefill_c_ms": 1.0}
NAMED: dict[str, Any] = {
    "cluster.pp_size": 4,
    "cost.source": "quadratic",
    "model.key": "deepseek-v3.1",
    "cluster.tp_size": 8,
    "scheduler.max_total_tokens": None,
    "gpu.key": "h200",
    "workload.source": "requests",
    "workload.requests": requests(2, prompt=64, output=2),
}


def ppsim(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("line.toml").write_text(ppsim("import", DEEPSEEK).stdout)
    return "line.toml"


# --- an imported line without a GPU -------------------------------------------------------------------------------


def test_tune_of_a_named_model_refuses_costs_that_nobody_gave(imported: str) -> None:
    result = ppsim("tune", imported)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "deepseek-v3.1 has 61 layers" in result.stderr
    assert "cost.prefill_b_ms_per_token 0.02, cost.prefill_a_ms_per_token2 2e-07 are defaults" in result.stderr
    assert "--gpu KEY" in result.stderr
    assert "launch_server" not in result.stderr


@pytest.mark.parametrize("given", ["cost.prefill_b_ms_per_token=0.1", "cost.prefill_a_ms_per_token2=1e-6"])
def test_one_slope_of_two_is_not_enough(imported: str, given: str) -> None:
    result = ppsim("tune", imported, "--set", given)
    assert result.exit_code == 2
    assert given.split("=")[0] not in result.stderr


def test_tune_with_costs_of_its_own_cuts_the_layers_of_the_model(imported: str) -> None:
    sets = [word for key, value in PRICED.items() for word in ("--set", f"{key}={value}")]
    result = ppsim("tune", imported, *sets, "--set", 'gpu.key="h200"', "--prompt", "8192", "--json")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(result.stdout)["table"]
    assert {sum(row["config"]["layer_partition"]) for row in rows if row["feasible"]} == {61}


def test_tune_on_a_gpu_has_times_of_the_model(imported: str) -> None:
    result = ppsim("tune", imported, "--gpu", "h20", "--kv-cache-dtype", "fp8_e4m3", "--prompt", "8192")
    assert result.exit_code == 0, result.stderr
    assert "--model-path deepseek-ai/DeepSeek-V3.1" in result.stdout
    assert "--kv-cache-dtype fp8_e4m3" in result.stdout
    assert "are defaults" not in result.stdout


def test_run_says_which_costs_are_not_the_models(imported: str) -> None:
    result = ppsim("run", imported, "--set", "workload.num_requests=1", "--json")
    (said,) = [w for w in json.loads(result.stdout)["warnings"] if "are defaults" in w]
    assert "cost.decode_c_ms 6" in said
    assert "deepseek-v3.1" in said
    priced = ppsim(
        "run",
        imported,
        "--set",
        "workload.num_requests=1",
        "--set",
        'gpu.key="h200"',
        "--json",
        "--set",
        "cost.source=roofline",
    )
    assert not [w for w in json.loads(priced.stdout)["warnings"] if "are defaults" in w]


def test_a_line_of_an_unknown_model_says_that_its_layers_are_made_up(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("line.toml").write_text(ppsim("import", "sglang serve --model-path foo/bar --pp-size 2").stdout)
    result = ppsim("run", "line.toml", "--set", "workload.num_requests=1", "--json")
    assert any("'foo/bar' is no known model: the 32 layers" in w for w in json.loads(result.stdout)["warnings"])
    assert ppsim("tune", "line.toml").exit_code == 2


def test_a_line_that_starts_a_folder_here_has_the_layers_of_its_config(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/config.json").write_text((MODELS / "alternate_moe.json").read_text())
    tree = tomllib.loads(ppsim("import", "sglang serve --model-path mine --pp-size 2").stdout)
    assert tree["model"]["key"] == "mine"


# --- layers, memory and bytes whatever the cost source ------------------------------------------------------------


@pytest.mark.parametrize("source", ["unit", "quadratic", "roofline"])
def test_layers_and_pool_are_those_of_the_model_and_the_gpu(source: str) -> None:
    s = scenario({**NAMED, "cost.source": source}, {})
    assert sum(partition_of(s)) == 61
    shape = load_model("deepseek-v3.1")
    weights = sum(shape.layer_weight_bytes(i) for i in range(46, 61)) + shape.layer_weight_bytes(45)
    usable = 141e9 * s.gpu.mem_fraction_static
    left = usable - (weights + shape.embedding_bytes) / 8
    assert local_capacity_tokens(s, 3) == int(left / (16 * 576 * 2))
    assert local_capacity_tokens(scenario({**NAMED, "model.kv_cache_dtype": "fp8"}, {}), 3) == int(left / (16 * 576))


def test_a_partition_that_does_not_fit_the_named_model_is_refused() -> None:
    with pytest.raises(ScenarioError, match="sums to 32, but the model has 61 layers"):
        scenario({**NAMED, "model.layer_partition": [8, 8, 8, 8]}, {})


def test_quantised_while_loading_is_half_the_weights() -> None:
    plain = load_model("qwen3-8b")
    for name, width, operand in (("fp8", 1.0, 1.0), ("awq_marlin", (4 + 20 / 128) / 8, 2.0)):
        small = load_model("qwen3-8b", quantization=name)
        assert small.layer_weight_bytes(0) == plain.layer_weight_bytes(0) / 2 * width
        assert small.operand_bytes == operand
    assert load_model("deepseek-v3.1", quantization="fp8") == load_model("deepseek-v3.1")
    with pytest.raises(ScenarioError, match=r"model\.quantization: unknown method 'int3'"):
        scenario({**NAMED, "model.quantization": "int3"}, {})


# --- states -------------------------------------------------------------------------------------------------------

STATES: dict[str, Any] = {
    "cluster.pp_size": 2,
    "cost.source": "roofline",
    "model.key": str(MODELS / "state_space_hybrid.json"),
    "gpu.key": "h100",
    "scheduler.chunked_prefill_size": 64,
    "scheduler.max_running_requests": 64,
    "scheduler.pp_max_micro_batch_size": 32,
    "workload.source": "requests",
    "workload.requests": requests(12, prompt=8, output=6),
}


@pytest.mark.parametrize(("slots", "radix", "limit"), [(12, True, 4), (12, False, 12), (100, False, 64), (3, True, 1)])
def test_no_more_requests_run_than_states_are_there(slots: int, radix: bool, limit: int) -> None:
    """A slot a running request; with a radix cache three, for states are kept for later hits (SGLang)."""
    more = {"scheduler.max_mamba_cache_size": slots, "scheduler.disable_radix_cache": not radix}
    s = scenario({**STATES, **more}, {})
    assert running_limit(s) == limit
    assert {rank_config(s, rank).max_running_requests for rank in (0, 1)} == {limit}
    recording = passed({**STATES, **more}, {})
    most = max(live_at_once(recording, rank) for rank in (0, 1))
    assert most == min(limit, 12)


def live_at_once(recording: Any, rank: int) -> int:
    """Most requests between their first and their last piece."""
    spans: dict[str, list[int]] = {}
    for decision in recording.decisions[rank]:
        for rid, _, _ in decision.pieces:
            spans.setdefault(rid, []).append(decision.iteration)
    ends = [(min(at), max(at)) for at in spans.values()]
    return max(sum(a <= i <= b for a, b in ends) for i in {i for span in ends for i in span})


def test_the_smallest_rank_decides_for_all() -> None:
    """States of 5 and of 4 layers: the stage with more of them holds fewer."""
    s = scenario({**STATES, "gpu.memory_gb": 20.0}, {})
    shape, usable = load_model(s.model.key or ""), 20e9 * 0.85
    slots = []
    for first, last in ((0, 10), (10, 20)):
        weights = sum(shape.layer_weight_bytes(i) for i in range(first, last)) + shape.embedding_bytes
        states = sum(shape.layer_state_bytes(i) for i in range(first, last))
        slots.append(int((usable - weights) * 0.9 / 1.9 / states))
    assert slots[0] != slots[1]
    many = scenario({**STATES, "gpu.memory_gb": 20.0, "scheduler.max_running_requests": 100_000}, {})
    assert running_limit(many) == min(slots) // 3


def test_too_few_states_for_one_request_are_refused() -> None:
    with pytest.raises(ScenarioError, match="holds the states of 2 requests, and a running one needs 3"):
        run({**STATES, "scheduler.max_mamba_cache_size": 2}, {})


# --- a GPU of one's own -------------------------------------------------------------------------------------------

OWN = 'name = "Mine"\nbf16_tflops = 989\nfp8_tflops = 1978\nmemory_gb = 80\nhbm_gb_per_s = 3350\nlink_gb_per_s = 450\n'


@pytest.mark.parametrize("text", [OWN, "[gpu]\n" + OWN])
def test_a_file_is_a_gpu_for_every_command(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert load_gpu(str(path)).name == "Mine"
    for words in (
        ("layers", "--model", "qwen3-8b", "--pp", "2", "--tp", "1", "--efficiency", "0.5"),
        ("chunks", "--model", "qwen3-8b", "--tokens", "8192", "--efficiency", "0.5"),
        (
            "compare",
            "--model",
            "qwen3-8b",
            "--gpus",
            "4",
            "--prompt",
            "8192",
            "--efficiency",
            "0.5",
            "--link-gb-per-s",
            "50",
        ),
    ):
        mine, table = ppsim(*words, "--gpu", str(path), "--json"), ppsim(*words, "--gpu", "h100", "--json")
        assert mine.exit_code == 0, mine.stderr
        assert mine.stdout.replace(str(path), "h100") == table.stdout
    tree = ppsim("import", "sglang serve --model-path Qwen/Qwen3-8B", "--gpu", str(path)).stdout
    assert tomllib.loads(tree)["gpu"]["key"] == str(path)


def test_figures_in_a_scenario_are_a_gpu_too() -> None:
    table = {**STATES, "cluster.pp_size": 1}
    own = {k: v for k, v in table.items() if k != "gpu.key"}
    h100 = {
        f"gpu.{f}": getattr(load_gpu("h100"), f) for f in ("bf16_tflops", "hbm_gb_per_s", "link_gb_per_s", "memory_gb")
    }
    assert passed({**own, **h100}, {}).replies == passed(table, {}).replies
    slower = passed({**own, **h100, "gpu.hbm_gb_per_s": 100.0}, {})
    assert slower.replies != passed(table, {}).replies
    with pytest.raises(ScenarioError, match=r"or gpu\.hbm_gb_per_s and gpu\.link_gb_per_s for one of your own"):
        scenario({**own, "gpu.bf16_tflops": 100.0}, {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("bf16_tflops = 1", "memory_gb, hbm_gb_per_s, link_gb_per_s is missing"),
        (OWN + "fp9_tflops = 1", "unknown field 'fp9_tflops'"),
        (OWN.replace("989", "-1"), "bf16_tflops must be a positive number, got -1"),
        (OWN.replace("989", "true"), "bf16_tflops must be a positive number, got True"),
        ("gpu = 3", "gpu must be a table, got 3"),
        ("[gpu", "is not TOML"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_is_no_gpu_is_one_message(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_text(text)
    result = ppsim("layers", "--model", "qwen3-8b", "--gpu", str(path))
    assert result.exit_code == 2
    assert told in result.stderr


def test_the_gpus_of_the_published_figures_are_there_with_their_source() -> None:
    for key, figure in (("gb300", "34815"), ("a800", "Mooncake"), ("rtx-4080", "Ada"), ("atlas-a3", "vllm-ascend")):
        assert figure in known_gpus()[key].source


@pytest.mark.parametrize(
    "words",
    [
        ("layers", "--model", "qwen3-8b", "--gpu", "h100", "--pp", "2", "--tp", "1"),
        ("chunks", "--model", "qwen3-8b", "--gpu", "h100", "--tokens", "65536"),
        ("compare", "--model", "qwen3-8b", "--gpu", "h100", "--gpus", "4", "--prompt", "8192", "--link-gb-per-s", "50"),
    ],
)
def test_a_cache_of_eight_bits_changes_what_a_command_says(words: tuple[str, ...]) -> None:
    plain, narrow = ppsim(*words, "--json"), ppsim(*words, "--kv-cache-dtype", "fp8_e4m3", "--json")
    assert (plain.exit_code, narrow.exit_code) == (0, 0), narrow.stderr
    assert plain.stdout != narrow.stdout
    bad = ppsim(*words, "--kv-cache-dtype", "fp9")
    assert bad.exit_code == 2
    assert "unknown type 'fp9'" in bad.stderr
