"""The slot ring against the table and the identities of protocol.md 0.2 and 1.4."""

from __future__ import annotations

import pytest

from ppsim.core.schedule.slots import SlotRing

TABLE = {
    (4, 0): [(0, 1, 0), (1, 2, 1), (2, 3, 2), (3, 0, 3)],
    (4, 2): [(0, 1, 4), (1, 2, 5), (2, 3, 0), (3, 4, 1), (4, 5, 2), (5, 0, 3)],
    (3, 1): [(0, 1, 3), (1, 2, 0), (2, 3, 1), (3, 0, 2)],
}


def addresses(ring: SlotRing, iteration: int) -> tuple[int, int, int]:
    return ring.current(iteration).index, ring.to_harvest(iteration).index, ring.to_release(iteration).index


@pytest.mark.parametrize(("size", "rows"), list(TABLE.items()))
def test_visited_harvested_and_released_slot_are_those_of_the_table(
    size: tuple[int, int], rows: list[tuple[int, int, int]]
) -> None:
    ring = SlotRing(*size)
    assert len(ring) == len(rows)
    for sweep in range(3):
        assert [addresses(ring, sweep * len(rows) + j) for j in range(len(rows))] == rows


@pytest.mark.parametrize("pp_size", range(1, 9))
@pytest.mark.parametrize("depth", range(4))
def test_a_slot_is_released_depth_visits_and_harvested_one_sweep_less_one_after_its_launch(
    pp_size: int, depth: int
) -> None:
    ring = SlotRing(pp_size, depth)
    for launched in range(2 * len(ring)):
        assert ring.to_release(launched + depth) is ring.current(launched)
        assert ring.to_harvest(launched + len(ring) - 1) is ring.current(launched)
        assert ring.current(launched + len(ring)) is ring.current(launched)


def test_the_ring_is_drained_when_nothing_is_in_flight() -> None:
    ring = SlotRing(2, 1)
    assert ring.drained
    ring.slots[2].in_flight = True
    assert not ring.drained
