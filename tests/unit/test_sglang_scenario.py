"""Every scenario prints as a launch line that reads back to the same values, however the line is then wrapped."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import put, validate
from ppsim.scenario.tree import Scenario
from ppsim.sglang.launch import read_launch, to_launch_line, to_scenario
from ppsim.sglang.scenario import ROWS, has_key

KEYS = [row.key for row in ROWS if has_key(row.key)]


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """A tree with every key of the table drawn; only the values matter, so combinations need not make sense."""
    pp_size = draw(st.integers(1, 6))
    raw: dict[str, Any] = {}
    sizes = st.integers(1, 1 << 20)
    partition = st.lists(st.integers(1, 64), min_size=pp_size, max_size=pp_size)
    values: dict[str, st.SearchStrategy[Any]] = {
        "model.path": st.one_of(st.none(), st.sampled_from(["/models/a b", "org/model", "it's"])),
        "cluster.pp_size": st.just(pp_size),
        "cluster.tp_size": st.sampled_from([1, 2, 8]),
        "cluster.pp_async_batch_depth": st.integers(0, 3),
        "scheduler.max_running_requests": st.integers(1, 100_000),
        "scheduler.schedule_policy": st.sampled_from(["fcfs", "lpm"]),
        "scheduler.chunked_prefill_size": st.one_of(st.just(-1), sizes),
        "scheduler.prefill_max_requests": st.integers(0, 9),
        "scheduler.prefill_decode_interval": st.integers(0, 9),
        "scheduler.schedule_conservativeness": st.floats(0.01, 4, allow_nan=False),
        "scheduler.pp_max_micro_batch_size": st.integers(0, 64),
        "scheduler.max_total_tokens": st.one_of(st.none(), sizes, st.lists(sizes, min_size=pp_size, max_size=pp_size)),
        "disaggregation.role": st.sampled_from(["plain", "prefill", "decode"]),
        "disaggregation.bootstrap_timeout_ms": st.integers(0, 10**7).map(float),
        "disaggregation.receive_timeout_ms": st.integers(0, 10**7).map(float),
        "timeouts.waiting_ms": st.integers(0, 10**7),
        "timeouts.running_ms": st.integers(0, 10**7),
        "scheduler.dynamic_chunking_smooth_factor": st.floats(0, 1, allow_nan=False),
        "model.layer_partition": st.one_of(st.none(), partition),
        "gpu.mem_fraction_static": st.floats(0.01, 1, allow_nan=False),
        "scheduler.max_mamba_cache_size": st.one_of(st.none(), st.integers(1, 100_000)),
        "scheduler.mamba_full_memory_ratio": st.floats(0.01, 9, allow_nan=False),
        "model.kv_cache_dtype": st.sampled_from(["auto", "bf16", "fp8_e4m3", "fp8_e5m2", "fp4_e2m1"]),
        "model.quantization": st.one_of(st.none(), st.sampled_from(["fp8", "awq_marlin", "modelopt_fp4", "w8a8_int8"])),
    }
    for key in KEYS:
        default = attrgetter(key)(Scenario())
        strategy = values.get(key, st.booleans() if isinstance(default, bool) else sizes)
        put(raw, key, draw(strategy))
    return validate(raw)


def wanted(scenario: Scenario) -> dict[str, Any]:
    """What a launch line can say of the scenario: one pool for all ranks, the smallest."""
    found: dict[str, Any] = {}
    for key in KEYS:
        value = attrgetter(key)(scenario)
        if key == "scheduler.max_total_tokens" and isinstance(value, tuple):
            value = min(value)
        if value is not None:
            found[key] = list(value) if isinstance(value, tuple) else value
    if scenario.model.layer_partition is not None:
        found["model.num_hidden_layers"] = sum(scenario.model.layer_partition)
    return found


@settings(max_examples=150, deadline=None, derandomize=True)
@given(scenario=scenarios())
def test_a_scenario_prints_and_reads_back(scenario: Scenario) -> None:
    (line,) = read_launch(to_launch_line(scenario))
    assert (line.engine, line.errors, line.unknown_flags) == ("sglang", [], [])
    found = to_scenario(line)
    assert found["overrides"] == wanted(scenario)
    assert found["not_modelled"] == {}
    settled = {row.key for row in ROWS if row.none_is_default}  # nobody decides these at start
    absent = {key for key in KEYS if attrgetter(key)(scenario) is None} - settled
    assert set(found["left_open"]) == absent


@settings(max_examples=60, deadline=None, derandomize=True)
@given(scenario=scenarios())
def test_overrides_make_the_scenario_that_was_printed(scenario: Scenario) -> None:
    (line,) = read_launch(to_launch_line(scenario))
    raw: dict[str, Any] = {}
    for key, value in to_scenario(line)["overrides"].items():
        put(raw, key, value)
    again = validate(raw)
    assert to_launch_line(again) == to_launch_line(scenario)


def test_a_scenario_of_both_sides_prints_two_servers() -> None:
    raw: dict[str, Any] = {
        "cluster": {"pp_size": 4, "pp_async_batch_depth": 1},
        "model": {"path": "m", "num_hidden_layers": 10, "layer_partition": [2, 2, 3, 3]},
        "disaggregation": {"role": "pd", "decode_pp_size": 1, "decode_max_running_requests": 7},
    }
    prefill, decode = read_launch(to_launch_line(validate(raw)))
    assert (prefill.role, prefill.get("pp_size"), prefill.get("pp_async_batch_depth")) == ("prefill", 4, 1)
    assert prefill.get("layer_partition") == (2, 2, 3, 3)
    assert (decode.role, decode.get("pp_size"), decode.get("max_running_requests")) == ("decode", 1, 7)
    assert not decode.is_given("layer_partition")
    assert decode.get("pp_async_batch_depth") == 0


def test_timeouts_change_their_unit_and_off_is_off() -> None:
    (line,) = read_launch("SGLANG_REQ_WAITING_TIMEOUT=2.5 SGLANG_REQ_RUNNING_TIMEOUT=-1 sglang serve --model-path m")
    overrides = to_scenario(line)["overrides"]
    assert (overrides["timeouts.waiting_ms"], overrides["timeouts.running_ms"]) == (2500, 0)
    text = to_launch_line(
        validate({"disaggregation": {"bootstrap_timeout_ms": 600000.0}, "timeouts": {"waiting_ms": 1000}})
    )
    assert "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=600 " in text
    assert "SGLANG_REQ_WAITING_TIMEOUT=1 " in text
    assert "RUNNING_TIMEOUT" not in text


def test_every_key_of_the_table_that_the_tree_has_is_drawn() -> None:
    assert len(KEYS) >= 25
    assert "cluster.pp_size" in KEYS
    assert {row.key for row in ROWS} >= set(KEYS)


FLAGS: dict[str, tuple[str, Any]] = {
    "pp_size": ("--pp-size", 4),
    "tp_size": ("--tensor-parallel-size", 8),
    "chunked_prefill_size": ("--chunked-prefill-size", -1),
    "model_path": ("--model-path", "/models/a b/c"),
    "mem_fraction_static": ("--mem-fraction-static", 0.85),
    "json_model_override_args": ("--json-model-override-args", {"a": {"b": [1, 2]}}),
    "enable_dynamic_chunking": ("--enable-dynamic-chunking", True),
    "dist_init_addr": ("--dist-init-addr", "192.0.2.1:5000"),
}


def quoted(value: Any) -> str:
    import json

    return json.dumps(value) if isinstance(value, dict) else str(value)


@st.composite
def renderings(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """The same values in another order, another quoting and another wrapping."""
    names = draw(st.permutations(sorted(FLAGS)))[: draw(st.integers(2, len(FLAGS)))]
    names = ["pp_size", *[name for name in names if name != "pp_size"]]
    words: list[list[str]] = []
    for name in names:
        flag, value = FLAGS[name]
        text = quoted(value)
        if value is True:
            words.append([flag])
        elif draw(st.booleans()):
            words.append([f"{flag}={text}"])
        else:
            words.append([flag, text])
    wrap = draw(st.sampled_from(WRAPPINGS))
    return wrap(words), {name: FLAGS[name][1] for name in names}


def shell(word: str) -> str:
    return f"'{word}'" if any(char in word for char in ' "{}[]') else word


def on_lines(words: list[list[str]]) -> str:
    return "sglang serve \\\n  " + " \\\n  ".join(" ".join(map(shell, pair)) for pair in words)


def on_one_line(words: list[list[str]]) -> str:
    return "FOO=bar python3 -m sglang.launch_server " + " ".join(" ".join(map(shell, pair)) for pair in words)


def in_an_array(words: list[list[str]]) -> str:
    inner = "\n  ".join(" ".join(map(shell, pair)) for pair in words)
    return f'args=(\n  {inner}\n)\nexec sglang serve "${{args[@]}}"\n'


def in_yaml(words: list[list[str]]) -> str:
    items = [word for pair in words for word in pair]
    return "command: [sglang, serve]\nargs:\n" + "".join(f"  - '{item}'\n" for item in items)


def in_json(words: list[list[str]]) -> str:
    import json

    return json.dumps(
        {"image": "lmsysorg/sglang", "args": ["sglang", "serve", *[word for pair in words for word in pair]]}
    )


def in_a_container(words: list[list[str]]) -> str:
    inner = " ".join(" ".join(map(shell, pair)) for pair in words)
    return f"docker run -d --gpus all -e A=b --shm-size 32g lmsysorg/sglang:latest \\\n  sglang serve {inner}"


def without_a_program(words: list[list[str]]) -> str:
    return "\n".join(" ".join(map(shell, pair)) for pair in words)


def behind_a_prompt(words: list[list[str]]) -> str:
    return "$ " + on_lines(words).replace("\n", "\n> ")


WRAPPINGS = (
    on_lines,
    on_one_line,
    in_an_array,
    in_yaml,
    in_json,
    in_a_container,
    without_a_program,
    behind_a_prompt,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(rendered=renderings())
def test_wrapping_order_and_quoting_change_nothing(rendered: tuple[str, dict[str, Any]]) -> None:
    text, values = rendered
    (line,) = read_launch(text)
    assert {name: line.values[name].value for name in values} == values
    assert set(line.values) == set(values)
    assert (line.errors, line.unknown_flags, line.unresolved) == ([], [], [])


def test_sglangs_defaults_replace_those_of_the_tree() -> None:
    """A line without --pp-size has one stage, whatever a scenario starts with."""
    (line,) = read_launch("sglang serve --model-path m")
    overrides = to_scenario(line)["overrides"]
    assert Scenario().cluster.pp_size != 1
    assert overrides["cluster.pp_size"] == 1
    assert "scheduler.chunked_prefill_size" in to_scenario(line)["left_open"]


def test_the_sizes_and_the_model_are_always_printed() -> None:
    text = to_launch_line(validate({"cluster": {"pp_size": 1, "tp_size": 1}}))
    assert "--pp-size 1 --tp-size 1" in text
    assert "--model-path <MODEL_PATH>" in text
    assert "--max-prefill-tokens" not in text


def test_what_the_tree_has_no_key_for_is_listed() -> None:
    (line,) = read_launch("sglang serve --model-path m --attention-backend fa3 --dp-size 4 --pp-size 2")
    assert to_scenario(line)["not_modelled"] == {"attention_backend": "fa3", "dp_size": 4}


@pytest.mark.parametrize("command", ["sglang serve --model-path m", "vllm serve m"])
@pytest.mark.parametrize(
    ("flags", "overrides", "not_modelled"),
    [
        ("--kv-cache-dtype fp8_e5m2", {"model.kv_cache_dtype": "fp8_e5m2"}, {}),
        ("--kv-cache-dtype fp8_inc", {"model.kv_cache_dtype": "fp8"}, {}),
        ("--kv-cache-dtype turbo9", {}, {"kv_cache_dtype": "turbo9"}),
        ("--quantization awq_marlin", {"model.quantization": "awq_marlin"}, {}),
        ("--quantization gguf", {}, {"quantization": "gguf"}),
        ("", {"model.kv_cache_dtype": "auto"}, {}),
    ],
)
def test_types_of_cache_and_weights_are_read_or_listed(
    command: str, flags: str, overrides: dict[str, str], not_modelled: dict[str, str]
) -> None:
    (line,) = read_launch(f"{command} {flags}")
    found = to_scenario(line)
    types = {key: found["overrides"].get(key) for key in ("model.kv_cache_dtype", "model.quantization")}
    usual = {} if "kv_cache_dtype" in not_modelled else {"model.kv_cache_dtype": "auto"}
    assert {key: value for key, value in types.items() if value is not None} == {**usual, **overrides}
    assert found["not_modelled"] == not_modelled
    raw: dict[str, Any] = {}
    for key, value in overrides.items():
        put(raw, key, value)
    check_scenario(validate(raw))  # what is written can be run


def test_an_unresolved_value_is_left_open_and_gives_no_override() -> None:
    (line,) = read_launch("sglang serve --model-path m --pp-size $PP")
    found = to_scenario(line)
    assert found["left_open"]["cluster.pp_size"] == "unresolved: $PP"
    assert "cluster.pp_size" not in found["overrides"]


def test_a_vllm_line_gives_the_same_keys() -> None:
    (line,) = read_launch(
        "VLLM_PP_LAYER_PARTITION=3,4 vllm serve m -pp 2 -tp 4 --max-num-batched-tokens 4096 --max-num-seqs 32 "
        "--max-model-len 8192 --no-enable-prefix-caching --enforce-eager"
    )
    overrides = to_scenario(line)["overrides"]
    wanted = {
        "cluster.pp_size": 2,
        "cluster.tp_size": 4,
        "scheduler.chunked_prefill_size": 4096,
        "scheduler.max_running_requests": 32,
        "scheduler.context_length": 8192,
        "scheduler.disable_radix_cache": True,
        "cluster.cuda_graph": False,
        "model.layer_partition": [3, 4],
    }
    assert {key: overrides[key] for key in wanted} == wanted


@pytest.mark.parametrize("path", ["/models/a b", "org/model"])
def test_the_model_is_the_checkpoint_of_the_scenario(path: str) -> None:
    raw: dict[str, Any] = {"model": {"path": path}}
    (line,) = read_launch(to_launch_line(validate(raw)))
    assert line.get("model_path") == path
