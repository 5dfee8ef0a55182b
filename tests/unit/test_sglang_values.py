"""Values of launch lines: what ``import`` writes ``run`` accepts, whatever flag has whatever value."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.cli.import_ import scenario_of, scenario_text
from ppsim.errors import ScenarioError
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import load_scenario, validate
from ppsim.scenario.warn import VLLM_DIFFERENCES
from ppsim.sglang import flags
from ppsim.sglang.launch import LaunchLine, read_launch, to_scenario
from ppsim.sglang.result import plain
from ppsim.sglang.scenario import ROWS
from ppsim.sglang.vllm import NAMES, in_sglang_words, layer_split

HEADS = {
    "sglang": "sglang serve m",
    "sglang-bench": "python -m sglang.bench_one_batch --model m",
    "vllm": "vllm serve m",
}
MAPPED = {row.name for row in ROWS} | set(NAMES) | {"num_gpu_blocks_override", "enable_chunked_prefill"}
WORDS = {
    "schedule_policy": ["fcfs", "lpm", "lof", "random", "dfs-weight", "routing-key", "priority", "best"],
    "scheduling_policy": ["fcfs", "priority", "lpm"],
    "disaggregation_mode": ["null", "prefill", "decode", "kv_producer", "kv_consumer", "kv_both", "both"],
    "model_path": ["org/model", "/models/a b", "deepseek-ai/DeepSeek-V3.1"],
}
BY_TYPE = {
    "int": ["0", "1", "2", "3", "7", "48", "64", "100", "5000", "-1", "-5", "10000000000"],
    "human": ["0", "1", "5000", "8k", "1K", "-1"],
    "float": ["0", "0.5", "1", "1.5", "-1", "1e9"],
    "layers": ["1", "16,16", "3,5,7", "1,1,1,1,1"],
    "list": ["a b"],
    "json": ["{}", '{"a": 1}', "[1]"],
    "str": ["x"],
    "envbool": ["0", "1", "true"],
}
PLAIN = {"int": ["0", "-1"], "float": ["-1"], "human": ["0"], "str": ["x"], "list": ["a b"]}


def choices(flag: flags.Flag) -> list[str]:
    """Words of a flag: for those that a scenario has, small, large, odd and negative ones."""
    if flag.type in ("switch", "bool"):
        return [""]
    table = BY_TYPE if flag.dest in MAPPED else {**BY_TYPE, **PLAIN}
    return WORDS.get(flag.dest, table.get(flag.type, ["x"]))


def texts(flag: flags.Flag) -> list[str]:
    head = HEADS[flag.engine]
    found = []
    for value in choices(flag):
        quoted = f"'{value}'" if flag.type not in ("list",) else value
        if flag.kind == "flag":
            found.append(f"{head} {flag.name} {quoted if value else ''}")
            found += [f"{head} --no-{flag.name[2:]}"] if flag.type == "bool" else []
        elif flag.kind == "env":
            found.append(f"{flag.name}={quoted} {head} --pp-size {value.count(',') + 1}")
        elif flag.kind == "json":
            outer, *inner = flag.name.split(".")
            body: Any = json.loads(value) if flag.type in ("int", "float") else value
            for key in reversed(inner):
                body = {key: body}
            found.append(f"{head} --{outer.replace('_', '-')} '{json.dumps(body)}'")
    return found


FLAGS = [flag for flag in flags.table() if flag.kind in ("flag", "env", "json")]


def unsaid(line: LaunchLine, found: dict[str, Any], text: str) -> None:
    """Each given value is in the scenario as it is, or named as open or as not modelled."""
    given = {name: value.value for name, value in line.values.items()}
    if line.engine == "vllm":
        given = in_sglang_words(given)
    keys = {row.name: row for row in ROWS}
    for name, value in given.items():
        if name in keys:
            same = found["overrides"].get(keys[name].key) == plain(keys[name].to_key(value))
            assert same or keys[name].key in found["left_open"], f"{text}: {name}"
        else:
            assert name == "attn_cp_size" or found["not_modelled"][name] == plain(value), f"{text}: {name}"


@pytest.mark.parametrize("engine", ["sglang", "sglang-bench", "vllm"])
def test_whatever_import_writes_run_accepts_for_every_choice_of_every_flag(engine: str) -> None:
    """A value is in the scenario, told, or an error with its place; a scenario that is written can be run."""
    tried = 0
    for flag in FLAGS:
        for text in texts(flag) if flag.engine == engine else []:
            (line,) = read_launch(text)
            tried += 1
            if line.errors:
                assert all(note.text and note.line == 1 for note in line.errors)
                continue
            if flag.dest in ("pp_size", "tp_size") and line.get(flag.dest) >= 5000:
                with pytest.raises(ScenarioError, match=flag.dest):  # no server of this size exists
                    scenario_of(line, None)
                continue
            found = scenario_of(line, None)
            check_scenario(validate(tomllib.loads(scenario_text(line))))
            unsaid(line, found, text)
    assert tried > {"sglang": 500, "sglang-bench": 20, "vllm": 250}[engine]


@pytest.mark.parametrize("policy", ["lof", "random", "dfs-weight", "routing-key", "priority"])
def test_a_policy_that_no_scenario_has_is_told_and_first_come_first_served_stands_in(policy: str) -> None:
    (line,) = read_launch(f"sglang serve m --pp-size 2 --schedule-policy {policy}")
    found = to_scenario(line)
    assert found["overrides"]["scheduler.schedule_policy"] == "fcfs"
    said = found["left_open"]["scheduler.schedule_policy"]
    assert said.startswith(f"{policy!r}")
    assert said.endswith("is not modelled: 'fcfs' stands in")


def test_a_policy_that_the_engine_does_not_have_is_refused_with_the_ones_it_has() -> None:
    (line,) = read_launch("sglang serve m --schedule-policy best")
    assert [note.text for note in line.errors] == [
        "'best' is no policy of SGLang: expected fcfs, lpm, random, lof, dfs-weight, priority, routing-key"
    ]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("sglang serve m --page-size 64 --chunked-prefill-size 100", "scheduler.chunked_prefill_size", 64),
        ("sglang serve m --max-running-requests 0", "scheduler.max_running_requests", None),
        ("sglang serve m --mem-fraction-static 1.5", "gpu.mem_fraction_static", None),
        ("sglang serve m --pp-size 40", "model.num_hidden_layers", 40),
        ("sglang serve m --tp-size 6", "model.num_attention_heads", 48),
    ],
)
def test_what_stands_in_is_told_with_its_key(text: str, key: str, value: Any) -> None:
    found = scenario_of(read_launch(text)[0], None)
    assert found["overrides"].get(key) == value
    assert "stand" in found["left_open"][key]


# -- vLLM ------------------------------------------------------------------------------------------------------------


def test_a_vllm_line_gets_the_rules_of_vllm() -> None:
    """Page 16, mixed steps under max_num_batched_tokens, up to max_num_seqs rows in one step."""
    text = "vllm serve m -pp 4 --max-num-batched-tokens 4096 --max-num-seqs 48"
    found = to_scenario(read_launch(text)[0])["overrides"]
    assert found["scheduler.page_size"] == 16
    assert found["scheduler.enable_mixed_chunk"] is True
    assert found["scheduler.chunked_prefill_size"] == found["scheduler.max_prefill_tokens"] == 4096
    assert found["scheduler.max_running_requests"] == found["scheduler.pp_max_micro_batch_size"] == 48
    assert found["gpu.mem_fraction_static"] == 0.9
    assert found["scheduler.disable_radix_cache"] is False


def test_what_vllm_says_in_other_words_becomes_the_same_numbers() -> None:
    found = to_scenario(
        read_launch("vllm serve m --block-size 32 --num-gpu-blocks-override 100 --no-enable-chunked-prefill")[0]
    )
    assert found["overrides"]["scheduler.page_size"] == 32
    assert found["overrides"]["scheduler.max_total_tokens"] == 3200
    assert found["overrides"]["scheduler.chunked_prefill_size"] == -1
    assert found["not_modelled"] == {}


@pytest.mark.parametrize(
    ("layers", "stages", "split"),
    [(80, 3, [27, 27, 26]), (61, 4, [15, 15, 16, 15]), (32, 4, [8] * 4), (7, 4, [2, 2, 2, 1])],
)
def test_the_last_stage_of_vllm_gets_no_part_of_a_remainder(layers: int, stages: int, split: list[int]) -> None:
    assert layer_split(layers, stages) == split


@pytest.fixture
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_import_and_run_name_each_difference_from_vllm_and_never_say_that_sglang_decides() -> None:
    result = ppsim("import", "vllm serve m -pp 2 --max-num-batched-tokens 64 --max-num-seqs $N")
    assert result.exit_code == 0
    assert all(f"differs: {text}" in result.stderr for text in VLLM_DIFFERENCES)
    assert "SGLang decides" not in result.stderr
    assert "left open: scheduler.max_running_requests: unresolved: $N" in result.stderr
    Path("mine.toml").write_text(result.stdout)
    assert load_scenario("mine.toml").engine == "vllm"
    run = ppsim("run", "mine.toml", "--set", "workload.num_requests=3", "--set", "scheduler.max_total_tokens=4096")
    assert run.exit_code == 0, run.output
    assert all(text in run.output for text in VLLM_DIFFERENCES)
    other = ppsim(
        "run",
        "mine.toml",
        "--set",
        "engine=sglang",
        "--set",
        "workload.num_requests=3",
        "--set",
        "scheduler.max_total_tokens=4096",
    )
    assert "vllm" not in other.output


# -- back to the line ------------------------------------------------------------------------------------------------

LINES = (
    "sglang serve m --pp-size 4 --frobnicate 3 --quantization fp8 --schedule-policy lof",
    "vllm serve my/model -pp 2 --block-size=32 --no-enable-prefix-caching --max-num-seqs 12",
    "NCCL_DEBUG=INFO SGLANG_PP_LAYER_PARTITION=16,16 python3 -m sglang.launch_server --model-path m --pp 2 --tp $N",
    "docker run --gpus all -p 8000:8000 vllm/vllm-openai:latest --model m -pp 2 --max-num-batched-tokens 2048",
    "python3 -m sglang.launch_server --model-path m --json-model-override-args '{\"a\": 1}' --trust-remote-code",
)


@pytest.mark.usefixtures("_in_an_empty_folder")
@pytest.mark.parametrize("text", LINES)
def test_a_line_that_nobody_changes_comes_back_word_for_word(text: str) -> None:
    Path("mine.toml").write_text(ppsim("import", text).stdout)
    result = ppsim("export", "mine.toml")
    assert result.stdout == text + "\n"
    assert "unchanged" in result.stderr


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_change_is_made_where_the_value_stands_and_shown_as_a_diff() -> None:
    Path("mine.toml").write_text(ppsim("import", LINES[0]).stdout)
    sets = ("cluster.pp_size=2", "scheduler.page_size=64", "scheduler.context_length=4096")
    result = ppsim("export", "mine.toml", *(word for key in sets for word in ("--set", key)))
    assert result.stdout == (
        "sglang serve m --pp-size 2 --frobnicate 3 --quantization fp8 --schedule-policy lof --page-size 64 "
        "--context-length 4096\n"
    )
    shown = [line.removeprefix("changed: ") for line in result.stderr.splitlines() if line.startswith("changed: ")]
    assert shown == ["- --pp-size 4", "+ --pp-size 2", "+ --page-size 64", "+ --context-length 4096"]


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_vllm_line_is_changed_in_the_words_of_vllm() -> None:
    Path("mine.toml").write_text(ppsim("import", LINES[1]).stdout)
    sets = (
        "scheduler.disable_radix_cache=false",
        "scheduler.chunked_prefill_size=1024",
        "scheduler.prefill_max_requests=3",
    )
    result = ppsim("export", "mine.toml", *(word for key in sets for word in ("--set", key)))
    assert result.stdout == (
        "vllm serve my/model -pp 2 --block-size=32 --enable-prefix-caching --max-num-seqs 12 "
        "--max-num-batched-tokens 1024\n"
    )
    assert "scheduler.prefill_max_requests = 3: vllm has no flag for it" in result.stderr


def test_a_contradiction_is_one_error_and_no_scenario() -> None:
    with pytest.raises(ScenarioError, match=r"layer_partition|pp_size"):
        scenario_of(read_launch("sglang serve m --pp-size 2000")[0], None)


# -- what is assumed, and what is recommended ------------------------------------------------------------------------


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_nothing_is_recommended_for_a_workload_that_nobody_gave_and_a_given_one_changes_the_line() -> None:
    """131072 tokens fill the default context, which nobody gave either: it makes room and is no flag of the answer."""
    Path("mine.toml").write_text(ppsim("import", "sglang serve m --pp-size 2 --frobnicate 3").stdout)
    own = ("--set", "cost.prefill_b_ms_per_token=0.03", "--set", "cost.prefill_a_ms_per_token2=1e-6")
    assumed = ppsim("tune", "mine.toml", "--json", *own)
    assert assumed.exit_code == 0, assumed.output
    found = json.loads(assumed.stdout)
    assert found["sglang"] is None
    assert "prompts of 1024 tokens" in found["assumed"]
    asked = json.loads(ppsim("tune", "mine.toml", "--prompt", "131072", "--json", *own).stdout)
    assert asked["assumed"] is None
    assert "--frobnicate 3" in asked["sglang"]
    assert "--context-length" not in asked["sglang"]
    assert "--mem-fraction-static" not in asked["sglang"]
    assert any("135168 tokens stand in" in note for note in asked["notes"])
    added = [row for row in asked["changes"] if row.startswith("+ ")]
    assert added
    assert all(row[2:] in asked["sglang"] for row in added)


@pytest.mark.usefixtures("_in_an_empty_folder")
def test_a_workload_is_given_with_the_line_and_else_the_assumed_one_is_said() -> None:
    text = "sglang serve m --pp-size 2"
    assert "32 prompts of 1024 tokens with 64 tokens of output, 1 a second" in ppsim("import", text).stderr
    given = ppsim("import", text, "--prompt", "500", "--output", "7", "--rate", "2.5")
    assert "is assumed" not in given.stderr
    workload = tomllib.loads(given.stdout)["workload"]
    assert (workload["input_length"]["value"], workload["output_length"]["value"]) == (500, 7)
    assert workload["rate_per_s"] == 2.5
    Path("mine.toml").write_text(given.stdout)
    assert load_scenario("mine.toml").workload.input_length.value == 500
    refused = ppsim("import", text, "--prompt", "0")
    assert refused.exit_code == 2
    assert "--prompt 0" in refused.stderr


def test_a_decode_step_has_volumes_that_can_be_read() -> None:
    """One token of DeepSeek: pipeline 7168 x 3 bytes, 21.50 KB, where 0.00 GB stood."""
    shown = ppsim("volumes", "--model", "deepseek-v3.1", "--tokens", "1").stdout
    assert 7168 * 3 == 21504
    assert "21.50" in shown
    assert "exact KB" in shown
