"""KV pages of one rank: who holds them, how often, and that none is lost.

    page 0                 padding, never given out
    pages 1 .. num_pages   refs == 0: in the free list;  refs > 0: held by requests and/or the radix tree

A page returns to the free list when its last holder releases it. With pages of one token the free list is FIFO; with
larger pages what is freed together goes to its front, in rising order, as in SGLang's paged allocator. Either way equal
decisions give equal page numbers on every rank (protocol.md 4.9: a consequence of lockstep, not a requirement).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

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
        pages: list[int] = []
        while self.to_front and self.returned and len(pages) < num_pages:
            pages.append(self.returned.popleft())
        num_new = min(num_pages - len(pages), len(self.new))
        pages += self.new[:num_new]
        self.new = self.new[num_new:]
        while len(pages) < num_pages:
            pages.append(self.returned.popleft())
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
        self._refs: dict[int, int] = {}  # holders of every page that was ever taken
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
        return self._refs.get(page, 0)

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold so many tokens."""
        return -(-num_tokens // self.page_size)

    @agreed_call("INV-23", "num_pages", state=("num_free_pages",))
    def alloc(self, num_pages: int) -> list[int]:
        """Take pages from the head of the free list, one holder each. Raises PoolError if there are too few."""
        if num_pages > self._free.num_pages:
            raise PoolError(f"{num_pages} pages asked for, {self.num_free_pages} of {self.num_pages} are free")
        pages = self._free.take(num_pages)
        for page in pages:
            self._refs[page] = 1
        return pages

    @agreed_call("INV-23", "len(pages)", state=("num_free_pages",))
    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each page. Raises PoolError for a free page."""
        for page in pages:
            if not self._refs.get(page):
                raise PoolError(f"page {page} is free and cannot be shared")
            self._refs[page] += 1

    @agreed_call("INV-23", "len(pages)", state=("num_free_pages",))
    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each page. Raises PoolError for a page that is free already (freed twice)."""
        freed: list[int] = []
        for page in pages:
            refs = self._refs.get(page, 0)
            if refs == 0:
                raise PoolError(f"page {page} is freed twice")
            self._refs[page] = refs - 1
            if refs == 1:
                freed.append(page)
        self._free.give_back(freed)
        if self.on_free is not None:
            for page in freed:
                self.on_free(page)

    def audit(self) -> str:
        """Empty if every page is either free once or held; otherwise what is wrong."""
        new, returned = self._free.new, set(self._free.returned)
        if len(returned) != len(self._free.returned) or any(page in new for page in self._free.returned):
            return "a page is in the free list twice"
        held = [page for page, refs in self._refs.items() if refs > 0]
        if self.num_free_pages + len(held) != self.num_pages or any(page in new or page in returned for page in held):
            return f"{self.num_free_pages} free + {len(held)} held pages are not the {self.num_pages} of the pool"
        return ""
