"""Token sequences as packed bytes: four little-endian bytes a token.

Prompts of a million tokens are compared, cut and hashed all the time. As ``bytes`` this runs at memory speed, needs
no hashing of Python integers, and is immutable, so a prompt can be shared between ranks and sent as it is.
Positions and lengths below count tokens, never bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from sys import byteorder
from typing import TypeAlias

TokenBytes: TypeAlias = bytes
WIDTH = 4


def pack(token_ids: Iterable[int]) -> TokenBytes:
    """Pack token ids (each 0 <= id < 2**32) into bytes. Raises OverflowError for an id that does not fit."""
    cells = array("I", token_ids)
    if byteorder != "little":
        cells.byteswap()
    return cells.tobytes()


def unpack(tokens: TokenBytes) -> list[int]:
    """The token ids as a list of integers."""
    cells = array("I")
    cells.frombytes(tokens)
    if byteorder != "little":
        cells.byteswap()
    return cells.tolist()


def count(tokens: TokenBytes) -> int:
    """Number of tokens."""
    return len(tokens) // WIDTH


def cut(tokens: TokenBytes, start: int, stop: int) -> TokenBytes:
    """Tokens [start, stop)."""
    return tokens[start * WIDTH : stop * WIDTH]


def common_prefix(a: TokenBytes, b: TokenBytes) -> int:
    """Number of leading tokens that two sequences share, by halving: each comparison is one memcmp."""
    limit = min(len(a), len(b)) // WIDTH
    if a[: limit * WIDTH] == b[: limit * WIDTH]:
        return limit
    low, high = 0, limit  # [0, low) is equal, [0, high) is not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low * WIDTH : middle * WIDTH] == b[low * WIDTH : middle * WIDTH]:
            low = middle
        else:
            high = middle
    return low
