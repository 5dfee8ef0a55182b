"""A key that does nothing is a bug: every key of the scenario tree changes something that a user can see.

``KEYS`` says for each key in which situation it matters. A key without an entry fails the first test. Each case
changes that key alone (checked), and must change the *behaviour*: decisions, times, replies, observations, messages,
verdict. That the run folder repeats a value, or the record of an input echoes it, does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from ppsim.core.agreed import Agreed, agree
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.rank import Rank
from ppsim.errors import PpsimError
from ppsim.recording.folder import RunFolder, write_run
from ppsim.recording.summary import summarize
from ppsim.recording.writer import lines
from ppsim.scenario.expect_judged import expectations
from ppsim.scenario.load import section_in
from ppsim.scenario.tree import Scenario as Tree
from ppsim.world import simulate
from tests.worlds.making import UNIT, changed, requests, run, scenario


def keys_of(model: type[BaseModel], place: str = "") -> Iterator[str]:
    """All dotted keys; positions in lists and names in tables are left out."""
    for name, field in model.model_fields.items():
        section = section_in(field.annotation)
        if section is None:
            yield place + name
        else:
            yield from keys_of(section, f"{place}{name}.")


TABLES = ("expect.figures", "expect.bugs", "expect.bugs.figures")  # of sections under names of their own


def values_of(value: Any, place: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of a dumped scenario, list positions and names in tables left out."""
    if isinstance(value, dict) and place in TABLES:
        for name, section in value.items():
            for leaf, inner in section.items():
                yield from ((key, f"{name}:{text}") for key, text in values_of(inner, f"{place}.{leaf}"))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from values_of(inner, f"{place}.{name}" if place else name)
    elif isinstance(value, list | tuple) and any(isinstance(item, dict) for item in value):
        for position, item in enumerate(value):
            for key, inner in values_of(item):
                yield f"{place}.{key}", f"{position}:{inner}"
    else:
        yield place, repr(value)


def behaviour(changes: dict[str, Any], **options: Any) -> tuple[object, ...]:
    """All that a run shows, without its name and without repeated input."""
    try:
        result = run(changes, {}, **options)
    except PpsimError as error:
        return (type(error).__name__, str(error))
    shown = [line for line in lines(result.recording) if not line.startswith(("{", '["ingested'))]
    return (shown, result.verdict, result.setting.network.num_sent)


def with_what_is_written(changes: dict[str, Any]) -> tuple[object, ...]:
    """The names of the files of a run folder."""
    result = run(changes, {}, fast=None)
    with TemporaryDirectory() as folder:
        config = {"run": {"compress": changes.get("run.compress", "none")}}
        summary = summarize(result.recording, result.verdict)
        write_run(RunFolder(Path(folder)), config, result.recording, summary, result.verdict)
        return tuple(sorted(path.name for path in Path(folder).iterdir()))


def with_what_is_kept(changes: dict[str, Any]) -> tuple[object, ...]:
    """The summary, and how many decisions are still in memory behind it."""
    result = run(changes, {}, fast=None)
    return summarize(result.recording, result.verdict), len(result.recording.decisions[0])


# --- situations --------------------------------------------------------------------------------------------------

