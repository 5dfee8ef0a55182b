"""INV-78 for KV: the pages that a launch reads hold what earlier launches wrote for these very tokens.

A page is known by who wrote it last, and for which place of its prompt: KV depends on all tokens that come before it,
so what it holds are the writer's tokens up to the end of the page. It holds them until the next launch writes to it,
also where it went back to the pool meanwhile. Device work keeps the order of launches.

    a launch reads    the pages before its own tokens: each written at this place by a request with these tokens
    a launch writes   its own pages: none that another request has in its list for what was written there before

A page is looked at once for each list of pages, not in each launch, or a long prompt would cost its square: afterwards
nobody can write to it unseen. That the list itself is still the same is looked at in every launch where it is short,
and in one of many where it is long, so that this costs about ``LOOKS`` pages a launch.

What comes from elsewhere (the other server, host memory, the copy of a retracted decode request) is taken as it comes,
but what a request shares with the tree lies on the pages that the tree has for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat

from ppsim.check.observers import Seat
from ppsim.check.page_claims import common_length
from ppsim.core.errors import InvariantViolation
from ppsim.core.schedule.batch import KVRow, Piece
from ppsim.core.schedule.request import Request
from ppsim.core.tokens import common_prefix

LOOKS = 512  # pages of an unchanged list that are compared again, for each launch
MAX_SHARERS = 16  # of one writer, before those that have ended are left out


@dataclass(slots=True, eq=False)
class Writer:
    """One list of pages of a request on one rank. ``seen``: its leading pages as they were looked at or written."""

    request: Request
    live: list[int]
    seen: list[int] = field(default_factory=list)
    num_written: int = 0  # tokens
    num_launches: int = 0  # since the list was compared
    num_swaps: int = 0  # of the rank, when it was compared
    sharers: list[Writer] = field(default_factory=list)  # who reads pages that it has written


@dataclass(slots=True)
class Pages:
    """Of one rank: who has written each page, and for which place in its list."""

    held: dict[int, Writer] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    present: dict[str, Writer] = field(default_factory=dict)  # by request
    num_swaps: int = 0

    def is_held(self, page: int, writer: Writer, place: int) -> bool:
        """Whether it holds what this writer has put there: most decodes go on on a page of their own."""
        return self.held.get(page) is writer and self.places.get(page) == place

    def write(self, pages: list[int], first: int, writer: Writer) -> None:
        self.held.update(zip(pages, repeat(writer)))
        self.places.update(zip(pages, range(first, first + len(pages))))


class PageContents:
    """Of the ranks of one process."""

    def __init__(self) -> None:
        self.of: dict[int, Pages] = {}

    def exchanged(self, rank: int) -> None:
        """A stash has exchanged pages of somebody's list for those of a duplicate."""
        self._of(rank).num_swaps += 1

    def _of(self, rank: int) -> Pages:
        pages = self.of.get(rank)
        if pages is None:
            pages = self.of[rank] = Pages()
        return pages

    def ended(self, r: Seat, rids: Iterable[str]) -> None:
        """Requests that have ended on a rank, if they are not there again."""
        pages = self._of(r.rank_id)
        for rid in rids:
            if rid not in r.rank.scheduler.requests:
                pages.present.pop(rid, None)

    def launches(self, r: Seat, piece: Piece[KVRow]) -> None:
        """A launch reads the pages of [0, prefix_len) and writes those of its own tokens."""
        request = r.rank.scheduler.requests.get(piece.rid)
        if request is None:
            return
        pages, size = self._of(r.rank_id), r.rank.config.page_size
        start, stop = piece.prefix_len, piece.prefix_len + piece.new_tokens
        mine, first, last = piece.kv.pages, start // size, -(-stop // size)
        if len(mine) < last:
            raise self._violation(r, piece, f"its launch writes tokens up to {stop}, on {len(mine)} pages of {size}")
        writer = pages.present.get(piece.rid)
        if writer is None or writer.live is not mine:
            writer = pages.present[piece.rid] = Writer(request, mine)
            if r.rank.config.role == "decode":
                self._takes(pages, writer, -(-start // size), size)
        self._compare(pages, writer)
        if r.rank.scheduler.kv.tiers is not None:  # pages of the tree may have come from host memory for anybody
            shared = min(request.cached_len, start) // size
            if shared > len(writer.seen):
                self._stands_on(r, piece, request, shared)
            self._takes(pages, writer, shared, size)
        self._read(r, pages, writer, piece, start)
        written = mine[first:last]
        if len(written) != 1 or writer.sharers or not pages.is_held(written[0], writer, first):
            self._write(r, pages, writer, piece, written)
        writer.seen[first:] = written
        writer.num_written = stop

    def _stands_on(self, r: Seat, piece: Piece[KVRow], request: Request, num_pages: int) -> None:
        """What a request shares with the tree lies where the tree has it for these tokens."""
        node, path = request.last_node, list[int]()
        while node is not None:
            path = node.pages + path
            node = node.parent
        for place, (mine, its) in enumerate(zip(request.pages[:num_pages], path)):
            if mine != its:
                text = f"its launch reads page {mine} for its tokens from {place * r.rank.config.page_size} on, "
                raise self._violation(r, piece, text + f"which the cache has on page {its}")

    def _takes(self, pages: Pages, writer: Writer, num_pages: int, size: int) -> None:
        """So many leading pages of a list, as far as they were not looked at, hold what they should."""
        low = len(writer.seen)
        if low < num_pages:
            new = writer.live[low:num_pages]
            pages.write(new, low, writer)
            writer.seen += new
            writer.num_written = max(writer.num_written, num_pages * size)

    def _compare(self, pages: Pages, writer: Writer) -> None:
        """Forget what was seen of a list from the first page on that is another one now."""
        writer.num_launches += 1
        if writer.num_launches * LOOKS < len(writer.seen) and writer.num_swaps == pages.num_swaps:
            return
        writer.num_launches, writer.num_swaps = 0, pages.num_swaps
        if writer.live[: len(writer.seen)] != writer.seen:
            del writer.seen[common_length(writer.live, writer.seen) :]

    def _read(self, r: Seat, pages: Pages, writer: Writer, piece: Piece[KVRow], start: int) -> None:
        """What was not looked at yet of the pages before position ``start``."""
        size, low = r.rank.config.page_size, len(writer.seen)
        new = writer.live[low : -(-start // size)]
        if not new:
            return
        writers = list(map(pages.held.get, new))
        at = list(map(pages.places.get, new))
        due = list(range(low, low + len(new)))
        if at != due:
            place = next(place for place, found, wanted in zip(due, at, due) if found != wanted)
            raise self._violation(r, piece, self._wrong(pages, writer.live[place], place * size))
        for other, place in dict(zip(writers, due)).items():  # the last page of each writer
            assert other is not None  # it has a place
            stop = min((place + 1) * size, start)
            same = stop
            if other is not writer:
                same = common_prefix(other.request.tokens(stop), writer.request.tokens(stop))
                self._shares(other, writer)
            if min(same, other.num_written) < stop:
                wrong = min(same, other.num_written) // size
                raise self._violation(r, piece, self._wrong(pages, writer.live[wrong], wrong * size))
        writer.seen += new

    def _shares(self, owner: Writer, reader: Writer) -> None:
        if len(owner.sharers) >= MAX_SHARERS:
            owner.sharers = [other for other in owner.sharers if other.request.pages is other.live]
        if reader not in owner.sharers:
            owner.sharers.append(reader)

    def _write(self, r: Seat, pages: Pages, writer: Writer, piece: Piece[KVRow], written: list[int]) -> None:
        """Nobody may still stand on what these pages held before."""
        for owner in dict.fromkeys(map(pages.held.get, written)):
            if owner is None or (owner is writer and not writer.sharers):
                continue
            others = [o for o in (owner, *owner.sharers) if o.request is not writer.request and o.request.pages]
            for page in written if others else ():
                place = pages.places.get(page, -1)
                for other in others if pages.held.get(page) is owner else ():
                    if other.request.pages[place : place + 1] == [page]:
                        text = f"its launch writes to page {page}, which holds KV of {other.request.rid}, still there"
                        raise self._violation(r, piece, text)
        pages.write(written, piece.prefix_len // r.rank.config.page_size, writer)

    def _wrong(self, pages: Pages, page: int, position: int) -> str:
        found = pages.held.get(page)
        text = f"its launch reads page {page} for its tokens from {position} on, which "
        if found is None:
            return text + "no launch has written"
        return text + f"holds KV of {found.request.rid}, page {pages.places[page]} of its list"

    def _violation(self, r: Seat, piece: Piece[KVRow], text: str) -> InvariantViolation:
        return InvariantViolation("INV-78", r.rank_id, r.rank.iteration, r.rank.slot, piece.rid, text)
