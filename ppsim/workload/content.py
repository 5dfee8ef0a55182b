"""Token content without text: a prompt is a sequence of named blocks, and equal names are equal tokens.

Traces publish no text, only one id per block of the prompt (Mooncake: 512 tokens, Qin et al., FAST 2025). The token
at ``offset`` of block ``h`` is therefore a pure function of (h, offset): a 32-bit mix, reduced to the vocabulary. It
depends on no seed, no order and no other request, so the same id is the same content in every run and on any machine.

Two prompts must share a prefix exactly as far as their leading ids are equal. A mix alone would not do: among the
780 requests of the Mooncake excerpt that differ from their second block on, some pair would draw the same first token
by chance. So the first token of a block is its id counted round the vocabulary, and the second one adds the number of
rounds:

    ids that differ by less than the usable vocabulary     the prefix ends exactly at the block's start
    ids that meet after whole rounds                       it may end one token later (and no more than one, as long
                                                           as ids are below the square of the usable vocabulary)

A request's own content, which nobody shares, has a negative id; ids of traces and scripts are never negative.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from struct import pack
from typing import TYPE_CHECKING

from ppsim.core.tokens import TokenBytes
from ppsim.later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np = later("numpy")

FEW_TOKENS = 1024
"""Of a prompt: so many are made without numpy where nothing has loaded it yet; the tokens are the same."""

MASK_32, MASK_64 = 2**32 - 1, 2**64 - 1

NUM_SPECIAL_IDS = 4
"""Token ids 0..3 are left to padding, begin, end and unknown, unless the vocabulary is smaller than twice that."""


def own_block(index: int) -> int:
    """Id of the block that only request number ``index`` (from 0) has."""
    return -1 - index


def prompt_tokens(block_ids: Sequence[int], block_tokens: int, length: int, vocab_size: int, own_id: int) -> TokenBytes:
    """``length`` tokens: the named blocks of ``block_tokens`` each, cut or continued with block ``own_id``.

    Ids must lie in [-2**63, 2**63), ``vocab_size`` in [1, 2**32).
    """
    num_named = min(len(block_ids), -(-length // block_tokens))
    named = block_bytes(block_ids[:num_named], min(block_tokens, length), vocab_size)[: 4 * length]
    if len(named) == 4 * length:
        return named
    return named + block_bytes([own_id], length - len(named) // 4, vocab_size)


def block_bytes(block_ids: Sequence[int], num_tokens: int, vocab_size: int) -> TokenBytes:
    """The first ``num_tokens`` (at least 1) tokens of each block, one block after the other."""
    if len(block_ids) * num_tokens <= FEW_TOKENS and "numpy" not in sys.modules:
        tokens = [token for block in block_ids for token in block_row(block, num_tokens, vocab_size)]
        return pack(f"<{len(tokens)}I", *tokens)
    return block_rows(block_ids, num_tokens, vocab_size).tobytes()


def block_row(block_id: int, num_tokens: int, vocab_size: int) -> list[int]:
    """A row of ``block_rows`` by Python's own integers: loading numpy takes longer than a few short prompts do."""
    lowest = NUM_SPECIAL_IDS if vocab_size >= 2 * NUM_SPECIAL_IDS else 0
    usable = vocab_size - lowest
    place, rounds = block_id % usable, block_id // usable
    row = [mixed(block_id, offset) % usable for offset in range(num_tokens)]
    row[0] = place
    if num_tokens > 1:
        row[1] = (mixed(place, 1) % usable + rounds % usable) % usable
    return [lowest + token for token in row]


def mixed(block_id: int, offset: int) -> int:
    """``mix`` of one id and one offset."""
    key = block_id & MASK_64
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) & MASK_64
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) & MASK_64
    cell = ((key >> 32) + offset * 0x9E3779B1) & MASK_32
    cell = ((cell ^ cell >> 16) * 0x85EBCA6B) & MASK_32
    cell = ((cell ^ cell >> 13) * 0xC2B2AE35) & MASK_32
    return cell ^ cell >> 16


def block_rows(block_ids: Sequence[int], num_tokens: int, vocab_size: int) -> npt.NDArray[np.uint32]:
    """The first ``num_tokens`` (at least 1) tokens of each block: shape [len(block_ids), num_tokens], little-endian."""
    lowest = NUM_SPECIAL_IDS if vocab_size >= 2 * NUM_SPECIAL_IDS else 0
    usable = vocab_size - lowest
    ids = np.asarray(block_ids, dtype=np.int64).reshape(-1, 1)
    rows = mix(ids, np.arange(num_tokens, dtype=np.uint32))
    rows %= np.uint32(usable)
    place = ids % usable  # of the sign of usable, also for a negative id
    rows[:, :1] = place
    if num_tokens > 1:
        anchor = mix(place, np.ones(1, dtype=np.uint32)) % np.uint32(usable)
        rows[:, 1:2] = (anchor + ids // usable % usable) % usable
    rows += np.uint32(lowest)
    return rows.astype("<u4", copy=False)


def mix(ids: npt.NDArray[np.int64], offsets: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A 32-bit mix of (id, offset), by broadcasting: xor and multiply until every input bit reaches every output bit.

    The constants are those of two published finalisers: SplitMix64 for the id, MurmurHash3's fmix32 for the sum.
    """
    keys = ids.astype(np.uint64)
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    cells = (keys >> np.uint64(32)).astype(np.uint32) + offsets * np.uint32(0x9E3779B1)
    cells ^= cells >> np.uint32(16)
    cells *= np.uint32(0x85EBCA6B)
    cells ^= cells >> np.uint32(13)
    cells *= np.uint32(0xC2B2AE35)
    cells ^= cells >> np.uint32(16)
    return cells
