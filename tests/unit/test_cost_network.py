"""The links of a node against a hierarchy that is really run, message by message."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ppsim.cost.network import Network
from ppsim.errors import ScenarioError
from tests.unit.test_cost_collectives import ring_all_reduce

H100 = Network(450.0, 50.0, link_latency_us=0.6, nic_latency_us=5.0, call_us=6.8)


def hierarchy(tensors: list[np.ndarray], inside: int) -> tuple[list[np.ndarray], list[int], list[int]]:
    """Reduce-scatter in each node, ring all-reduce of equal places across nodes, all-gather in each node: results, and
    the elements that each rank sends inside its node and out of it."""
    num_ranks = len(tensors)
    nodes = [list(range(first, first + inside)) for first in range(0, num_ranks, inside)]
    within, out = [0] * num_ranks, [0] * num_ranks
    owned: list[np.ndarray] = [np.empty(0)] * num_ranks
    for node in nodes:
        parts = [np.array_split(tensors[r], inside) for r in node]
        for place, rank in enumerate(node):
            owned[rank] = np.sum([p[place] for p in parts], axis=0)
            within[rank] += sum(owned[rank].size for _ in range(inside - 1))  # a ring: a part a step, inside-1 steps
    for place in range(inside):
        ranks = [node[place] for node in nodes]
        results, sent, _ = ring_all_reduce([owned[r] for r in ranks])
        for rank, result, elements in zip(ranks, results, sent):
            owned[rank], out[rank] = result, elements
    results = []
    for node in nodes:
        whole = np.concatenate([owned[r] for r in node])
        for rank in node:
            within[rank] += sum(owned[r].size for r in node[1:])
            results.append(whole)
    return results, within, out


@pytest.mark.parametrize(("num_nodes", "inside"), [(2, 8), (2, 4), (3, 8), (4, 2), (2, 1)])
def test_an_all_reduce_takes_as_long_as_what_the_hierarchy_sends(num_nodes: int, inside: int) -> None:
    num_ranks = num_nodes * inside
    size = 48 * num_ranks
    tensors = [np.arange(size, dtype=np.int64) * (r + 1) for r in range(num_ranks)]
    results, within, out = hierarchy(tensors, inside)
    assert all(np.array_equal(r, sum(tensors)) for r in results)
    assert len(set(within)) == len(set(out)) == 1
    network = replace(H100, gpus_per_node=inside)
    expected = within[0] / 450e9 + out[0] / 50e9
    assert network.all_reduce_moving_s(size, num_ranks) == pytest.approx(expected)
    steps_us = 2 * (inside - 1) * 0.6 + 2 * (num_nodes - 1) * 5.0
    assert network.all_reduce_s(size, num_ranks) == pytest.approx(expected + (6.8 + steps_us) * 1e-6)


def test_inside_a_node_it_is_the_ring_of_the_link() -> None:
    assert H100.all_reduce_moving_s(8e9, 4) == pytest.approx(1.5 * 8e9 / 450e9)
    assert H100.all_reduce_fixed_s(4) == pytest.approx((6.8 + 6 * 0.6) * 1e-6)
    assert H100.all_reduce_s(8e9, 1) == 0.0


def test_fewer_nics_are_shared_by_the_gpus_of_the_node() -> None:
    """Two nodes of eight: the part that leaves is K over all NICs of a node together."""
    inner = 2 * 7 / 8 * 8e9 / 450e9
    for nics in (1, 2, 4, 8):
        found = replace(H100, nics_per_node=nics).all_reduce_moving_s(8e9, 16)
        assert found - inner == pytest.approx(8e9 / (nics * 50e9))
    assert replace(H100, nics_per_node=800).share_gb_per_s == 450.0  # no GPU sends faster than its own link


def test_more_and_faster_links_never_hurt_and_more_nodes_never_help() -> None:
    times = [replace(H100, nics_per_node=n).all_reduce_s(1e6, 16) for n in range(1, 12)]
    assert times == sorted(times, reverse=True)
    for name in ("nic_gb_per_s", "link_gb_per_s"):
        times = [replace(H100, **{name: b}).all_reduce_s(1e6, 16) for b in (5.0, 20.0, 50.0, 400.0)]
        assert all(b < a for a, b in pairwise(times))
    times = [H100.all_reduce_s(1e6, n) for n in (1, 2, 4, 8, 16, 32, 64)]
    assert times == sorted(times)


def test_a_group_fills_as_few_nodes_as_it_can() -> None:
    assert [H100.places(n) for n in (1, 8, 12, 16, 20)] == [(1, 1), (1, 8), (2, 6), (2, 8), (3, 7)]


def test_hidden_states_are_cut_over_the_nics_and_gathered_inside() -> None:
    for tp, gathered in ((8, 7 / 8), (4, 3 / 4), (1, 0.0)):
        expected = 1 / (tp * 50e9) + gathered / 450e9
        assert H100.hand_over_s_per_byte(tp) == pytest.approx(expected)
    assert replace(H100, nics_per_node=1).hand_over_s_per_byte(8) == pytest.approx(1 / 50e9 + 7 / 8 / 450e9)


def test_a_given_ring_is_flat_whatever_it_passes() -> None:
    flat = replace(H100, ring_gb_per_s=25.0)
    assert flat.all_reduce_moving_s(8e9, 16) == pytest.approx(2 * 15 / 16 * 8e9 / 25e9)


def test_an_unknown_nic_is_refused_where_it_is_needed() -> None:
    unknown = replace(H100, nic_gb_per_s=None)
    assert unknown.all_reduce_s(1e6, 8) == H100.all_reduce_s(1e6, 8)
    with pytest.raises(ScenarioError, match=r"gpu.nic_gb_per_s: is not known"):
        unknown.all_reduce_s(1e6, 16)
