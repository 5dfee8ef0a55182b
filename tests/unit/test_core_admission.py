"""The budgets of a prefill batch against the table of protocol.md 4.3, worked by hand."""

from __future__ import annotations

import dataclasses

import pytest

from ppsim.core.config import RankConfig
from ppsim.core.memory.node import Match
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.messages import NewRequest
from ppsim.core.policy import Policy
from ppsim.core.schedule.admission import Growth, PrefillAdder, Result, expected_growth, full_growth
from ppsim.core.schedule.ratio import NewTokenRatio
from ppsim.core.schedule.request import Request
from ppsim.core.tokens import pack

PLAIN = RankConfig(0, 1, chunked_prefill_size=None)


def config(**changes: object) -> RankConfig:
    return dataclasses.replace(PLAIN, **changes)  # type: ignore[arg-type]


def request(prompt: int, max_new: int, rid: str = "R") -> Request:
    return Request(NewRequest(rid, pack([7] * prompt), max_new))


class Table:
    """An adder over a pool of its own; ``cached`` tokens of 7 7 7 ... are in the tree."""

    def __init__(self, conf: RankConfig, tokens: int, *, cached: int = 0, growth: int = 0, num_mixed: int = 0) -> None:
        self.pool = Pool(tokens, conf.page_size)
        self.tree = RadixCache(self.pool, Policy())
        if cached:
            pages = self.pool.alloc(cached // conf.page_size)
            self.tree.insert(pack([7] * cached), pages)
            self.pool.release(pages)
        self.adder = PrefillAdder(
            conf, self.pool, self.tree, Growth(growth, growth), conf.chunked_prefill_size, num_mixed
        )

    def add(self, prompt: int, max_new: int, *, use_cache: bool = False) -> Result:
        new = request(prompt, max_new)
        found = self.tree.match(new.tokens(prompt - 1)) if use_cache else Match(0, [], self.tree.root)
        return self.adder.add(new, found)

    @property
    def taken(self) -> list[tuple[int, bool]]:
        return [(item.new_tokens, item.is_last_chunk) for item in self.adder.admitted]


def test_an_admitted_request_is_charged_its_input_its_output_and_a_page() -> None:
    t = Table(config(page_size=4, max_prefill_tokens=100, chunked_prefill_size=64), 400)
    assert t.add(10, 5) is Result.CONTINUE  # ext = 12
    a = t.adder
    assert (a.rem_input, a.rem_chunk, a.total_offset, a.cur_offset) == (88, 52, 12 + 5 + 4, 12 + 4)
    assert a.rem_total == 400 - 21


def test_a_cut_prompt_is_charged_no_output() -> None:
    t = Table(config(page_size=4, chunked_prefill_size=8), 400)
    assert t.add(100, 50) is Result.OTHER  # the chunk budget is used up
    assert t.taken == [(8, False)]
    assert t.adder.total_offset == 8 + 4


@pytest.mark.parametrize(("capacity", "answer"), [(16, Result.NO_TOKEN), (17, Result.NO_TOKEN), (18, Result.CONTINUE)])
def test_the_whole_need_must_be_less_than_what_is_left(capacity: int, answer: Result) -> None:
    """10 + 6 + a page of 1 = 17 is refused at 17; at 18 one token stays over."""
    t = Table(PLAIN, capacity)
    assert t.add(10, 6) is answer
    assert bool(t.taken) == (answer is Result.CONTINUE)


def test_expected_output_is_clipped() -> None:
    t = Table(config(clip_max_new_tokens=4), 16)
    assert t.add(10, 1000) is Result.CONTINUE
    assert t.adder.total_offset == 10 + 4 + 1


def test_without_chunking_the_first_request_is_taken_at_any_length_and_the_next_only_below_max_prefill() -> None:
    t = Table(config(max_prefill_tokens=30), 1000)
    assert t.add(25, 1) is Result.CONTINUE
    assert t.add(5, 1) is Result.OTHER  # 5 >= 30 - 25
    assert t.add(4, 1) is Result.CONTINUE
    assert Table(config(max_prefill_tokens=30), 1000).add(500, 1) is Result.OTHER


def test_with_chunking_the_rest_of_the_budget_goes_to_the_next_request() -> None:
    """bugs.md B103: 8192 / 508 + 7684 / 1316 instead of 8192 / 508 / 8192 / 808."""
    t = Table(config(chunked_prefill_size=8192), 100_000)
    long = request(8700, 1, "R1")
    long.kv_len = 8192
    assert t.adder.add_chunked(long)
    assert t.add(9000, 1) is Result.OTHER
    assert t.taken == [(508, True), (7684, False)]


@pytest.mark.parametrize(("page", "budget", "mixed", "expected"), [(4, 16, 0, 16), (4, 16, 1, 12), (4, 16, 13, None)])
def test_a_first_chunk_is_whole_pages(page: int, budget: int, mixed: int, expected: int | None) -> None:
    t = Table(config(page_size=page, chunked_prefill_size=budget), 1000, num_mixed=mixed)
    t.add(100, 1)
    assert t.add(100, 1) is Result.OTHER, "what is left of the budget is no whole page"
    assert t.taken == ([] if expected is None else [(expected, False)])


def test_prefill_max_requests_counts_the_continued_chunk_too() -> None:
    t = Table(config(chunked_prefill_size=64, prefill_max_requests=1), 1000)
    chunked = request(70, 1)
    chunked.kv_len = 64
    assert t.adder.add_chunked(chunked)
    assert t.add(3, 1) is Result.OTHER


def test_max_prefill_tokens_are_looked_at_before_the_prefix_is_locked() -> None:
    """Both budgets refuse it, the second only once the prefix is locked. OTHER, and the slot is not full for that."""
    t = Table(config(max_prefill_tokens=8), 40, cached=20)
    assert t.add(10, 1) is Result.OTHER  # taken; rem_input is used up
    assert t.taken == [(10, True)]
    assert t.adder.rem_total == 28
    assert t.add(28, 1, use_cache=True) is Result.OTHER
    assert t.tree.protected_tokens == 0


def test_locking_its_own_prefix_can_make_a_request_too_large() -> None:
    """20 free + 20 evictable; it needs 8 + 1 + 1 beside 20 cached tokens: 10 of 40, but then 10 of 20."""
    t = Table(PLAIN, 40, cached=20, growth=12)
    assert t.add(28, 1, use_cache=True) is Result.NO_TOKEN
    assert t.tree.protected_tokens == 0
    roomy = Table(PLAIN, 40, cached=20, growth=9)
    assert roomy.add(28, 1, use_cache=True) is Result.CONTINUE
    assert roomy.tree.protected_tokens == 20


def test_a_continued_chunk_takes_the_memory_that_is_left_and_no_page_floor() -> None:
    t = Table(config(page_size=4, chunked_prefill_size=16), 40, growth=30)
    chunked = request(100, 1)
    chunked.kv_len = 16
    chunked.pages = t.pool.alloc(4)  # 24 tokens are free, 30 are set aside: rem_total < 0, so the chunk budget counts
    assert t.adder.add_chunked(chunked)
    assert t.taken == [(16, False)]
    u = Table(config(page_size=4, chunked_prefill_size=16), 40, growth=21)
    chunked.pages = u.pool.alloc(4)
    assert u.adder.add_chunked(chunked)
    assert u.taken == [(3, False)]


@pytest.mark.parametrize(("growth", "taken"), [(Growth(20, 21), 3), (Growth(23, 24), 16), (Growth(21, 21), 3)])
def test_of_what_is_left_for_a_continued_chunk_whole_tokens_count(growth: Growth, taken: int) -> None:
    """24 free; growth 20.5: int(3.5) = 3. Growth 23.5: int(0.5) = 0 is nothing, so the whole chunk budget counts."""
    t = Table(config(page_size=4, chunked_prefill_size=16), 40)
    t.adder = PrefillAdder(t.adder.config, t.pool, t.tree, growth, 16, 0)
    chunked = request(100, 1)
    chunked.kv_len, chunked.pages = 16, t.pool.alloc(4)
    assert t.adder.add_chunked(chunked)
    assert t.taken == [(taken, False)]


@pytest.mark.parametrize(("num_mixed", "empty_pieces", "taken"), [(16, True, [0]), (20, True, [0]), (16, False, [])])
def test_a_chunk_whose_budget_the_decodes_have_is_launched_with_no_token(
    num_mixed: int, empty_pieces: bool, taken: list[int]
) -> None:
    """SGLang's rule 9b; mended, it waits."""
    t = Table(config(chunked_prefill_size=16, empty_chunk_pieces=empty_pieces), 400, num_mixed=num_mixed)
    chunked = request(100, 1)
    chunked.kv_len, chunked.pages = 16, t.pool.alloc(16)
    assert t.adder.add_chunked(chunked) == bool(taken)
    assert t.taken == [(tokens, False) for tokens in taken]


def test_a_chunk_that_cannot_get_one_token_is_parked() -> None:
    """bugs.md B100. The rest of its own last page counts as memory."""
    t = Table(config(page_size=4, chunked_prefill_size=16), 40)
    chunked = request(100, 1)
    chunked.kv_len, chunked.pages = 16, t.pool.alloc(10)[:4]
    assert not t.adder.add_chunked(chunked)
    chunked.kv_len = 14
    assert t.adder.add_chunked(chunked)
    assert t.taken == [(2, False)]


def test_growth_of_a_slot_is_what_its_requests_may_still_make_times_the_ratio() -> None:
    running = [request(5, 100), request(5, 7), request(5, 3)]
    running[1].output_ids = [1, 1]
    running[2].output_ids = [1, 1, 1]
    ratio = NewTokenRatio(PLAIN.init_new_token_ratio, PLAIN.min_new_token_ratio, 600)
    assert expected_growth(config(clip_max_new_tokens=50), ratio, running) == Growth(38, 39)  # 55 x 0.7 = 38.5
    assert expected_growth(config(clip_max_new_tokens=45), ratio, running) == Growth(35, 35)  # 50 x 0.7


def test_full_growth_is_counted_in_pages_up_to_the_token_before_the_last() -> None:
    pool = Pool(400, 4)
    holding = [request(5, 4), request(5, 5), request(8, 1)]
    for r, pages in zip(holding, (1, 1, 2), strict=True):
        r.pages = pool.alloc(pages)
    # 8 tokens: 2 pages, one more; 9 tokens: 3 pages, two more; 8 tokens: nothing more
    assert full_growth(pool, holding) == 3 * 4


def test_with_all_slots_reserved_a_cut_prompt_is_charged_all_that_it_will_need() -> None:
    t = Table(config(page_size=4, chunked_prefill_size=8, reserve_all_slots=True, clip_max_new_tokens=2), 400)
    assert t.add(100, 50) is Result.OTHER
    assert t.adder.total_offset == 8 + (92 + 50) + 4
