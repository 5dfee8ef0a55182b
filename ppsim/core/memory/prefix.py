"""Deterministic radix cache of KV pages (protocol.md 4.10).

A node owns the pages of ``key`` (whole pages, one holder in the pool). A path from the root spells a token sequence.
``lock_ref`` counts the requests that stand on a node or below it; a node with no lock and no children can be evicted.

    evictable tokens   nodes with lock_ref == 0        protected tokens   nodes with lock_ref > 0

Recency is a logical counter, raised once per operation: SGLang reads a monotonic clock here, whose near-ties order
differently on two ranks (bugs.md B06). Children are kept in insertion order; nothing iterates over a set.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from ppsim.core.agreed_call import agreed_call
from ppsim.core.digest import digest
from ppsim.core.errors import PoolError
from ppsim.core.memory.node import Match, Node
from ppsim.core.memory.pool import Pool
from ppsim.core.policy import Policy
from ppsim.core.tokens import WIDTH, TokenBytes, common_prefix


class RadixCache:
    """Keys are cut down to whole pages before anything else."""

    def __init__(self, pool: Pool, policy: Policy) -> None:
        self.pool = pool
        self.policy = policy
        self.page_bytes = pool.page_size * WIDTH
        self.clock = 0
        self.num_evicted = 0
        self.num_splits = 0
        self.victims_digest = ""  # rolling, over the ids of all evicted nodes (invariant 26)
        self.evictable_tokens = 0
        self.protected_tokens = 0
        self._next_id = 1
        self._num_live = 0  # nodes in the tree, without the root
        self._heap: list[tuple[int, int, Node]] = []
        self.root = Node(0, b"", [], None, lock_ref=1)

    @property
    def num_nodes(self) -> int:
        """Nodes ever made; together with ``clock`` it fingerprints the history of the tree."""
        return self._next_id

    @agreed_call("INV-27", "tokens", result=("result.num_tokens",), state=("clock", "num_nodes"))
    def match(self, tokens: TokenBytes) -> Match:
        """Longest cached prefix. Splits a node that matches in part and refreshes all touched nodes."""
        return self._walk(self.root, self._whole_pages(tokens), self._tick())

    @agreed_call("INV-25", "tokens", "len(pages)", result=("result.num_tokens",), state=("clock", "num_nodes"))
    def extend(self, node: Node, tokens: TokenBytes, pages: list[int]) -> Match:
        """Add what follows a locked node, on which the caller stands, then match it: ``insert`` and ``match`` in one.

        ``tokens``, ``pages`` and the answer begin behind the node. The two count as two operations, as they are; but
        what is above the node is known, so it is refreshed and not compared: a prompt of many chunks costs each chunk
        once and not once for every later one.
        """
        key = self._whole_pages(tokens)
        self._tick()
        stamp = self._tick()
        above: Node | None = node
        while above is not None and above is not self.root:
            above.last_access = stamp  # locked, so no candidate for eviction
            above = above.parent
        found = self._walk(node, key, stamp)
        if found.num_tokens * WIDTH == len(key):
            return found
        leaf = self._add_leaf(found, key, pages, stamp)
        return Match(len(key) // WIDTH, found.pages + leaf.pages if found.pages else leaf.pages, leaf)

    def _walk(self, start: Node, key: TokenBytes, stamp: int) -> Match:
        """Longest prefix of ``key`` below a node."""
        node, pages, done = start, [], 0
        while done < len(key):
            child = node.children.get(key[done : done + self.page_bytes])
            if child is None:
                break
            shared = self._shared_bytes(child.key, key[done : done + len(child.key)])
            if shared < len(child.key):
                upper = self._split(child, shared, stamp)
                pages += upper.pages
                node, done = upper, done + shared
                break
            self._touch(child, stamp)
            pages += child.pages
            node, done = child, done + shared
        return Match(done // WIDTH, pages, node)

    @agreed_call("INV-25", "tokens", "len(pages)", result=("result",), state=("num_nodes", "evictable_tokens"))
    def insert(self, tokens: TokenBytes, pages: list[int]) -> int:
        """Add a sequence whose KV is on ``pages``; at most one new leaf. Returns the tokens that were there before.

        The tree becomes one more holder of the pages of the new leaf only.
        """
        key = self._whole_pages(tokens)
        found = self.match(key)
        if found.num_tokens * WIDTH < len(key):
            self._add_leaf(found, key, pages, self.stamp())
        return found.num_tokens

    @agreed_call("INV-25", "node.node_id", state=("protected_tokens",))
    def lock(self, node: Node) -> None:
        """Protect a node and its ancestors."""
        at: Node | None = node
        while at is not None and at is not self.root:
            if at.lock_ref == 0:
                self._move(at, to_protected=True)
            at.lock_ref += 1
            at = at.parent

    @agreed_call("INV-25", "node.node_id", state=("protected_tokens",))
    def unlock(self, node: Node) -> None:
        """Undo one ``lock``."""
        at: Node | None = node
        while at is not None and at is not self.root:
            if at.lock_ref == 0:
                raise PoolError(f"radix node {at.node_id} is unlocked more often than locked")
            at.lock_ref -= 1
            if at.lock_ref == 0:
                self._move(at, to_protected=False)
                self._offer(at)
            at = at.parent

    @agreed_call("INV-26", "num_pages", result=("result",), state=("num_nodes", "evictable_tokens"))
    def evict(self, num_pages: int) -> list[int]:
        """Evict least recently used leaves until at least ``num_pages`` pages are free again, or nothing is left.

        Returns the ids of the evicted nodes in order.
        """
        victims: list[int] = []
        freed = 0
        while freed < num_pages and self._heap:
            key, _, node = heappop(self._heap)
            if self._is_stale(key, node):
                continue
            self.pool.release(node.pages)
            freed += len(node.pages)
            victims.append(node.node_id)
            self.num_evicted += 1
            self.victims_digest = digest(self.victims_digest, node.node_id)
            self._remove(node)
        return victims

    @agreed_call("INV-25", state=("num_nodes", "evictable_tokens"))
    def reset(self) -> None:
        """Drop everything. Raises PoolError if a request still stands on a node."""
        if self.protected_tokens:
            raise PoolError(f"{self.protected_tokens} cached tokens are still locked")
        self.evict(self.pool.num_pages)

    def leftover(self) -> str:
        """After ``reset`` at the end of a run: what is still held outside the KV pool; empty if nothing is."""
        return ""

    def shape(self) -> tuple[object, ...]:
        """Keys and locks as nested tuples (invariant 25); for checks, not for hot paths."""

        def walk(node: Node) -> tuple[object, ...]:
            return (node.key.hex(), node.lock_ref, tuple(walk(c) for c in node.children.values()))

        return walk(self.root)

    # --- inside ----------------------------------------------------------------------------------------------

    def _add_leaf(self, found: Match, key: TokenBytes, pages: list[int], stamp: int) -> Node:
        """A leaf for what of ``key`` is behind ``found``, on its share of the pages, which belong to the whole key."""
        own = pages[found.num_tokens // self.pool.page_size : len(key) // self.page_bytes]
        self.pool.share(own)
        rest = key[found.num_tokens * WIDTH :]
        leaf = Node(self._next_id, rest, own, found.node, last_access=stamp)
        self._next_id += 1
        self._num_live += 1
        found.node.children[rest[: self.page_bytes]] = leaf
        self.evictable_tokens += len(rest) // WIDTH
        self._offer(leaf)
        return leaf

    def _whole_pages(self, tokens: TokenBytes) -> TokenBytes:
        return tokens[: len(tokens) // self.page_bytes * self.page_bytes]

    def _shared_bytes(self, a: TokenBytes, b: TokenBytes) -> int:
        if a == b:
            return len(a)
        return common_prefix(a, b) * WIDTH // self.page_bytes * self.page_bytes

    def _tick(self) -> int:
        self.clock += 1
        return self.stamp()

    def stamp(self) -> int:
        """Recency of a node that is touched now: the number of this operation, so that it is equal on all ranks."""
        return self.clock

    def _touch(self, node: Node, stamp: int) -> None:
        node.last_access = stamp
        self._offer(node)

    def _offer(self, node: Node) -> None:
        """Make a node a candidate for eviction; entries that have become untrue are skipped when they come up."""
        if self._is_leaf(node):
            heappush(self._heap, (self.policy.eviction_key(node), node.node_id, node))
            if len(self._heap) > 64 + 4 * self._num_live:
                self._drop_stale()

    def _is_leaf(self, node: Node) -> bool:
        """A candidate for eviction."""
        return not node.children and node.lock_ref == 0

    def _is_stale(self, key: int, node: Node) -> bool:
        return node.parent is None or not self._is_leaf(node) or key != self.policy.eviction_key(node)

    def _drop_stale(self) -> None:
        """A cache that is hit for ever and never evicts must not grow a list of outdated candidates."""
        entries = {node.node_id: (key, at, node) for key, at, node in self._heap if not self._is_stale(key, node)}
        self._heap = list(entries.values())
        heapify(self._heap)

    def _move(self, node: Node, *, to_protected: bool) -> None:
        num_tokens = len(node.key) // WIDTH
        self.evictable_tokens -= num_tokens if to_protected else -num_tokens
        self.protected_tokens += num_tokens if to_protected else -num_tokens

    def _split(self, child: Node, at_byte: int, stamp: int) -> Node:
        """Cut a node in two; the lower half keeps its identity and counts as touched (decision 0001)."""
        self.num_splits += 1
        page = at_byte // self.page_bytes
        parent = child.parent
        assert parent is not None
        upper = Node(
            self._next_id, child.key[:at_byte], child.pages[:page], parent, lock_ref=child.lock_ref, last_access=stamp
        )
        self._next_id += 1
        self._num_live += 1
        parent.children[upper.key[: self.page_bytes]] = upper
        child.key, child.pages, child.parent = child.key[at_byte:], child.pages[page:], upper
        upper.children[child.key[: self.page_bytes]] = child
        self._touch(child, stamp)
        return upper

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        self.evictable_tokens -= len(node.key) // WIDTH
        del parent.children[node.key[: self.page_bytes]]
        node.parent = None
        self._num_live -= 1
        if parent is not self.root:
            self._offer(parent)
