"""Whatever ``import`` writes, ``run`` accepts: a value that a scenario cannot hold is taken out, and told.

What stands in is the scenario's own default, or the nearest value that fits (a chunk of whole pages, a made-up model
with enough layers and heads, while the model itself is not known).
"""

from __future__ import annotations

import math
from typing import Any

from ppsim.errors import ScenarioError
from ppsim.scenario.bounds import MAX_TOKENS
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import put, validate
from ppsim.scenario.tree import Model, Scenario, Scheduler
from ppsim.sglang.result import LaunchLine
from ppsim.sglang.scenario import priced, to_scenario

MAX_ROUNDS = 40
CHUNK = "scheduler.chunked_prefill_size"
Found = dict[str, Any]


def settled_line(line: LaunchLine, gpu: str | None = None) -> Found:
    """``to_scenario``'s answer as a scenario that runs and says where it comes from, with the costs of a GPU if named.

    Raises UsageError for a line with errors, ScenarioError for an unknown GPU or a contradiction.
    """
    found = settled(to_scenario(line) if gpu is None else priced(to_scenario(line), gpu))
    top = {"engine": "vllm"} if line.engine == "vllm" else {}
    if line.source is not None:
        top["launch_line"] = line.source.text
    return {**found, "overrides": {**top, **found["overrides"]}}


def settled(found: Found) -> Found:
    """``to_scenario``'s answer with overrides that run; what was changed for that stands in ``left_open``.

    Raises ScenarioError for a contradiction that no value of the line can be taken out of.
    """
    overrides, told = dict(found["overrides"]), dict(found["left_open"])
    if isinstance(size := overrides.get(CHUNK), int) and size > MAX_TOKENS:  # a chunk longer than any prompt
        told[CHUNK] = f"{size} is more than any prompt has: {MAX_TOKENS} stands in"
        overrides[CHUNK] = MAX_TOKENS
    for _ in range(MAX_ROUNDS):
        try:
            check_scenario(tree_of(overrides))
        except ScenarioError as error:
            mend(overrides, told, error)
        else:
            return {**found, "overrides": overrides, "left_open": told}
    raise ScenarioError("launch line", "no scenario could be made of these values", "fewer flags at a time")


def tree_of(overrides: dict[str, Any]) -> Scenario:
    raw: dict[str, Any] = {}
    for key, value in overrides.items():
        put(raw, key, value)
    return validate(raw)


def mend(overrides: dict[str, Any], told: dict[str, str], error: ScenarioError) -> None:
    """Take the key of an error out, or put something in its place. Raises the error if it is not the line's."""
    key = next((k for k in overrides if error.field == k or error.field.startswith(k + ".")), None)
    if key == "cluster.pp_size" and grow_layers(overrides, told):
        return
    if key == "cluster.tp_size" and grow_heads(overrides, told):
        return
    if (
        error.field in (CHUNK, "scheduler.max_total_tokens")
        and CHUNK not in overrides
        and choose_chunk(overrides, told)
    ):
        return
    if key is None or key in ("cluster.pp_size", "cluster.tp_size", "cluster.cp_size"):
        raise error
    value = overrides.pop(key)
    page = overrides.get("scheduler.page_size", 1)
    if key == CHUNK and isinstance(value, int) and isinstance(page, int) and value > 0:
        overrides[key] = max(value // page, 1) * page
        told[key] = f"{value} is no multiple of the page size {page}: {overrides[key]} stands in"
        return
    if key == "scheduler.page_size":
        told.pop(CHUNK, None)
    told[key] = f"{value!r} is not taken ({error.problem}): the scenario's default stands in"


def choose_chunk(overrides: dict[str, Any], told: dict[str, str]) -> bool:
    """A chunk that nobody gave: the default, cut to whole pages and to the given pool."""
    page, pool = overrides.get("scheduler.page_size", 1), overrides.get("scheduler.max_total_tokens")
    if not isinstance(page, int) or page < 1 or (isinstance(pool, int) and pool < page):
        return False
    most = min(Scheduler().chunked_prefill_size, pool) if isinstance(pool, int) else Scheduler().chunked_prefill_size
    overrides[CHUNK] = max(most // page, 1) * page
    told[CHUNK] = (
        f"{told.get(CHUNK, 'not given')}; {overrides[CHUNK]} stands in, for pages of {page} tokens and the pool"
    )
    return True


def grow_layers(overrides: dict[str, Any], told: dict[str, str]) -> bool:
    """More stages than the stand-in model has layers: it gets one a stage."""
    pp_size, key = overrides["cluster.pp_size"], "model.num_hidden_layers"
    if key in overrides or not isinstance(pp_size, int) or not Model().num_hidden_layers < pp_size <= 1024:
        return False
    overrides[key] = pp_size
    told[key] = f"the model is not known here: {pp_size} layers stand in, one for each stage"
    return True


def grow_heads(overrides: dict[str, Any], told: dict[str, str]) -> bool:
    """Heads of the stand-in model that the tensor-parallel ranks divide."""
    tp_size, key = overrides["cluster.tp_size"], "model.num_attention_heads"
    if key in overrides or not isinstance(tp_size, int) or not 1 <= tp_size <= 1024:
        return False
    usual = Model()
    step = math.lcm(tp_size, usual.num_key_value_heads)
    overrides[key] = -(-usual.num_attention_heads // step) * step
    told[key] = f"the model is not known here: {overrides[key]} heads stand in, which tp_size {tp_size} divides"
    return True
