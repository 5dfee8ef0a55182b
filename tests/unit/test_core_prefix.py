"""The radix cache against a flat list of spans and exhaustive search (protocol.md 4.10)."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ppsim.core.errors import PoolError
from ppsim.core.memory.node import Node
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.policy import Policy
from ppsim.core.tokens import pack
from tests.interactions.naive_tree import NaiveTree, Tokens
from tests.interactions.walk import nodes, ownership_problem, picture

KEYS = st.lists(st.integers(0, 1), max_size=14).map(tuple)
NUM_PAGES = 120


class RadixAgainstSpans(RuleBasedStateMachine):
    """``content`` maps the whole tokens of a page's path to the page: where its KV must be found again."""

    @initialize(page=st.sampled_from([1, 2, 3]))
    def start(self, page: int) -> None:
        self.page = page
        self.pool = Pool(NUM_PAGES * page, page)
        self.tree = RadixCache(self.pool, Policy())
        self.naive = NaiveTree(page)
        self.content: dict[Tokens, int] = {}
        self.locks: list[tuple[Node, Tokens]] = []

    def pages_of(self, path: Tokens) -> list[int]:
        return [self.content[path[:end]] for end in range(self.page, len(path) + 1, self.page)]

    @rule(key=KEYS)
    def match(self, key: Tokens) -> None:
        found, expected = self.tree.match(pack(key)), self.naive.match(key)
        assert found.num_tokens == len(expected)
        assert found.pages == self.pages_of(expected)
        assert found.node is self.tree.root or dict(nodes(self.tree))[found.node] == expected

    @rule(key=KEYS)
    def insert(self, key: Tokens) -> None:
        own = self.pool.alloc(-(-len(key) // self.page))
        known = self.tree.insert(pack(key), own)
        expected = self.naive.insert(key)
        assert known == len(expected)
        for index, page in enumerate(own[: len(key) // self.page]):
            if index * self.page >= known:
                self.content[key[: (index + 1) * self.page]] = page
        self.pool.release(own)  # the tree holds what it took; duplicates and the unaligned tail are free again

    @rule(key=KEYS)
    def lock(self, key: Tokens) -> None:
        found, path = self.tree.match(pack(key)), self.naive.match(key)
        self.tree.lock(found.node)
        self.naive.lock(path)
        self.locks.append((found.node, path))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, path = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.tree.unlock(node)
        self.naive.unlock(path)

    @precondition(lambda self: self.locks)
    @rule(data=st.data(), rest=KEYS)
    def extend(self, data: st.DataObject, rest: Tokens) -> None:
        """Below a locked node it is what insert and match of the whole key are: content, recency, answer."""
        node, path = data.draw(st.sampled_from(self.locks))
        own = self.pool.alloc(-(-len(rest) // self.page))
        found = self.tree.extend(node, pack(rest), own)
        known, expected = self.naive.insert((*path, *rest)), self.naive.match((*path, *rest))
        for index, page in enumerate(own[: len(rest) // self.page]):
            end = len(path) + (index + 1) * self.page
            if end > len(known):
                self.content[(*path, *rest)[:end]] = page
        assert len(path) + found.num_tokens == len(expected)
        assert found.pages == self.pages_of(expected)[len(path) // self.page :]
        assert found.node is self.tree.root or dict(nodes(self.tree))[found.node] == expected
        self.pool.release(own)

    @rule(num_pages=st.integers(0, 12))
    def evict(self, num_pages: int) -> None:
        before = {node.node_id: path for node, path in nodes(self.tree)}
        free = self.pool.num_free_pages
        victims = [before[node_id] for node_id in self.tree.evict(num_pages)]
        expected = self.naive.evict(num_pages * self.page)
        assert victims == expected, "least recently used leaf first"
        assert self.pool.num_free_pages - free == sum(len(before_path) for before_path in self.gone()) // self.page

    def gone(self) -> list[Tokens]:
        """Forget the pages that no span covers any more; one single-page path for each."""
        covered = {s.path[:end] for s in self.naive.spans for end in range(self.page, len(s.path) + 1, self.page)}
        lost = [path for path in self.content if path not in covered]
        for path in lost:
            del self.content[path]
        return [path[-self.page :] for path in lost]

    @precondition(lambda self: not self.locks)
    @rule()
    def reset(self) -> None:
        self.tree.reset()
        self.naive.evict(NUM_PAGES * self.page)
        self.content.clear()
        assert self.pool.num_free_pages == NUM_PAGES

    @precondition(lambda self: self.tree.protected_tokens)
    @rule()
    def reset_is_refused_while_a_request_stands_on_a_node(self) -> None:
        with pytest.raises(PoolError, match="still locked"):
            self.tree.reset()

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "tree"):
            return
        assert picture(self.tree) == self.naive.picture()
        assert self.tree.evictable_tokens == self.naive.evictable
        assert self.tree.evictable_tokens + self.tree.protected_tokens == self.naive.cached
        assert ownership_problem(self.pool, self.tree, ()) == ""


TestRadix = RadixAgainstSpans.TestCase
TestRadix.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)


def test_unlocking_more_often_than_locking_is_an_error() -> None:
    pool = Pool(8, 1)
    tree = RadixCache(pool, Policy())
    tree.insert(pack([1, 2, 3]), pool.alloc(3))
    node = tree.match(pack([1, 2, 3])).node
    tree.lock(node)
    tree.unlock(node)
    with pytest.raises(PoolError, match="unlocked more often than locked"):
        tree.unlock(node)


def test_touching_nodes_for_ever_does_not_grow_the_list_of_candidates() -> None:
    pool = Pool(64, 1)
    tree = RadixCache(pool, Policy())
    for first in range(8):
        tree.insert(pack([first, 9, 9]), pool.alloc(3))
    for _ in range(1000):
        for first in range(8):
            tree.match(pack([first, 9, 9]))
    assert len(tree._heap) < 200
    assert [len(tree.evict(3)) for _ in range(9)] == [1] * 8 + [0]


def test_what_is_above_an_extended_node_counts_as_used() -> None:
    """A would be older than X if only what is new below it were refreshed."""
    pool = Pool(20, 1)
    tree = RadixCache(pool, Policy())
    stands = {}
    for name, key in (("A", (1, 1)), ("X", (2, 2))):
        pages = pool.alloc(2)
        tree.insert(pack(key), pages)
        stands[name] = tree.match(pack(key)).node
        tree.lock(stands[name])
        pool.release(pages)
    rest = pool.alloc(1)
    leaf = tree.extend(stands["A"], pack((3,)), rest).node
    pool.release(rest)
    tree.unlock(stands["A"])
    assert tree.evict(1) == [leaf.node_id], "X is locked"
    tree.unlock(stands["X"])
    assert tree.evict(1) == [stands["X"].node_id]
    assert tree.evict(1) == [stands["A"].node_id]
