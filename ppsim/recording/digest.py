"""Digests of what was decided, and of nothing else: no time, no address, no rank number.

    record digest    blake2b, 8 bytes, of the record's canonical text
    chain of a rank  c[i] = blake2b(c[i-1] + digest[i]); two ranks agree up to i exactly where c[i] is equal
    run digest       over all ranks' last decision and harvest chains, then all replies

Two runs with the same run digest made the same decisions on every rank, delivered the same tokens and told the client
the same. Ranks in lockstep have equal chains, so one look at the last ones says whether the replicas agreed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Generic, TypeVar

from ppsim.core.effects import Decision, Harvest
from ppsim.recording.codec import decision_text, harvest_text, reply_text
from ppsim.recording.record import Recording

SIZE = 8
START = bytes(SIZE)

T = TypeVar("T", Decision, Harvest)


def decision_digest(decision: Decision) -> bytes:
    """Eight bytes over the canonical text of a decision."""
    return blake2b(f"[{decision_text(decision)}]".encode("ascii"), digest_size=SIZE).digest()


def harvest_digest(harvest: Harvest) -> bytes:
    """Likewise of a harvest."""
    return blake2b(f"[{harvest_text(harvest)}]".encode("ascii"), digest_size=SIZE).digest()


def next_link(link: bytes, digest: bytes) -> bytes:
    """The running digest behind one record more."""
    return blake2b(link + digest, digest_size=SIZE).digest()


def chain(digests: Iterable[bytes]) -> Iterator[bytes]:
    """The running digest after each record."""
    link = START
    for digest in digests:
        link = next_link(link, digest)
        yield link


def rank_digests(lists: Sequence[Sequence[T]], digest_of: Callable[[T], bytes]) -> list[list[bytes]]:
    """Record digests of every rank; a record shared with the first rank is hashed once."""
    first = [digest_of(record) for record in lists[0]]
    every = [first]
    for records in lists[1:]:
        if records is lists[0]:  # one rank stands for all
            every.append(first)
            continue
        mine = []
        for place, record in enumerate(records):
            same = place < len(first) and record is lists[0][place]
            mine.append(first[place] if same else digest_of(record))
        every.append(mine)
    return every


class Chain(Generic[T]):
    """The running digest of records that are taken one batch after the other."""

    def __init__(self, digest_of: Callable[[T], bytes]) -> None:
        self.digest_of: Callable[[T], bytes] = digest_of
        self.link = START

    def take(self, records: Sequence[T]) -> None:
        for record in records:
            self.link = next_link(self.link, self.digest_of(record))


def decision_chains(recording: Recording) -> list[list[str]]:
    """For each rank the chain after each decision, in hex."""
    return [[link.hex() for link in chain(d)] for d in rank_digests(recording.decisions, decision_digest)]


def last_link(digests: Iterable[bytes]) -> bytes:
    link = START
    for link in chain(digests):  # noqa: B007  only the last one counts
        pass
    return link


def last_links(every: Sequence[list[bytes]]) -> list[bytes]:
    """Of each rank; ranks in lockstep have one chain."""
    first = last_link(every[0])
    return [first if digests is every[0] or digests == every[0] else last_link(digests) for digests in every]


@dataclass(frozen=True, slots=True)
class Digests:
    """``run`` is the digest of the whole run; ``decisions`` are the ranks' last links, equal where in lockstep."""

    run: str
    decisions: tuple[str, ...]


def digests_of(recording: Recording) -> Digests:
    """All digests of a run, 16 hex digits each."""
    total = blake2b(digest_size=SIZE)
    decisions = last_links(rank_digests(recording.decisions, decision_digest))
    harvests = last_links(rank_digests(recording.harvests, harvest_digest))
    for link in (*decisions, *harvests):
        total.update(link)
    for reply in recording.replies:
        total.update(reply_text(reply).encode("ascii"))
    return Digests(total.hexdigest(), tuple(link.hex() for link in decisions))


def run_digest(recording: Recording) -> str:
    """The digest of a whole run, 16 hex digits."""
    return digests_of(recording).run
