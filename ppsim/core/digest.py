"""Stable hashes of state and decisions: the same bytes in any process, under any PYTHONHASHSEED.

What is hashed must have a canonical ``repr``: tuples, strings, integers, booleans, None and enum values only.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from typing import TypeAlias

Names: TypeAlias = tuple[str, ...]


def digest(*parts: object) -> str:
    """Sixteen hex digits over the canonical text of ``parts``."""
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()


@lru_cache(maxsize=256)
def state_digest(
    waiting: Names, grammar: Names, role: tuple[Names, ...], running: Names, is_full: bool, *numbers: object
) -> str:
    """Digest of the replicated state behind a decision: queues, a slot's running set and its flag, then numbers.

    The ranks of a run come to the same state, and an idle slot to that of the slot before. So the latest digests are
    remembered: where all ranks live in one process, each is made once.
    """
    return digest(list(waiting), list(grammar), role, list(running), is_full, *numbers)
