"""Invariant 64: a page is not reused while a launched batch of its former owner is in flight.

Every launch claims the pages of its requests. A page may have several owners, for a cached prefix belongs to all that
stand on it; what must not happen is that a page which one request holds alone lies in a launched, unharvested batch of
another one.

A request's pages are looked at once and not in each of its launches, or a long prompt would cost its square: as long as
its list of pages only grows, a later launch claims what has been added and moves the time of the claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby, repeat

from ppsim.check.observers import Seat
from ppsim.check.rules import fail


@dataclass(slots=True, eq=False)
class Claim:
    """One life of a request on one rank: it has used ``pages`` in the launch of ``iteration``, and maybe before."""

    rid: str
    iteration: int
    live: list[int]  # the request's own list: another list is another life
    pages: list[int] = field(default_factory=list)
    is_swapped: bool = False  # some of its pages were exchanged for those of a duplicate


class PageClaims:
    """Who has used each page of each rank."""

    def __init__(self, launched: Mapping[tuple[int, int], tuple[int, tuple[str, ...]]]) -> None:
        self.launched = launched  # (rank, slot) -> launch iteration and requests of the batch in it
        self.claims: dict[tuple[int, str], Claim] = {}  # (rank, rid) -> its present life
        self.holders: dict[int, dict[int, tuple[Claim, ...]]] = {}  # rank -> page -> who has claimed it

    def claim(self, r: Seat, rid: str, pages: list[int], iteration: int) -> None:
        """A launch uses these pages. Raises InvariantViolation for one that another request in flight still uses."""
        claim = self._present(r, rid, pages, iteration)
        if len(claim.pages) == len(pages):
            claim.iteration = iteration
            return
        holders, pool = self.holders.setdefault(r.rank_id, {}), r.rank.scheduler.kv.pool
        new = pages[len(claim.pages) :]
        mine: tuple[Claim, ...] = (claim,)
        begin = 0
        for found, same in groupby(list(map(holders.get, new))):  # neighbouring pages have the same holders
            begin, run = begin + (length := len(list(same))), new[begin : begin + length]
            others = [c for c in found or () if c is not claim]
            busy = [c for c in others if self._in_flight(r, c)]
            guilty = next((c for c in busy if c.rid != rid), None)
            page = pool.first_held_once(run) if guilty is not None else None
            if guilty is not None and page is not None:
                text = f"page {page} goes to {rid} while {guilty.rid} of iteration {guilty.iteration} uses it"
                fail("INV-64", r, "", text)
            after = (*(c for c in others if c in busy or self._lives(r, c)), claim) if others else mine
            holders.update(zip(run, repeat(after)))
        claim.pages += new
        claim.iteration = iteration

    def given_up(self, rank: int, pages: list[int]) -> None:
        """A stash has exchanged these pages for others."""
        holders = self.holders.get(rank, {})
        for page in pages:
            for claim in holders.pop(page, ()):
                claim.is_swapped = True

    def _present(self, r: Seat, rid: str, pages: list[int], iteration: int) -> Claim:
        """The claim that this launch continues, with those of its pages that are still the same; or a new one."""
        key = (r.rank_id, rid)
        claim = self.claims.get(key)
        if claim is not None and claim.live is pages and len(claim.pages) <= len(pages):
            if not claim.is_swapped:
                return claim
            claim.is_swapped = False
            same = common_length(claim.pages, pages)
            holders = self.holders.get(r.rank_id, {})
            if not any(claim in holders.get(page, ()) for page in claim.pages[same:]):
                del claim.pages[same:]
                return claim
        fresh = self.claims[key] = Claim(rid, iteration, pages)
        return fresh

    def _in_flight(self, r: Seat, claim: Claim) -> bool:
        """Whether the launch that a claim is of has not been harvested."""
        slot = claim.iteration % len(r.rank.scheduler.slots)
        launched = self.launched.get((r.rank_id, slot))
        return launched is not None and launched[0] == claim.iteration and claim.rid in launched[1]

    def _lives(self, r: Seat, claim: Claim) -> bool:
        """Whether a later launch may continue it."""
        return self.claims.get((r.rank_id, claim.rid)) is claim and claim.rid in r.rank.scheduler.requests


def common_length(a: list[int], b: list[int]) -> int:
    """Leading elements in which two lists agree, by halving: whole slices are compared at once."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