QUADRATIC: dict[str, Any] = {
    **UNIT,
    "cost.source": "quadratic",
    "scheduler.chunked_prefill_size": 8,
    "scheduler.pp_max_micro_batch_size": 2,
    "workload.requests": requests(3, prompt=20, output=4),
}
FROM_MEMORY = {**QUADRATIC, "scheduler.max_total_tokens": None, "scheduler.page_size": 8}
GENERATED = {
    **QUADRATIC,
    "workload.source": "generated",
    "workload.requests": [],
    "workload.num_requests": 8,
    "workload.rate_per_s": 50.0,
    "workload.input_length": {"kind": "fixed", "value": 20, "max": 64},
    "workload.output_length": {"kind": "fixed", "value": 4},
}
SESSIONS = {
    **{key: value for key, value in GENERATED.items() if key != "workload.num_requests"},
    "workload.num_sessions": 2,
    "workload.num_turns": 2,
    "workload.think_time_ms": 7.0,
}
ROOFLINE = {
    "cluster.pp_size": 2,
    "cost.source": "roofline",
    "model.key": "qwen3-8b",
    "gpu.key": "h100",
    "workload.source": "requests",
    "workload.requests": [{"rid": "R1", "at_iteration": 0, "prompt": 512, "output": 2}],
}
OWN_GPU = {
    **{key: value for key, value in ROOFLINE.items() if key != "gpu.key"},
    "cluster.tp_size": 2,
    "gpu.bf16_tflops": 100.0,
    "gpu.hbm_gb_per_s": 1000.0,
    "gpu.link_gb_per_s": 50.0,
}
FP8_GPU = {**OWN_GPU, "model.key": "llama-3.1-70b-fp8", "gpu.fp8_tflops": 200.0, "gpu.memory_gb": 200.0}
MODELS = Path(__file__).resolve().parents[1] / "data" / "models"
STATES = {  # layers with a state a request beside the KV cache
    **ROOFLINE,
    "model.key": str(MODELS / "state_space_hybrid.json"),
    "scheduler.max_mamba_cache_size": 12,
    "workload.requests": requests(6, prompt=64, output=4),
}
STATES_BY_RATIO = {
    **STATES,
    "scheduler.max_mamba_cache_size": None,
    "gpu.memory_gb": 6.0,
    "workload.requests": requests(60, prompt=64, output=4),
}
ONE_LONG = {
    **ROOFLINE,
    "scheduler.chunked_prefill_size": 4096,
    "scheduler.context_length": 131072,
    "scheduler.page_size": 64,
    "scheduler.max_total_tokens": 200_000,
    "workload.requests": [{"rid": "R1", "at_iteration": 0, "prompt": 65536, "output": 1}],
}
UNIFORM = {**GENERATED, "workload.input_length": {"kind": "uniform", "min": 4, "max": 64}}
LOGNORMAL = {**GENERATED, "workload.input_length": {"kind": "lognormal", "mean": 20.0, "sigma": 0.5, "max": 64}}
LOGNORMAL_OUT = {**GENERATED, "workload.output_length": {"kind": "lognormal", "mean": 4.0, "sigma": 0.5, "max": 9}}
UNIFORM_OUT = {**GENERATED, "workload.output_length": {"kind": "uniform", "min": 2, "max": 9}}
TRACE = {
    **UNIT,
    "cluster.pp_size": 1,
    "workload.source": "trace",
    "workload.requests": [],
    "workload.num_requests": 2,
    "scheduler.chunked_prefill_size": 16384,
    "scheduler.max_total_tokens": 200_000,
}
SLOW_SENDS = {
    **UNIT,
    "cluster.pp_async_batch_depth": 1,
    "model.hidden_size": 500_000,
    "links.bandwidth_gb_per_s": 1.0,
    "workload.requests": requests(3, prompt=1, output=6),
}
UNEQUAL = {
    **UNIT,
    "cluster.pp_async_batch_depth": 1,
    "cost.slot_ms": [3.0, 1.0, 1.0],
    "workload.requests": requests(3, output=6),
}
TIGHT = {
    **UNIT,
    "scheduler.pp_max_micro_batch_size": 4,
    "scheduler.chunked_prefill_size": 32,
    "scheduler.max_total_tokens": 100,
    "workload.requests": requests(4, prompt=4, output=30),
}
PUT_OUT = {  # one of six requests is put out of memory twice
    **UNIT,
    "scheduler.pp_max_micro_batch_size": 4,
    "scheduler.chunked_prefill_size": 32,
    "scheduler.max_total_tokens": 60,
    "scheduler.clip_max_new_tokens": 4,
    "scheduler.schedule_conservativeness": 0.1,
    "workload.requests": [{**request, "ignore_eos": False} for request in requests(6, prompt=4, output=30)],
}
COMPILING = {  # R2 waits for its grammar for some milliseconds while R1 decodes
    **UNIT,
    "host.schedule_us": 500.0,
    "workload.requests": [*requests(1, output=9), {"rid": "R2", "prompt": 4, "output": 2, "grammar": "json"}],
    "observations.listed": [{"what": "grammar", "rid": "R2", "at": [9, 9]}],
}
CLOSING = {
    **UNIT,
    "scheduler.pp_max_micro_batch_size": 4,
    "scheduler.chunked_prefill_size": 16,
    "scheduler.max_total_tokens": 30,
    "workload.requests": [
        {"rid": "R0", "prompt": 10, "output": 10, "at_iteration": 0},
        {"rid": "R1", "prompt": 10, "output": 10, "at_iteration": 1},
        {"rid": "R2", "prompt": 5, "output": 5, "at_iteration": 60},
        {"rid": "R3", "prompt": 5, "output": 5, "at_iteration": 61},
    ],
}
PREFIXES = {
    **QUADRATIC,
    "workload.block_tokens": 8,
    "workload.requests": [
        {"rid": f"R{n}", "prompt": 20, "output": 2, "prefix_blocks": [1, 2], "at_iteration": 12 * n} for n in range(3)
    ],
}
PREFILL = {
    **QUADRATIC,
    "disaggregation.role": "prefill",
    "observations.max_delay": 3,
    "host.schedule_us": 100.0,  # an iteration that waits must take some time, or nothing ever becomes visible
    "workload.requests": requests(3, prompt=20, output=1),
}
DECODE = {**QUADRATIC, "disaggregation.role": "decode", "disaggregation.num_reserved_decode_tokens": 16}
TWO_SIDES = {
    **QUADRATIC,
    "disaggregation.role": "pd",
    "disaggregation.num_reserved_decode_tokens": 4,
    "disaggregation.decode_max_total_tokens": 256,
    "disaggregation.kv_bandwidth_gb_per_s": 1.0,
    "host.schedule_us": 50.0,
}
FULL_DECODE = {**TWO_SIDES, "disaggregation.decode_max_total_tokens": 40, "workload.requests": requests(4, prompt=20)}
TIERS = {
    **PREFIXES,
    "scheduler.max_total_tokens": 32,
    "hicache.enabled": True,
    "hicache.host_tokens": 256,
    "hicache.device_host_gb_per_s": 10.0,
    "workload.requests": [
        {"rid": f"R{n}", "prompt": 20, "output": 2, "prefix_blocks": [n % 2, 7], "at_iteration": 20 * n}
        for n in range(4)
    ],
}
GRAMMAR = {**QUADRATIC, "workload.requests": requests(2, prompt=20, output=3, grammar="json")}
ABORTS = {**QUADRATIC, "workload.aborts": [{"rid": "R2", "at_iteration": 3}]}


def one(**fields: Any) -> dict[str, Any]:
    """One scripted request with these fields."""
    return {"workload.requests": [{"rid": "R1", "prompt": 20, "output": 4, **fields}]}


def kv_fault(**fields: Any) -> dict[str, Any]:
    """Two sides, and one KV write that goes wrong."""
    return {**TWO_SIDES, "disaggregation.kv_faults": [{"rid": "R1", "rank": 0, **fields}]}


def stored(**fields: Any) -> dict[str, Any]:
    return {"hicache.storage_hits": [{"rid": "R0", "tokens": [16, 16], **fields}]}


STORED = {**TIERS, "hicache.storage": True, "hicache.storage_gb_per_s": 1.0, **stored()}


def listed(**fields: Any) -> dict[str, Any]:
    fact = {"what": "grammar", "rid": "R1", "at": [2, 5], **fields}
    return {"observations.listed": [fact]}


def abort(**fields: Any) -> dict[str, Any]:
    return {"workload.aborts": [fields]}


# --- ways to look ------------------------------------------------------------------------------------------------


def header(changes: dict[str, Any]) -> object:
    return next(iter(lines(run(changes, {}).recording)))


def exported(changes: dict[str, Any]) -> object:
    """The line that ``ppsim export`` prints."""
    from ppsim.sglang.launch import to_launch_line

    return to_launch_line(scenario(changes, {}))


def listing(changes: dict[str, Any]) -> object:
    """``ppsim list scenarios`` in a folder with this scenario."""
    from ppsim.cli.entry import app

    with TemporaryDirectory() as folder, chdir(folder):
        Path("scenarios").mkdir()
        Path("scenarios/mine.toml").write_text(f"description = {changes['description']!r}\n")
        return CliRunner().invoke(app, ["list", "scenarios"]).stdout


class OwnPool(Rank):
    """Planted: each rank keeps the pool that its own memory allows."""

    def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] | None = None) -> None:
        super().start(agree(self.local_tokens[0], "nobody else"), host_tokens)


