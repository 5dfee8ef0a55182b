"""INV-78 for KV: the pages that a launch reads hold what earlier launches wrote for these very tokens.

A page is known by a checksum of the tokens whose KV it holds, from the first of the prompt on: KV depends on all that
comes before it. A launch writes pages, a page that goes back to the pool holds nothing any more, and a launch reads all
pages before its own tokens. Device work keeps the order of launches, so a launch counts as written for the next.

Each page is looked at once for each request and not in each of its launches, or a long prompt would cost its square:
again only where one of its pages was freed, exchanged or written by somebody else meanwhile.

What comes from elsewhere (the other server, host memory, a copy of a retracted decode request) is taken as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from zlib import crc32

from ppsim.check.observers import Seat
from ppsim.core.batch import Piece
from ppsim.core.errors import InvariantViolation
from ppsim.core.tokens import pack

MAX_READERS = 16  # of one page, before those that have ended are left out


@dataclass(slots=True, eq=False)
class Reader:
    """One life of a request on one rank. ``sums``: the checksum at the end of each whole page of its tokens."""

    rid: str
    arrived: int
    sums: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)  # the request's own list of pages: another one is looked at anew
    num_seen: int = 0  # leading pages that were looked at and not touched since


@dataclass(slots=True)
class Pages:
    """Of one rank: what each page holds (none: nothing that is known), and who reads it."""

    held: dict[int, int] = field(default_factory=dict)
    writers: dict[int, str] = field(default_factory=dict)  # for reports
    readers: dict[int, list[Reader]] = field(default_factory=dict)
    lives: dict[str, Reader] = field(default_factory=dict)

    def touched(self, page: int, by: Reader | None = None) -> None:
        """Whoever has looked at a page must look again."""
        for reader in self.readers.get(page, ()):
            if reader is not by:
                reader.num_seen = 0

    def freed(self, page: int) -> None:
        """It is back in the pool."""
        self.held.pop(page, None)
        self.touched(page)
        self.readers.pop(page, None)

    def reads(self, page: int, reader: Reader) -> None:
        mine = self.readers.setdefault(page, [])
        if len(mine) >= MAX_READERS:
            mine[:] = [other for other in mine if self.lives.get(other.rid) is other]
        if reader not in mine:
            mine.append(reader)


class PageContents:
    """Of the ranks of one process."""

    def __init__(self) -> None:
        self.of: dict[int, Pages] = {}

    def follow(self, r: Seat) -> None:
        """Hear of every page that becomes free, beside whoever is told already."""
        pool, pages = r.rank.scheduler.kv.pool, self.of.setdefault(r.rank_id, Pages())
        told = pool.on_free

        def on_free(page: int) -> None:
            if told is not None:
                told(page)
            pages.freed(page)

        pool.on_free = on_free

    def exchanged(self, rank: int, pages: list[int]) -> None:
        """A stash has given these pages up for those of a duplicate."""
        for page in pages:
            self.of[rank].touched(page)

    def ended(self, r: Seat, rids: Iterable[str]) -> None:
        """Requests that have ended on a rank, if they are not there again."""
        pages = self.of.get(r.rank_id)
        for rid in rids if pages is not None else ():
            if rid not in r.rank.scheduler.requests:
                pages.lives.pop(rid, None)  # type: ignore[union-attr]

    def launches(self, r: Seat, piece: Piece) -> None:
        """A launch reads the pages of [0, prefix_len) and writes those of its own tokens."""
        pages, request = self.of.get(r.rank_id), r.rank.scheduler.requests.get(piece.rid)
        if pages is None or request is None:
            return
        reader = pages.lives.get(piece.rid)
        if reader is None or reader.arrived != request.arrived:
            reader = pages.lives[piece.rid] = Reader(piece.rid, request.arrived)
        mine, size = piece.kv.pages, r.rank.config.page_size
        if reader.live is not mine or len(mine) < reader.num_seen:
            reader.live, reader.num_seen = mine, 0
        start, stop = piece.prefix_len, piece.prefix_len + piece.new_tokens
        if len(mine) * size < stop:
            text = f"its launch writes tokens up to {stop}, but it has only {len(mine)} pages of {size}"
            raise self._violation(r, piece, text)
        for place in range(reader.num_seen, -(-start // size)):
            self._read(r, pages, reader, piece, place, start)
        for place in range(start // size, -(-stop // size)):
            page = mine[place]
            pages.held[page], pages.writers[page] = checksum(reader, piece, place, size, stop), piece.rid
            pages.touched(page, by=reader)
            pages.reads(page, reader)
        reader.num_seen = stop // size

    def _read(self, r: Seat, pages: Pages, reader: Reader, piece: Piece, place: int, start: int) -> None:
        """One page of [0, start): all of it, or what the launch before this one has filled of it."""
        page, rank = piece.kv.pages[place], r.rank
        due, came = checksum(reader, piece, place, rank.config.page_size, start), pages.held.get(page)
        if came is None and (rank.config.role == "decode" or rank.scheduler.kv.tiers is not None):
            pages.held[page], pages.writers[page], came = due, piece.rid, due
        if came != due:
            text = f"its launch reads page {page} for tokens from {place * rank.config.page_size} on, which "
            what = (
                f"holds other tokens, written for {pages.writers[page]}"
                if came is not None
                else "no launch has written"
            )
            raise self._violation(r, piece, text + what)
        pages.reads(page, reader)

    def _violation(self, r: Seat, piece: Piece, text: str) -> InvariantViolation:
        return InvariantViolation("INV-78", r.rank_id, r.rank.iteration, r.rank.slot, piece.rid, text)


def checksum(reader: Reader, piece: Piece, place: int, size: int, stop: int) -> int:
    """Of the tokens [0, stop) up to the end of page ``place`` (of ``size`` tokens) of a request."""
    sums = reader.sums
    while len(sums) < min(place + 1, stop // size):
        begin = len(sums) * size
        sums.append(crc32(pack(piece.kv.input_ids(begin, begin + size)), sums[-1] if sums else 0))
    if (place + 1) * size <= stop:
        return sums[place]
    return crc32(pack(piece.kv.input_ids(place * size, stop)), sums[place - 1] if place else 0)
