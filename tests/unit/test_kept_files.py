"""Law: a run folder is a run that can be made again: anywhere, and also when the files that it names have changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ppsim
from ppsim.cli.entry import app
from ppsim.scenario import kept

ROOT = Path(__file__).resolve().parents[2]
LINE = {"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [1, 2]}


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("t.jsonl").write_text((json.dumps(LINE) + "\n") * 3)


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_moved_folder_is_run_again_from_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert called("run", "mooncake", "--trace", "t.jsonl", "--out", "r").exit_code == 0
    recording = Path("r/recording.jsonl").read_bytes()
    shutil.move("r", tmp_path / "elsewhere" / "moved")
    Path("t.jsonl").unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = called("run", "moved/config.toml", "--out", "again")
    assert again.exit_code == 0, again.stderr
    assert "has changed" not in again.stderr
    assert Path("again/recording.jsonl").read_bytes() == recording
    monkeypatch.chdir("/")
    assert ppsim.simulate(tmp_path / "elsewhere" / "moved" / "config.toml").summary["num_requests"] == 3


def test_a_changed_trace_is_told_and_the_runs_own_copy_is_used() -> None:
    assert called("run", "mooncake", "--trace", "t.jsonl", "--out", "r").exit_code == 0
    Path("t.jsonl").write_text(json.dumps(LINE) + "\n")
    again = called("run", "r/config.toml", "--out", "again")
    copy = "r/files/workload.trace/t.jsonl"
    told = f"note: workload.trace: t.jsonl has changed since the run in r; the run's copy is used: {copy}"
    assert told in again.stderr.splitlines()
    assert Path("again/recording.jsonl").read_bytes() == Path("r/recording.jsonl").read_bytes()
    meant = called("run", "r/config.toml", "--trace", "t.jsonl", "--json")
    assert "has changed" not in meant.stderr
    assert json.loads(meant.stdout)["num_requests"] == 1


def test_a_trace_without_a_copy_is_found_by_its_place_and_told_when_it_has_changed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "MAX_COPY", 10)
    first = called("run", "mooncake", "--trace", "t.jsonl", "--out", "r")
    assert "the run folder has no copy of it" in first.stderr
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.move("../here/r", "r")
    again = called("run", "r/config.toml", "--json")
    assert json.loads(again.stdout)["num_requests"] == 3
    (tmp_path / "here" / "t.jsonl").write_text(json.dumps(LINE) + "\n")
    changed = called("run", "r/config.toml", "--json")
    assert "has changed since the run in r; there is no copy: this is another run" in changed.stderr
    assert json.loads(changed.stdout)["num_requests"] == 1


def test_a_config_of_a_model_and_a_gpu_are_kept_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shape = {"model_type": "llama", "num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 1024}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1000, "torch_dtype": "bfloat16"}
    Path("m").mkdir()
    Path("m/config.json").write_text(json.dumps(shape | heads | {"architectures": ["LlamaForCausalLM"]}))
    Path("g.toml").write_text(
        "[gpu]\nbf16_tflops = 100.0\nmemory_gb = 40.0\nhbm_gb_per_s = 1000.0\nlink_gb_per_s = 50.0\n"
    )
    sets = ("cost.source=roofline", "model.key=m", "gpu.key=g.toml", "cluster.pp_size=2")
    made = called("run", "unit", *[word for s in sets for word in ("--set", s)], "--out", "r")
    assert made.exit_code == 0, made.stderr
    index = json.loads(Path("r/files.json").read_text())
    assert {key: entry["name"] for key, entry in index.items()} == {"model.key": "m", "gpu.key": "g.toml"}
    recording = Path("r/recording.jsonl").read_bytes()
    shutil.move("r", tmp_path / "elsewhere" / "r")
    shutil.rmtree("m")
    Path("g.toml").unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = called("run", "r/config.toml", "--out", "again")
    assert again.exit_code == 0, again.stderr
    assert Path("again/recording.jsonl").read_bytes() == recording


def test_files_beside_a_scenario_are_found_and_a_shipped_run_keeps_none(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "mine.toml").write_text('[workload]\nsource = "trace"\ntrace = "beside.jsonl"\n')
    (tmp_path / "elsewhere" / "beside.jsonl").write_text(json.dumps(LINE) + "\n")
    found = called("run", "../elsewhere/mine.toml", "--json")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["num_requests"] == 1
    assert called("run", "unit", "--out", "u").exit_code == 0
    assert sorted(path.name for path in Path("u").iterdir()) == [
        "config.toml",
        "recording.jsonl",
        "summary.json",
        "verdict.json",
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"workload.trace": 3}', '{"workload.trace": {"name": "t.jsonl"}}'])
def test_a_damaged_index_is_as_none(text: str) -> None:
    assert called("run", "mooncake", "--trace", "t.jsonl", "--out", "r").exit_code == 0
    Path("r/files.json").write_text(text)
    assert called("run", "r/config.toml").exit_code == 0
