"""From the cost section of a scenario to a stage cost."""

from __future__ import annotations

from ppsim.cost.config_json import load_model
from ppsim.cost.gpu import load_gpu
from ppsim.cost.roofline import Rates, RooflineCost
from ppsim.cost.stage import NS_PER_MS, QuadraticCost, StageCost, UnitCost
from ppsim.scenario.layers import partition_of
from ppsim.scenario.tree import Scenario


def stage_cost(s: Scenario) -> StageCost:
    """Forward times of this scenario's stages."""
    c = s.cost
    if c.source == "unit":
        return UnitCost(round(c.unit_ms * NS_PER_MS), tuple(round(ms * NS_PER_MS) for ms in c.slot_ms))
    layers = partition_of(s)
    if c.source == "roofline":
        rates = Rates(efficiency=c.efficiency, tp_gb_per_s=c.tp_gb_per_s)
        return RooflineCost(load_model(s.model.key or ""), load_gpu(s.gpu.key or ""), s.cluster.tp_size, layers, rates)
    return QuadraticCost(
        shares=tuple(n / sum(layers) for n in layers),
        floor_ms=c.prefill_floor_ms,
        c_ms=c.prefill_c_ms,
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
