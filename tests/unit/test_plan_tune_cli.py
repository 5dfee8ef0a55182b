"""``ppsim tune`` through the command line: names of its JSON, the files it leaves, the sections of its text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.sglang.launch import read_launch, to_scenario

CONFIG = {
    *("pp_size", "tp_size", "cp_size", "pp_async_batch_depth", "chunked_prefill_size"),
    *("enable_dynamic_chunking", "dynamic_chunking_smooth_factor", "layer_partition"),
}
ROW = {"config", "ttft_s", "input_tokens_per_s", "bubble_ratio", "feasible", "why_not"}
DEEPSEEK = ("tune", "paper/deepseek_v31_h20_pp4", "--prompt", "16384")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def tuned(*options: str) -> dict[str, Any]:
    result = ppsim(*DEEPSEEK, *options, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned") / "t"


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    return tuned("--out", str(folder))


def test_the_json_has_the_names_that_other_work_builds_on(found: dict[str, Any], folder: Path) -> None:
    assert {"best", "sglang", "table", "configs_per_s"} <= set(found)
    assert all(set(row) == ROW for row in found["table"])
    able = [row for row in found["table"] if row["feasible"]]
    unable = [row for row in found["table"] if not row["feasible"]]
    assert able
    assert unable
    assert all(set(row["config"]) == CONFIG and row["why_not"] is None for row in able)
    assert all(row["why_not"] and row["ttft_s"] is None for row in unable)
    assert {key: found["best"][key] for key in ROW} == found["table"][0]
    assert found["best"]["ttft_s"] == min(row["ttft_s"] for row in able)
    assert found["configs_per_s"] > 0
    saved = json.loads((folder / "tune.json").read_text(encoding="utf-8"))
    assert saved["table"] == found["table"]


def test_the_winner_was_run_in_the_event_simulation_and_runs_again_as_a_scenario(
    found: dict[str, Any], folder: Path
) -> None:
    """What ``ppsim run`` says of the saved scenario is what the tuner promised."""
    simulated, best = found["best"]["simulated"], found["best"]
    assert simulated["ttft_s"] == pytest.approx(best["ttft_s"], rel=0.005)
    requests = 'workload.requests=[{rid="R1", at_ms=0, prompt=16384, output=1}]'
    run = ppsim("run", str(folder / "best.toml"), "--json", "--set", requests)
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["ttft_s"]["mean"] == pytest.approx(best["ttft_s"], rel=1e-6)


def test_the_launch_line_reads_back_to_the_winner(found: dict[str, Any]) -> None:
    (line,) = read_launch(found["sglang"])
    assert (line.errors, line.unknown_flags, line.unresolved) == ([], [], [])
    keys, config = to_scenario(line)["overrides"], found["best"]["config"]
    assert keys["scheduler.chunked_prefill_size"] == config["chunked_prefill_size"]
    assert keys["scheduler.enable_dynamic_chunking"] == config["enable_dynamic_chunking"]
    if config["enable_dynamic_chunking"]:
        assert keys["scheduler.dynamic_chunking_smooth_factor"] == config["dynamic_chunking_smooth_factor"]
    assert (keys["cluster.pp_size"], keys["cluster.tp_size"]) == (config["pp_size"], config["tp_size"])
    assert keys["model.key"] == "deepseek-v3.1"


def test_the_text_says_everything_that_was_asked_and_leaves_a_picture() -> None:
    result = ppsim(*DEEPSEEK, "--objective", "throughput", "--requests", "4", "--out", "t")
    assert result.exit_code == 0, result.stderr
    for part in (
        "tuning path on pp 4 x tp 8, one knob at a time",
        "best fixed chunk",
        "dynamic, initial size 2 to 4 times",
        "smooth factor 0.6 to 0.85",
        "layers of each stage",
        "each split at its best",
        "cannot run: ",
        "one step of each knob away from the best",
        "dynamic chunks against the best fixed size",
        "dynamic chunking loses",
        "in the event simulation, with the real scheduler",
        "what this rests on",
        "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3.1",
        "a second on one core",
    ):
        assert part in result.stdout, part
    assert Path("t/heatmap.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_what_the_search_does_not_use_of_a_workload_is_told() -> None:
    keys = ("source='generated'", "requests=[]", "concurrency=4", "num_sessions=3", "num_turns=2")
    closed = [text for key in keys for text in ("--set", f"workload.{key}")]
    notes = " ".join(tuned(*closed, "--max-cp", "1", "--out", "t")["notes"])
    assert "workload.concurrency 4 is not used" in notes
    assert "a later turn counts with its new tokens" in notes
    open_loop = " ".join(tuned("--max-cp", "1", "--out", "u")["notes"])
    assert "concurrency" not in open_loop
    assert "sessions" not in open_loop


def test_more_gpus_than_the_scenario_has_can_be_asked_for() -> None:
    found = tuned("--gpus", "16", "--max-cp", "1", "--out", "t")
    sizes = [(row["config"]["pp_size"], row["config"]["tp_size"], row["config"]["cp_size"]) for row in found["table"]]
    assert all(pp * tp * cp == 16 and cp == 1 for pp, tp, cp in sizes)
    assert {pp for pp, _, _ in sizes} == {1, 2, 4, 8, 16}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--gpus", "1"), "pp 1 x tp 1: stage 0 lacks "),
        (("--gpus", "0"), "--gpus 0"),
        (("--objective", "latency"), "--objective 'latency'"),
        (("--objective", "ttft_at_rate"), "--rate: is needed"),
        (("--objective", "ttft", "--rate", "1"), "--rate: belongs to"),
        (("--rate", "nan"), "--rate nan"),
        (("--max-cp", "-1"), "--max-cp -1"),
        (("--set", "gpu.key=h21"), "nearest: h20"),
        (("--set", "model.key=deepseek-v3.2"), "nearest: deepseek-v3"),
        (("--set", "cluster.tp_size=5"), "5 does not divide the 128 attention heads"),
    ],
)
def test_bad_input_is_one_message(words: tuple[str, ...], told: str) -> None:
    result = ppsim(*DEEPSEEK, *words)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
