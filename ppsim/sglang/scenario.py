"""Between a launch line and a scenario.

One table says which value is which key of the scenario tree. A row whose key the tree does not have is listed as not
modelled, so the table may run ahead of the tree; a test holds every row of a key that exists.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, get_args

from ppsim.cost.config_json import checkpoint_of, known_key, load_model
from ppsim.cost.gpu import load_gpu
from ppsim.cost.quantization import ALIASES, METHODS
from ppsim.errors import ScenarioError, UsageError
from ppsim.scenario.bounds import KvCacheType
from ppsim.scenario.layers import exceeded_positions
from ppsim.scenario.load import known_keys
from ppsim.scenario.tree import Scenario
from ppsim.sglang import flags, vllm
from ppsim.sglang.flags import defaults
from ppsim.sglang.result import LaunchLine, plain
from ppsim.sglang.source import spelled

Convert = Callable[[Any], Any]


def same(value: Any) -> Any:
    return value


def negate(value: Any) -> Any:
    return not value


def none_is_zero(value: Any) -> Any:
    return 0 if value is None else value


def zero_is_none(value: Any) -> Any:
    return None if value == 0 else value


def smallest(value: Any) -> Any:
    """SGLang takes the smallest pool of all ranks for every rank (protocol.md 4.9)."""
    return min(value) if isinstance(value, (tuple, list)) else value


ROLES = {"null": "plain", "kv_producer": "prefill", "kv_consumer": "decode"}


def to_role(mode: Any) -> Any:
    return ROLES.get(mode, mode)


def to_mode(role: Any) -> Any:
    return "null" if role == "plain" else role


def to_ms(seconds: Any) -> Any:
    return round(seconds * 1000, 6)


def to_seconds(ms: Any) -> Any:
    """Whole seconds stay whole: SGLang reads some of these variables as integers."""
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def limit_ms(seconds: Any) -> Any:
    """SGLang's -1 is off; here 0 is."""
    return round(seconds * 1000) if seconds > 0 else 0


def limit_seconds(ms: Any) -> Any:
    return to_seconds(ms) if ms else -1


KV_WORDS = {"fp8_inc": "fp8", "fp8_ds_mla": "fp8", "fp4": "fp4_e2m1"}  # vLLM's words


def to_kv_type(value: Any) -> Any:
    return KV_WORDS.get(value, value)


def to_kv_flag(value: Any) -> Any:
    return "fp8_e4m3" if value == "fp8" else value


def is_kv_type(value: Any) -> bool:
    return to_kv_type(value) in get_args(KvCacheType)


def is_quantization(value: Any) -> bool:
    return value is None or value in METHODS or value in ALIASES


def anything(value: Any) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Row:
    """``name`` of the value, ``key`` of the tree, ``flag`` that prints it; ``to_key`` and ``to_flag`` convert."""

    name: str
    key: str
    flag: str
    to_key: Convert = same
    to_flag: Convert = same
    always: bool = False  # print it even if it is SGLang's default
    none_is_default: bool = False  # nothing is left open where nobody gives it
    accepts: Callable[[Any], bool] = anything  # of other values the flag is not modelled


