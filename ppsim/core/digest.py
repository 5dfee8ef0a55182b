"""Stable hashes of state and decisions: the same bytes in any process, under any PYTHONHASHSEED.

What is hashed must have a canonical ``repr``: tuples, lists, strings, integers, booleans, None and enum values only.
"""

from __future__ import annotations

from hashlib import blake2b


def digest(*parts: object) -> str:
    """Sixteen hex digits over the canonical text of ``parts``."""
    return blake2b(repr(parts).encode(), digest_size=8).hexdigest()
