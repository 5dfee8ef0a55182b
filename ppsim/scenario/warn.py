"""What a scenario is told at its start: it runs, but not as its keys may lead one to think."""

from __future__ import annotations

from ppsim.cost.roofline import DECODE_LAYER_US
from ppsim.scenario.chunks import sglang_predictor
from ppsim.scenario.effects import OVERHEADS, keys_without_effect, request_keys_without_effect
from ppsim.scenario.layers import known_shape
from ppsim.scenario.tree import CostTree, Disaggregation, Links, Model, Scenario
from ppsim.scenario.workload_keys import Length, Workload


def start_warnings(s: Scenario) -> tuple[str, ...]:
    """Sentences for the recording; empty where there is nothing to say."""
    c = s.scheduler
    found = vllm_differences(s)
    if s.launch_line is not None and assumed_workload(s):
        found.append(assumed_workload(s))
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
    found += locks(s)
    if decodes_on_roofline(s) and not s.cost.layer_overhead_us:
        found.append(
            "decode is a lower bound: cost.layer_overhead_us is 0, no kernel costs anything to start; a published "
            f"measurement says about {DECODE_LAYER_US:g}"
        )
    found += model_warnings(s)
    return tuple(found)


def decodes_on_roofline(s: Scenario) -> bool:
    """Whether decode batches come, at least of requests that the scenario itself names, and a roofline times them."""
    w = s.workload
    if s.cost.source != "roofline" or w.source == "chunks":
        return False
    if w.source == "requests":
        return any(request.output > 1 for request in w.requests)
    return w.source == "trace" or w.output_length != Length(value=1)


def locks(s: Scenario) -> list[str]:
    """Orders of sends that lock the ring as soon as it is full, where sends wait for their receivers."""
    links, c = s.links, s.scheduler
    if s.cluster.pp_size == 1:
        return []
    blocking = links.send == "rendezvous"
    matched = links.payload == "matched" and not s.cluster.comm_overlap
    found = []
    early = c.hidden_send == "after_launch" and links.early_send == "before_exchange"
    if early and s.cluster.pp_async_batch_depth == 0 and (blocking or matched):
        found.append(
            "links.early_send 'before_exchange' locks where hidden states wait for their receiver, which waits for an "
            "output: links.early_send 'after_exchange'"
        )
    if c.exchange_order == "send_first":
        if blocking:
            found.append("links.send 'rendezvous' locks where all ranks send first: scheduler.exchange_order 'parity'")
        elif matched and links.order == "stream":
            found.append(
                "links.payload 'matched' locks in one stream where all ranks send first: scheduler.exchange_order "
                "'parity', or links.order 'link'"
            )
    return found


VLLM_DIFFERENCES = (
    "the order of a batch: vLLM serves decodes first and fills the step's tokens with prefill; here, as in SGLang, a "
    "waiting prompt opens a prefill batch, and the decodes of its slot ride along in it",
    "admission: vLLM reserves no room for tokens to come and preempts when blocks run out; here, as in SGLang, part of "
    "max_new_tokens is reserved (scheduler.schedule_conservativeness)",
    "preemption: vLLM recomputes the request that came last; here the one that SGLang would retract goes",
    "requests in stages: vLLM puts any request that is not in flight into the next step; here a request stays in its "
    "slot until it ends",
    "between stages: vLLM's messages and executor are not modelled; SGLang's exchange stands in",
)


def vllm_differences(s: Scenario) -> list[str]:
    """Where SGLang's rules stand in for those of vLLM, a sentence each."""
    return [f"engine vllm, SGLang's rule stands in: {text}" for text in VLLM_DIFFERENCES] if s.engine == "vllm" else []


def assumed_workload(s: Scenario) -> str:
    """What is assumed to arrive where nobody says it, as a sentence; empty where somebody does."""
    w = s.workload
    if w != Workload():
        return ""
    return (
        f"no workload is given, and one is assumed: 32 prompts of {w.input_length.value} tokens with "
        f"{w.output_length.value} tokens of output, {w.rate_per_s:g} a second; "
        "give --prompt, --output, --rate or --trace"
    )


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
    found += [f"links.{key} has no effect {why}" for key, why in idle_link_keys(s)]
    found += [f"{key} has no effect {why}" for key, why in idle_node_keys(s)]
    if s.workload.source != "trace":
        w, unset = s.workload, Workload()
        found += [
            f"workload.{key} has no effect with workload.source {w.source!r}"
            for key in ("time_unit", "columns", "skip_bad_lines", "tokenizer")
            if getattr(w, key) != getattr(unset, key)
        ]
    found += idle_client_keys(s)
    if s.workload.source == "requests":
        known = {request.rid for request in s.workload.requests}
        listed = dict.fromkeys(entry.rid for entry in s.observations.listed if entry.rid not in known)
        found += [f"observations.listed: no request has the id {rid!r}" for rid in listed]
        faulty = dict.fromkeys(fault.rid for fault in d.kv_faults if fault.rid not in known)
        found += [f"disaggregation.kv_faults: no request has the id {rid!r}" for rid in faulty]
    return found


