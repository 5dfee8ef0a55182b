"""Keys of a node's links and of overheads: told where they cannot matter, and a lower bound is told as one."""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.cost.roofline import DECODE_LAYER_US
from ppsim.scenario.load import put, validate
from ppsim.scenario.tree import Scenario
from ppsim.scenario.warn import start_warnings, without_effect

ROOFLINE: dict[str, Any] = {"cost.source": "roofline", "model.key": "qwen3-8b", "gpu.key": "h100"}


def made(**changes: Any) -> Scenario:
    raw: dict[str, Any] = {}
    for key, value in {**ROOFLINE, **{name.replace("__", "."): v for name, v in changes.items()}}.items():
        put(raw, key, value)
    return validate(raw)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cost__layer_overhead_us": 9.0}, None),
        ({"cost__layer_overhead_us": 9.0, "cost__source": "quadratic"}, "with cost.source 'quadratic'"),
        ({"cost__all_reduce_us": 9.0, "cluster__tp_size": 2}, None),
        ({"cost__all_reduce_us": 9.0}, "with cluster.tp_size 1"),
        ({"cost__link_latency_us": 9.0, "cluster__tp_size": 8}, None),
        ({"cost__nic_latency_us": 9.0, "cluster__tp_size": 8}, "where 8 GPUs stay in a node of 8"),
        ({"cost__nic_latency_us": 9.0, "cluster__tp_size": 16}, None),
        ({"cluster__nics_per_node": 4, "cluster__tp_size": 16}, None),
        ({"cluster__nics_per_node": 4, "cluster__tp_size": 8}, "where 8 GPUs of a stage stay in a node of 8"),
        ({"cluster__nics_per_node": 4, "cost__source": "unit"}, "with cost.source 'unit'"),
        ({"cluster__gpus_per_node": 4, "cost__source": "quadratic"}, "with cost.source 'quadratic'"),
        ({"cluster__gpus_per_node": 4}, None),
    ],
)
def test_a_key_that_cannot_matter_is_told_with_the_reason(changes: dict[str, Any], told: str | None) -> None:
    key = next(iter(changes)).replace("__", ".")
    found = [message for message in without_effect(made(**changes)) if message.startswith(key)]
    assert found == ([] if told is None else [f"{key} has no effect {told}"])


@pytest.mark.parametrize(
    ("changes", "is_told"),
    [
        ({}, True),
        ({"cost__layer_overhead_us": DECODE_LAYER_US}, False),
        ({"cost__source": "quadratic"}, False),
        ({"workload__output_length": {"value": 1}}, False),
        ({"workload__source": "chunks"}, False),
        ({"workload__source": "requests", "workload__requests": [{"rid": "R", "prompt": 8, "output": 2}]}, True),
        ({"workload__source": "requests", "workload__requests": [{"rid": "R", "prompt": 8, "output": 1}]}, False),
    ],
)
def test_decode_without_overheads_is_called_a_lower_bound(changes: dict[str, Any], is_told: bool) -> None:
    told = [message for message in start_warnings(made(**changes)) if "lower bound" in message]
    assert len(told) == is_told
    if is_told:
        assert "cost.layer_overhead_us is 0" in told[0]
