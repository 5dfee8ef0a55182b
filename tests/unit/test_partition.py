"""Layer splits against exhaustive search."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.cost.partition import (
    check_partition,
    even_partition,
    layer_offsets,
    parse_partition,
    partition_by_cost,
    partition_by_memory,
)
from ppsim.errors import ScenarioError


def all_splits(num_layers: int, pp_size: int) -> list[tuple[int, ...]]:
    out = []
    for cuts in combinations(range(1, num_layers), pp_size - 1):
        edges = (0, *cuts, num_layers)
        out.append(tuple(b - a for a, b in pairwise(edges)))
    return out


def stage_loads(split: tuple[int, ...], layers: list[int], first: int, last: int) -> list[int]:
    loads, at = [], 0
    for n in split:
        loads.append(sum(layers[at : at + n]))
        at += n
    loads[0] += first
    loads[-1] += last
    return loads


small = st.lists(st.integers(1, 9), min_size=3, max_size=9)


@given(small, st.integers(1, 3), st.integers(0, 12), st.integers(0, 12))
def test_split_by_cost_has_the_cheapest_dearest_stage_and_is_the_most_even_of_those(
    layers: list[int], pp_size: int, first: int, last: int
) -> None:
    split = partition_by_cost([float(c) for c in layers], pp_size, float(first), float(last))
    keys = {
        s: (max(stage_loads(s, layers, first, last)), sum(v * v for v in stage_loads(s, layers, first, last)))
        for s in all_splits(len(layers), pp_size)
    }
    assert keys[split] == min(keys.values())


@given(small, st.integers(1, 3), st.integers(0, 12), st.integers(0, 12), st.integers(20, 60))
def test_split_by_memory_has_the_largest_smallest_capacity(
    layers: list[int], pp_size: int, first: int, last: int, memory: int
) -> None:
    def capacity(split: tuple[int, ...]) -> int:
        free = [memory - load for load in stage_loads(split, layers, first, last)]
        return min(f * 4 // n if f >= 0 else -1 for f, n in zip(free, split))  # a token takes 0.25 a layer

    best = max(capacity(s) for s in all_splits(len(layers), pp_size))
    weights = [float(c) for c in layers]
    if best < 0:
        with pytest.raises(ScenarioError, match=f"fit in no way into {pp_size} stages of {memory}"):
            partition_by_memory(float(memory), weights, 0.25, pp_size, float(first), float(last))
        return
    split = partition_by_memory(float(memory), weights, 0.25, pp_size, float(first), float(last))
    assert capacity(split) == best


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(61, 4, (15, 15, 15, 16)), (94, 8, (11, 11, 12, 12, 12, 12, 12, 12)), (4, 4, (1, 1, 1, 1)), (5, 1, (5,))],
)
def test_equal_layers_are_split_evenly_with_the_remainder_last(
    layers: int, stages: int, expected: tuple[int, ...]
) -> None:
    assert even_partition(layers, stages) == expected
    assert partition_by_cost([1.0] * layers, stages) == expected
    assert layer_offsets(expected) == tuple(sum(expected[:i]) for i in range(stages))


def test_b109_remainder_is_spread_so_that_stages_differ_by_at_most_one_layer() -> None:
    for layers in range(8, 130):
        for stages in range(1, 9):
            split = even_partition(layers, stages)
            assert sum(split) == layers
            assert max(split) - min(split) <= 1
            assert list(split) == sorted(split)


def test_a_partition_given_by_hand_is_checked() -> None:
    check_partition(parse_partition("15,15,15,16"), 61, 4)
    for text, layers, stages, message in (
        ("15,15,15,15", 61, 4, "15,15,15,15 sums to 60, but there are 61 layers .15,15,15,16"),
        ("30,31", 61, 4, "30,31 has 2 entries for 4 stages"),
        ("0,20,20,21", 61, 4, "gives stage 0 0 layers"),
        ("15,x", 61, 2, "must be numbers with commas between, got '15,x'"),
    ):
        with pytest.raises(ScenarioError, match=f"model.layer_partition: .*{message}"):
            check_partition(parse_partition(text), layers, stages)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ScenarioError, match="9 stages cannot be cut from 8 layers"):
        partition_by_cost([1.0] * 8, 9)
    with pytest.raises(ScenarioError, match="9 stages cannot be cut from 8 layers"):
        partition_by_memory(100.0, [1.0] * 8, 0.1, 9)
