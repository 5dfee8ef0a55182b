"""The radix cache over two tiers against a flat list of spans, and what is on its pages (hicache.py)."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ppsim.core.actions import Copy, FetchStored, LoadBack, WriteBack, WriteThrough
from ppsim.core.errors import PoolError
from ppsim.core.memory.hicache import HiRadixCache, Operation
from ppsim.core.memory.node import Match, Node
from ppsim.core.memory.pool import Pool
from ppsim.core.observations import CopyKey
from ppsim.core.policy import Policy
from ppsim.core.tokens import pack
from tests.interactions.naive_tiers import NaiveTiers, Tokens
from tests.interactions.walk import nodes, ownership_problem

KEYS = st.lists(st.integers(0, 1), max_size=12).map(tuple)
NUM_PAGES = 40


class TiersAgainstSpans(RuleBasedStateMachine):
    """``device`` and ``host`` say which tokens' KV is on a page, written when the hardware would write it.

    A write-through is read when its acknowledgement is consumed, as late as can be: whoever has touched the device page
    meanwhile is found out. What is filled is written at that moment too.
    """

    @initialize(
        page=st.sampled_from([1, 2]), host=st.sampled_from([2, 6, 60]), policy=st.sampled_from(["through", "back"])
    )
    def start(self, page: int, host: int, policy: str) -> None:
        self.page = page
        self.pool = Pool(NUM_PAGES * page, page)
        self.tree = HiRadixCache(self.pool, Policy(), host * page, f"write_{policy}", self.ask)
        self.naive = NaiveTiers(page, host, policy == "through")
        self.device: dict[int, Tokens] = {}
        self.host: dict[int, Tokens] = {}
        self.in_flight: dict[str, tuple[list[int], list[Tokens]]] = {}  # write-back: read before its pages are reused
        self.locks: list[tuple[Node, Tokens]] = []

    def ask(self, action: Copy) -> None:
        if isinstance(action, WriteBack):
            op = self.tree.writes[-1]
            node = next(n for n, _ in nodes(self.tree) if n.host_pages == op.host_pages)
            self.in_flight[action.key] = (op.host_pages, [self.device[p] for p in node.pages])
        elif isinstance(action, LoadBack):
            deepest = self.tree.loads[-1].node
            assert deepest is not None
            self.loaded = deepest

    def pages_of(self, path: Tokens) -> list[Tokens]:
        return [path[:end] for end in range(self.page, len(path) + 1, self.page)]

    # --- the tree ----------------------------------------------------------------------------------------------

    def find(self, key: Tokens) -> tuple[Match, Tokens]:
        found, expected = self.tree.match(pack(key)), self.naive.match(key)
        here = self.naive.on_device(expected)
        assert (found.num_tokens, found.host_tokens) == (len(here), len(expected) - len(here))
        assert [self.device[p] for p in found.pages] == self.pages_of(here)
        return found, expected

    @rule(key=KEYS)
    def match(self, key: Tokens) -> None:
        self.find(key)

    @rule(key=KEYS)
    def insert(self, key: Tokens) -> None:
        """A request that stands on what the device has, computes the rest and finishes."""
        found, expected = self.find(key)
        here = self.naive.on_device(expected)
        self.tree.lock(found.node)
        self.naive.locked.append(here)
        whole = self.pages_of(key)
        missing = -(-len(key) // self.page) - len(found.pages)
        if missing * self.page <= self.pool.free_tokens + self.tree.evictable_tokens:
            self.evict(missing - self.pool.num_free_pages)
            own = self.pool.alloc(missing)
            self.device.update(zip(own, whole[len(found.pages) :], strict=False))
            self.pool.share(found.pages)
            self.tree.insert(pack(key), found.pages + own)
            self.naive.insert(key)
            self.pool.release(found.pages + own)
        self.tree.unlock(found.node)
        self.naive.locked.remove(here)

    @rule(key=KEYS)
    def lock(self, key: Tokens) -> None:
        found, expected = self.find(key)
        here = self.naive.on_device(expected)
        self.tree.lock(found.node)
        self.naive.locked.append(here)
        self.locks.append((found.node, here))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data: st.DataObject) -> None:
        node, path = self.locks.pop(data.draw(st.integers(0, len(self.locks) - 1)))
        self.tree.unlock(node)
        self.naive.locked.remove(path)

    @rule(num_pages=st.integers(1, 12))
    def evict(self, num_pages: int) -> None:
        paths = {node.node_id: path for node, path in nodes(self.tree)}
        victims = [paths[node_id] for node_id in self.tree.evict(num_pages)]
        assert victims == self.naive.evict(num_pages), "least recently used leaf of the device first"

    # --- copies ------------------------------------------------------------------------------------------------

    @rule(key=KEYS)
    def load_back(self, key: Tokens) -> None:
        found, expected = self.find(key)
        here = self.naive.on_device(expected)
        self.tree.lock(found.node)
        self.naive.locked.append(here)
        self.locks.append((found.node, here))
        if not found.host_tokens or found.host_tokens > self.pool.free_tokens + self.tree.evictable_tokens:
            return
        num_free = self.pool.num_free_pages
        loaded = self.tree.load_back(found)
        self.naive.load(expected, num_free)
        self.locks[-1] = (loaded.node, expected)
        assert loaded.num_tokens == len(expected)
        hosts: list[int] = []
        at: Node | None = loaded.node
        while at is not None and at is not found.node:
            hosts = at.host_pages + hosts
            at = at.parent
        for page, host_page in zip(loaded.pages[len(found.pages) :], hosts, strict=True):
            self.device[page] = self.content(host_page)

    def content(self, host_page: int) -> Tokens:
        """What is on a host page once all writes that were started have ended: a load comes after them."""
        for op in self.tree.writes:
            if host_page in op.host_pages:
                return dict(zip(op.host_pages, self.read(op), strict=True))[host_page]
        return self.host[host_page]

    def read(self, op: Operation) -> list[Tokens]:
        if op.key in self.in_flight:
            return self.in_flight[op.key][1]
        for node, path in nodes(self.tree):
            if node is op.node:
                pages: list[int] = []
                at: Node | None = node
                while at is not None and at is not self.tree.root:
                    pages = at.pages + pages
                    at = at.parent
                assert [self.device[p] for p in pages] == self.pages_of(path), "read while it is written"
                return [self.device[p] for p in pages[-len(op.host_pages) :]]
        raise AssertionError("the node of a write has left the tree")

    @precondition(lambda self: self.tree.writes)
    @rule()
    def write_ends(self) -> None:
        op = self.tree.writes[0]
        self.host.update(zip(op.host_pages, self.read(op), strict=True))
        self.tree.take_acks(1, 0)
        self.naive.end(self.naive.writes)

    @precondition(lambda self: self.tree.loads)
    @rule()
    def load_ends(self) -> None:
        self.tree.take_acks(0, 1)
        self.naive.end(self.naive.loads)

    @rule(key=KEYS)
    def fetch(self, key: Tokens) -> None:
        started = self.tree.start_fetch("R", pack(key))
        num_pages = self.naive.start_fetch(key)
        assert (0 if started is None else len(started.host_pages)) == num_pages

    @precondition(lambda self: self.tree.fetches)
    @rule(data=st.data(), hit=st.integers(0, 14), dropped=st.booleans())
    def fetch_ends(self, data: st.DataObject, hit: int, dropped: bool) -> None:
        number = data.draw(st.integers(0, len(self.tree.fetches) - 1))
        fetch, path = self.tree.fetches[number], self.naive.fetches[number].path
        fetch.is_dropped = dropped
        content = self.pages_of(path)[fetch.start // self.page :]
        self.host.update(zip(fetch.host_pages, content, strict=False))
        self.tree.end_fetch(fetch, hit)
        self.naive.end_fetch(number, 0 if dropped else hit)

    # --- always --------------------------------------------------------------------------------------------------

    @invariant()
    def both_hold_the_same(self) -> None:
        if not hasattr(self, "tree"):
            return
        seen = [
            (len(path) - len(node.key) // 4, path, node.lock_ref > 0, bool(node.pages), bool(node.host_pages))
            for node, path in nodes(self.tree)
        ]
        assert sorted(seen) == self.naive.picture()
        assert self.tree.evictable_tokens == self.naive.evictable
        assert ownership_problem(self.pool, self.tree, ()) == ""
        assert self.tree.host.num_free_pages == self.naive.free_host_pages
        assert self.tree.host.audit() == ""

    @invariant()
    def what_is_on_the_pages_is_what_the_tree_says(self) -> None:
        if not hasattr(self, "tree"):
            return
        for node, path in nodes(self.tree):
            expected = self.pages_of(path)[-len(node.key) // 4 // self.page :]
            if node.pages:
                assert [self.device[p] for p in node.pages] == expected
            if node.host_pages:
                assert [self.content(p) for p in node.host_pages] == expected

    def teardown(self) -> None:
        """Everything ends: both pools are full again."""
        if not hasattr(self, "tree"):
            return
        self.tree.take_acks(len(self.tree.writes), len(self.tree.loads))
        for fetch in list(self.tree.fetches):
            self.tree.end_fetch(fetch, 0)
        for node, _ in self.locks:
            self.tree.unlock(node)
        self.tree.reset()
        assert self.pool.num_free_pages == NUM_PAGES
        assert self.tree.leftover() == ""


TestTiers = TiersAgainstSpans.TestCase
TestTiers.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, derandomize=True)


def tree(host_pages: int, policy: str = "write_through", num_pages: int = 16) -> tuple[HiRadixCache, list[Copy]]:
    asked: list[Copy] = []
    made = HiRadixCache(Pool(num_pages, 1), Policy(), host_pages, policy, asked.append)
    return made, asked


def insert(cache: HiRadixCache, *tokens: int) -> None:
    own = cache.pool.alloc(len(tokens))
    cache.insert(pack(tokens), own)
    cache.pool.release(own)


def test_a_node_cannot_be_evicted_before_the_acknowledgement_of_its_write_is_consumed() -> None:
    cache, asked = tree(host_pages=8)
    cache.owner = "R1"
    insert(cache, 1, 2, 3)
    assert asked == [WriteThrough(CopyKey("write", "R1", 1), 3)]
    assert cache.evict(3) == []
    cache.take_acks(1, 0)
    assert len(cache.evict(3)) == 1
    found = cache.match(pack([1, 2, 3, 4]))
    assert (found.num_tokens, found.host_tokens) == (0, 3)


def test_without_room_in_host_memory_a_node_is_simply_dropped() -> None:
    for policy in ("write_through", "write_back"):
        cache, asked = tree(host_pages=2, policy=policy)
        insert(cache, 1, 2, 3)
        cache.evict(3)
        assert asked == []
        assert cache.match(pack([1, 2, 3])).host_tokens == 0
        assert cache.num_unwritten == 1


def test_flushing_is_refused_while_a_copy_is_under_way() -> None:
    cache, _ = tree(host_pages=8)
    insert(cache, 1, 2, 3)
    with pytest.raises(PoolError, match="copies under way"):
        cache.reset()


def test_operations_are_named_after_the_request_they_are_for() -> None:
    cache, asked = tree(host_pages=8)
    fetch = cache.start_fetch("a:b#c", pack([5, 6]))
    assert fetch is not None
    assert fetch.rid == "a:b#c"
    assert asked == [FetchStored(CopyKey("fetch", "a:b#c", 1), 0, 2)]


def host_only(cache: HiRadixCache, *tokens: int) -> None:
    """These tokens are in host memory and nowhere else."""
    insert(cache, *tokens)
    cache.take_acks(1, 0)
    cache.evict(len(tokens))
    assert cache.match(pack(tokens)).host_tokens == len(tokens)


def test_the_room_for_a_fetch_is_not_made_by_evicting_what_it_continues() -> None:
    """Three of four host pages hold the beginning. To fetch two more there is room for one; evicting the beginning
    would make room for both, and they would continue nothing."""
    cache, asked = tree(host_pages=4)
    host_only(cache, 1, 2, 3)
    fetch = cache.start_fetch("R", pack([1, 2, 3, 4, 5]))
    assert fetch is not None
    assert asked[-1] == FetchStored(CopyKey("fetch", "R", 2), 3, 4)
    assert cache.num_host_evicted == 0
    cache.end_fetch(fetch, 4)
    assert cache.match(pack([1, 2, 3, 4, 5])).host_tokens == 4


def test_what_a_fetch_evicts_is_something_else() -> None:
    """Beside the beginning two pages of another prompt are in the way: those go, however recent they are."""
    cache, asked = tree(host_pages=6)
    host_only(cache, 1, 2, 3)
    host_only(cache, 8, 9)
    assert cache.start_fetch("R", pack([1, 2, 3, 4, 5])) is not None
    assert asked[-1] == FetchStored(CopyKey("fetch", "R", 3), 3, 5)
    assert (cache.match(pack([1, 2, 3])).host_tokens, cache.match(pack([8, 9])).host_tokens) == (3, 0)


def test_a_fetch_whose_beginning_was_evicted_meanwhile_puts_nothing_into_the_tree() -> None:
    """Tokens [3, 6) came in, [0, 3) are gone: KV of a later token is worth nothing without that of all before it."""
    cache, _ = tree(host_pages=6)
    host_only(cache, 1, 2, 3)
    fetch = cache.start_fetch("R", pack([1, 2, 3, 4, 5, 6]))
    assert fetch is not None
    assert fetch.start == 3
    insert(cache, 7, 8, 9)  # its write needs the three pages of the beginning
    assert cache.num_host_evicted == 1
    cache.end_fetch(fetch, 6)
    found = cache.match(pack([1, 2, 3, 4, 5, 6]))
    assert (found.num_tokens, found.host_tokens) == (0, 0)
    assert cache.host.num_free_pages == 3, "those of the fetch are free again"
    assert cache.num_fetched_tokens == 0


def test_a_fetch_of_what_is_here_already_is_none_and_counts_as_nothing() -> None:
    """``num_unwritten`` tells the user of copies that found no room: there was nothing to copy here."""
    cache, asked = tree(host_pages=8)
    insert(cache, 1, 2, 3)
    cache.take_acks(1, 0)
    before = list(asked)
    for tokens in ([1, 2, 3], [1, 2], []):
        assert cache.start_fetch("R", pack(tokens)) is None
    assert (asked, cache.num_unwritten, cache.fetches) == (before, 0, [])


def test_flushing_is_refused_under_a_request_that_stands_on_a_node() -> None:
    cache, _ = tree(host_pages=8)
    insert(cache, 1, 2, 3)
    cache.take_acks(1, 0)
    cache.lock(cache.match(pack([1, 2, 3])).node)
    with pytest.raises(PoolError, match="3 cached tokens are locked"):
        cache.reset()
