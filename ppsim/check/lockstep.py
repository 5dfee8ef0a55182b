"""Lockstep while the run goes on: every rank's decision and harvest against those of the rank that came there first.

The first difference is named with its invariant, its iteration and its field, long before it would become a shape
error or a hang (bugs.md B118).
"""

from __future__ import annotations

from typing import TypeVar

from ppsim.core.effects import Decision, Harvest
from ppsim.core.errors import InvariantViolation

T = TypeVar("T", Decision, Harvest)

DECISION_INVARIANTS = (
    ("mode", "INV-09"),
    ("retracted", "INV-18"),  # before what follows from it
    ("pieces", "INV-10"),
    ("chunked_rid", "INV-13"),
    ("state_digest", "INV-14"),
)
HARVEST_INVARIANTS = (
    ("harvested", "INV-05"),
    ("delivered", "INV-41"),
    ("token_ids", "INV-41"),
    ("finished", "INV-42"),
    ("free_tokens", "INV-23"),
    ("evictable_tokens", "INV-23"),
)


class Lockstep:
    """Keeps one decision and one harvest per iteration until all ranks have passed it."""

    def __init__(self, num_ranks: int, *, audited: bool = False) -> None:
        self.num_ranks = num_ranks
        # The audit compares the state part by part and names the one that differs; here only its digest is known.
        self.decision_table = tuple(row for row in DECISION_INVARIANTS if not (audited and row[0] == "state_digest"))
        self.decisions: dict[int, tuple[Decision, int]] = {}  # by iteration: the first one, ranks that were here
        self.harvests: dict[int, tuple[Harvest, int]] = {}

    def decision(self, rank: int, decision: Decision) -> None:
        """Raises InvariantViolation if an earlier rank decided otherwise in this iteration."""
        first = self._first(self.decisions, decision)
        if first is not None and first != decision:
            differ(first, decision, self.decision_table, rank)

    def harvest(self, rank: int, harvest: Harvest) -> None:
        """Raises InvariantViolation if an earlier rank harvested otherwise in this iteration."""
        first = self._first(self.harvests, harvest)
        if first is not None and first != harvest:
            differ(first, harvest, HARVEST_INVARIANTS, rank)

    def _first(self, seen: dict[int, tuple[T, int]], record: T) -> T | None:
        """What the first rank has shown in this iteration; None: this is the first one."""
        iteration = record.iteration
        known = seen.get(iteration)
        if known is None:
            if self.num_ranks > 1:
                seen[iteration] = (record, 1)
            return None
        first, num_before = known
        if num_before + 1 < self.num_ranks:
            seen[iteration] = (first, num_before + 1)
        else:
            del seen[iteration]
        return first


def differ(first: Decision | Harvest, mine: Decision | Harvest, table: tuple[tuple[str, str], ...], rank: int) -> None:
    for name, invariant in table:
        a, b = getattr(first, name), getattr(mine, name)
        if a != b:
            if name in ("mode", "pieces"):
                invariant = refined(name, first, mine)
            if name == "token_ids" and sorted(a) == sorted(b):
                invariant = "INV-34"  # the right tokens in the wrong rows
            raise InvariantViolation(
                invariant,
                rank,
                mine.iteration,
                mine.slot,
                row_rid(first, mine) if name == "token_ids" else guilty_rid(a, b),
                f"{name} differs between ranks: this rank has {b!r}, the first rank there had {a!r}",
            )


def refined(name: str, first: Decision | Harvest, mine: Decision | Harvest) -> str:
    """Which rule of a batch is broken: emptiness, prefill or decode, requests and their order, or ranges."""
    assert isinstance(first, Decision)
    assert isinstance(mine, Decision)
    if name == "mode":
        return "INV-09" if "empty" in (first.mode, mine.mode) else "INV-19"
    theirs, ours = rids(first.pieces), rids(mine.pieces)
    if theirs == ours:
        return "INV-11"
    return "INV-62" if sorted(theirs) == sorted(ours) else "INV-10"


def row_rid(first: Decision | Harvest, mine: Decision | Harvest) -> str:
    """The request whose token is the first that differs."""
    assert isinstance(first, Harvest)
    assert isinstance(mine, Harvest)
    rows = zip(mine.delivered, first.token_ids, mine.token_ids)
    return next((rid for (rid, _), a, b in rows if a != b), "")


def guilty_rid(a: object, b: object) -> str:
    """The first request that only one side has, for the report."""
    names_a, names_b = rids(a), rids(b)
    only = [rid for rid in names_a + names_b if (rid in names_a) != (rid in names_b)]
    return only[0] if only else ""


def rids(value: object) -> list[str]:
    if not isinstance(value, tuple):
        return []
    return [str(item[0]) if isinstance(item, tuple) else str(item) for item in value]
