"""Copies between the tiers, held against the copies themselves: when each of a rank's own has begun and ended.

    INV-81   an acknowledgement is consumed on a rank only when the rank's own copy is over, and in the order in which
             the copies were started (writes and loads; a fetch has no order, but an end)
    INV-82   a host page is held by the node or the copy that fills it, as often as they say and no oftener; it is read
             only when the copy that fills it is over, and is not filled again while a load reads it; a launch reads a
             page that is being loaded only behind the load; what a fetch leaves there was in storage

Which copies are under way is seen from the tree at every effect of the rank, so what vanishes there has been consumed
since the last one. When a copy begins and ends only the rank's world knows (``Seat.copy``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.core import effects as fx
from ppsim.core.actions import LoadBack
from ppsim.core.memory.hicache import Fetch, HiRadixCache, Operation
from ppsim.core.memory.node import Node
from ppsim.core.observations import CopyKey
from ppsim.core.schedule.batch import Piece

KINDS = ("write", "load", "fetch")


@dataclass(slots=True)
class Load:
    """A load under way. Pages are those of its path that it copies."""

    key: CopyKey
    host_pages: list[int]
    pages: list[int]


@dataclass(slots=True)
class Seen:
    """What is known of one rank's tiers."""

    # Copies under way in the order in which they were started, whatever the tree's queues say.
    under_way: dict[str, list[CopyKey]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    queues: tuple[Sequence[Operation], ...] = ()  # the tree's, as they were at the last look
    filled_by: dict[int, CopyKey] = field(default_factory=dict)  # host page -> the copy that has filled it, or fills it
    loads: dict[CopyKey, Load] = field(default_factory=dict)
    fetches: dict[CopyKey, tuple[int, list[int]]] = field(default_factory=dict)  # first token, host pages


class TierRules:
    """One for each process. Ranks without a host tier are not looked at."""

    def __init__(self) -> None:
        self.seen: dict[int, Seen] = {}

    def watch(self, r: Seat) -> None:
        """Hang it on a rank, if it has a host tier. Call before it runs."""
        if not r.rank.config.hicache_write_policy:
            return
        self.seen[r.rank_id] = Seen()
        r.observers.before(partial(self.look, r))
        r.observers.after(lambda effect, _: self.begins(r, effect), fx.Act)
        r.observers.after(lambda effect, _: self.behind_loads(r, effect.batch.pieces), fx.Launch)
        r.observers.after(partial(self.audit, r), fx.Harvested)

    # --- INV-81 ------------------------------------------------------------------------------------------------

    def look(self, r: Seat, _: object = None) -> None:
        """What has been started or consumed since the last look. Raises InvariantViolation for an early ack."""
        started = r.rank.started
        tiers = None if started is None else started.kv.tiers
        if tiers is None:
            return
        seen = self.seen[r.rank_id]
        queues: tuple[Sequence[Operation], ...] = (tiers.writes, tiers.loads, tiers.fetches)
        if queues == seen.queues:
            return
        seen.queues = (tiers.writes.copy(), tiers.loads.copy(), tiers.fetches.copy())
        for kind, queue in zip(KINDS, queues):
            before = seen.under_way[kind]
            if not queue and not before:
                continue
            keys = [op.key for op in queue]
            if keys == before:
                continue
            seen.under_way[kind] = [key for key in before if key in keys] + [key for key in keys if key not in before]
            self._consumed(r, kind, before, keys)
            if kind == "fetch":
                for key in before:
                    if key not in keys:
                        self._kept(r, seen, tiers, key)
            for op in queue:
                if op.key not in before:
                    self._started(r, seen, kind, op)
        if seen.loads:
            seen.loads = {key: load for key, load in seen.loads.items() if key in seen.under_way["load"]}

    def _consumed(self, r: Seat, kind: str, before: Sequence[CopyKey], keys: Sequence[CopyKey]) -> None:
        gone = [key for key in before if key not in keys]
        stays = [key for key in before if key in keys]
        if kind != "fetch" and gone and stays and before.index(gone[-1]) > before.index(stays[0]):
            text = f"the ack of {gone[-1]} is consumed, although {stays[0]} was started before it and is under way"
            fail("INV-81", r, gone[-1].owner, text)
        for key in gone:
            copy = r.copy(key)
            if copy is None:
                fail("INV-81", r, key.owner, f"the ack of {key} is consumed, but this rank has not begun the copy")
            elif copy[1] > r.now:
                text = f"the ack of {key} is consumed at {r.now} ns, this rank's own copy is over at {copy[1]} ns"
                fail("INV-81", r, key.owner, text)

    def _kept(self, r: Seat, seen: Seen, tiers: HiRadixCache, key: CopyKey) -> None:
        """INV-82: what is kept of a fetch that is over was in storage. Pages that another copy fills by now are not."""
        start, pages = seen.fetches.pop(key, (0, []))
        stored, kept = r.fetched(key), 0
        for number, page in enumerate(pages, 1):
            if tiers.host.refs(page) and seen.filled_by.get(page) == key:
                kept = start + number * tiers.pool.page_size
        if stored is not None and kept > stored:
            text = f"{key} keeps host pages for tokens up to {kept} of its prompt, storage had {stored} on this rank"
            fail("INV-82", r, key.owner, text)

    # --- INV-82: who reads and who fills ---------------------------------------------------------------------------

    def _started(self, r: Seat, seen: Seen, kind: str, op: Operation) -> None:
        if kind == "load":
            return  # its pages are known when it is asked for (``begins``)
        for load in seen.loads.values():
            copy = r.copy(load.key)
            both = [page for page in op.host_pages if page in load.host_pages]
            if both and (copy is None or copy[1] > r.now):
                until = "which has not begun" if copy is None else f"until {copy[1]} ns"
                text = f"{op.key} fills host page {both[0]} that {load.key} reads, {until}"
                fail("INV-82", r, op.key.owner, text)
        seen.filled_by.update(dict.fromkeys(op.host_pages, op.key))
        if isinstance(op, Fetch):
            seen.fetches[op.key] = op.start, list(op.host_pages)

    def begins(self, r: Seat, effect: fx.Act) -> None:
        """A load has been asked for, and its world has given it a time: what it reads is there by then."""
        tiers = tiers_of(r)
        load_back = effect.action
        if tiers is None or not isinstance(load_back, LoadBack):
            return
        seen = self.seen[r.rank_id]
        op = next((op for op in tiers.loads if op.key == load_back.key), None)
        copy = r.copy(load_back.key)
        if op is None or op.node is None or copy is None:
            return
        load = seen.loads[op.key] = load_of(op.key, op.node, load_back.num_tokens // tiers.pool.page_size)
        for page in load.host_pages:
            key = seen.filled_by.get(page)
            filled = r.copy(key) if key is not None else None
            if filled is None or filled[1] > copy[0]:
                over = "which has not begun" if filled is None else f"which is over at {filled[1]} ns"
                text = f"{op.key} reads host page {page} at {copy[0]} ns, before the end of {key or 'any copy'}, {over}"
                fail("INV-82", r, op.key.owner, text)

    def behind_loads(self, r: Seat, pieces: Sequence[Piece[Any]]) -> None:
        """A launch reads pages of its requests: those that a load fills only when it is over."""
        tiers = tiers_of(r)
        if tiers is None or not tiers.loads:
            return
        seen = self.seen[r.rank_id]
        page_size, begins_ns = tiers.pool.page_size, r.launched_ns
        for op in tiers.loads:
            filled = seen.loads[op.key].pages if op.key in seen.loads else op.node.pages if op.node is not None else []
            copy = r.copy(op.key)
            if copy is not None and (begins_ns is None or copy[1] <= begins_ns):
                continue
            over = "which has not begun" if copy is None else f"which is over at {copy[1]} ns"
            for piece in pieces:
                if not set(filled).isdisjoint(piece.kv.pages[: piece.prefix_len // page_size]):
                    at = "" if begins_ns is None else f" at {begins_ns} ns"
                    fail("INV-82", r, piece.rid, f"its launch reads{at} pages that {op.key} is to fill, {over}")

    # --- INV-82: who holds -----------------------------------------------------------------------------------------

    def audit(self, r: Seat, *_: object) -> None:
        """Raises InvariantViolation if a host page has other holders than the nodes and copies that name it."""
        tiers = tiers_of(r)
        if tiers is not None:
            wrong = wrong_holders(tiers) or tiers.host.audit()
            if wrong:
                fail("INV-82", r, "", f"host memory: {wrong}")


def wrong_holders(tiers: HiRadixCache) -> str:
    """Which host page is not held as often as nodes and copies name it; empty if all are."""
    if held_as_named(tiers):
        return ""
    holders: dict[int, int] = {}
    nodes: dict[int, int] = {}  # page -> the node that it belongs to
    stack = [tiers.root]
    while stack:
        node = stack.pop()
        stack += node.children.values()
        for page in node.host_pages:
            holders[page] = holders.get(page, 0) + 1
            if page in nodes:
                return f"page {page} belongs to the nodes {nodes[page]} and {node.node_id}"
            nodes[page] = node.node_id
    for op in (*tiers.writes, *tiers.loads, *tiers.fetches):
        for page in op.host_pages:
            holders[page] = holders.get(page, 0) + 1
    for page, number in sorted(holders.items()):
        if tiers.host.refs(page) != number:
            what = "is given back too early" if tiers.host.refs(page) < number else "is kept too long"
            return f"page {page} {what}: {number} nodes and copies name it, {tiers.host.refs(page)} hold it"
    kept = tiers.host.num_pages - tiers.host.num_free_pages - len(holders)
    return f"{kept} pages are in use that no node and no copy names" if kept else ""


def held_as_named(tiers: HiRadixCache) -> bool:
    """Whether all is well with the holders; where it is not, ``wrong_holders`` counts again and finds the page."""
    named: list[int] = []
    stack = [tiers.root]
    while stack:
        node = stack.pop()
        if node.children:
            stack += node.children.values()
        named += node.host_pages
    if len(set(named)) < len(named):
        return False
    for op in (*tiers.writes, *tiers.loads, *tiers.fetches):
        named += op.host_pages
    host, counts = tiers.host, dict.fromkeys(named, 1)
    if len(counts) < len(named):
        counts = Counter(named)
    in_use = host.num_pages - host.num_free_pages
    return in_use == len(counts) and host.holders([*counts]) == [*counts.values()]


def load_of(key: CopyKey, deepest: Node, num_pages: int) -> Load:
    """What a load copies: of the path to ``deepest`` the last ``num_pages`` pages of both tiers."""
    found = Load(key, [], [])
    at: Node | None = deepest
    while at is not None and len(found.pages) < num_pages:
        found.host_pages = at.host_pages + found.host_pages
        found.pages = at.pages + found.pages
        at = at.parent
    return found


def tiers_of(r: Seat) -> HiRadixCache | None:
    """The cache of a rank that has started and has a host tier."""
    return None if r.rank.started is None else r.rank.started.kv.tiers
