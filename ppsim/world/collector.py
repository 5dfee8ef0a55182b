"""The garbage collector of Python during a run: a run makes millions of small records and hardly a cycle.

Rule: it changes when memory is given back, and nothing else. Each walk over the young objects finds next to nothing,
and costs a tenth of a run where it is made every 700 objects, as is usual.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

EVERY = 100_000
"""New objects between two walks: some ten megabytes."""


@contextmanager
def seldom_collected() -> Iterator[None]:
    """The collector walks seldom inside, and as before behind it."""
    before = gc.get_threshold()
    gc.set_threshold(max(EVERY, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
