"""A radix cache without a radix tree: a flat list of spans, every question answered by looking at all of them.

Written from protocol.md 4.10 and docs/decisions only; no code is shared with ``core/memory/prefix.py``.
A span is (start, path): the tokens [start, len(path)) of the sequence ``path``. It stands for one node of the tree.
What a node's parent, children, leaf state or lock count is, is searched for each time it is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Tokens: TypeAlias = tuple[int, ...]


@dataclass(eq=False)
class Span:
    start: int
    path: Tokens
    used: int  # operation that touched it last
    born: int  # of two spans used by the same operation the older one is the less recent

    def __len__(self) -> int:
        return len(self.path) - self.start


@dataclass
class NaiveTree:
    """``locked`` has one path for each lock taken and not given back."""

    page: int
    spans: list[Span] = field(default_factory=list)
    locked: list[Tokens] = field(default_factory=list)
    now: int = 0
    num_born: int = 0

    def whole_pages(self, tokens: Tokens) -> Tokens:
        return tokens[: len(tokens) - len(tokens) % self.page]

    def match(self, tokens: Tokens) -> Tokens:
        """The longest cached prefix. Splits a span that is matched in part; what is touched becomes recent."""
        self.now += 1
        key = self.whole_pages(tokens)
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
                    self.born(span.start, found)
                    span.start = len(found)
        return found

    def insert(self, tokens: Tokens) -> Tokens:
        """Cache all whole pages of a sequence; the part that was there before comes back."""
        key = self.whole_pages(tokens)
        found = self.match(key)
        if found != key:
            self.born(len(found), key)
        return found

    def born(self, start: int, path: Tokens) -> None:
        self.num_born += 1
        self.spans.append(Span(start, path, self.now, self.num_born))

    def lock(self, path: Tokens) -> None:
        self.locked.append(path)

    def unlock(self, path: Tokens) -> None:
        self.locked.remove(path)

    def is_locked(self, span: Span) -> bool:
        return any(path[: len(span.path)] == span.path for path in self.locked)

    def is_leaf(self, span: Span) -> bool:
        end = len(span.path)
        return not any(other.start == end and other.path[:end] == span.path for other in self.spans)

    def evict(self, num_tokens: int) -> list[Tokens]:
        """Least recently used unlocked leaves first, until so many tokens are gone; their paths in order."""
        victims: list[Tokens] = []
        gone = 0
        while gone < num_tokens:
            leaves = [s for s in self.spans if self.is_leaf(s) and not self.is_locked(s)]
            if not leaves:
                break
            oldest = min(leaves, key=lambda s: (s.used, s.born))
            self.spans.remove(oldest)
            gone += len(oldest)
            victims.append(oldest.path)
        return victims

    @property
    def cached(self) -> int:
        return sum(len(span) for span in self.spans)

    @property
    def evictable(self) -> int:
        return sum(len(span) for span in self.spans if not self.is_locked(span))

    def picture(self) -> list[tuple[int, Tokens, bool]]:
        """(start, path, locked) of every span, sorted; two trees with equal pictures hold the same."""
        return sorted((s.start, s.path, self.is_locked(s)) for s in self.spans)
