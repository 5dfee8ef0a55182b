"""The page pool against a naive model: a list of holders for each page and a list of free pages."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ppsim.core.errors import PoolError
from ppsim.core.memory.pool import BLOCK, MIN_RUN, Pool, integers, parts_of, run_of


class PoolAgainstHolderLists(RuleBasedStateMachine):
    """A grant is what one holder has; a page is free when no grant contains it."""

    @initialize(num_tokens=st.integers(1, 40) | st.integers(100, 200), page_size=st.sampled_from([1, 2, 3, 8]))
    def start(self, num_tokens: int, page_size: int) -> None:
        self.pool = Pool(num_tokens, page_size)
        self.num_pages = num_tokens // page_size
        self.page_size = page_size
        self.free = list(range(1, self.num_pages + 1))
        self.grants: list[list[int]] = []

    def held(self, page: int) -> int:
        return sum(grant.count(page) for grant in self.grants)

    @rule(num_pages=st.integers(0, 12) | st.integers(16, 60))  # also more than MIN_RUN, counted as runs
    def alloc(self, num_pages: int) -> None:
        if num_pages > len(self.free):
            with pytest.raises(PoolError, match=f"{num_pages} pages asked for, {len(self.free)} of {self.num_pages}"):
                self.pool.alloc(num_pages)
            return
        got = self.pool.alloc(num_pages)
        assert got == self.free[:num_pages], "from the head of the list"
        self.free = self.free[num_pages:]
        self.grants.append(got)

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        grant = data.draw(st.sampled_from(self.grants))
        part = grant[data.draw(st.integers(0, 2)) : data.draw(st.integers(0, len(grant)))]
        self.pool.share(part)
        self.grants.append(list(part))

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        grant = self.grants.pop(data.draw(st.integers(0, len(self.grants) - 1)))
        self.pool.release(grant)
        freed = [page for page in grant if self.held(page) == 0]
        # Pages of one token: first in, first out. Larger ones: to the front, in rising order (SGLang's two allocators).
        self.free = self.free + freed if self.page_size == 1 else sorted(freed) + self.free

    @precondition(lambda self: self.free)
    @rule(data=st.data())
    def a_free_page_can_be_neither_freed_nor_shared(self, data: st.DataObject) -> None:
        page = data.draw(st.sampled_from(self.free))
        with pytest.raises(PoolError, match=f"page {page} is freed twice"):
            self.pool.release([page])
        with pytest.raises(PoolError, match=f"page {page} is free and cannot be shared"):
            self.pool.share([page])

    @invariant()
    def every_page_is_free_once_or_held(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert self.pool.audit() == ""
        assert [self.pool.refs(p) for p in range(1, self.num_pages + 1)] == [
            self.held(p) for p in range(1, self.num_pages + 1)
        ]
        assert self.pool.num_free_pages == len(self.free)
        assert self.pool.free_tokens == len(self.free) * self.page_size
        assert self.pool.capacity_tokens == self.num_pages * self.page_size


TestPool = PoolAgainstHolderLists.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_pages_for_is_the_least_number_of_pages_that_holds_the_tokens(page_size: int) -> None:
    pool = Pool(160, page_size)
    for num_tokens in range(100):
        least = next(n for n in range(101) if n * page_size >= num_tokens)
        assert pool.pages_for(num_tokens) == least


def test_the_audit_finds_a_lost_page_and_a_doubled_one() -> None:
    pool = Pool(4, 1)
    pool.alloc(1)
    pool._refs[1] = 0  # nobody holds it and it is not free
    assert "3 free + 0 held" in pool.audit()
    pool._free.give_back([2])
    assert pool.audit() == "a page is in the free list twice"


def test_a_run_is_the_pages_in_their_order_and_only_that() -> None:
    assert run_of(list(range(5, 40))) == range(5, 40)
    assert run_of(list(range(5, 5 + MIN_RUN - 1))) is None, "too few to be worth it"
    assert run_of(list(range(39, 4, -1))) is None
    assert run_of([5, *range(7, 39), 6, 39]) is None, "right ends, right length, another order"
    assert run_of([]) is None


SEGMENTS = st.lists(st.tuples(st.integers(1, 400), st.integers(1, 90), st.sampled_from([1, 1, 2, -1])), max_size=6)


@given(SEGMENTS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_parts_of_a_list_are_its_pages_in_order_and_long_runs_are_ranges(
    segments: list[tuple[int, int, int]],
) -> None:
    """Pages that follow each other, every second one, or backwards; against a walk for the runs."""
    pages = [first + step * i for first, length, step in segments for i in range(length) if first + step * i > 0]
    parts = parts_of(pages)
    assert [page for part in parts for page in part] == pages
    assert all(len(part) >= MIN_RUN for part in parts if isinstance(part, range))
    begins = [i for i, page in enumerate(pages) if i == 0 or pages[i - 1] + 1 != page]
    lengths = [stop - start for start, stop in zip(begins, [*begins[1:], len(pages)])]
    due = sum(length - 2 * MIN_RUN for length in lengths if length > 2 * MIN_RUN)  # its two ends may be left over
    assert sum(len(part) for part in parts if isinstance(part, range)) >= due


def test_a_list_that_only_looks_like_a_run_costs_no_square() -> None:
    """The right ends at every place, and two pages exchanged in every sixteen: looked at a few times, not n / 16."""
    pages = [page ^ 3 if page % 16 in (5, 6) else page for page in range(16, 16 + 64 * MIN_RUN)]

    class Counted(list[int]):
        num_read = 0

        def __getitem__(self, at: object) -> object:  # type: ignore[override]
            found = super().__getitem__(at)  # type: ignore[index]
            Counted.num_read += len(found) if isinstance(found, list) else 1
            return found

    assert [page for part in parts_of(Counted(pages)) for page in part] == pages
    assert Counted.num_read < 6 * len(pages)


def test_integers_are_what_they_say_and_belong_to_who_asked() -> None:
    for start, stop in ((0, 0), (3, 5), (0, 40), (BLOCK - 30, BLOCK + 30), (BLOCK, 3 * BLOCK + 1), (7, 7)):
        assert integers(start, stop) == list(range(start, stop))
    mine = integers(0, BLOCK)
    mine[5] = 99
    assert integers(0, 40) == list(range(40)), "a list that is changed is nobody else's"


def test_a_run_with_a_free_page_in_it_is_refused_and_names_the_page() -> None:
    pool = Pool(100, 1)
    pages = pool.alloc(60)
    pool.release(pages[30:31])
    with pytest.raises(PoolError, match=f"page {pages[30]} is free and cannot be shared"):
        pool.share(pages)
    pool = Pool(100, 1)
    pages = pool.alloc(60)
    pool.release(pages[30:31])
    with pytest.raises(PoolError, match=f"page {pages[30]} is freed twice"):
        pool.release(pages)


def test_a_run_beyond_what_was_ever_taken_is_refused() -> None:
    pool = Pool(100, 1)
    pages = pool.alloc(20)
    with pytest.raises(PoolError, match=f"page {pages[-1] + 1} is free and cannot be shared"):
        pool.share([*pages, *range(pages[-1] + 1, 90)])


@pytest.mark.parametrize("shared", [range(20), range(10, 40), [0, 3, 39]])
def test_the_first_page_with_one_holder_is_found_in_runs_and_in_any_order(shared: Sequence[int]) -> None:
    """Against a walk; long runs and short or broken ones are looked up in different ways."""
    pool = Pool(40, 1)
    pages = pool.alloc(40)
    pool.share([pages[i] for i in shared])
    for asked in (pages, pages[5:30], pages[::-1], pages[10:20], [99]):
        assert pool.first_held_once(asked) == next((page for page in asked if pool.refs(page) == 1), None)
