"""What a scenario is told at its start: it runs, but not as its keys may lead one to think."""

from __future__ import annotations

from ppsim.scenario.chunks import sglang_predictor
from ppsim.scenario.effects import keys_without_effect, request_keys_without_effect
from ppsim.scenario.layers import known_shape
from ppsim.scenario.tree import CostTree, Disaggregation, Model, Scenario


def start_warnings(s: Scenario) -> tuple[str, ...]:
    """Sentences for the recording; empty where there is nothing to say."""
    c = s.scheduler
    found = []
    dynamic = c.enable_dynamic_chunking and c.dynamic_chunking_smooth_factor and c.chunk_planner == "sglang"
    if dynamic and c.chunked_prefill_size != -1:
        reason = sglang_predictor(s).reason
        if reason:
            found.append(f"dynamic chunks are off, fixed ones of {c.chunked_prefill_size} tokens run: {reason}")
    if not c.pp_max_micro_batch_size and c.max_running_requests < s.cluster.pp_size:
        found.append(
            f"scheduler.max_running_requests {c.max_running_requests} is less than the {s.cluster.pp_size} stages: "
            "a slot takes one request, and not every stage has one to work on"
        )
    found += model_warnings(s)
    return tuple(found)


MADE_UP = ("prefill_c_ms", "prefill_b_ms_per_token", "prefill_a_ms_per_token2")
MADE_UP_DECODE = ("decode_c_ms", "decode_row_ms", "decode_kv_ms_per_token")


def default_costs(s: Scenario, names: tuple[str, ...] = MADE_UP + MADE_UP_DECODE) -> list[str]:
    """Costs of the quadratic model that nobody gave: the numbers of ppsim's own example, and of no model."""
    usual = CostTree()
    if s.cost.source != "quadratic":
        return []
    return [f"cost.{n} {getattr(usual, n):g}" for n in names if getattr(s.cost, n) == getattr(usual, n)]


def named_model(s: Scenario) -> str:
    """The model that the scenario names, if any; without one its numbers are nobody's."""
    return s.model.key or s.model.path or ""


def model_warnings(s: Scenario) -> list[str]:
    """What is said about a model by name and is not of this model."""
    found = []
    name, costs = named_model(s), default_costs(s)
    if name and costs:
        found.append(
            f"{', '.join(costs)} are defaults and not costs of {name}: the times say nothing about it "
            "(cost.source 'roofline' with gpu.key, or cost.* from ppsim fit)"
        )
    if s.model.path is not None and s.model.key is None and s.model == Model(path=s.model.path):
        found.append(
            f"model.path {s.model.path!r} is no known model: the {s.model.num_hidden_layers} layers are the defaults "
            "of [model] (model.key may name a config.json)"
        )
    shape = known_shape(s)
    if shape is not None:
        found += [f"model.key {s.model.key}: {note}" for note in shape.notes]
        if shape.state_bytes and s.disaggregation.role == "pd":
            found.append("states of requests cross to the decode side in no time: only keys and values are on the wire")
    return found


ONLY_VOTES = ("bootstrap", "variant")  # a plain server has no votes, a decode server no bootstrap


def without_effect(s: Scenario) -> list[str]:
    """Likewise, once for a scenario and not for each of two sides: keys of another role, requests that never come."""
    d, usual = s.disaggregation, Disaggregation()
    idle = {"plain": ONLY_VOTES, "decode": ONLY_VOTES[:1]}.get(d.role, ())
    found = [*keys_without_effect(s), *request_keys_without_effect(s)]
    found += [
        f"disaggregation.{key} has no effect: disaggregation.role is {d.role!r}"
        for key in idle
        if getattr(d, key) != getattr(usual, key)
    ]
    if s.workload.source == "requests":
        known = {request.rid for request in s.workload.requests}
        listed = dict.fromkeys(entry.rid for entry in s.observations.listed if entry.rid not in known)
        found += [f"observations.listed: no request has the id {rid!r}" for rid in listed]
        faulty = dict.fromkeys(fault.rid for fault in d.kv_faults if fault.rid not in known)
        found += [f"disaggregation.kv_faults: no request has the id {rid!r}" for rid in faulty]
    return found
