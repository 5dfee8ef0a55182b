"""The order in which waiting requests are tried (protocol.md 4.2 step 5; docs/decisions for what that leaves open)."""

from __future__ import annotations

import pytest

from ppsim.core.config import RankConfig
from ppsim.core.messages import NewRequest
from ppsim.core.parts import RIGHT
from ppsim.core.policy import Policy
from ppsim.core.schedule.order import waiting_order
from ppsim.core.schedule.request import Request
from ppsim.core.tokens import pack


def queue(*prompts: list[int]) -> list[Request]:
    return [Request(NewRequest(f"R{i}", pack(prompt), 1)) for i, prompt in enumerate(prompts)]


def order(
    waiting: list[Request], *cached: list[int], policy: str = "lpm", radix: bool = True, page: int = 1
) -> list[str]:
    """Names in the order of the policy, with these sequences in the cache."""
    config = RankConfig(0, 1, schedule_policy=policy, enable_radix_cache=radix, page_size=page)
    kv = RIGHT.kv_cache(config, 4000, 0, Policy())
    for tokens in cached:
        pages = kv.pool.alloc(len(tokens) // page)
        kv.tree.insert(pack(tokens), pages)
        kv.pool.release(pages)
    return [r.rid for r in waiting_order(config, waiting, kv)]


def test_the_longest_cached_prefix_goes_first_and_equal_ones_keep_their_order() -> None:
    waiting = queue([1, 2, 3, 9], [7, 7], [1, 2, 3, 4, 5, 9], [8, 8], [1, 5])
    assert order(waiting, [1, 2, 3, 4, 5]) == ["R2", "R0", "R4", "R1", "R3"]


@pytest.mark.parametrize("changes", [{"policy": "fcfs"}, {"radix": False}])
def test_without_the_cache_or_the_policy_the_queue_keeps_its_order(changes: dict[str, object]) -> None:
    waiting = queue([7, 7], [1, 2, 3, 9])
    assert order(waiting, [1, 2, 3], **changes) == ["R0", "R1"]  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "sorts"), [(128, True), (129, False)])
def test_a_queue_of_more_than_128_is_not_sorted(length: int, sorts: bool) -> None:
    waiting = queue(*([100 + i] for i in range(length - 1)), [1, 2, 9])
    assert (order(waiting, [1, 2])[0] == f"R{length - 1}") == sorts


@pytest.mark.parametrize(
    ("shared", "cached", "expected"),
    [
        (31, 0, ["R0", "R1", "R2"]),  # too little in common
        (32, 0, ["R0", "R2", "R1"]),  # R1 waits behind everybody, also behind R2 that hits nothing
        (32, 16, ["R0", "R2", "R1"]),  # it hits 16 itself, and would come second
        (40, 32, ["R0", "R2", "R1"]),  # 32 is not more than 32
        (40, 33, ["R0", "R1", "R2"]),  # it hits enough to be worth running now
    ],
)
def test_who_shares_32_tokens_with_an_earlier_one_and_hits_no_more_itself_goes_last(
    shared: int, cached: int, expected: list[str]
) -> None:
    head = list(range(100, 100 + shared))
    waiting = queue([*head, 1, 1], [*head, 2, 2], [5] * 40)
    assert order(waiting, head[:cached]) == expected


def test_two_equal_prompts_of_just_32_tokens_share_all_of_them() -> None:
    assert order(queue([5] * 32, [5] * 32, [6] * 3)) == ["R0", "R2", "R1"]
    assert order(queue([5] * 31, [5] * 31, [6] * 3)) == ["R0", "R1", "R2"]


def test_the_matches_made_for_sorting_refresh_and_split() -> None:
    config = RankConfig(0, 1, schedule_policy="lpm")
    kv = RIGHT.kv_cache(config, 100, 0, Policy())
    for tokens in ([1, 1, 1, 1], [2, 2, 2, 2]):
        pages = kv.pool.alloc(4)
        kv.tree.insert(pack(tokens), pages)
        kv.pool.release(pages)
    waiting_order(config, queue([1, 1, 9, 9]), kv)
    assert kv.tree.num_nodes == 4, "root, both sequences, and the upper half of the first"
    assert kv.tree.evict(1) != [1], "the older sequence was looked at last"