ROWS: tuple[Row, ...] = (
    Row("model_path", "model.path", "--model-path", always=True),
    Row("pp_size", "cluster.pp_size", "--pp-size", always=True),
    Row("tp_size", "cluster.tp_size", "--tp-size", always=True),
    Row("pp_async_batch_depth", "cluster.pp_async_batch_depth", "--pp-async-batch-depth"),
    Row("pp_comm_overlap", "cluster.comm_overlap", "SGLANG_PP_COMM_OVERLAP"),
    Row("disable_cuda_graph", "cluster.cuda_graph", "--disable-cuda-graph", negate, negate),
    Row("schedule_policy", "scheduler.schedule_policy", "--schedule-policy"),
    Row("chunked_prefill_size", "scheduler.chunked_prefill_size", "--chunked-prefill-size"),
    Row("enable_dynamic_chunking", "scheduler.enable_dynamic_chunking", "--enable-dynamic-chunking"),
    Row(
        "dynamic_chunking_smooth_factor",
        "scheduler.dynamic_chunking_smooth_factor",
        "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR",
    ),
    Row("max_prefill_tokens", "scheduler.max_prefill_tokens", "--max-prefill-tokens"),
    Row("prefill_max_requests", "scheduler.prefill_max_requests", "--prefill-max-requests", none_is_zero, zero_is_none),
    Row("enable_mixed_chunk", "scheduler.enable_mixed_chunk", "--enable-mixed-chunk"),
    Row("prefill_decode_interval", "scheduler.prefill_decode_interval", "--prefill-decode-interval"),
    Row("schedule_conservativeness", "scheduler.schedule_conservativeness", "--schedule-conservativeness"),
    Row("max_running_requests", "scheduler.max_running_requests", "--max-running-requests"),
    Row(
        "pp_max_micro_batch_size",
        "scheduler.pp_max_micro_batch_size",
        "--pp-max-micro-batch-size",
        none_is_zero,
        zero_is_none,
    ),
    Row("max_total_tokens", "scheduler.max_total_tokens", "--max-total-tokens", same, smallest),
    Row("page_size", "scheduler.page_size", "--page-size"),
    Row("disable_radix_cache", "scheduler.disable_radix_cache", "--disable-radix-cache"),
    Row("context_length", "scheduler.context_length", "--context-length"),
    Row(
        "clip_max_new_tokens_estimation",
        "scheduler.clip_max_new_tokens",
        "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION",
    ),
    Row(
        "pp_skip_pure_chunked_output_comm",
        "scheduler.skip_pure_chunked_output_comm",
        "SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM",
    ),
    Row("max_mamba_cache_size", "scheduler.max_mamba_cache_size", "--max-mamba-cache-size", none_is_default=True),
    Row("mamba_full_memory_ratio", "scheduler.mamba_full_memory_ratio", "--mamba-full-memory-ratio"),
    Row("kv_cache_dtype", "model.kv_cache_dtype", "--kv-cache-dtype", to_kv_type, to_kv_flag, accepts=is_kv_type),
    Row("quantization", "model.quantization", "--quantization", none_is_default=True, accepts=is_quantization),
    Row("layer_partition", "model.layer_partition", "SGLANG_PP_LAYER_PARTITION"),
    Row("disaggregation_mode", "disaggregation.role", "--disaggregation-mode", to_role, to_mode),
    Row("num_reserved_decode_tokens", "disaggregation.num_reserved_decode_tokens", "--num-reserved-decode-tokens"),
    Row(
        "disaggregation_bootstrap_timeout",
        "disaggregation.bootstrap_timeout_ms",
        "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT",
        to_ms,
        to_seconds,
    ),
    Row(
        "disaggregation_waiting_timeout",
        "disaggregation.receive_timeout_ms",
        "SGLANG_DISAGGREGATION_WAITING_TIMEOUT",
        to_ms,
        to_seconds,
    ),
    Row("req_waiting_timeout", "timeouts.waiting_ms", "SGLANG_REQ_WAITING_TIMEOUT", limit_ms, limit_seconds),
    Row("req_running_timeout", "timeouts.running_ms", "SGLANG_REQ_RUNNING_TIMEOUT", limit_ms, limit_seconds),
    Row("mem_fraction_static", "gpu.mem_fraction_static", "--mem-fraction-static"),
)
POLICIES = ("fcfs", "lpm")  # that a scenario has
POLICY_CHOICES = {  # every other one that the engine takes, and what it would do
    "sglang": {
        "random": "shuffles the queue",
        "lof": "takes the longest output first",
        "dfs-weight": "walks the prefix tree by weight",
        "priority": "sorts by priority",
        "routing-key": "groups requests by their routing key",
    },
    "vllm": {"priority": "sorts by priority and preempts by it"},
}
MODES = ("plain", "prefill", "decode")
ALLOWS_LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"  # starts with more context than the model has positions
ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}


def has_key(dotted: str) -> bool:
    *sections, leaf = dotted.split(".")
    return leaf in known_keys(sections)


