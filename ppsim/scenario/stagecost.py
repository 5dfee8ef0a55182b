"""From the cost section of a scenario to a stage cost."""

from __future__ import annotations

from ppsim.cost.context_parallel import ContextParallelCost, exchange_ns, ring_gb_per_s
from ppsim.cost.memory import stage_kv_bytes
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.stage import NS_PER_MS, QuadraticCost, StageCost, UnitCost
from ppsim.errors import ScenarioError
from ppsim.scenario.gpu import scenario_gpu
from ppsim.scenario.layers import known_shape, kv_bytes_per_token_and_layer, model_shape, partition_of
from ppsim.scenario.tree import Scenario


def stage_cost(s: Scenario) -> StageCost:
    """Forward times of this scenario's stages."""
    c = s.cost
    if c.source == "unit":
        return UnitCost(round(c.unit_ms * NS_PER_MS), tuple(round(ms * NS_PER_MS) for ms in c.slot_ms))
    cost = roofline_cost(s) if c.source == "roofline" else quadratic_cost(s)
    if s.cluster.cp_size == 1:
        return cost
    kv = kv_bytes_per_token(s)
    return ContextParallelCost(cost, s.cluster.cp_size, exchange_ns(kv, s.cluster.cp_size, context_gb_per_s(s)))


def roofline_cost(s: Scenario) -> RooflineCost:
    """Source "roofline", of one context-parallel rank."""
    c, k = s.cost, s.cluster
    rates = Rates(
        efficiency=c.efficiency,
        tp_gb_per_s=c.tp_gb_per_s,
        node_gpus=k.gpus_per_node,
        nics_per_node=k.nics_per_node,
        link_latency_us=c.link_latency_us,
        nic_latency_us=c.nic_latency_us,
        all_reduce_us=c.all_reduce_us,
        layer_overhead_us=c.layer_overhead_us,
    )
    return RooflineCost(model_shape(s), scenario_gpu(s), s.cluster.tp_size, partition_of(s), rates)


def quadratic_cost(s: Scenario) -> QuadraticCost:
    """Source "quadratic", of one context-parallel rank."""
    c, layers = s.cost, partition_of(s)
    return QuadraticCost(
        shares=tuple(n / sum(layers) for n in layers),
        floor_ms=c.prefill_floor_ms,
        c_ms=c.prefill_c_ms,
        first_ms=c.prefill_first_ms,
        gamma_ms=c.prefill_gamma_ms_per_token,
        b_ms=c.prefill_b_ms_per_token,
        a_ms=c.prefill_a_ms_per_token2,
        c_once=c.prefill_c_once,
        decode_c_ms=c.decode_c_ms,
        decode_row_ms=c.decode_row_ms,
        decode_kv_ms=c.decode_kv_ms_per_token,
        decode_reads_own_token=c.decode_reads_own_token,
        tp_size=s.cluster.tp_size,
        tp_comm_ms=c.tp_comm_ms_per_token,
    )


def context_gb_per_s(s: Scenario) -> float:
    """Bandwidth of the exchange of keys and values. Raises ScenarioError where nothing says it."""
    k = s.cluster
    if s.cost.source == "roofline":
        return ring_gb_per_s(scenario_gpu(s), k.tp_size * k.cp_size, k.gpus_per_node, k.nics_per_node)
    nic = s.gpu.nic_gb_per_s if s.gpu.key is None else scenario_gpu(s).nic_gb_per_s
    if nic is None:
        raise ScenarioError(
            "cluster.cp_size", f"{s.cluster.cp_size} ranks exchange keys and values", "give gpu.nic_gb_per_s"
        )
    return nic if k.nics_per_node is None else nic * k.nics_per_node / k.gpus_per_node


def kv_bytes_per_token(s: Scenario) -> tuple[float, ...]:
    """Bytes that a token leaves on one GPU of each stage."""
    tp_size, shape = s.cluster.tp_size, known_shape(s)
    if shape is not None:
        return tuple(stage_kv_bytes(shape, partition_of(s), tp_size))
    per_layer = kv_bytes_per_token_and_layer(s) / min(tp_size, s.model.num_key_value_heads)
    return tuple(per_layer * n for n in partition_of(s))