def judged(changes: dict[str, Any]) -> object:
    """What a run says of the scenario's expectations; with the planted bug under ``expect.bugs`` switched on."""
    loaded = scenario(changes, {})
    expect = loaded.expect
    assert expect is not None
    for bug, outcome in expect.bugs.items():
        own = {key: value for key, value in changes.items() if not key.startswith("expect")}
        return judged({**own, "bugs": [bug], "expect": outcome.model_dump(mode="json")})
    result = simulate(loaded)
    found = expectations(loaded, summarize(result.recording, result.verdict), result.verdict)
    assert found is not None
    return found.lines()


def expecting(**keys: Any) -> dict[str, Any]:
    return {**QUADRATIC, "expect": {"verdict": "pass", **keys}}


def of_a_bug(**keys: Any) -> dict[str, Any]:
    outcome = {"verdict": "fail", **keys}
    return {**QUADRATIC, "run.invariants": True, "expect": {"bugs": {"hidden_given_up_when_deep": outcome}}}


def with_unequal_pools(changes: dict[str, Any]) -> object:
    return behaviour(changes, change=changed(OwnPool))


class StampsFromRank(RadixCache):
    """Planted: a rank stamps cache nodes with a clock of its own, which no decision shows for a while."""

    def stamp(self) -> int:
        return super().stamp() + self.policy.pp_rank


def with_own_stamps(changes: dict[str, Any]) -> object:
    return behaviour(changes, change=changed(StampsFromRank))


def refusal(changes: dict[str, Any]) -> object:
    try:
        return len(run(changes, {}).recording.warnings)
    except PpsimError as error:
        return str(error)


def architecture(changes: dict[str, Any]) -> object:
    pytest.importorskip("torch")
    from executor.model import random_config

    return type(random_config(scenario(changes, {}).model, 64)).__name__


def checkpoint(changes: dict[str, Any]) -> object:
    pytest.importorskip("torch")
    from executor.prepare import prepared

    try:
        return prepared(scenario(changes, {}), None, "cpu").model.path
    except PpsimError as error:
        return str(error)


class Case(NamedTuple):
    """``base`` is the situation, ``change`` the same with one key changed, ``sees`` what is compared."""

    base: dict[str, Any]
    change: dict[str, Any]
    sees: Callable[[dict[str, Any]], object] = behaviour


DATA = Path(__file__).parent.parent / "data" / "inputs"


def named(**column: str) -> Case:
    return Case(NAMED, {"workload.columns": {**NAMED["workload.columns"], **column}})


READ_IN_S = {**TRACE, "workload.trace": str(DATA / "seconds.jsonl"), "workload.time_unit": "s"}
NAMED = {
    **TRACE,
    "workload.trace": str(DATA / "named.csv"),
    "workload.columns": {"time": "begin_ms", "prompt": "in", "output": "out"},
    "workload.skip_bad_lines": True,
}
ONE_AFTER_THE_OTHER = [{"rid": f"R{n}", "prompt": 8, "output": 6, "at_iteration": n} for n in range(12)]
EOS = {"workload.ignore_eos": False, "workload.eos_probability": 0.5}
SKEWED = {**QUADRATIC, "timeouts.waiting_ms": 3, "workload.requests": requests(9, prompt=20, output=4)}
PAUSED = {**QUADRATIC, "faults.pauses": [{"rank": 1, "at_iteration": 2, "ms": 5.0}]}