def to_scenario(line: LaunchLine) -> dict[str, Any]:
    """What the line says of a scenario.

    ``overrides``: dotted key of the tree -> value, SGLang's own defaults included where they are fixed numbers, so that
    no default of ppsim stands in for one of SGLang; the name of a known checkpoint, or a folder here with a
    config.json, gives model.key, a layer partition the number of layers of any other model, and of SGLang's tp_size the
    context-parallel ranks are taken out.
    ``not_modelled``: given values without a key. ``left_open``: keys that the line does not settle, with the reason.
    Raises UsageError if the line has errors.
    """
    if line.errors:
        raise UsageError("launch line: " + "; ".join(str(note) for note in line.errors))
    given = {name: value.value for name, value in line.values.items()}
    names, fallback = {}, dict(defaults("sglang"))
    if line.engine == "vllm":
        given, names = vllm.in_sglang_words(given), vllm.NAMES
        fallback |= vllm.fallback(given)
    holes = {names.get(hole.name or "", hole.name): hole.text for hole in line.unresolved}
    overrides: dict[str, Any] = {}
    left_open: dict[str, str] = {}
    modelled = set()
    for row in ROWS:
        if not has_key(row.key):
            continue
        value = given.get(row.name, fallback.get(row.name))
        if not row.accepts(value):
            left_open[row.key] = f"{value!r} is not modelled: the model's own type stands in"
            continue
        modelled.add(row.name)
        if row.name in holes:
            left_open[row.key] = f"unresolved: {holes[row.name]}"
            continue
        value = given.get(row.name, fallback.get(row.name))
        if value is None and row.none_is_default:
            continue
        if value is None and row.to_key is same:
            left_open[row.key] = decided_at_start(line, row)
            continue
        overrides[row.key] = plain(row.to_key(value))
    stand_ins(line, overrides, left_open)
    key = key_of(overrides.get("model.path"))
    if key is not None:
        overrides["model.key"] = key
        overrides["model.num_hidden_layers"] = load_model(key).num_layers
        split_as_vllm(line, key, overrides, left_open)
    elif "model.layer_partition" in overrides:
        overrides["model.num_hidden_layers"] = sum(overrides["model.layer_partition"])
    cp_size, tp_size = given.get("attn_cp_size", 1), overrides.get("cluster.tp_size", 1)
    if isinstance(cp_size, int) and cp_size > 1 and tp_size % cp_size == 0:
        modelled.add("attn_cp_size")
        overrides |= {"cluster.cp_size": cp_size, "cluster.tp_size": tp_size // cp_size}
        left_open["gpu.nic_gb_per_s"] = "context-parallel ranks exchange keys and values"
    not_modelled = {name: plain(value) for name, value in given.items() if name not in modelled}
    return {"overrides": overrides, "not_modelled": not_modelled, "left_open": left_open}


def key_of(path: Any) -> str | None:
    """What names the shape of a model that a line starts: a known checkpoint, or a folder here with a config.json."""
    known = known_key(str(path or ""))
    if known is not None or not isinstance(path, str):
        return known
    return path if (Path(path) / "config.json").is_file() else None


def priced(found: dict[str, Any], gpu_key: str) -> dict[str, Any]:
    """``to_scenario``'s answer with stage times from first principles on a known GPU.

    Raises ScenarioError for an unknown GPU, or where the line names no known model.
    """
    gpu, overrides = load_gpu(gpu_key), dict(found["overrides"])
    if "model.key" not in overrides:
        path = overrides.get("model.path")
        shape = load_model(str(path)) if path else None  # a folder with a config.json is as good
        if shape is None:
            raise ScenarioError("--gpu", "the launch line names no model", "leave the option out, or give a model")
        overrides["model.key"] = path
    overrides |= {"gpu.key": gpu_key, "cost.source": "roofline"}
    if gpu.efficiency is not None:
        overrides["cost.efficiency"] = gpu.efficiency
    return {**found, "overrides": overrides}


def decided_at_start(line: LaunchLine, row: Row) -> str:
    """Why a key is left open that no flag gives."""
    if row.name in ("model_path", "layer_partition"):
        return "the line does not give it"
    flag = next((flag for flag in flags.rows("sglang", "flag").values() if flag.dest == row.name), None)
    if line.engine == "vllm" and row.name not in (*vllm.NAMES.values(), "page_size", "max_total_tokens"):
        return "vLLM has no such value"
    unset = f" ({flag.note.removeprefix('unset: ')})" if line.engine == "sglang" and flag and flag.note else ""
    return f"{ENGINES[line.engine]} decides it at start{unset}"


def stand_ins(line: LaunchLine, overrides: dict[str, Any], left_open: dict[str, str]) -> None:
    """What the engine has and a scenario has not: another one stands in, and is told."""
    policy, role = overrides.get("scheduler.schedule_policy"), overrides.get("disaggregation.role")
    if policy is not None and policy not in POLICIES:
        what = POLICY_CHOICES[line.engine].get(str(policy), "is not known")
        overrides["scheduler.schedule_policy"] = "fcfs"
        left_open["scheduler.schedule_policy"] = f"{policy!r} ({what}) is not modelled: 'fcfs' stands in"
    if role is not None and role not in MODES:
        overrides["disaggregation.role"] = "plain"
        left_open["disaggregation.role"] = f"{role!r} is not modelled: 'plain' stands in"


def split_as_vllm(line: LaunchLine, key: str, overrides: dict[str, Any], left_open: dict[str, str]) -> None:
    """vLLM's even split of a known model, where it is not SGLang's."""
    pp_size, num_layers = overrides.get("cluster.pp_size"), load_model(key).num_layers
    given = line.is_given("layer_partition") or line.is_unresolved("layer_partition")
    if line.engine != "vllm" or given or not isinstance(pp_size, int) or not 1 < pp_size <= num_layers:
        return
    if num_layers % pp_size:
        overrides["model.layer_partition"] = vllm.layer_split(num_layers, pp_size)
        overrides["model.num_hidden_layers"] = num_layers
        left_open["model.layer_partition"] = "the line does not give it: vLLM's own split is taken"


def to_launch_line(scenario: Scenario) -> str:
    """The command that starts what the scenario describes: the line that it was imported from, changed to it.

    Without such a line SGLang's command, its environment in front; for both sides of a disaggregated scenario two
    commands, each under its heading.

    Values that are SGLang's defaults are left out, except the sizes; a scenario without a checkpoint prints that of its
    model.key, or a placeholder. SGLang counts context-parallel ranks among the tensor-parallel ones. Costs, links and
    workload are no part of a launch.
    """
    from ppsim.sglang.edit import edited

    given = edited(scenario)
    if given is not None:
        return given[0]
    if scenario.disaggregation.role == "pd":
        return f"# prefill\n{one_line(scenario, PREFILL)}\n# decode\n{one_line(scenario, decode_side(scenario))}"
    return one_line(scenario, {})


PREFILL: dict[str, Any] = {"disaggregation.role": "prefill"}


def decode_side(scenario: Scenario) -> dict[str, Any]:
    """What the decode side has of its own. It shares the layer split only if it has as many stages."""
    d = scenario.disaggregation
    own: dict[str, Any] = {
        "disaggregation.role": "decode",
        "cluster.pp_size": d.decode_pp_size or scenario.cluster.pp_size,
        "cluster.pp_async_batch_depth": d.decode_pp_async_batch_depth,
        "scheduler.max_total_tokens": d.decode_max_total_tokens,
        "scheduler.max_running_requests": d.decode_max_running_requests or scenario.scheduler.max_running_requests,
    }
    if own["cluster.pp_size"] != scenario.cluster.pp_size:
        own["model.layer_partition"] = None
    return own


def one_line(scenario: Scenario, instead: Mapping[str, Any]) -> str:
    """One command; ``instead`` has the keys whose value is not the scenario's."""
    env, words = [], ["python3", "-m", "sglang.launch_server"]
    cp_size = scenario.cluster.cp_size
    for row in ROWS:
        if not has_key(row.key):
            continue
        value = row.to_flag(instead[row.key] if row.key in instead else attrgetter(row.key)(scenario))
        if row.name == "model_path" and value is None:
            words += [row.flag, checkpoint_of(scenario.model.key or "") or "<MODEL_PATH>"]
            continue
        if row.name == "tp_size":
            value *= cp_size
        if value is None or (value == defaults("sglang")[row.name] and not row.always):
            continue
        text = spelled(value)
        if not row.flag.startswith("--"):
            env.append(f"{row.flag}={text}")
        elif value is True:
            words.append(row.flag)
        else:
            words += [row.flag, shlex.quote(text)]
    if exceeded_positions(scenario) is not None:
        env.append(f"{ALLOWS_LONGER}=1")
    return " ".join([*env, *words, *(["--attn-cp-size", str(cp_size)] if cp_size > 1 else [])])


def is_set(scenario: Scenario, dotted: str) -> bool:
    """Somebody gave the key, in the file or by an override."""
    *sections, leaf = dotted.split(".")
    place: Any = scenario
    for part in sections:
        if part not in place.model_fields_set:
            return False
        place = getattr(place, part)
    return leaf in place.model_fields_set
