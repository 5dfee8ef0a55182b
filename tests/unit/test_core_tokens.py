"""Packed token sequences against lists of integers, and the common prefix against a loop."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ppsim.core.tokens import common_prefix, count, cut, pack, unpack

TOKENS = st.lists(st.integers(0, 3) | st.integers(0, 2**32 - 1), max_size=20)


def shared(a: list[int], b: list[int]) -> int:
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


@settings(max_examples=100, deadline=None, derandomize=True)
@given(TOKENS, TOKENS, st.integers(0, 20), st.integers(0, 20))
def test_packed_tokens_behave_like_lists(head: list[int], tail: list[int], start: int, stop: int) -> None:
    packed = pack(head)
    assert unpack(packed) == head
    assert count(packed) == len(head)
    assert unpack(cut(packed, start, stop)) == head[start:stop]
    assert packed + pack(tail) == pack(head + tail)
    assert common_prefix(packed, pack(tail)) == shared(head, tail)
    longer = [*head, 1, *tail]
    assert common_prefix(pack(head + tail), pack(longer)) == shared(head + tail, longer)


def test_a_token_takes_four_little_endian_bytes() -> None:
    assert pack([1, 256, 2**31]) == bytes([1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 128])
    with pytest.raises(OverflowError):
        pack([2**32])


@pytest.mark.parametrize("length", [1, 2, 3, 1000, 65537])
def test_the_common_prefix_is_found_at_any_place_of_a_long_sequence(length: int) -> None:
    tokens = list(range(length))
    for place in {0, 1, length // 2, length - 1} & set(range(length)):
        other = [*tokens[:place], 2**32 - 1, *tokens[place + 1 :]]
        assert common_prefix(pack(tokens), pack(other)) == place
    assert common_prefix(pack(tokens), pack([*tokens, 7])) == length