KEYS: dict[str, Case] = {
    "name": Case(UNIT, {"name": "other"}, header),
    "engine": Case(UNIT, {"engine": "vllm"}),
    "launch_line": Case(
        {**UNIT, "launch_line": "sglang serve m --frobnicate 3"}, {"launch_line": "sglang serve m"}, exported
    ),
    "description": Case({**UNIT, "description": "this"}, {"description": "that"}, listing),
    "seed": Case(GENERATED, {"seed": 1}),
    "bugs": Case(TIGHT | {"scheduler.max_total_tokens": [100, 200]}, {"bugs": ["own_capacity"]}),
    # cluster
    "cluster.pp_size": Case(UNIT, {"cluster.pp_size": 3}),
    "cluster.tp_size": Case(QUADRATIC, {"cluster.tp_size": 2}),
    "cluster.cp_size": Case(ONE_LONG, {"cluster.cp_size": 2}),
    "cluster.tp_replicas": Case({**QUADRATIC, "cluster.tp_size": 2}, {"cluster.tp_replicas": 2}),
    "cluster.pp_async_batch_depth": Case(UNIT | one(), {"cluster.pp_async_batch_depth": 1}),
    "cluster.comm_overlap": Case(SLOW_SENDS | {"cluster.cuda_graph": False}, {"cluster.comm_overlap": True}),
    "cluster.cuda_graph": Case(SLOW_SENDS | {"cluster.comm_overlap": True}, {"cluster.cuda_graph": False}),
    # scheduler
    "scheduler.schedule_policy": Case(
        {
            **PREFIXES,
            "workload.requests": [
                {"rid": "R1", "prompt": 20, "prefix_blocks": [1, 2]},
                {"rid": "R2", "prompt": 20, "at_iteration": 9},
                {"rid": "R3", "prompt": 20, "prefix_blocks": [1, 2], "at_iteration": 9},
            ],
        },
        {"scheduler.schedule_policy": "lpm"},
    ),
    "scheduler.rules": Case(CLOSING, {"scheduler.rules": "mended"}),
    "scheduler.reopen_empty_slots": Case(CLOSING, {"scheduler.reopen_empty_slots": True}),
    "scheduler.defer_empty_visits": Case(
        {
            **UNIT,
            "scheduler.prefill_decode_interval": 2,
            "workload.requests": [
                {"rid": "A", "prompt": 4, "output": 5, "at_iteration": 0},
                {"rid": "B", "prompt": 4, "output": 5, "at_iteration": 1},
            ],
        },
        {"scheduler.defer_empty_visits": False},
    ),
    "scheduler.empty_chunk_pieces": Case(
        {
            **UNIT,
            "scheduler.pp_max_micro_batch_size": 8,
            "scheduler.enable_mixed_chunk": True,
            "workload.requests": [
                *requests(4, prompt=1, output=20, at_iteration=1),
                {"rid": "L", "prompt": 12, "output": 1, "at_iteration": 2},
            ],
        },
        {"scheduler.empty_chunk_pieces": False},
    ),
    "scheduler.chunk_counts_as_row": Case(
        {
            **UNIT,
            "cluster.pp_size": 1,
            "scheduler.max_running_requests": 4,
            "scheduler.pp_max_micro_batch_size": 4,
            "scheduler.chunked_prefill_size": 8,
            "workload.requests": requests(4, prompt=12, output=20),
        },
        {"scheduler.chunk_counts_as_row": False},
    ),
    "scheduler.evict_ahead": Case(
        {
            **PREFIXES,
            "scheduler.page_size": 8,
            "scheduler.max_total_tokens": 40,
            "workload.requests": [
                {"rid": f"R{n}", "prompt": 20, "output": 2, "prefix_blocks": [n % 2, 9], "at_iteration": 12 * n}
                for n in range(5)
            ],
        },
        {"scheduler.evict_ahead": False},
    ),
    "scheduler.chunked_prefill_size": Case(QUADRATIC, {"scheduler.chunked_prefill_size": 16}),
    "scheduler.max_prefill_tokens": Case(
        {**QUADRATIC, "scheduler.chunked_prefill_size": -1}, {"scheduler.max_prefill_tokens": 16}
    ),
    "scheduler.prefill_max_requests": Case(
        {**QUADRATIC, "scheduler.chunked_prefill_size": 64}, {"scheduler.prefill_max_requests": 1}
    ),
    "scheduler.enable_mixed_chunk": Case(
        {**QUADRATIC, "workload.requests": [*requests(2, prompt=4, output=9), {"rid": "L", "prompt": 60}]},
        {"scheduler.enable_mixed_chunk": True},
    ),
    "scheduler.prefill_decode_interval": Case(
        {**QUADRATIC, "workload.requests": requests(6, prompt=20, output=9)},
        {"scheduler.prefill_decode_interval": 4},
    ),
    "scheduler.max_consecutive_prefills": Case(
        {**QUADRATIC, "scheduler.pp_max_micro_batch_size": 8, "workload.requests": ONE_AFTER_THE_OTHER},
        {"scheduler.max_consecutive_prefills": 1},
    ),
    "scheduler.max_consecutive_chunks": Case(
        {**QUADRATIC, "workload.requests": [{"rid": "L", "prompt": 60}, {"rid": "S", "prompt": 4, "at_iteration": 1}]},
        {"scheduler.max_consecutive_chunks": 2},
    ),
    "scheduler.schedule_conservativeness": Case(TIGHT, {"scheduler.schedule_conservativeness": 0.1}),
    "scheduler.max_running_requests": Case(QUADRATIC, {"scheduler.max_running_requests": 1}),
    "scheduler.pp_max_micro_batch_size": Case(QUADRATIC, {"scheduler.pp_max_micro_batch_size": 1}),
    "scheduler.max_total_tokens": Case(TIGHT, {"scheduler.max_total_tokens": 90}),
    "scheduler.page_size": Case(PREFIXES, {"scheduler.page_size": 8}),
    "scheduler.disable_radix_cache": Case(PREFIXES, {"scheduler.disable_radix_cache": True}),
    "scheduler.context_length": Case(QUADRATIC, {"scheduler.context_length": 22}),
    "scheduler.clip_max_new_tokens": Case(TIGHT, {"scheduler.clip_max_new_tokens": 1}),
    "scheduler.reserve_decode": Case(
        {
            **TIGHT,
            "scheduler.pp_max_micro_batch_size": 1,
            "workload.requests": [
                {"rid": "R1", "prompt": 30, "output": 30},
                {"rid": "R2", "prompt": 30, "output": 30, "at_iteration": 6},
            ],
        },
        {"scheduler.reserve_decode": "all_slots"},
    ),
    "scheduler.hidden_send": Case(
        {**QUADRATIC, "host.process_us": 500.0, "workload.requests": requests(4, prompt=8, output=6)},
        {"scheduler.hidden_send": "after_launch"},
    ),
    "scheduler.skip_pure_chunked_output_comm": Case(QUADRATIC, {"scheduler.skip_pure_chunked_output_comm": True}),
    "scheduler.exchange_order": Case(
        {**QUADRATIC, "links.send": "rendezvous", "workload.requests": requests(4, prompt=8, output=6)},
        {"scheduler.exchange_order": "parity"},
    ),
    # model
    "model.architecture": Case(UNIT, {"model.architecture": "qwen3"}, architecture),
    "model.num_hidden_layers": Case(FROM_MEMORY, {"model.num_hidden_layers": 30}),
    "model.hidden_size": Case({**QUADRATIC, "links.bandwidth_gb_per_s": 1.0}, {"model.hidden_size": 2048}),
    "model.intermediate_size": Case(FROM_MEMORY, {"model.intermediate_size": 8192}),
    "model.num_attention_heads": Case(FROM_MEMORY, {"model.num_attention_heads": 16}),
    "model.num_key_value_heads": Case(FROM_MEMORY, {"model.num_key_value_heads": 4}),
    "model.head_dim": Case(FROM_MEMORY, {"model.head_dim": 64}),
    "model.vocab_size": Case(QUADRATIC, {"model.vocab_size": 1000}),
    "model.tie_word_embeddings": Case({**FROM_MEMORY, "cluster.pp_size": 1}, {"model.tie_word_embeddings": True}),
    "model.dtype_bytes": Case(FROM_MEMORY, {"model.dtype_bytes": 4}),
    "model.layer_partition": Case(QUADRATIC, {"model.layer_partition": [10, 22]}),
    "model.path": Case({**UNIT, "model.path": "/nowhere/a"}, {"model.path": "/nowhere/b"}, checkpoint),
    # gpu
    "gpu.memory_gb": Case(FROM_MEMORY, {"gpu.memory_gb": 40.0}),
    "gpu.nic_gb_per_s": Case({**ROOFLINE, "cluster.tp_size": 16}, {"gpu.nic_gb_per_s": 5.0}),
    "gpu.bf16_tflops": Case(OWN_GPU, {"gpu.bf16_tflops": 50.0}),
    "gpu.fp8_tflops": Case(FP8_GPU, {"gpu.fp8_tflops": 400.0}),
    "gpu.fp4_tflops": Case({**FP8_GPU, "model.kv_cache_dtype": "fp4_e2m1"}, {"gpu.fp4_tflops": 400.0}),
    "gpu.hbm_gb_per_s": Case(OWN_GPU, {"gpu.hbm_gb_per_s": 500.0}),
    "gpu.link_gb_per_s": Case(OWN_GPU, {"gpu.link_gb_per_s": 5.0}),
    "gpu.key": Case(ROOFLINE, {"gpu.key": "h200"}),
    "gpu.mem_fraction_static": Case(FROM_MEMORY, {"gpu.mem_fraction_static": 0.5}),
    # cost
    "cost.efficiency": Case(ROOFLINE, {"cost.efficiency": 0.3}),
    "cost.link_latency_us": Case({**ROOFLINE, "cluster.tp_size": 2}, {"cost.link_latency_us": 3.0}),
    "cost.nic_latency_us": Case({**ROOFLINE, "cluster.tp_size": 16}, {"cost.nic_latency_us": 3.0}),
    "cost.all_reduce_us": Case({**ROOFLINE, "cluster.tp_size": 2}, {"cost.all_reduce_us": 3.0}),
    "cost.layer_overhead_us": Case(ROOFLINE, {"cost.layer_overhead_us": 3.0}),
    "cluster.gpus_per_node": Case({**ROOFLINE, "cluster.tp_size": 8}, {"cluster.gpus_per_node": 4}),
    "cluster.nics_per_node": Case({**ROOFLINE, "cluster.tp_size": 16}, {"cluster.nics_per_node": 1}),
    "cost.tp_gb_per_s": Case({**ROOFLINE, "cluster.tp_size": 2}, {"cost.tp_gb_per_s": 5.0}),
    "model.key": Case(ROOFLINE, {"model.key": "llama-3.1-8b"}),
    "model.quantization": Case(ROOFLINE, {"model.quantization": "fp8"}),
    "model.kv_cache_dtype": Case(ROOFLINE, {"model.kv_cache_dtype": "fp8_e4m3"}),
    "scheduler.max_mamba_cache_size": Case(STATES, {"scheduler.max_mamba_cache_size": 3}),
    "scheduler.mamba_full_memory_ratio": Case(STATES_BY_RATIO, {"scheduler.mamba_full_memory_ratio": 0.2}),
    "scheduler.enable_dynamic_chunking": Case(ONE_LONG, {"scheduler.enable_dynamic_chunking": True}),
    "scheduler.dynamic_chunking_smooth_factor": Case(
        {**ONE_LONG, "scheduler.enable_dynamic_chunking": True}, {"scheduler.dynamic_chunking_smooth_factor": 1.0}
    ),
    "scheduler.chunk_planner": Case(
        {**ONE_LONG, "scheduler.enable_dynamic_chunking": True}, {"scheduler.chunk_planner": "optimal"}
    ),
    "cost.source": Case(UNIT, {"cost.source": "quadratic"}),
    "cost.unit_ms": Case(UNIT, {"cost.unit_ms": 2.0}),
    "cost.slot_ms": Case(UNIT, {"cost.slot_ms": [3.0, 5.0]}),
    "cost.prefill_floor_ms": Case(QUADRATIC, {"cost.prefill_floor_ms": 30.0}),
    "cost.prefill_c_ms": Case(QUADRATIC, {"cost.prefill_c_ms": 3.0}),
    "cost.prefill_first_ms": Case(QUADRATIC, {"cost.prefill_first_ms": 7.0}),
    "cost.prefill_gamma_ms_per_token": Case(QUADRATIC, {"cost.prefill_gamma_ms_per_token": 0.1}),
    "cost.prefill_b_ms_per_token": Case(QUADRATIC, {"cost.prefill_b_ms_per_token": 0.5}),
    "cost.prefill_a_ms_per_token2": Case(QUADRATIC, {"cost.prefill_a_ms_per_token2": 0.01}),
    "cost.prefill_c_once": Case(
        {**QUADRATIC, "workload.requests": requests(2, prompt=4)}, {"cost.prefill_c_once": "batch"}
    ),
    "cost.decode_c_ms": Case(QUADRATIC, {"cost.decode_c_ms": 9.0}),
    "cost.decode_row_ms": Case(QUADRATIC, {"cost.decode_row_ms": 1.0}),
    "cost.decode_kv_ms_per_token": Case(QUADRATIC, {"cost.decode_kv_ms_per_token": 0.1}),
    "cost.decode_reads_own_token": Case(
        {**QUADRATIC, "cost.decode_kv_ms_per_token": 0.1}, {"cost.decode_reads_own_token": False}
    ),
    "cost.tp_comm_ms_per_token": Case({**QUADRATIC, "cluster.tp_size": 2}, {"cost.tp_comm_ms_per_token": 0.1}),
    # links
    "links.latency_us": Case(QUADRATIC, {"links.latency_us": 100.0}),
    "links.control_latency_us": Case(QUADRATIC, {"links.control_latency_us": 100.0}),
    "links.bandwidth_gb_per_s": Case(QUADRATIC, {"links.bandwidth_gb_per_s": 1.0}),
    "links.jitter_us": Case(QUADRATIC, {"links.jitter_us": 300.0}),
    "links.send": Case(
        {**UNIT, "host.schedule_us": 2000.0, "links.latency_us": 500.0, "cost.unit_ms": 0.1},
        {"links.send": "rendezvous"},
    ),
    "links.order": Case(
        {
            **UNIT,
            "cluster.pp_size": 3,
            "cluster.pp_async_batch_depth": 2,
            "cost.slot_ms": [1.0, 1.0, 9.0, 9.0, 9.0],
            "workload.requests": requests(5, output=6),
        },
        {"links.order": "none"},
    ),
    "links.commit": Case({**QUADRATIC, "links.latency_us": 500.0, **one(at_iteration=20)}, {"links.commit": "none"}),
    "links.latency_on_stream": Case({**SLOW_SENDS, "links.latency_us": 2000.0}, {"links.latency_on_stream": True}),
    "links.commit_over": Case(
        {**QUADRATIC, "links.control_latency_us": 9000.0, "links.commit": "requests"}, {"links.commit_over": "received"}
    ),
    "links.graph_fence": Case({**UNEQUAL, "cluster.comm_overlap": True}, {"links.graph_fence": "commit"}),
    "links.schedule_hold": Case(
        {**SLOW_SENDS, "links.bandwidth_gb_per_s": 1e-5, "model.hidden_size": 1, "links.order": "link"},
        {"links.schedule_hold": "post"},
    ),
    "links.payload": Case(
        {
            **UNIT,
            "cluster.pp_size": 3,
            "cost.slot_ms": [10.0, 1.0, 1.0],
            "scheduler.exchange_order": "parity",
            "workload.requests": requests(3, output=3),
        },
        {"links.payload": "matched"},
    ),
    "links.token_read": Case(
        {**SLOW_SENDS, "links.order": "link", "cost.slot_ms": [1.0, 1.0, 30.0]},
        {"links.token_read": "schedule_stream"},
    ),
    "links.early_send": Case(
        {
            **UNIT,
            "host.process_us": 500.0,
            "links.order": "link",
            "scheduler.hidden_send": "after_launch",
            "workload.requests": requests(4, output=6),
        },
        {"links.early_send": "before_exchange"},
    ),
    "links.rendezvous_hold": Case(
        {**SLOW_SENDS, "links.send": "rendezvous", "scheduler.exchange_order": "parity", "links.latency_us": 100.0},
        {"links.rendezvous_hold": "received"},
    ),
    # host
    "host.schedule_us": Case(QUADRATIC, {"host.schedule_us": 100.0}),
    "host.process_us": Case(QUADRATIC, {"host.process_us": 100.0}),
    "host.free_empty_visit": Case(
        {**QUADRATIC, "host.schedule_us": 100.0, **one(at_iteration=5)}, {"host.free_empty_visit": True}
    ),
    "host.idle_poll_us": Case({**QUADRATIC, **one(at_ms=3.333)}, {"host.idle_poll_us": 1000.0}),
    "host.stage_jitter_percent": Case(QUADRATIC, {"host.stage_jitter_percent": 50.0}),
    # workload
    "workload.source": Case(GENERATED, {"workload.source": "chunks"}),
    "workload.requests.rid": Case(QUADRATIC | one(), one(rid="R2")),
    "workload.requests.at_iteration": Case(QUADRATIC | one(), one(at_iteration=3)),
    "workload.requests.at_ms": Case(QUADRATIC | one(), one(at_ms=3.0)),
    "workload.requests.prompt": Case(QUADRATIC | one(), one(prompt=21)),
    "workload.requests.output": Case(QUADRATIC | one(), one(output=5)),
    "workload.requests.prefix_blocks": Case(
        PREFIXES,
        {"workload.requests": [{**r, "prefix_blocks": [3 * n]} for n, r in enumerate(PREFIXES["workload.requests"])]},
    ),
    "workload.requests.stop_after": Case(QUADRATIC | one(), one(stop_after=2)),
    "workload.requests.ignore_eos": Case(QUADRATIC | one(stop_after=2), one(stop_after=2, ignore_eos=True)),
    "workload.requests.priority": Case(
        {**QUADRATIC, "workload.requests": requests(4, prompt=8)},
        {"workload.requests": [{**r, "priority": n} for n, r in enumerate(requests(4, prompt=8))]},
    ),
    "workload.requests.return_logprob": Case(
        {**QUADRATIC, "scheduler.skip_pure_chunked_output_comm": True, **one()}, one(return_logprob=True)
    ),
    "workload.requests.grammar": Case({**QUADRATIC, **listed(), **one()}, one(grammar="json")),
    "workload.aborts.rid": Case(ABORTS, abort(rid="R3", at_iteration=3)),
    "workload.aborts.abort_all": Case(
        {**QUADRATIC, **abort(rid="", abort_all=True, at_iteration=3)},
        abort(rid="R2", abort_all=False, at_iteration=3),
    ),
    "workload.aborts.at_iteration": Case(ABORTS, abort(rid="R2", at_iteration=9)),
    "workload.aborts.side": Case(
        TWO_SIDES | abort(rid="R2", at_ms=3.0, side="decode"), abort(rid="R2", at_ms=3.0, side="prefill")
    ),
    "workload.aborts.at_ms": Case(QUADRATIC | abort(rid="R2", at_ms=3.0), abort(rid="R2", at_ms=20.0)),
    "workload.flushes.rid": Case(
        {**QUADRATIC, "workload.flushes": [{"rid": "F", "at_iteration": 3}]},
        {"workload.flushes": [{"rid": "G", "at_iteration": 3}]},
    ),
    "workload.flushes.at_iteration": Case(
        {**QUADRATIC, "workload.flushes": [{"rid": "F", "at_iteration": 3}]},
        {"workload.flushes": [{"rid": "F", "at_iteration": 90}]},
    ),
    "workload.num_chunks": Case(
        {**QUADRATIC, "workload.requests": [], "workload.source": "chunks"}, {"workload.num_chunks": 3}
    ),
    "workload.tokenizer": Case(
        {**TRACE, "workload.trace": str(DATA / "talk.json")}, {"workload.tokenizer": str(DATA / "words_tokenizer.json")}
    ),
    "workload.concurrency": Case(GENERATED, {"workload.concurrency": 3}),
    "workload.num_sessions": Case(SESSIONS, {"workload.num_sessions": 3}),
    "workload.num_turns": Case(SESSIONS, {"workload.num_turns": 3}),
    "workload.think_time_ms": Case(SESSIONS, {"workload.think_time_ms": 3.0}),
    "workload.think_time": Case(SESSIONS, {"workload.think_time": "exponential"}),
    "workload.num_requests": Case(GENERATED, {"workload.num_requests": 9}),
    "workload.arrival": Case(GENERATED, {"workload.arrival": "fixed"}),
    "workload.rate_per_s": Case(GENERATED, {"workload.rate_per_s": 60.0}),
    "workload.num_prefixes": Case({**GENERATED, "workload.prefix_tokens": 16}, {"workload.num_prefixes": 2}),
    "workload.prefix_tokens": Case(
        {**GENERATED, "workload.prefix_tokens": 16, "workload.num_prefixes": 2}, {"workload.prefix_tokens": 8}
    ),
    "workload.block_tokens": Case(PREFIXES, {"workload.block_tokens": 4}),
    "workload.trace": Case(TRACE, {"workload.trace": str(DATA / "milliseconds.jsonl")}),
    "workload.time_unit": Case(READ_IN_S, {"workload.time_unit": "ms"}),
    "workload.columns.time": named(time="later_s"),
    "workload.columns.prompt": named(prompt="out"),
    "workload.columns.output": named(output="in"),
    "workload.skip_bad_lines": Case(NAMED, {"workload.skip_bad_lines": False}, refusal),
    "workload.time_scale": Case(GENERATED, {"workload.time_scale": 2.0}),
    "workload.ignore_eos": Case({**GENERATED, **EOS}, {"workload.ignore_eos": True}),
    "workload.eos_probability": Case({**GENERATED, **EOS}, {"workload.eos_probability": 0.1}),
    # disaggregation, observations, time limits, faults
    "disaggregation.role": Case(QUADRATIC, {"disaggregation.role": "prefill"}),
    "disaggregation.bootstrap": Case(PREFILL, {"disaggregation.bootstrap": "vote"}),
    "disaggregation.variant": Case(PREFILL, {"disaggregation.variant": "released"}),
    "disaggregation.num_reserved_decode_tokens": Case(DECODE, {"disaggregation.num_reserved_decode_tokens": 4090}),
    "disaggregation.store_lag_us": Case(PREFILL, {"disaggregation.store_lag_us": 9000.0}),
    "disaggregation.decode_pp_size": Case(TWO_SIDES, {"disaggregation.decode_pp_size": 1}),
    "disaggregation.decode_pp_async_batch_depth": Case(TWO_SIDES, {"disaggregation.decode_pp_async_batch_depth": 1}),
    "disaggregation.decode_max_total_tokens": Case(FULL_DECODE, {"disaggregation.decode_max_total_tokens": 60}),
    "disaggregation.decode_max_running_requests": Case(TWO_SIDES, {"disaggregation.decode_max_running_requests": 1}),
    "disaggregation.control_latency_us": Case(TWO_SIDES, {"disaggregation.control_latency_us": 300.0}),
    "disaggregation.kv_bandwidth_gb_per_s": Case(TWO_SIDES, {"disaggregation.kv_bandwidth_gb_per_s": 0.5}),
    "disaggregation.kv_latency_us": Case(TWO_SIDES, {"disaggregation.kv_latency_us": 300.0}),
    "disaggregation.bootstrap_timeout_ms": Case(FULL_DECODE, {"disaggregation.bootstrap_timeout_ms": 5.0}),
    "disaggregation.receive_timeout_ms": Case(TWO_SIDES, {"disaggregation.receive_timeout_ms": 1.5}),
    "disaggregation.lease_ms": Case(
        kv_fault(what="lost") | {"disaggregation.receive_timeout_ms": 9.0}, {"disaggregation.lease_ms": 7.0}
    ),
    "disaggregation.kv_faults.rid": Case(kv_fault(), kv_fault(rid="R2")),
    "disaggregation.kv_faults.rank": Case(kv_fault(), kv_fault(rank=1)),
    "disaggregation.kv_faults.nth": Case(kv_fault(), kv_fault(nth=9)),
    "disaggregation.kv_faults.what": Case(kv_fault(), kv_fault(what="lost")),
    "hicache.enabled": Case(TIERS, {"hicache.enabled": False}),
    "hicache.write_policy": Case(TIERS, {"hicache.write_policy": "write_back"}),
    "hicache.host_tokens": Case(TIERS, {"hicache.host_tokens": 4}),
    "hicache.host_gb": Case({**TIERS, "hicache.host_tokens": None, "hicache.host_gb": 1.0}, {"hicache.host_gb": 0.001}),
    "hicache.device_host_gb_per_s": Case(TIERS, {"hicache.device_host_gb_per_s": 1.0}),
    "hicache.storage": Case(TIERS | {"hicache.storage": True}, {"hicache.storage": False}),
    "hicache.storage_gb_per_s": Case(STORED, {"hicache.storage_gb_per_s": 0.1}),
    "hicache.storage_latency_us": Case(STORED, {"hicache.storage_latency_us": 5000.0}),
    "hicache.storage_hits.rid": Case(STORED, stored(rid="R1")),
    "hicache.storage_hits.tokens": Case(STORED, stored(tokens=[8, 8])),
    "observations.max_delay": Case(GRAMMAR, {"observations.max_delay": 9}),
    "observations.listed.what": Case(GRAMMAR | listed(), listed(what="transfer")),
    "observations.listed.rid": Case(GRAMMAR | listed(), listed(rid="R2")),
    "observations.listed.at": Case(GRAMMAR | listed(), listed(at=[7, 9])),
    "observations.listed.failed": Case(GRAMMAR | listed(), listed(failed=True)),
    "observations.tick_ms": Case(GRAMMAR | listed(), {"observations.tick_ms": 2.0}),
    "timeouts.waiting_ms": Case(
        {**QUADRATIC, "workload.requests": requests(9, prompt=20, output=4)}, {"timeouts.waiting_ms": 3}
    ),
    "timeouts.running_ms": Case(QUADRATIC | one(output=20), {"timeouts.running_ms": 5}),
    "faults.clock_skew_ms": Case(SKEWED, {"faults.clock_skew_ms": [500, 0]}),
    "faults.pauses.rank": Case(PAUSED, {"faults.pauses": [{"rank": 0, "at_iteration": 2, "ms": 5.0}]}),
    "faults.pauses.at_iteration": Case(PAUSED, {"faults.pauses": [{"rank": 1, "at_iteration": 4, "ms": 5.0}]}),
    "faults.pauses.ms": Case(PAUSED, {"faults.pauses": [{"rank": 1, "at_iteration": 2, "ms": 6.0}]}),
    # chance
    "chance.max_arrival_delay": Case(QUADRATIC, {"chance.max_arrival_delay": 9}),
    "chance.max_abort_delay": Case(ABORTS, {"chance.max_abort_delay": 9}),
    "chance.max_clock_skew_ms": Case(SKEWED, {"chance.max_clock_skew_ms": 500}),
    "chance.pause_iterations": Case(QUADRATIC, {"chance.pause_iterations": 9}),
    "chance.pause_ms": Case({**QUADRATIC, "chance.pause_iterations": 9}, {"chance.pause_ms": 40.0}),
    "chance.max_lost_pages": Case(TIGHT | {"scheduler.max_total_tokens": 120}, {"chance.max_lost_pages": 60}),
    "chance.max_failed_allocations": Case(QUADRATIC, {"chance.max_failed_allocations": 3}),
    "chance.max_good_allocations": Case(
        {**QUADRATIC, "chance.max_failed_allocations": 3}, {"chance.max_good_allocations": 3}
    ),
    "chance.stops": Case(QUADRATIC | one(output=20), {"chance.stops": True}),
    # expect
    "expect.verdict": Case(expecting(), expecting(verdict="fail"), judged),
    "expect.rule": Case(expecting(verdict="fail"), expecting(verdict="fail", rule="INV-09"), judged),
    "expect.rank": Case(expecting(verdict="fail"), expecting(verdict="fail", rank=1), judged),
    "expect.iteration": Case(expecting(verdict="fail"), expecting(verdict="fail", iteration=3), judged),
    "expect.rid": Case(expecting(verdict="fail"), expecting(verdict="fail", rid="R1"), judged),
    "expect.figures.value": Case(
        expecting(figures={"num_finished": 3}), expecting(figures={"num_finished": 2}), judged
    ),
    "expect.figures.tolerance": Case(
        expecting(figures={"num_finished": {"value": 2, "tolerance": 0.5}}),
        expecting(figures={"num_finished": {"value": 2, "tolerance": 1}}),
        judged,
    ),
    "expect.changed": Case(expecting(), expecting(changed=["cluster.pp_size"]), judged),
    "expect.bugs.verdict": Case(of_a_bug(), of_a_bug(verdict="unknown"), judged),
    "expect.bugs.rule": Case(of_a_bug(), of_a_bug(rule="INV-38"), judged),
    "expect.bugs.rank": Case(of_a_bug(), of_a_bug(rank=0), judged),
    "expect.bugs.iteration": Case(of_a_bug(), of_a_bug(iteration=1), judged),
    "expect.bugs.rid": Case(of_a_bug(), of_a_bug(rid="R1"), judged),
    "expect.bugs.figures.value": Case(
        of_a_bug(figures={"num_finished": 3}), of_a_bug(figures={"num_finished": 2}), judged
    ),
    "expect.bugs.figures.tolerance": Case(
        of_a_bug(figures={"num_finished": {"value": 2, "tolerance": 0.5}}),
        of_a_bug(figures={"num_finished": {"value": 2, "tolerance": 1}}),
        judged,
    ),
    # run
    "run.check": Case({**TIGHT, "scheduler.max_total_tokens": [100, 200]}, {"run.check": False}, with_unequal_pools),
    "run.invariants": Case(
        {**TIGHT, "scheduler.max_total_tokens": [100, 200], "run.check": False},
        {"run.invariants": True},
        with_unequal_pools,
    ),
    "run.max_iterations": Case(QUADRATIC, {"run.max_iterations": 3}),
    "run.max_wait_iterations": Case(QUADRATIC, {"run.max_wait_iterations": 1}),
    "run.max_retractions": Case(PUT_OUT, {"run.max_retractions": 1}),
    "run.max_wait_ms": Case(COMPILING, {"run.max_wait_ms": 3.0}),
    "run.max_agreement_wait_ms": Case(
        {**PREFILL, "links.control_latency_us": 500.0, "disaggregation.bootstrap": "vote"},
        {"run.max_agreement_wait_ms": 0.1},
    ),
    "run.watchdog_ms": Case(PAUSED, {"run.watchdog_ms": 2.0}),
    "run.consensus_check_interval": Case(
        {**PREFIXES, "run.check": False}, {"run.consensus_check_interval": 1}, with_own_stamps
    ),
    "run.compress": Case(QUADRATIC, {"run.compress": "gzip"}, with_what_is_written),
    "run.keep": Case(QUADRATIC, {"run.keep": "summary"}, with_what_is_kept),
}

