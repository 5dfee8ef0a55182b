"""Moving KV between requests, the radix tree and the pool: admit, stash, finish, retract (protocol.md 4.9, 4.10).

    event      pages of the request                                   pages of the tree
    admit      shares the cached prefix, takes new pages              prefix locked
    stash      swaps duplicates for the tree's pages                  grows by what is computed; lock moves down
    finish     releases everything                                    grows by prompt + output, unlocked
    retract    releases everything                                    unlocked, grows by nothing

With the radix cache off the tree stays empty and every page belongs to one request.

An allocation evicts what is missing. SGLang evicts more (``RankConfig.evict_ahead``; rules 3a to 3c of the comparison
in docs/batches.md), which costs cache hits later:

    prefill       with pages above 1: room for the new tokens and one page a request
    decode        with pages above 1: room for one page a request, whether or not a page is due
    retraction    room for the next ``retract_decode_steps`` tokens of each request that stays
"""

from __future__ import annotations

from collections.abc import Callable

from ppsim.core.agreed_call import agreed_call
from ppsim.core.config import RankConfig
from ppsim.core.memory.hicache import Fetch, HiRadixCache
from ppsim.core.memory.node import Match, Node
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.observations import CopyKey
from ppsim.core.schedule.request import Request


class KVCache:
    """Pool, tree and request table of one rank. ``tiers`` is the tree where it has a host tier, else None."""

    def __init__(self, config: RankConfig, pool: Pool, tree: RadixCache) -> None:
        self.enable_radix_cache = config.enable_radix_cache
        self.evicts_ahead = config.evict_ahead
        self.pool = pool
        self.tree = tree
        self.tiers = tree if isinstance(tree, HiRadixCache) else None
        # ``extend`` is insert and match in one: a tree that has either of its own is asked for its own.
        self._can_extend = type(tree).insert is RadixCache.insert and type(tree).match is RadixCache.match
        self.looks_in_storage = config.hicache_storage
        self.fetches: dict[str, Fetch] = {}  # of requests that wait for what storage has of their prompt
        self.num_duplicates = 0  # stashes that found the same tokens computed by another request
        self.on_swap: Callable[[list[int]], None] | None = None  # a world's: told of own pages that a stash gives up
        # Rows are taken from the tail and put back there (protocol.md 4.9).
        self.free_rows = list(range(1, config.max_running_requests + 1))

    @property
    def available_tokens(self) -> int:
        """Tokens that an allocation could get: free now, or after eviction."""
        return self.pool.free_tokens + self.tree.evictable_tokens

    @agreed_call("INV-27", "request.rid", "request.seq_len", result=("result.num_tokens",))
    def match(self, request: Request) -> Match:
        """Longest cached prefix of a request that is to be (re-)prefilled; the last token is always computed."""
        if not self.enable_radix_cache:
            return Match(0, [], self.tree.root)
        return self.tree.match(request.tokens(request.seq_len - 1))

    @agreed_call("INV-27", "request.rid", "request.seq_len", result=("result.num_tokens",))
    def match_whole(self, request: Request) -> Match:
        """The same with the last token: what is looked up for sorting only (sglang_rules 6)."""
        return self.tree.match(request.tokens(request.seq_len))

    @agreed_call("INV-24", "request.rid", "len(request.pages)", state=("len(free_rows)",))
    def admit_prefix(self, request: Request) -> None:
        """Give an admitted request its row and its share of the cached prefix it stands on (already locked)."""
        self.take_row(request)
        self.pool.share(request.pages)
        request.pages = list(request.pages)
        request.kv_len = request.cached_len = request.stashed_len = len(request.pages) * self.pool.page_size

    # --- tiers (hicache.py) ----------------------------------------------------------------------------------

    @property
    def is_copying(self) -> bool:
        """Whether device pages are locked by copies whose acknowledgement is not consumed."""
        return self.tiers is not None and self.tiers.is_copying

    @property
    def outstanding(self) -> tuple[CopyKey, ...]:
        """Keys of the copies under way between the tiers."""
        return () if self.tiers is None else self.tiers.outstanding

    @property
    def fetches_under_way(self) -> list[Fetch]:
        """Also those whose request has ended."""
        return [] if self.tiers is None else self.tiers.fetches

    def load_back(self, request: Request, found: Match) -> Match:
        """An admitted request stands on ``found`` (locked): bring what of it is in host memory to the device."""
        if self.tiers is None or not found.host_tokens:
            return found
        self.tiers.owner = request.rid
        return self.tiers.load_back(found)

    def prefetch(self, request: Request) -> None:
        """A request has arrived: look in storage for what neither device nor host has of its prompt."""
        if self.tiers is not None and self.looks_in_storage:
            fetch = self.tiers.start_fetch(request.rid, request.tokens(request.prompt_len - 1))
            if fetch is not None:
                self.fetches[request.rid] = fetch

    def end_fetches(self, hits: list[int]) -> list[str]:
        """Agreed prompt tokens in storage for each fetch under way, -1: not done. The requests that may go on."""
        assert self.tiers is not None
        done = [pair for pair in zip(self.tiers.fetches, hits, strict=True) if pair[1] >= 0]
        for fetch, hit in done:
            self.tiers.end_fetch(fetch, hit)
            if self.fetches.get(fetch.rid) is fetch:
                del self.fetches[fetch.rid]
        return [fetch.rid for fetch, _ in done if not fetch.is_dropped]

    def drop_fetch(self, request: Request) -> None:
        """A request ends before its fetch: what comes of it goes nowhere, but its host pages wait for the end."""
        fetch = self.fetches.pop(request.rid, None)
        if fetch is not None:
            fetch.is_dropped = True

    # --- pages and rows --------------------------------------------------------------------------------------

    def take_row(self, request: Request) -> None:
        """Give a request its row in the request table; the caller has checked that one is free."""
        request.req_slot = self.free_rows.pop()

    def can_grow(self, request: Request, num_tokens: int) -> bool:
        """Whether pages for ``num_tokens`` more tokens can be had, with eviction."""
        missing = self._missing_pages(request, num_tokens)
        return missing * self.pool.page_size <= self.available_tokens

    @agreed_call("INV-23", "request.rid", "request.kv_len", "num_tokens")
    def grow(self, request: Request, num_tokens: int) -> None:
        """Take pages for the next ``num_tokens`` tokens, evicting only what is missing, and count them as written."""
        missing = self._missing_pages(request, num_tokens)
        self._on_behalf_of(request)
        if missing:  # the last page has room for most tokens
            self.evict_for(missing)
            request.pages += self.pool.alloc(missing)
        request.kv_len += num_tokens

    def evict_for(self, num_pages: int) -> None:
        """Evict the shortfall, so that ``num_pages`` are free if that is possible at all."""
        if num_pages > self.pool.num_free_pages:
            self.tree.evict(num_pages - self.pool.num_free_pages)

    def evict_ahead(self, num_tokens: int, num_requests: int) -> None:
        """Make room as SGLang's paged allocation does: for the new tokens and a page a request, needed or not."""
        if self.evicts_ahead and self.pool.page_size > 1:
            self.evict_for(self.pool.pages_for(num_tokens) + num_requests)

    def evict_after_retraction(self, num_tokens: int) -> None:
        """The same behind a retracted request: room for the next steps of those that stay."""
        if self.evicts_ahead:
            self.evict_for(self.pool.pages_for(num_tokens))

    @agreed_call("INV-25", "request.rid", "request.kv_len", "request.cached_len")
    def stash(self, request: Request) -> None:
        """Put what is computed (or launched) of an unfinished request into the tree and stand on the new node.

        This happens before the launched chunk is harvested; later forwards of this rank come after it on the same
        stream (protocol.md 4.1 step 3). So the pages of a duplicate go back while a launched chunk still writes them:
        who writes to them off that stream (a load from host memory) must wait for it.
        """
        request.stashed_len = request.kv_len
        if not self.enable_radix_cache:
            return
        # Below cached_len the request stands on the tree's own pages, locked: only what is new can change hands.
        start = request.cached_len // self.pool.page_size
        found, theirs = self._cached(request, start)
        stop = start + len(theirs)
        mine = request.pages[start:stop]
        if mine != theirs:
            self.num_duplicates += 1
            if self.on_swap is not None:
                kept = frozenset(theirs)
                self.on_swap([page for page in mine if page not in kept])
            self.pool.share(theirs)
            self.pool.release(mine)
            request.pages[start:stop] = theirs
        self.tree.lock(found)
        if request.last_node is not None:
            self.tree.unlock(request.last_node)
        request.last_node, request.cached_len = found, stop * self.pool.page_size

    def _cached(self, request: Request, start: int) -> tuple[Node, list[int]]:
        """Put all whole pages of a request into the tree: the node where they end, and its pages from ``start`` on."""
        stands_on = request.last_node
        if self._can_extend and stands_on is not None and (stands_on.lock_ref or stands_on is self.tree.root):
            rest = request.tokens(request.kv_len, request.cached_len)
            found = self.tree.extend(stands_on, rest, request.pages[start:])
            return found.node, found.pages
        tokens = request.tokens(request.kv_len)
        self._on_behalf_of(request)
        self.tree.insert(tokens, request.pages)
        found = self.tree.match(tokens)
        return found.node, found.pages[start:]

    @agreed_call("INV-23", "request.rid", "request.kv_len", "insert", state=("len(free_rows)",))
    def finish(self, request: Request, *, insert: bool = True) -> None:
        """Give everything back; with ``insert`` the whole pages of prompt + output stay cached."""
        if self.enable_radix_cache and insert:
            self._on_behalf_of(request)
            self.tree.insert(request.tokens(request.kv_len), request.pages)
        self._release(request)

    @agreed_call("INV-18", "request.rid", "request.kv_len", state=("len(free_rows)",))
    def retract(self, request: Request) -> None:
        """Give everything back without caching it (protocol.md 4.5)."""
        self._release(request)

    def audit(self) -> str:
        """Empty if pool and tree agree; otherwise what is wrong."""
        problem = self.pool.audit()
        if problem:
            return problem
        cached = self.tree.evictable_tokens + self.tree.protected_tokens
        if self.pool.free_tokens + cached > self.pool.capacity_tokens:
            return f"{self.pool.free_tokens} free + {cached} cached tokens exceed {self.pool.capacity_tokens}"
        return ""

    def _on_behalf_of(self, request: Request) -> None:
        if self.tiers is not None:
            self.tiers.owner = request.rid

    def _missing_pages(self, request: Request, num_tokens: int) -> int:
        return self.pool.pages_for(request.kv_len + num_tokens) - len(request.pages)

    def _release(self, request: Request) -> None:
        self.pool.release(request.pages)
        if request.last_node is not None:
            self.tree.unlock(request.last_node)
        assert request.req_slot is not None
        self.free_rows.append(request.req_slot)
        request.pages, request.kv_len, request.cached_len, request.stashed_len = [], 0, 0, 0
        request.last_node, request.req_slot = None, None
