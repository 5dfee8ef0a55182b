"""Law: a context longer than the model has positions is told, and no line is recommended that its server refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppsim.cost.config_json import known_models, load_model
from ppsim.cost.positions import positions
from ppsim.scenario import load_scenario
from ppsim.sglang.launch import read_launch, to_launch_line

VARIABLE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"


@pytest.mark.parametrize(
    ("config", "expected"),
    [  # worked out by hand from the rule of SGLang's get_context_length
        ({"max_position_embeddings": 40960}, 40960),
        ({"max_position_embeddings": 40960, "rope_scaling": None}, 40960),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 8.0}}, 32768),
        ({"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}}, 10240),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"seq_length": 8192, "max_position_embeddings": 2048}, 8192),
        ({"max_position_embeddings": "many"}, None),
        ({"max_position_embeddings": True}, None),
        ({"max_position_embeddings": -1}, None),
        ({}, None),
    ],
)
def test_positions_are_those_that_the_server_derives(config: dict[str, Any], expected: int | None) -> None:
    assert positions(config) == expected


def test_every_known_model_says_its_positions() -> None:
    """As their public config.json files have them."""
    for key in known_models():
        known = 163840 if key.startswith("deepseek") else 40960 if key.startswith("qwen3") else 131072
        assert load_model(key).positions == known


def told(line: str) -> tuple[list[str], list[str]]:
    (found,) = read_launch(line)
    return [str(note) for note in found.warnings], [str(note) for note in found.notes]


@pytest.mark.parametrize(
    ("line", "most", "engine"),
    [
        ("python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --context-length 40961", 40960, "SGLang"),
        ("python3 -m sglang.launch_server --model Qwen/Qwen3-8B --context-length=131072", 40960, "SGLang"),
        ("vllm serve deepseek-ai/DeepSeek-V3 --max-model-len 163841", 163840, "vLLM"),
        ("SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=0 sglang serve --model-path Qwen/Qwen3-8B --context-length 50000",
         40960, "SGLang"),
    ],
)  # fmt: skip
def test_a_longer_context_is_told_with_the_model_and_the_place(line: str, most: int, engine: str) -> None:
    (warning,) = (one for one in told(line)[0] if "positions" in one)
    assert warning.startswith("line 1, --")
    assert f"more than the {most} positions of " in warning
    assert f"{engine} refuses to start without " in warning


@pytest.mark.parametrize(
    "line",
    [
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --context-length 40960",
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B",
        "python3 -m sglang.launch_server --model-path somebody/else --context-length 9999999",
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --context-length 131072 --json-model-override-args "
        """'{"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}}'""",
        "vllm serve Qwen/Qwen3-8B --max-model-len 40960",
    ],
)
def test_nothing_is_told_where_it_fits_where_it_is_not_known_and_where_the_line_changes_the_model(line: str) -> None:
    warnings, notes = told(line)
    assert not [one for one in (*warnings, *notes) if "positions" in one]


def test_who_means_it_hears_a_note() -> None:
    warnings, notes = told(f"{VARIABLE} sglang serve --model-path Qwen/Qwen3-8B --context-length 50000")
    assert not [one for one in warnings if "positions" in one]
    assert [one for one in notes if "50000 tokens are more than the 40960 positions of Qwen/Qwen3-8B" in one]


def test_a_folder_with_a_config_says_its_own_positions(tmp_path: Path) -> None:
    config = {name: value for name, value in known_models()["qwen3-8b"].items() if name != "checkpoint"}
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1000}))
    (warning,) = (
        one for one in told(f"sglang serve --model-path {tmp_path} --context-length 2000")[0] if "posit" in one
    )
    assert "more than the 1000 positions" in warning
    (tmp_path / "config.json").write_text("no config")
    assert told(f"sglang serve --model-path {tmp_path} --context-length 2000")


@pytest.mark.parametrize(("length", "has_it"), [(40960, False), (40961, True), (None, True)])
def test_a_line_that_is_printed_is_one_that_starts(length: int | None, has_it: bool) -> None:
    sets = [] if length is None else [f"scheduler.context_length={length}"]
    s = load_scenario("unit", ['model.key="qwen3-8b"', *sets])
    printed = to_launch_line(s)
    assert printed.startswith(f"{VARIABLE} ") == has_it
    assert not [one for one in told(printed)[0] if "positions" in one]