LENGTHS: dict[str, Case] = {
    "kind": Case(GENERATED, {"kind": "uniform"}),
    "value": Case(GENERATED, {"value": 21}),
    "mean": Case(LOGNORMAL, {"mean": 25.0}),
    "sigma": Case(LOGNORMAL, {"sigma": 0.9}),
    "min": Case(UNIFORM, {"min": 6}),
    "max": Case(UNIFORM, {"max": 60}),
}
OUT = {"mean": LOGNORMAL_OUT, "sigma": LOGNORMAL_OUT, "min": UNIFORM_OUT, "max": UNIFORM_OUT}
for leaf, case in LENGTHS.items():
    before = case.base["workload.input_length"]
    KEYS[f"workload.input_length.{leaf}"] = Case(case.base, {"workload.input_length": {**before, **case.change}})
    base = OUT.get(leaf, GENERATED)
    small = {"kind": "uniform", "value": 5, "mean": 5.0, "sigma": 0.9, "min": 3, "max": 8}[leaf]
    KEYS[f"workload.output_length.{leaf}"] = Case(
        base, {"workload.output_length": {**base["workload.output_length"], leaf: small}}
    )

TURNS = {"mean": LOGNORMAL, "sigma": LOGNORMAL, "min": UNIFORM, "max": UNIFORM}
for leaf, case in LENGTHS.items():
    dist = TURNS.get(leaf, GENERATED)["workload.input_length"]
    turned = {**SESSIONS, "workload.turn_input_length": dist}
    change = {"workload.turn_input_length": {**dist, **case.change}}
    KEYS[f"workload.turn_input_length.{leaf}"] = Case(turned, change)

TWO_KEYS = {"workload.aborts.abort_all": {"workload.aborts.rid"}}
"""Keys that exclude another one, which has to change with them."""


# --- the tests ---------------------------------------------------------------------------------------------------


def test_every_key_of_the_tree_has_an_entry_and_no_entry_is_left_over() -> None:
    assert sorted(KEYS) == sorted(keys_of(Tree))


@pytest.mark.parametrize("key", sorted(KEYS))
def test_a_key_changes_something_that_a_user_can_see(key: str) -> None:
    case = KEYS[key]
    changed = {**case.base, **case.change}
    assert key in differing_keys(case.base, changed) <= {key} | TWO_KEYS.get(key, set())
    before, after = case.sees(case.base), case.sees(changed)
    assert before == case.sees(case.base), "the run is not deterministic"
    assert before != after, f"{key} does nothing"


def differing_keys(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Keys whose values are not the same in both scenarios."""
    both = [set(values_of(scenario(changes, {}).model_dump(mode="json"))) for changes in (before, after)]
    return {key for key, _ in both[0] ^ both[1]}
