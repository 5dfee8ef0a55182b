"""A radix cache over two tiers without a tree: a flat list of spans, every question answered by looking at all of them.

Written from the rules at the head of ``ppsim/core/memory/hicache.py`` and protocol.md 4.10; no code is shared.
A span is (start, path), as in ``naive_tree.py``; ``device`` says whether it is there, ``host`` lists the host pages of
its copy by numbers of the model's own (a number is never used twice).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Tokens: TypeAlias = tuple[int, ...]


@dataclass(eq=False)
class Span:
    start: int
    path: Tokens
    used: int
    born: int
    device: bool
    host: list[int]

    def __len__(self) -> int:
        return len(self.path) - self.start


@dataclass
class Copy:
    """A write (``host`` is being filled), a load, or a fetch from ``start`` on. ``locks`` is released at its end."""

    host: list[int]
    locks: Tokens | None = None
    path: Tokens = ()
    start: int = 0


@dataclass
class NaiveTiers:
    page: int
    host_pages: int
    writes_through: bool
    spans: list[Span] = field(default_factory=list)
    locked: list[Tokens] = field(default_factory=list)
    writes: list[Copy] = field(default_factory=list)
    loads: list[Copy] = field(default_factory=list)
    fetches: list[Copy] = field(default_factory=list)
    now: int = 0
    num_born: int = 0
    num_host_pages_made: int = 0

    # --- questions ---------------------------------------------------------------------------------------------

    def whole(self, tokens: Tokens) -> Tokens:
        return tokens[: len(tokens) - len(tokens) % self.page]

    def is_locked(self, span: Span) -> bool:
        return any(path[: len(span.path)] == span.path for path in self.locked)

    def below(self, span: Span) -> list[Span]:
        end = len(span.path)
        return [s for s in self.spans if s.start >= end and s.path[:end] == span.path]

    def in_use(self) -> set[int]:
        """Host pages that a span or a copy under way holds."""
        holders = [*(s.host for s in self.spans), *(c.host for c in (*self.writes, *self.fetches))]
        return {number for host in holders for number in host}

    @property
    def free_host_pages(self) -> int:
        return self.host_pages - len(self.in_use())

    def is_being_filled(self, span: Span) -> bool:
        return any(number in copy.host for copy in self.writes for number in span.host)

    def on_device(self, found: Tokens) -> Tokens:
        """The part of a match that is on the device."""
        ends = [len(s.path) for s in self.spans if s.device and s.path == found[: len(s.path)]]
        return found[: max(ends, default=0)]

    @property
    def evictable(self) -> int:
        return sum(len(s) for s in self.spans if s.device and not self.is_locked(s))

    def picture(self) -> list[tuple[int, Tokens, bool, bool, bool]]:
        """(start, path, locked, on the device, in host memory) of every span, sorted."""
        return sorted((s.start, s.path, self.is_locked(s), s.device, bool(s.host)) for s in self.spans)

    # --- changes -----------------------------------------------------------------------------------------------

    def match(self, tokens: Tokens) -> Tokens:
        self.now += 1
        key = self.whole(tokens)
        found: Tokens = ()
        for span in self.spans:
            n = min(len(key), len(span.path))
            while span.path[:n] != key[:n]:
                n -= self.page
            found = max(found, key[:n], key=len)
        for span in list(self.spans):
            end = min(len(span.path), len(found))
            if span.start < end and span.path[:end] == found[:end]:
                span.used = self.now
                if len(found) < len(span.path):
                    cut = (len(found) - span.start) // self.page
                    self.born(span.start, found, span.device, span.host[:cut])
                    span.start, span.host = len(found), span.host[cut:]
        return found

    def born(self, start: int, path: Tokens, device: bool, host: list[int]) -> Span:
        self.num_born += 1
        span = Span(start, path, self.now, self.num_born, device, host)
        self.spans.append(span)
        return span

    def insert(self, tokens: Tokens) -> None:
        key = self.whole(tokens)
        found = self.match(key)
        for span in self.spans:
            span.device |= span.path == found[: len(span.path)]
        if found != key:
            span = self.born(len(found), key, True, [])
            if self.writes_through and self.make_room(len(span) // self.page):
                self.write(span, key)

    def write(self, span: Span, locks: Tokens | None) -> None:
        span.host = self.take(len(span) // self.page)
        self.writes.append(Copy(list(span.host), locks))
        if locks is not None:
            self.locked.append(locks)

    def take(self, num_pages: int) -> list[int]:
        first = self.num_host_pages_made
        self.num_host_pages_made += num_pages
        return list(range(first, first + num_pages))

    def make_room(self, num_pages: int) -> bool:
        """Least recently used host-only spans with nothing below them go, until so many host pages are free."""
        if num_pages > self.host_pages:
            return False
        while self.free_host_pages < num_pages:
            idle = [s for s in self.spans if not s.device and not self.below(s) and not self.is_locked(s)]
            idle = [s for s in idle if not self.is_being_filled(s)]
            if not idle:
                return False
            self.spans.remove(min(idle, key=lambda s: (s.used, s.born)))
        return True

    def evict(self, num_pages: int) -> list[Tokens]:
        victims: list[Tokens] = []
        gone = 0
        while gone < num_pages * self.page:
            on_device = [s for s in self.spans if s.device]
            leaves = [s for s in on_device if not self.is_locked(s) and not any(b.device for b in self.below(s))]
            if not leaves:
                break
            oldest = min(leaves, key=lambda s: (s.used, s.born))
            if not oldest.host and not self.writes_through and self.make_room(len(oldest) // self.page):
                self.write(oldest, None)
            gone += len(oldest)
            victims.append(oldest.path)
            oldest.device = False
            if not oldest.host:
                lost = [oldest, *self.below(oldest)]
                self.spans = [s for s in self.spans if s not in lost]
        return victims

    def load(self, found: Tokens, num_free_pages: int) -> None:
        """``found`` is a match whose device part the caller has locked; the lock moves to all of it."""
        here = self.on_device(found)
        self.locked += [found, found]
        self.locked.remove(here)
        self.evict((len(found) - len(here)) // self.page - num_free_pages)
        for span in self.spans:
            span.device |= span.path == found[: len(span.path)]
        self.loads.append(Copy([], found))

    def end(self, copies: list[Copy]) -> None:
        """The oldest copy's acknowledgement is consumed."""
        copy = copies.pop(0)
        if copy.locks is not None:
            self.locked.remove(copy.locks)

    def start_fetch(self, tokens: Tokens) -> int:
        """Host pages that the fetch has got."""
        found = self.match(tokens)
        wanted = (len(self.whole(tokens)) - len(found)) // self.page
        if wanted:
            self.locked.append(found)
            self.make_room(min(wanted, self.host_pages))
            self.locked.remove(found)
        num_pages = min(wanted, self.free_host_pages)
        if num_pages:
            self.fetches.append(Copy(self.take(num_pages), None, self.whole(tokens), len(found)))
        return num_pages

    def end_fetch(self, number: int, hit: int) -> None:
        fetch = self.fetches.pop(number)
        stop = min(hit // self.page * self.page, fetch.start + len(fetch.host) * self.page)
        if stop <= fetch.start:
            return
        key = fetch.path[:stop]
        found = self.match(key)
        if fetch.start <= len(found) < stop:
            skip, take = (len(found) - fetch.start) // self.page, (stop - fetch.start) // self.page
            self.born(len(found), key, False, fetch.host[skip:take])
