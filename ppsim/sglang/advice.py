"""What to tell about a combination: SGLang refuses it, ignores it, or did so in some versions.

One row for each rule: the name of the values it looks at, a test, a sentence. Rules that need the model are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ppsim.sglang.result import LaunchLine, Note
from ppsim.sglang.scenario import POLICIES, POLICY_CHOICES

Get = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """``about`` names the value whose place is shown; the rule is silent unless that value is given."""

    about: str
    engine: str
    holds: Callable[[LaunchLine], bool]
    text: Callable[[LaunchLine], str]
    level: Literal["warning", "error", "note"] = "warning"


def number(line: LaunchLine, name: str) -> int:
    value = line.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def pipelined(line: LaunchLine) -> bool:
    return number(line, "pp_size") > 1


def layers(line: LaunchLine) -> tuple[int, ...]:
    value = line.get("layer_partition")
    return value if isinstance(value, tuple) else ()


SIZES = ("pp_size", "tp_size", "dp_size", "ep_size", "nnodes", "attn_cp_size", "dcp_size", "page_size")
RULES: tuple[Rule, ...] = (
    *(
        Rule(
            name,
            "",
            lambda line, name=name: line.get(name) is not None and number(line, name) < 1,  # type: ignore[misc]
            lambda line, name=name: f"{name} must be positive, got {line.get(name)!r}",  # type: ignore[misc]
            "error",
        )
        for name in SIZES
    ),
    Rule(
        "layer_partition",
        "",
        lambda line: not line.is_unresolved("pp_size") and len(layers(line)) != number(line, "pp_size"),
        lambda line: f"the partition has {len(layers(line))} stages, but pp_size is {line.get('pp_size')}",
        "error",
    ),
    Rule(
        "chunked_prefill_size",
        "sglang",
        lambda line: number(line, "chunked_prefill_size") == 0 or number(line, "chunked_prefill_size") < -1,
        lambda line: f"must be positive, or -1 for no chunking, got {line.get('chunked_prefill_size')}",
        "error",
    ),
    Rule(
        "chunked_prefill_size",
        "sglang",
        lambda line: (
            number(line, "chunked_prefill_size") > 0
            and number(line, "page_size") > 1
            and number(line, "chunked_prefill_size") % number(line, "page_size") != 0
            and line.role != "decode"
        ),
        lambda line: f"is not a multiple of --page-size {line.get('page_size')}: SGLang refuses to start",
    ),
    Rule(
        "schedule_policy",
        "sglang",
        lambda line: line.get("schedule_policy") not in (*POLICIES, *POLICY_CHOICES["sglang"]),
        lambda line: (
            f"{line.get('schedule_policy')!r} is no policy of SGLang: expected "
            f"{', '.join((*POLICIES, *POLICY_CHOICES['sglang']))}"
        ),
        "error",
    ),
    Rule(
        "scheduling_policy",
        "vllm",
        lambda line: line.get("scheduling_policy") not in ("fcfs", "priority"),
        lambda line: f"{line.get('scheduling_policy')!r} is no policy of vLLM: expected fcfs or priority",
        "error",
    ),
    Rule(
        "disaggregation_mode",
        "sglang",
        lambda line: line.get("disaggregation_mode") not in ("null", "prefill", "decode", None),
        lambda line: f"{line.get('disaggregation_mode')!r} is no mode of SGLang: expected null, prefill or decode",
        "error",
    ),
    Rule(
        "enable_mixed_chunk",
        "sglang",
        lambda line: bool(line.get("enable_mixed_chunk")) and pipelined(line),
        lambda line: "mixed chunks with pipeline parallelism were refused before 2026-04 (SGLang #22920)",
    ),
    Rule(
        "enable_dynamic_chunking",
        "sglang",
        lambda line: bool(line.get("enable_dynamic_chunking")) and not unresolved_or_pipelined(line),
        lambda line: "dynamic chunking does nothing without pipeline parallelism",
    ),
    Rule(
        "dynamic_chunking_smooth_factor",
        "",
        lambda line: not line.get("enable_dynamic_chunking"),
        lambda line: "the smooth factor does nothing without dynamic chunking",
    ),
    Rule(
        "chunked_prefill_size",
        "sglang",
        lambda line: (
            bool(line.get("enable_dynamic_chunking"))
            and number(line, "chunked_prefill_size") > number(line, "max_prefill_tokens") > 0
        ),
        lambda line: (
            f"only the first chunk can have this size: later ones are capped by --max-prefill-tokens "
            f"{line.get('max_prefill_tokens')}"
        ),
    ),
    Rule(
        "pp_async_batch_depth",
        "sglang",
        lambda line: number(line, "pp_async_batch_depth") > 0 and not unresolved_or_pipelined(line),
        lambda line: "an asynchronous depth does nothing without pipeline parallelism",
    ),
    Rule(
        "min_free_slots_delay",
        "sglang",
        pipelined,
        lambda line: "is refused with pipeline parallelism",
    ),
    Rule(
        "pp_size",
        "sglang",
        lambda line: pipelined(line) and line.role == "decode",
        lambda line: "a decode server needs pp_size 1 or that of its prefill server",
        "note",
    ),
    Rule(
        "pp_size",
        "sglang",
        lambda line: pipelined(line) and not layers(line) and not line.is_unresolved("layer_partition"),
        lambda line: (
            "no layer partition is given: layers are split evenly, the remainder one each to the last stages; versions "
            "up to about 0.5.1 gave all of it to the last stage (94 layers on 8 stages: 11 x 7 + 17)"
        ),
        "note",
    ),
    Rule(
        "node_rank",
        "",
        lambda line: not line.is_unresolved("nnodes") and number(line, "node_rank") >= number(line, "nnodes"),
        lambda line: f"node rank {line.get('node_rank')} does not exist with {line.get('nnodes')} nodes",
        "error",
    ),
    Rule(
        "nnodes",
        "sglang",
        lambda line: (
            number(line, "nnodes") > 1
            and not line.is_unresolved("tp_size")
            and not line.is_unresolved("pp_size")
            and number(line, "tp_size") * number(line, "pp_size") % number(line, "nnodes") != 0
        ),
        lambda line: f"{line.get('nnodes')} nodes do not divide tp_size x pp_size evenly",
    ),
    Rule(
        "dist_init_addr",
        "sglang",
        lambda line: isinstance(line.get("dist_init_addr"), str) and ":" not in line.get("dist_init_addr"),
        lambda line: f"{line.get('dist_init_addr')!r} has no port: expected HOST:PORT",
    ),
)


def unresolved_or_pipelined(line: LaunchLine) -> bool:
    return line.is_unresolved("pp_size") or pipelined(line)


def advise(line: LaunchLine) -> None:
    """Add the warnings, errors and notes of every rule that holds."""
    for rule in RULES:
        given = line.values.get(rule.about)
        if given is None or (rule.engine and rule.engine != line.engine) or not rule.holds(line):
            continue
        if rule.level == "error":
            line.fail(rule.text(line), given.line, given.spelling)
        elif rule.level == "note":
            line.notes.append(Note(rule.text(line), given.line, given.spelling))
        else:
            line.warn(rule.text(line), given.line, given.spelling)
    serial = line.env.get("CUDA_LAUNCH_BLOCKING", "")
    if serial not in ("", "0"):
        line.warn("every kernel launch waits for the GPU: nothing overlaps", line.line, "CUDA_LAUNCH_BLOCKING")
