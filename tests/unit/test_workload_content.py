"""Law: equal block ids are equal tokens, different ids part at the first token, and nothing else matters."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from ppsim.core.tokens import common_prefix, count, unpack
from ppsim.workload.content import FEW_TOKENS, block_row, block_rows, own_block, prompt_tokens

MASK32, MASK64 = 2**32 - 1, 2**64 - 1


def token_by_hand(block: int, offset: int, vocab_size: int) -> int:
    """The documented content, one token at a time and in Python's own integers."""
    lowest = 4 if vocab_size >= 8 else 0
    usable = vocab_size - lowest
    if offset == 0:
        return lowest + block % usable
    if offset == 1:
        return lowest + (mixed_by_hand(block % usable, 1) % usable + block // usable) % usable
    return lowest + mixed_by_hand(block, offset) % usable


def mixed_by_hand(block: int, offset: int) -> int:
    key = block & MASK64
    key = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    key = (key ^ key >> 27) * 0x94D049BB133111EB & MASK64
    cell = ((key >> 32) + offset * 0x9E3779B1) & MASK32
    cell = (cell ^ cell >> 16) * 0x85EBCA6B & MASK32
    cell = (cell ^ cell >> 13) * 0xC2B2AE35 & MASK32
    return cell ^ cell >> 16


blocks = st.integers(-(2**63), 2**63 - 1)
vocabularies = st.sampled_from([1, 2, 7, 8, 9, 32, 1000, 32000, 128256, 2**32 - 1])


@given(block=blocks, num_tokens=st.integers(1, 40), vocab_size=vocabularies)
def test_the_vectorised_content_is_the_documented_one(block: int, num_tokens: int, vocab_size: int) -> None:
    came = block_rows([block], num_tokens, vocab_size)[0].tolist()
    assert came == [token_by_hand(block, offset, vocab_size) for offset in range(num_tokens)]


@pytest.mark.parametrize("vocab_size", [8, 32, 151936])
def test_tokens_stay_in_the_vocabulary_and_off_the_special_ids(vocab_size: int) -> None:
    tokens = block_rows(range(-50, 50), 300, vocab_size)
    assert tokens.min() >= 4
    assert tokens.max() < vocab_size


def test_a_vocabulary_too_small_for_special_ids_is_used_whole() -> None:
    assert set(block_rows(range(20), 50, 7).reshape(-1).tolist()) == set(range(7))


def test_content_is_spread_evenly_over_the_vocabulary() -> None:
    tokens = block_rows(range(200), 512, 1004)[:, 2:].reshape(-1)
    histogram = np.bincount(tokens - 4, minlength=1000)
    assert stats.chisquare(histogram).pvalue > 1e-3


def test_neighbouring_blocks_and_offsets_do_not_repeat_each_other() -> None:
    rows = block_rows(range(300), 512, 2**32 - 1)
    pairs = Counter(rows.reshape(-1).tolist())
    expected_repeats = rows.size**2 / 2 / 2**32  # birthday: random tokens would repeat about 2.7 times
    assert sum(n - 1 for n in pairs.values()) < 10 * expected_repeats


ids = st.lists(st.integers(0, 60), max_size=4)


@settings(max_examples=300)
@given(a=ids, b=ids, block_tokens=st.integers(2, 6), cut=st.tuples(st.integers(1, 30), st.integers(1, 30)))
def test_two_prompts_share_exactly_their_equal_leading_blocks(
    a: list[int], b: list[int], block_tokens: int, cut: tuple[int, int]
) -> None:
    first = prompt_tokens(a, block_tokens, cut[0], 128256, own_block(0))
    second = prompt_tokens(b, block_tokens, cut[1], 128256, own_block(1))
    equal = 0
    while equal < min(len(a), len(b)) and a[equal] == b[equal]:
        equal += 1
    assert (count(first), count(second)) == cut
    assert common_prefix(first, second) == min(equal * block_tokens, *cut)


@given(a=st.integers(-4000, 4000), b=st.integers(-4000, 4000))
def test_with_more_blocks_than_tokens_a_prefix_ends_at_most_one_token_late(a: int, b: int) -> None:
    first, second = (prompt_tokens([7, block], 8, 16, 96, own_block(0)) for block in (a, b))
    shared = common_prefix(first, second)
    assert shared == 16 if a == b else shared == 8 + ((a - b) % 92 == 0)


def test_a_prompt_does_not_depend_on_how_much_of_a_block_is_asked_for() -> None:
    long, short = (unpack(prompt_tokens([3, 9], 512, length, 128256, own_block(4))) for length in (1500, 700))
    assert long[:700] == short
    assert long[1024:] == unpack(prompt_tokens((), 512, 476, 128256, own_block(4)))


def test_a_huge_block_is_not_built_for_a_short_prompt() -> None:
    assert count(prompt_tokens([1], 2**40, 10, 1000, own_block(0))) == 10


@settings(max_examples=200, deadline=None)
@given(block=blocks, num_tokens=st.integers(1, 40), vocab_size=st.one_of(st.integers(1, 12), st.integers(1, 2**32 - 1)))
def test_a_short_row_is_the_same_without_numpy(block: int, num_tokens: int, vocab_size: int) -> None:
    row = block_row(block, num_tokens, vocab_size)
    assert row == [token_by_hand(block, offset, vocab_size) for offset in range(num_tokens)]
    assert row == block_rows([block], num_tokens, vocab_size)[0].tolist()


@pytest.mark.parametrize("length", [1, 7, 700, FEW_TOKENS, FEW_TOKENS + 1, 3000])
def test_a_prompt_is_the_same_whether_numpy_is_loaded_or_not(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_numpy = prompt_tokens((5, 9), 300, length, 32000, own_block(2))
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "numpy")
        assert prompt_tokens((5, 9), 300, length, 32000, own_block(2)) == with_numpy
