"""A radix cache whose nodes live on the device, in host memory, or in both (HiCache; protocol.md 4.9, 4.10, 6.2).

Rule: everything that changes the tree follows from replicated decisions. A copy between the tiers is *started* by one
(``Operation``), and its end changes the tree only when the acknowledgement is *consumed*, in the same iteration on all
ranks; when the copy is really over is a local fact (bugs.md B07).

    pages  host_pages   node
    yes    no           on the device only; evicting it drops it, with what is below it in host memory
    yes    yes          written through, or loaded back; evicting it leaves the copy
    no     yes          host only; a match counts it as ``host_tokens``, an admission loads it back

Device nodes are closed under parents; host-only nodes hang below them. Until its acknowledgement is consumed

    a write (write-through)   locks its node, so that the pages which are read stay what they are
    a write (write-back)      is ordered before the next launch on the device; its pages are free at once
    a load                    locks its path on both tiers
    a fetch (from storage)    owns its host pages; nothing of it is in the tree

and it holds a reference of its own to the host pages that it fills: they are reused by nobody before that.

Over 400 lines because each change of the tree must keep these rules on both tiers, and they are read together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from ppsim.core.actions import Copy, FetchStored, LoadBack, WriteBack, WriteThrough
from ppsim.core.agreed_call import agreed_call
from ppsim.core.digest import digest
from ppsim.core.errors import PoolError
from ppsim.core.memory.node import Match, Node
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.observations import CopyKey
from ppsim.core.policy import Policy
from ppsim.core.tokens import WIDTH, TokenBytes

Ask: TypeAlias = Callable[[Copy], None]


def asks_nobody(copy: Copy) -> None:
    """A cache that stands alone has no environment."""


@dataclass(slots=True, eq=False)
class Operation:
    """A copy under way."""

    key: CopyKey
    host_pages: list[int]
    node: Node | None = None  # locked until the acknowledgement is consumed


@dataclass(slots=True, eq=False)
class Fetch(Operation):
    """Storage to host for tokens [start, stop) of ``tokens``; how many are really there is agreed at its end."""

    tokens: TokenBytes = b""
    start: int = 0
    is_dropped: bool = False  # its request was aborted: nothing is put into the tree at its end

    @property
    def rid(self) -> str:
        return self.key.owner


class HiRadixCache(RadixCache):
    """``host_tokens`` is the agreed capacity of the host tier; ``ask`` reaches the environment."""

    def __init__(self, pool: Pool, policy: Policy, host_tokens: int, write_policy: str, ask: Ask = asks_nobody) -> None:
        super().__init__(pool, policy)
        self.host = Pool(host_tokens, pool.page_size)
        self.writes_through = write_policy == "write_through"
        self.ask = ask
        self.owner = ""  # request on whose behalf the tree is changed now; names the operations
        self.writes: deque[Operation] = deque()
        self.loads: deque[Operation] = deque()
        self.fetches: list[Fetch] = []
        self.num_operations = 0
        self.num_acks = [0, 0, 0]  # consumed: writes, loads, fetches
        self.num_loaded_tokens = 0
        self.num_fetched_tokens = 0
        self.num_host_evicted = 0
        self.num_unwritten = 0  # copies that found no room
        self.history = ""  # rolling digest of all starts, ends and hit lengths, in order (invariant 28)
        self._host_heap: list[tuple[int, int, Node]] = []

    @property
    def outstanding(self) -> tuple[CopyKey, ...]:
        """Keys of all operations under way: writes, loads, fetches, each in the order of their starts."""
        return tuple(op.key for op in (*self.writes, *self.loads, *self.fetches))

    @property
    def is_copying(self) -> bool:
        """Whether an acknowledgement will unlock device pages."""
        return bool(self.writes or self.loads)

    def tier_parts(self) -> tuple[object, ...]:
        return (tuple(self.num_acks), self.history, self.host.free_tokens, self.num_host_evicted)

    # --- the tree ----------------------------------------------------------------------------------------------

    @agreed_call("INV-27", "tokens", result=("result.num_tokens", "result.host_tokens"), state=("clock", "num_nodes"))
    def match(self, tokens: TokenBytes) -> Match:
        """Longest prefix on the device, and what host memory has behind it; splits and refreshes as the base does."""
        key = self._whole_pages(tokens)
        stamp = self._tick()
        node, pages, done = self.root, [], 0
        on_device, device_done = self.root, 0
        while done < len(key):
            child = node.children.get(key[done : done + self.page_bytes])
            if child is None:
                break
            shared = self._shared_bytes(child.key, key[done : done + len(child.key)])
            is_part = shared < len(child.key)
            if is_part:
                child = self._split(child, shared, stamp)
            else:
                self._touch(child, stamp)
            node, done = child, done + shared
            if child.pages:
                pages += child.pages
                on_device, device_done = child, done
            if is_part:
                break
        return Match(device_done // WIDTH, pages, on_device, (done - device_done) // WIDTH, node)

    @agreed_call("INV-25", "tokens", "len(pages)", result=("result",), state=("num_nodes", "evictable_tokens"))
    def insert(self, tokens: TokenBytes, pages: list[int]) -> int:
        """As the base does; host-only nodes on the way get the pages of the caller, who has computed them again."""
        key = self._whole_pages(tokens)
        found = self.match(key)
        first = found.num_tokens // self.pool.page_size
        for node in self._host_only_path(found):
            node.pages = pages[first : first + len(node.host_pages)]
            self.pool.share(node.pages)
            self._count_device(node)
            first += len(node.pages)
        known = first * self.page_bytes
        if known < len(key):
            own = pages[first : len(key) // self.page_bytes]
            self.pool.share(own)
            leaf = self._leaf(self._end(found), key[known:], own, [])
            self.evictable_tokens += len(leaf.key) // WIDTH
            self._offer(leaf)
            if self.writes_through:
                self._write(leaf, is_leaving=False)
        else:
            self._offer(self._end(found))
        return found.num_tokens

    @agreed_call("INV-26", "num_pages", result=("result",), state=("num_nodes", "evictable_tokens"))
    def evict(self, num_pages: int) -> list[int]:
        """Least recently used device leaves leave the device; those with a copy, or that get one now, stay in host."""
        victims: list[int] = []
        freed = 0
        while freed < num_pages and self._heap:
            stamp, _, node = heappop(self._heap)
            if self._is_stale(stamp, node):
                continue
            if not node.host_pages and not self.writes_through:
                self._write(node, is_leaving=True)
            self.pool.release(node.pages)
            freed += len(node.pages)
            self.evictable_tokens -= len(node.key) // WIDTH
            node.pages = []
            victims.append(node.node_id)
            self.num_evicted += 1
            self.victims_digest = digest(self.victims_digest, node.node_id)
            parent = node.parent
            assert parent is not None
            if node.host_pages:
                self._offer(node)
            else:
                self._drop(node)
            self._offer(parent)
        return victims

    @agreed_call("INV-25", state=("num_nodes", "evictable_tokens"))
    def reset(self) -> None:
        """Drop everything on both tiers. Raises PoolError if a request stands on a node or a copy is under way."""
        if self.protected_tokens or self.outstanding:
            raise PoolError(
                f"{self.protected_tokens} cached tokens are locked, {len(self.outstanding)} copies under way"
            )
        for child in list(self.root.children.values()):
            self._drop(child)
        self.evictable_tokens = 0
        self._heap, self._host_heap = [], []

    def shape(self) -> tuple[object, ...]:
        def walk(node: Node) -> tuple[object, ...]:
            place = (bool(node.pages), bool(node.host_pages))
            return (node.key.hex(), node.lock_ref, place, tuple(walk(c) for c in node.children.values()))

        return walk(self.root)

    def leftover(self) -> str:
        """After ``reset``: what host memory still holds."""
        if self.host.free_tokens != self.host.capacity_tokens:
            return f"only {self.host.free_tokens} of {self.host.capacity_tokens} host tokens are free at the end"
        return self.host.audit()

    # --- device and host -----------------------------------------------------------------------------------------

    @agreed_call("INV-28", "found.host_tokens", result=("result.num_tokens",), state=("num_operations",))
    def load_back(self, found: Match) -> Match:
        """Give the host hit of ``found`` device pages and start the copy; the match with all of it on the device.

        ``found.node`` is locked by the caller, who has seen that the pages can be had. The lock moves down.
        """
        deepest = self._end(found)
        self.lock(deepest)  # of the caller
        self.lock(deepest)  # of the copy
        self.unlock(found.node)
        num_pages = found.host_tokens // self.pool.page_size
        if num_pages > self.pool.num_free_pages:
            self.evict(num_pages - self.pool.num_free_pages)
        pages = self.pool.alloc(num_pages)
        first = 0
        for node in self._host_only_path(found):
            node.pages = pages[first : first + len(node.host_pages)]
            first += len(node.pages)
            self._count_device(node)
        self.num_loaded_tokens += found.host_tokens
        op = Operation(self._key("load"), [], deepest)
        self.loads.append(op)
        self._record("load", found.host_tokens)
        self.ask(LoadBack(op.key, found.host_tokens))
        return Match(found.num_tokens + found.host_tokens, found.pages + pages, deepest)

    @agreed_call("INV-28", "num_writes", "num_loads")
    def take_acks(self, num_writes: int, num_loads: int) -> None:
        """Consume so many acknowledgements of each kind, oldest first; the caller has checked that they are there."""
        for kind, queue, number in ((0, self.writes, num_writes), (1, self.loads, num_loads)):
            for _ in range(number):
                op = queue.popleft()
                self.num_acks[kind] += 1
                self._record("ack", kind)
                self.host.release(op.host_pages)
                if op.node is not None:
                    self.unlock(op.node)

    def _write(self, node: Node, *, is_leaving: bool) -> None:
        """Start the copy of a node to host memory if there is room; ``is_leaving``: its device pages are given up."""
        num_pages = len(node.pages)
        if not self._host_room(num_pages):
            self.num_unwritten += 1
            return
        node.host_pages = self.host.alloc(num_pages)
        self.host.share(node.host_pages)
        if not is_leaving:
            self.lock(node)
        op = Operation(self._key("write"), list(node.host_pages), None if is_leaving else node)
        self.writes.append(op)
        num_tokens = num_pages * self.pool.page_size
        self._record("write", num_tokens)
        self.ask(WriteBack(op.key, num_tokens) if is_leaving else WriteThrough(op.key, num_tokens))

    def _host_room(self, num_pages: int) -> bool:
        """Evict least recently used host-only leaves until so many host pages are free."""
        being_filled: list[tuple[int, int, Node]] = []
        while self.host.num_free_pages < num_pages <= self.host.num_pages and self._host_heap:
            entry = heappop(self._host_heap)
            stamp, _, node = entry
            parent = node.parent
            if parent is None or not self._is_host_leaf(node) or stamp != self.policy.eviction_key(node):
                continue
            if self.host.refs(node.host_pages[0]) > 1:
                being_filled.append(entry)
                continue
            self._drop(node)
            self.num_host_evicted += 1
            self._offer(parent)
        for entry in being_filled:
            heappush(self._host_heap, entry)
        return self.host.num_free_pages >= num_pages

    # --- storage and host ----------------------------------------------------------------------------------------

    @agreed_call("INV-28", "rid", "tokens", state=("num_operations",))
    def start_fetch(self, rid: str, tokens: TokenBytes) -> Fetch | None:
        """Look in storage for what neither device nor host has of ``tokens``; None for nothing, or no room."""
        found = self.match(tokens)
        start = found.num_tokens + found.host_tokens
        wanted = len(tokens) // self.page_bytes - start // self.pool.page_size
        if wanted <= 0:
            return None
        self.lock(self._end(found))  # making room must not evict what the fetch continues
        self._host_room(min(wanted, self.host.num_pages))
        self.unlock(self._end(found))
        num_pages = min(wanted, self.host.num_free_pages)
        if num_pages == 0:
            self.num_unwritten += 1
            return None
        self.owner = rid
        fetch = Fetch(self._key("fetch"), self.host.alloc(num_pages), tokens=tokens, start=start)
        self.fetches.append(fetch)
        stop = start + num_pages * self.pool.page_size
        self._record("fetch", stop - start)
        self.ask(FetchStored(fetch.key, start, stop))
        return fetch

    @agreed_call("INV-28", "hit_tokens", state=("num_operations",))
    def end_fetch(self, fetch: Fetch, hit_tokens: int) -> None:
        """Put what all ranks have got into the host tier: tokens up to ``hit_tokens`` of the prompt, page by page."""
        self.fetches.remove(fetch)
        self.num_acks[2] += 1
        self._record("hit", hit_tokens)
        page = self.pool.page_size
        stop = min(hit_tokens // page * page, fetch.start + len(fetch.host_pages) * page)
        if stop > fetch.start and not fetch.is_dropped:
            key = fetch.tokens[: stop * WIDTH]
            found = self.match(key)
            known = found.num_tokens + found.host_tokens
            if fetch.start <= known < stop:  # else what it continues was evicted meanwhile, or all of it is here
                keep = fetch.host_pages[(known - fetch.start) // page : (stop - fetch.start) // page]
                self.host.share(keep)
                self._offer(self._leaf(self._end(found), key[known * WIDTH :], [], keep))
                self.num_fetched_tokens += stop - known
        self.host.release(fetch.host_pages)

    # --- inside --------------------------------------------------------------------------------------------------

    def _key(self, kind: str) -> CopyKey:
        self.num_operations += 1
        return CopyKey(kind, self.owner, self.num_operations)

    def _record(self, what: str, value: int) -> None:
        self.history = digest(self.history, what, value)

    def _end(self, found: Match) -> Node:
        return found.node if found.host_node is None else found.host_node

    def _host_only_path(self, found: Match) -> list[Node]:
        """The nodes of the host hit, topmost first."""
        path: list[Node] = []
        at: Node | None = self._end(found)
        while at is not None and at is not found.node:
            path.append(at)
            at = at.parent
        return path[::-1]

    def _leaf(self, parent: Node, key: TokenBytes, pages: list[int], host_pages: list[int]) -> Node:
        stamp = self.stamp()
        leaf = Node(self._next_id, key, pages, parent, last_access=stamp, host_pages=host_pages)
        self._next_id += 1
        self._num_live += 1
        parent.children[key[: self.page_bytes]] = leaf
        return leaf

    def _count_device(self, node: Node) -> None:
        """A node has got device pages."""
        if node.lock_ref:
            self.protected_tokens += len(node.key) // WIDTH
        else:
            self.evictable_tokens += len(node.key) // WIDTH

    def _move(self, node: Node, *, to_protected: bool) -> None:
        if node.pages:
            super()._move(node, to_protected=to_protected)

    def _is_leaf(self, node: Node) -> bool:
        """A candidate for eviction from the device: nothing below it is there."""
        return bool(node.pages) and node.lock_ref == 0 and not any(c.pages for c in node.children.values())

    def _is_host_leaf(self, node: Node) -> bool:
        """A candidate for eviction from host memory."""
        return node.parent is not None and not node.pages and not node.children and node.lock_ref == 0

    def _offer(self, node: Node) -> None:
        super()._offer(node)
        if self._is_host_leaf(node):
            heappush(self._host_heap, (self.policy.eviction_key(node), node.node_id, node))
            if len(self._host_heap) > 64 + 4 * self._num_live:
                entries = {n.node_id: (k, i, n) for k, i, n in self._host_heap if k == self.policy.eviction_key(n)}
                self._host_heap = [entry for entry in entries.values() if entry[2].parent is not None]
                heapify(self._host_heap)

    def _split(self, child: Node, at_byte: int, stamp: int) -> Node:
        upper = super()._split(child, at_byte, stamp)
        if child.host_pages:
            page = at_byte // self.page_bytes
            upper.host_pages, child.host_pages = child.host_pages[:page], child.host_pages[page:]
        return upper

    def _drop(self, node: Node) -> None:
        """Take a node and all below it out of the tree, on both tiers. Counters of device tokens are the caller's."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.key[: self.page_bytes]]
        stack = [node]
        while stack:
            at = stack.pop()
            self.pool.release(at.pages)
            self.host.release(at.host_pages)
            at.pages, at.host_pages, at.parent = [], [], None
            self._num_live -= 1
            stack += at.children.values()
