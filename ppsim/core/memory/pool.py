"""KV pages of one rank: who holds them, how often, and that none is lost.

    page 0                 padding, never given out
    pages 1 .. num_pages   refs == 0: in the free list;  refs > 0: held by requests and/or the radix tree

A page returns to the free list when its last holder releases it. With pages of one token the free list is FIFO; with
larger pages what is freed together goes to its front, in rising order, as in SGLang's paged allocator. Either way equal
decisions give equal page numbers on every rank (protocol.md 4.9: a consequence of lockstep, not a requirement).

A prompt is mostly written on pages that follow each other and have the same holders. Such a run is counted at once:
with pages of one token a prompt of a million tokens has a million of them.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Sequence

from ppsim.core.agreed_call import agreed_call
from ppsim.core.errors import PoolError


class FreePages:
    """The free list, head first. Pages that were never taken are a range and no list: a pool may have millions.

    What comes back goes to the tail, behind the pages that were never taken; with ``to_front`` to the head of the list.
    """

    def __init__(self, num_pages: int, to_front: bool = False) -> None:
        self.new = range(1, num_pages + 1)  # never taken
        self.returned: deque[int] = deque()
        self.num_pages = num_pages
        self.to_front = to_front

    def take(self, num_pages: int) -> list[int]:
        """So many pages from the head; there must be enough."""
        if num_pages == 0:
            return []
        self.num_pages -= num_pages
        next_returned = self.returned.popleft
        if not self.new:
            return [next_returned() for _ in range(num_pages)]
        pages: list[int] = []
        if self.to_front:
            pages += [next_returned() for _ in range(min(num_pages, len(self.returned)))]
        num_new = min(num_pages - len(pages), len(self.new))
        pages += self.new[:num_new]
        self.new = self.new[num_new:]
        pages += [next_returned() for _ in range(num_pages - len(pages))]
        return pages

    def give_back(self, pages: list[int]) -> None:
        """Pages that were freed together."""
        self.num_pages += len(pages)
        if self.to_front:
            self.returned.extendleft(sorted(pages, reverse=True))
        else:
            self.returned.extend(pages)

    def pop(self) -> int:
        """The last one."""
        self.num_pages -= 1
        if self.returned and not (self.to_front and self.new):
            return self.returned.pop()
        page = self.new[-1]
        self.new = self.new[:-1]
        return page


class Pool:
    """``num_tokens`` is rounded down to whole pages."""

    def __init__(self, num_tokens: int, page_size: int) -> None:
        self.page_size = page_size
        self.num_pages = num_tokens // page_size
        self._free = FreePages(self.num_pages, to_front=page_size > 1)
        self._refs = array("I", [0])  # holders of page 0, 1, ... as far as pages were ever taken
        self.on_free: Callable[[int], None] | None = None  # a world's check: told of every page that becomes free

    @property
    def capacity_tokens(self) -> int:
        return self.num_pages * self.page_size

    @property
    def num_free_pages(self) -> int:
        return self._free.num_pages

    @property
    def free_tokens(self) -> int:
        return self._free.num_pages * self.page_size

    def refs(self, page: int) -> int:
        """Number of holders of a page."""
        return self._refs[page] if 0 <= page < len(self._refs) else 0

    def holders(self, pages: Sequence[int]) -> list[int]:
        """``refs`` of each of these pages."""
        refs, known = self._refs, len(self._refs)
        return [refs[page] if 0 <= page < known else 0 for page in pages]

    def first_held_once(self, pages: Sequence[int]) -> int | None:
        """The first of these pages that has one holder and no more; None if there is none."""
        run = run_of(pages)
        if run is None:
            refs, known = self._refs, len(self._refs)
            return next((page for page in pages if 0 <= page < known and refs[page] == 1), None)
        held = self._refs[max(run.start, 0) : run.stop]
        return run.start + held.index(1) if 1 in held else None

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    @agreed_call("INV-23", "num_pages", state=("num_free_pages",))
    def alloc(self, num_pages: int) -> list[int]:
        """Take pages from the head of the free list, one holder each. Raises PoolError if there are too few."""
        if num_pages > self._free.num_pages:
            raise PoolError(f"{num_pages} pages asked for, {self.num_free_pages} of {self.num_pages} are free")
        pages = self._free.take(num_pages)
        num_new = self._free.new.start - len(self._refs)  # of them were never taken before
        if num_new:
            self._refs.extend(repeated(1, num_new))
        if num_new < num_pages:
            for page in pages:
                self._refs[page] = 1
        return pages

    @agreed_call("INV-23", "len(pages)", state=("num_free_pages",))
    def share(self, pages: Sequence[int]) -> None:
        """One more holder for each page. Raises PoolError for a free page."""
        run = run_of(pages)
        holders = 0 if run is None else self._holders_of(run)
        if run is not None and holders:
            self._refs[run.start : run.stop] = repeated(holders + 1, len(run))
            return
        for page in pages:
            if not self.refs(page):
                raise PoolError(f"page {page} is free and cannot be shared")
            self._refs[page] += 1

    @agreed_call("INV-23", "len(pages)", state=("num_free_pages",))
    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each page. Raises PoolError for a page that is free already (freed twice)."""
        run, freed = run_of(pages), []
        holders = 0 if run is None else self._holders_of(run)
        if run is not None and holders:
            self._refs[run.start : run.stop] = repeated(holders - 1, len(run))
            freed = list(pages) if holders == 1 else []
        else:
            refs, known = self._refs, len(self._refs)
            for page in pages:
                holders = refs[page] if 0 <= page < known else 0
                if holders == 0:
                    raise PoolError(f"page {page} is freed twice")
                refs[page] = holders - 1
                if holders == 1:
                    freed.append(page)
        self._free.give_back(freed)
        if self.on_free is not None:
            for page in freed:
                self.on_free(page)

    def _holders_of(self, run: range) -> int:
        """How many holders each page of a run has, if that is the same number; else 0."""
        refs = self._refs[run.start : run.stop]
        alike = len(refs) == len(run) and refs == repeated(refs[0], len(run))
        return refs[0] if alike else 0

    def audit(self) -> str:
        """Empty if every page is either free once or held; otherwise what is wrong."""
        new, returned = self._free.new, list(self._free.returned)
        twice = run_of(returned) is None and len(set(returned)) != len(returned)
        if twice or (returned and max(returned) >= new.start and any(page in new for page in returned)):
            return "a page is in the free list twice"
        num_held = len(self._refs) - self._refs.count(0)
        both = any(self.holders(returned)) if num_held else False
        both |= any(self._refs[page] for page in range(new.start, len(self._refs)))
        if self.num_free_pages + num_held != self.num_pages or both:
            return f"{self.num_free_pages} free + {num_held} held pages are not the {self.num_pages} of the pool"
        return ""


MIN_RUN = 16  # pages; fewer are counted one by one as fast


def run_of(pages: Sequence[int]) -> range | None:
    """The pages as a range, where each is one more than the one before; None where they are not, or are only a few."""
    num_pages = len(pages)
    if num_pages < MIN_RUN or pages[-1] - pages[0] != num_pages - 1:
        return None
    run = range(pages[0], pages[-1] + 1)
    return run if pages == list(run) else None


def repeated(holders: int, num_pages: int) -> array[int]:
    """The same number of holders for so many pages."""
    return array("I", [holders]) * num_pages
