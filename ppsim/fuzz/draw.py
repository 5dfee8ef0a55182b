"""Drawing, as generated experiments need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy


def number(least: int, most: int) -> SearchStrategy[int]:
    """Uniform, which ``integers`` is not: it prefers 0, and numbers of few bits."""
    return st.sampled_from(range(least, most + 1))


@contextmanager
def from_the_seed_alone() -> Iterator[None]:
    """Two habits of Hypothesis that an example must do without, here.

    It likes to draw constants that it finds in the source of loaded modules: what has been imported, or where ppsim is
    installed, would otherwise change what a seed generates. And it makes five of six examples from the one before, by
    copying a drawn value to a place of the same kind: ranks would see a fact in the same iteration nearly always, and
    a hundred examples would be worth twenty. Later versions of Hypothesis may do this elsewhere; tests compare
    campaigns of two processes with different imports, and count what is drawn twice.
    """
    replaced = [
        ("hypothesis.internal.conjecture.providers", "HypothesisProvider", "_maybe_draw_constant"),
        ("hypothesis.internal.conjecture.engine", "ConjectureRunner", "generate_mutations_from"),
    ]
    found = [(getattr(import_module(module), owner, None), method) for module, owner, method in replaced]
    before = [(owner, method, getattr(owner, method)) for owner, method in found if hasattr(owner, method)]
    for owner, method, _ in before:
        setattr(owner, method, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        for owner, method, original in before:
            setattr(owner, method, original)
