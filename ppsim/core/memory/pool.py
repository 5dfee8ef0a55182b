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
from functools import lru_cache

from ppsim.core.agreed_call import agreed_call
from ppsim.core.errors import PoolError


class FreePages:
    """The free list, head first. Pages that were never taken are a range and no list: a pool may have millions.

    What comes back goes to the tail, behind the pages that were never taken; with ``to_front`` to the head of the list.
    It stays together as it came, last page first, so that many pages are taken at once.
    """

    def __init__(self, num_pages: int, to_front: bool = False) -> None:
        self.first_new, self.end = 1, num_pages + 1  # pages [first_new, end) were never taken
        self.returned: deque[list[int]] = deque()  # none of them is empty; each is turned round
        self.num_pages = num_pages
        self.to_front = to_front

    def take(self, num_pages: int) -> list[int]:
        """So many pages from the head; there must be enough."""
        if num_pages == 0:
            return []
        self.num_pages -= num_pages
        first_new, returned = self.first_new, self.returned
        if num_pages == 1:  # the next token of a request that decodes
            if not returned or (first_new < self.end and not self.to_front):
                self.first_new += 1
                return [first_new]
            page = returned[0].pop()
            if not returned[0]:
                returned.popleft()
            return [page]
        pages = self._take_returned(num_pages) if self.to_front or first_new == self.end else []
        num_left = num_pages - len(pages)
        if num_left == 0:
            return pages
        self.first_new = min(first_new + num_left, self.end)
        new = integers(first_new, self.first_new)
        pages = pages + new if pages else new
        if len(pages) < num_pages:
            pages += self._take_returned(num_pages - len(pages))
        return pages

    def _take_returned(self, num_pages: int) -> list[int]:
        """So many pages that came back, or all of them."""
        pages: list[int] = []
        returned = self.returned
        while returned and num_pages:
            group = returned[0]
            if len(group) <= num_pages:
                taken = returned.popleft()
            else:
                taken = group[-num_pages:]
                del group[-num_pages:]
            num_pages -= len(taken)
            taken.reverse()
            pages = pages + taken if pages else taken
        return pages

    def give_back(self, pages: list[int]) -> None:
        """Pages that were freed together."""
        if not pages:
            return
        self.num_pages += len(pages)
        if self.to_front:
            self.returned.appendleft(sorted(pages, reverse=True))
        else:
            self.returned.append(pages[::-1])

    def pop(self) -> int:
        """The last one."""
        self.num_pages -= 1
        if self.returned and not (self.to_front and self.first_new < self.end):
            last = self.returned[-1]
            page = last.pop(0)
            if not last:
                self.returned.pop()
            return page
        self.end -= 1
        return self.end


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
        refs = self._refs
        num_new = self._free.first_new - len(refs)  # of them were never taken before
        if num_new == 1:
            refs.append(1)
        elif num_new:
            refs.extend(repeated(1, num_new))
        if num_pages == 1:
            refs[pages[0]] = 1
        elif num_new < num_pages:
            for part in parts_of(pages):
                if isinstance(part, range):
                    refs[part.start : part.stop] = repeated(1, len(part))
                else:
                    for page in part:
                        refs[page] = 1
        return pages

    @agreed_call("INV-23", "len(pages)", state=("num_free_pages",))
    def share(self, pages: Sequence[int]) -> None:
        """One more holder for each page. Raises PoolError for a free page."""
        refs, known = self._refs, len(self._refs)
        for part in parts_of(pages):
            holders = self._holders_of(part) if isinstance(part, range) else 0
            if isinstance(part, range) and holders:
                refs[part.start : part.stop] = repeated(holders + 1, len(part))
                continue
            for page in part:
                if not (0 <= page < known and refs[page]):
                    raise PoolError(f"page {page} is free and cannot be shared")
                refs[page] += 1

    @agreed_call("INV-23", "len(pages)", state=("num_free_pages",))
    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each page. Raises PoolError for a page that is free already (freed twice)."""
        refs, known, freed = self._refs, len(self._refs), list[int]()
        for part in parts_of(pages):
            holders = self._holders_of(part) if isinstance(part, range) else 0
            if isinstance(part, range) and holders:
                refs[part.start : part.stop] = repeated(holders - 1, len(part))
                freed += integers(part.start, part.stop) if holders == 1 else ()
                continue
            for page in part:
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
        new = range(self._free.first_new, self._free.end)
        returned = [page for group in self._free.returned for page in reversed(group)]
        twice = run_of(returned) is None and len(set(returned)) != len(returned)
        if twice or (returned and max(returned) >= new.start and any(page in new for page in returned)):
            return "a page is in the free list twice"
        refs = self._refs
        num_held = 0 if refs == repeated(0, len(refs)) else len(refs) - refs.count(0)
        both = any(self.holders(returned)) if num_held else False
        both |= any(self._refs[page] for page in range(new.start, len(self._refs)))
        if self.num_free_pages + num_held != self.num_pages or both:
            return f"{self.num_free_pages} free + {num_held} held pages are not the {self.num_pages} of the pool"
        return ""


BLOCK = 8192  # integers
MIN_RUN = 16  # pages; fewer are counted one by one as fast


def run_of(pages: Sequence[int]) -> range | None:
    """The pages as a range, where each is one more than the one before; None where they are not, or are only a few."""
    if len(pages) < MIN_RUN or not is_run(pages):
        return None
    return range(pages[0], pages[-1] + 1)


def is_run(pages: Sequence[int]) -> bool:
    """Whether all of them are one run."""
    first, num_pages = pages[0], len(pages)
    return pages[-1] == first + num_pages - 1 and pages == integers(first, first + num_pages)


def parts_of(pages: Sequence[int]) -> list[range | Sequence[int]]:
    """The pages in order: long runs as ranges, and what is between them as it is."""
    num_pages = len(pages)
    if num_pages < MIN_RUN:
        return [pages]
    parts: list[range | Sequence[int]] = []
    at = begin = 0  # what is in no run begins here
    while num_pages - at >= MIN_RUN:
        length = run_length(pages, at)
        if not length:
            at += MIN_RUN
            continue
        if begin < at:
            parts.append(pages[begin:at])
        parts.append(range(pages[at], pages[at] + length))
        at += length
        begin = at
    if begin < num_pages:
        parts.append(pages[begin:])
    return parts


def run_length(pages: Sequence[int], at: int) -> int:
    """How far a run reaches that begins at this place, looked at in stretches that double; 0: it has under ``MIN_RUN``.

    It may say less than all of it, but never half or less: what is left is the next run.
    """
    if not at and is_run(pages):
        return len(pages)
    length, num_pages, num_new = 0, len(pages) - at, MIN_RUN
    while 0 < num_new <= num_pages - length:
        begin, end, first = at + length, at + length + num_new, pages[at] + length
        if pages[end - 1] != first + num_new - 1 or pages[begin:end] != integers(first, first + num_new):
            break
        length += num_new
        num_new = min(length, num_pages - length)
    return length


def integers(start: int, stop: int) -> list[int]:
    """[start, stop), not below 0. Of a long stretch the same objects every time: they are made once for all pools of a
    process, and lists of them are compared by identity, which is twenty times as fast."""
    if stop - start < MIN_RUN:
        return list(range(start, stop))
    number, at = divmod(start, BLOCK)
    found = block(number)[at : at + stop - start]
    while len(found) < stop - start:
        number += 1
        found += block(number)[: stop - start - len(found)]
    return found


@lru_cache(maxsize=256)
def block(number: int) -> list[int]:
    """The integers of a block."""
    return list(range(number * BLOCK, (number + 1) * BLOCK))


def repeated(holders: int, num_pages: int) -> array[int]:
    """The same number of holders for so many pages."""
    return array("I", [holders]) * num_pages
