"""Launch lines from a generator that knows the truth: what a text says is in the scenario, or named, or refused.

The writer below shares no code with the reader: it has its own tables of a few flags of each engine, wraps a command
as people do (variables, arithmetic, arrays, continuations, YAML, fences, units), and keeps the values beside it.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from ppsim.cli.import_ import scenario_of
from ppsim.sglang.launch import LaunchLine, read_launch

NUM_LINES = 300
SIZES = [1, 2, 3, 4, 8]
NUMBERS = [16, 48, 64, 128, 512, 1024, 2048, 4096, 8192]
SGLANG: dict[str, tuple[list[str], list[Any], str]] = {  # spellings, values, key of the scenario ("" : none)
    "pp": (["--pp-size", "--pipeline-parallel-size"], SIZES, "cluster.pp_size"),
    "tp": (["--tp-size", "--tensor-parallel-size"], SIZES, "cluster.tp_size"),
    "chunk": (["--chunked-prefill-size"], NUMBERS, "scheduler.chunked_prefill_size"),
    "depth": (["--pp-async-batch-depth"], [1, 2], "cluster.pp_async_batch_depth"),
    "prefill": (["--max-prefill-tokens"], NUMBERS, "scheduler.max_prefill_tokens"),
    "running": (["--max-running-requests"], NUMBERS, "scheduler.max_running_requests"),
    "context": (["--context-length"], [4096, 32768], "scheduler.context_length"),
    "memory": (["--mem-fraction-static"], [0.8, 0.85], "gpu.mem_fraction_static"),
    "policy": (["--schedule-policy"], ["fcfs", "lpm", "lof", "random", "priority"], "scheduler.schedule_policy"),
    "radix": (["--disable-radix-cache"], [True], "scheduler.disable_radix_cache"),
    "mixed": (["--enable-mixed-chunk"], [True], "scheduler.enable_mixed_chunk"),
    "quant": (["--quantization"], ["fp8", "awq"], "model.quantization"),
    "kv": (["--kv-cache-dtype"], ["fp8_e5m2"], "model.kv_cache_dtype"),
    "trust": (["--trust-remote-code"], [True], ""),
    "odd": (["--frobnicate"], [3, "x"], ""),
}
VLLM: dict[str, tuple[list[str], list[Any], str]] = {
    "pp": (["--pipeline-parallel-size", "-pp", "--pipeline_parallel_size"], SIZES, "cluster.pp_size"),
    "tp": (["--tensor-parallel-size", "-tp"], SIZES, "cluster.tp_size"),
    "chunk": (["--max-num-batched-tokens"], NUMBERS, "scheduler.chunked_prefill_size"),
    "running": (["--max-num-seqs"], NUMBERS, "scheduler.max_running_requests"),
    "page": (["--block-size"], [16, 32], "scheduler.page_size"),
    "context": (["--max-model-len"], [4096, 32768], "scheduler.context_length"),
    "memory": (["--gpu-memory-utilization"], [0.8, 0.85], "gpu.mem_fraction_static"),
    "policy": (["--scheduling-policy"], ["fcfs", "priority"], "scheduler.schedule_policy"),
    "quant": (["--quantization", "-q"], ["fp8", "awq"], "model.quantization"),
    "eager": (["--enforce-eager"], [True], "!cluster.cuda_graph"),
    "odd": (["--frobnicate"], [3, "x"], ""),
}
PROGRAMS = {
    "sglang": ["python3 -m sglang.launch_server --model-path {m}", "sglang serve {m}", "sglang serve --model-path {m}"],
    "vllm": ["vllm serve {m}", "python3 -m vllm.entrypoints.cli.main serve {m}",
             "python -m vllm.entrypoints.openai.api_server --model {m}"],
}  # fmt: skip


@dataclass
class Written:
    """A text, and what it says: values by scenario key, and words that must be named because no key has them."""

    text: str
    engine: str
    truth: dict[str, Any] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)


def spoken(draw: random.Random, value: Any, before: list[str]) -> str:
    """A value as a person may write it; what it needs is put into ``before``."""
    name = f"V{len(before)}"
    if not isinstance(value, int) or isinstance(value, bool):
        how = draw.choice(["plain", "variable", "default", "cut"])
        if how == "cut":
            before.append(f"{name}={value}.tmp")
            return f"${{{name}%.tmp}}"
    else:
        how = draw.choice(["plain", "variable", "default", "product", "sum", "substring", "quoted"])
    if how == "variable":
        before.append(f"{name}={value}")
        return draw.choice([f"${name}", f"${{{name}}}", f'"${name}"'])
    if how == "default":
        return f"${{UNSET_{name}:-{value}}}"
    if how == "product":
        before.append(f"{name}={value}")
        return draw.choice([f"$(({name}*1))", f"$(( ${name} * 4 / 4 ))", f"$(({name} + 7 - 7))"])
    if how == "sum":
        return f"$(( {value - 1} + 1 ))"
    if how == "substring":
        before.append(f"{name}={value}99")
        return f"${{{name}:0:{len(str(value))}}}"
    return f'"{value}"' if how == "quoted" else str(value)


def write(seed: int) -> Written:
    draw = random.Random(seed)
    engine = draw.choice(["sglang", "vllm"])
    table = SGLANG if engine == "sglang" else VLLM
    model = draw.choice(["m", "org/model", "/models/x"])
    found = Written("", engine, {"model.path": model})
    before: list[str] = []
    groups: list[str] = []
    for name in draw.sample(sorted(table), draw.randint(2, 8)):
        spellings, values, key = table[name]
        flag, value = draw.choice(spellings), draw.choice(values)
        glue = "=" if flag.startswith("--") and draw.random() < 0.3 else " "
        groups.append(flag if value is True else f"{flag}{glue}{spoken(draw, value, before)}")
        if key.startswith("!"):
            found.truth[key[1:]] = not value
        elif key:
            found.truth[key] = value
        else:
            found.named.append({"trust": "trust_remote_code"}.get(name, flag))
    found.text = wrapped(draw, draw.choice(PROGRAMS[engine]).format(m=model), before, groups)
    return found


def wrapped(draw: random.Random, head: str, before: list[str], groups: list[str]) -> str:
    """The command in the shape in which it stands in a file or a post."""
    lines = "".join(f"{line}\n" for line in before)
    how = draw.choice(["one", "lines", "joined", "appended", "array", "fence", "prompt", "backquoted", "unit", "yaml"])
    if how in ("yaml", "unit", "backquoted") and before:
        how = "lines"
    tail = " ".join(groups)
    if how == "lines":
        return lines + " \\\n  ".join([head, *groups]) + "\n"
    if how == "joined":
        return lines + r" \ ".join([head, *groups])
    if how == "appended":
        parts = [f'OPTS{"+" if i else ""}=" {group}"\n'.replace('""', '"') for i, group in enumerate(groups)]
        return lines + "".join(parts) + f"{head} $OPTS" if '"' not in tail else lines + f"{head} {tail}"
    if how == "array":
        return lines + f'ARGS=({groups[0]})\nARGS+=({" ".join(groups[1:])})\n{head} "${{ARGS[@]}}"'
    if how == "fence":
        return f"Start it:\n```bash\n{lines}{head} {tail}\n```\nThen wait."
    if how == "prompt":
        return "".join(f"$ {line}\n" for line in before) + f"$ {head} {tail}"
    if how == "backquoted":
        return f"Run `{head} {tail}` first."
    if how == "unit":
        return f"[Service]\nRestart=always\nExecStart=/usr/bin/env {head} {tail}\n"
    if how == "yaml":
        words = [word.strip('"') for word in f"{head} {tail}".split()] if "$" not in tail else []
        listed = json.dumps(words)
        return f"containers:\n- name: a\n  command: {listed}\n" if words else f"{head} {tail}"
    return lines + f"{head} {tail}"


def silent(written: Written, line: LaunchLine) -> list[str]:
    """Differences between the truth and the scenario that nothing names."""
    found = scenario_of(line, None)
    overrides, told = found["overrides"], found["left_open"]
    out = [
        f"{key} is {overrides.get(key)!r}, the text says {value!r}"
        for key, value in written.truth.items()
        if overrides.get(key) != value and "stand" not in told.get(key, "")  # "decided at start" would be no excuse
    ]
    named = [*found["not_modelled"], *(flag.spelling for flag in line.unknown_flags)]
    return out + [f"{name} is not named" for name in written.named if name not in named]


@pytest.mark.parametrize("first", range(0, NUM_LINES, 50))
def test_no_generated_line_differs_in_silence_from_what_it_says(first: int) -> None:
    for seed in range(first, first + 50):
        written = write(seed)
        (line,) = read_launch(written.text)
        assert not line.errors, (seed, written.text, line.errors)
        assert line.engine == written.engine, (seed, written.text)
        assert not silent(written, line), (seed, written.text)
        assert not any("belongs to no flag" in str(note) for note in line.warnings), (seed, written.text)


@pytest.mark.parametrize("first", range(0, NUM_LINES, 50))
def test_every_generated_line_comes_back_as_it_was_and_reads_the_same(first: int) -> None:
    """Through the scenario and back: the same values, the same flags that nobody understands, nothing added."""
    for seed in range(first, first + 50):
        written = write(seed)
        (line,) = read_launch(written.text)
        assert line.source is not None
        (again,) = read_launch(line.source.text)
        values = {name: given.value for name, given in line.values.items()}
        assert {name: given.value for name, given in again.values.items()} == values, (seed, written.text)
        assert [(u.spelling, u.values) for u in again.unknown_flags] == [
            (u.spelling, u.values) for u in line.unknown_flags
        ]


def test_a_stand_in_for_a_value_is_told_only_where_the_scenario_has_no_such_value() -> None:
    """Most lines must come through as they are, or "told" would be an excuse for everything."""
    exact = given = 0
    for seed in range(NUM_LINES):
        written = write(seed)
        found = scenario_of(read_launch(written.text)[0], None)
        given += len(written.truth)
        exact += sum(found["overrides"].get(key) == value for key, value in written.truth.items())
    assert exact > 0.93 * given