def idle_node_keys(s: Scenario) -> list[tuple[str, str]]:
    """Keys of a node's links and of roofline overheads that are set and cannot matter, each with the reason."""
    c, k = s.cost, s.cluster
    usual = {**{f"cost.{n}": 0.0 for n in OVERHEADS}, "cluster.gpus_per_node": 8, "cluster.nics_per_node": None}
    given = {**{f"cost.{n}": getattr(c, n) for n in OVERHEADS}}
    given |= {"cluster.gpus_per_node": k.gpus_per_node, "cluster.nics_per_node": k.nics_per_node}
    roofline, ranks = c.source == "roofline", k.tp_size * k.cp_size
    found = []
    for key, value in given.items():
        if value == usual[key]:
            continue
        if key.startswith("cluster."):
            if c.source == "unit" or (not roofline and k.cp_size == 1):
                found.append((key, f"with cost.source {c.source!r}"))
            elif roofline and key == "cluster.nics_per_node" and ranks <= k.gpus_per_node:
                found.append((key, f"where {ranks} GPUs of a stage stay in a node of {k.gpus_per_node}"))
        elif not roofline:
            found.append((key, f"with cost.source {c.source!r}"))
        elif key != "cost.layer_overhead_us" and k.tp_size == 1:
            found.append((key, "with cluster.tp_size 1"))
        elif key == "cost.nic_latency_us" and k.tp_size <= k.gpus_per_node:
            found.append((key, f"where {k.tp_size} GPUs stay in a node of {k.gpus_per_node}"))
    return found


def idle_client_keys(s: Scenario) -> list[str]:
    """Keys of clients and sessions that are set and cannot matter, and times that a closed loop does not use."""
    w, usual = s.workload, Workload()
    idle: dict[str, str] = {}
    if w.source != "generated":
        idle |= dict.fromkeys(("num_sessions", "turn_input_length"), f"with workload.source {w.source!r}")
    if w.source in ("requests", "chunks"):
        idle |= dict.fromkeys(("num_turns", "think_time_ms", "think_time"), f"with workload.source {w.source!r}")
    elif w.source == "generated" and (not w.num_sessions or (w.num_turns or 1) == 1):
        why = "without workload.num_sessions" if not w.num_sessions else "with one turn a session"
        idle |= dict.fromkeys(("turn_input_length", "think_time_ms", "think_time"), why)
        if not w.num_sessions:
            idle["num_turns"] = why
    elif not w.think_time_ms:
        idle["think_time"] = "without workload.think_time_ms"
    if w.source == "generated" and w.num_sessions and (w.num_turns or 1) > 1 and not w.think_time_ms:
        idle["think_time"] = "without workload.think_time_ms"
    if w.concurrency and w.source == "chunks":
        idle["concurrency"] = "with workload.source 'chunks': there is one request"
    elif w.concurrency:
        why = "with workload.concurrency: a request is sent when a client is free"
        idle |= dict.fromkeys(("arrival", "rate_per_s", "time_scale"), why)
    return [
        f"workload.{key} has no effect {why}" for key, why in idle.items() if getattr(w, key) != getattr(usual, key)
    ]


def idle_link_keys(s: Scenario) -> list[tuple[str, str]]:
    """Keys of ``links`` that are set and cannot matter, each with the reason (docs/streams.md)."""
    links, usual, overlap = s.links, Links(), s.cluster.comm_overlap
    alone = s.cluster.pp_size == 1 and s.disaggregation.role != "pd"
    early = s.scheduler.hidden_send == "after_launch" and s.cluster.pp_async_batch_depth == 0
    reasons = (
        ("graph_fence", not (overlap and s.cluster.cuda_graph), "without cluster.comm_overlap and cluster.cuda_graph"),
        ("payload", overlap, "with cluster.comm_overlap: no forward waits for a send"),
        ("schedule_hold", overlap, "with cluster.comm_overlap: the schedule stream carries no sends"),
        ("token_read", overlap, "with cluster.comm_overlap: the schedule stream carries no receives"),
        ("early_send", not early, "but with scheduler.hidden_send 'after_launch' and depth 0"),
        ("rendezvous_hold", links.send != "rendezvous", "but with links.send 'rendezvous'"),
        ("commit_over", links.commit == "none", "with links.commit 'none': nobody waits for a commit"),
    )
    found = [(key, why) for key, idle, why in reasons if idle and getattr(links, key) != getattr(usual, key)]
    if alone:
        keys = ("send", "order", "commit", *(key for key, _, _ in reasons))
        return [(key, "with one stage") for key in keys if getattr(links, key) != getattr(usual, key)]
    return found
