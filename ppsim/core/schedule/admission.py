"""The budgets of one prefill batch (SGLang's PrefillAdder; protocol.md 4.3).

    rem_input   max_prefill_tokens           minus page-ceiled new tokens of what is admitted
    rem_chunk   chunk budget of this batch   minus the same; None: chunking is off
    rem_total   free + evictable tokens      minus the growth set aside for requests that run already,
                                             minus new tokens, max_new_tokens and a page for what is admitted
    cur_rem     free + evictable tokens      minus new tokens and a page for what is admitted

What is set aside is ``reserve_decode`` (decision 0001):

    slot        expected decode growth of this slot's running set only. SGLang's rule: it over-admits and leans on
                retraction, and in the end a request may not fit and is aborted
    all_slots   every page that any admitted request of the rank may still need. Nothing is retracted or aborted
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from ppsim.core.config import RankConfig
from ppsim.core.memory.node import Match
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.schedule.batch import Piece
from ppsim.core.schedule.foresight import Foresight
from ppsim.core.schedule.ratio import NewTokenRatio
from ppsim.core.schedule.request import Request


class Result(Enum):
    """Whether the next waiting request may be tried."""

    CONTINUE = "continue"
    NO_TOKEN = "no_token"
    OTHER = "other"


def expected_output(config: RankConfig, num_tokens: int) -> int:
    """Output that admission counts for a request that may make ``num_tokens`` more.

    Clipped as in SGLang, unless every slot's growth is guaranteed: then all of it.
    """
    return num_tokens if config.reserve_all_slots else min(num_tokens, config.clip_max_new_tokens)


def need_to_admit(context: Any, output: Any, page_size: Any) -> Any:
    """Tokens that must be less than rem_total before a waiting request is admitted: its input, the output that counts,
    and a page. Like ``tokens_set_aside`` for whole numbers and for arrays of them: the tuner asks for many pools at
    once (ppsim.plan.prompt_feed)."""
    return context + output + page_size


def tokens_set_aside(paged: Any, output: Any, page_size: Any) -> Any:
    """Tokens that an admitted piece takes off rem_total: its new tokens in whole pages, the output that counts (none
    where the prompt is cut), and a page."""
    return paged + output + page_size


class Growth(NamedTuple):
    """Tokens set aside for requests that are not part of a batch: a real number, by its two whole neighbours.

    Comparing whole numbers with ``remainder = available - growth`` needs ``down`` where equality counts (``>=``) and
    ``up`` where it does not; ``int(remainder)`` of a positive remainder is ``available - up``.
    """

    down: int
    up: int


def expected_growth(config: RankConfig, ratio: NewTokenRatio, running: Iterable[Request]) -> Growth:
    """Tokens that a slot's running set is expected to need, by the new-token ratio."""
    clip = config.clip_max_new_tokens
    growth = sum(min(max(r.spec.max_new_tokens - len(r.output_ids), 0), clip) for r in running)
    share = ratio.value
    down, rest = divmod(growth * share.numerator, share.denominator)
    return Growth(down, down + (rest > 0))


def full_growth(pool: Pool, holding: Iterable[Request]) -> int:
    """Tokens of all pages that these requests may still take; the KV of a last token is never written."""
    pages = sum(pool.pages_for(r.prompt_len + r.spec.max_new_tokens - 1) - len(r.pages) for r in holding)
    return pages * pool.page_size


class PrefillAdder:
    """Fills one prefill batch. ``growth`` is set aside for requests that are not part of it.

    ``foresight`` makes the admission of requests that ignore the end of sequence where the radix cache is off
    (foresight.py); without it they are admitted like any other.
    """

    def __init__(
        self,
        config: RankConfig,
        pool: Pool,
        tree: RadixCache,
        growth: Growth,
        chunk_budget: int | None,
        num_mixed: int,
        foresight: Foresight | None = None,
    ) -> None:
        self.config, self.pool, self.tree, self.foresight = config, pool, tree, foresight
        self.rem_input = config.max_prefill_tokens - num_mixed
        self.rem_chunk = None if chunk_budget is None else chunk_budget - num_mixed
        self.total_offset = num_mixed + growth.down
        self.growth_rest = growth.up - growth.down  # 1 where the growth is no whole number
        self.cur_offset = num_mixed
        self.admitted: list[Piece[Request]] = []
        self.new_chunked: Request | None = None
        self.empty_pieces = config.empty_chunk_pieces  # whether a chunk without a budget is launched with 0 tokens
        self.cut_by_memory = False  # memory, not the chunk budget, limits the continued chunk

    @property
    def available(self) -> int:
        return self.pool.free_tokens + self.tree.evictable_tokens

    @property
    def rem_total(self) -> int:
        return self.available - self.total_offset

    def set_aside(self, request: Request) -> int:
        """Keep what the chunked request may still take from those that are tried before it; the number of tokens."""
        if not self.config.reserve_all_slots:
            return 0
        tokens = full_growth(self.pool, [request]) + self.config.page_size
        self.total_offset += tokens
        return tokens

    def add_chunked(self, request: Request) -> bool:
        """Continue the chunked request; False if it has to be parked because no token of memory is left.

        It takes min(rem_chunk, int(rem_total)): what remains is truncated, and less than one token is none. It is not
        floored to a page where memory, not the chunk budget, cuts it (decision 0001). Where the decodes of a mixed
        batch have used up the chunk budget it is launched with 0 tokens (RankConfig.empty_chunk_pieces).
        """
        assert self.rem_chunk is not None
        remaining = request.seq_len - request.kv_len
        budget = min(self.rem_chunk, self.rem_total - self.growth_rest)
        if budget <= 0:  # it holds memory, so it must go on rather than wait for its own growth to fit
            budget = self.rem_chunk
        spare = len(request.pages) * self.pool.page_size - request.kv_len  # rest of its last page
        new_tokens = min(remaining, budget, self.available + spare)
        self.cut_by_memory = new_tokens < min(remaining, self.rem_chunk)
        if self.rem_chunk <= 0 and self.empty_pieces and not self.admitted:
            new_tokens = 0
        elif new_tokens <= 0:
            return False
        self._charge(request, new_tokens, remaining - new_tokens)
        return True

    def add(self, request: Request, found: Match) -> Result:
        """Try a waiting request that has ``found`` in the cache. An admitted one keeps that prefix locked, and the
        caller loads back what of it is in host memory.

        The budget is looked at twice, as locking takes the prefix out of what could be evicted.
        """
        config = self.config
        if config.prefill_max_requests is not None and len(self.admitted) >= config.prefill_max_requests:
            return Result.OTHER
        new_tokens = request.seq_len - found.num_tokens
        if self.foresight is not None and request.spec.ignore_eos:
            return self._add_foreseen(request, new_tokens)
        remaining_output = max(request.spec.max_new_tokens - len(request.output_ids), 0)
        context = self.context_to_fit(new_tokens)
        total: int = need_to_admit(context, expected_output(config, remaining_output), config.page_size)
        if total >= self.rem_total:
            return Result.NO_TOKEN
        new_tokens -= found.host_tokens  # they need memory, but no computing
        if self.rem_chunk is None and self.admitted and self._ceil(new_tokens) >= self.rem_input:
            return Result.OTHER
        self.tree.lock(found.node)
        result = self._add_locked(request, found.num_tokens + found.host_tokens, new_tokens, total)
        if result is not None:
            self.tree.unlock(found.node)
            return result
        return self.state()

    def context_to_fit(self, new_tokens: int) -> int:
        """Prompt tokens that must fit before a request is admitted: all of it, not its next chunk (bugs.md B90)."""
        return new_tokens

    def _add_locked(self, request: Request, prefix_len: int, new_tokens: int, total: int) -> Result | None:
        """Why the request is not admitted; None if it is."""
        if total >= self.rem_total:
            return Result.NO_TOKEN
        cut = new_tokens
        if self.rem_chunk is not None and self._ceil(new_tokens) > self.rem_chunk:
            cut = self._floor(prefix_len + self._floor(self.rem_chunk)) - prefix_len
            if cut <= 0 or self.new_chunked is not None:  # at most one request is cut at any time
                return Result.OTHER
        self._charge(request, cut, new_tokens - cut)
        return None

    def _add_foreseen(self, request: Request, new_tokens: int) -> Result:
        """A request whose length is known: admitted if all that is known to come fits (foresight.py)."""
        assert self.foresight is not None
        paged = self._ceil(new_tokens)
        cur_rem = self.available - self.cur_offset
        if paged > min(cur_rem, self.rem_total - self.growth_rest):
            return Result.NO_TOKEN
        if not self.foresight.fits(request, [piece.kv for piece in self.admitted], cur_rem - paged):
            return Result.NO_TOKEN
        cut = new_tokens
        if self.rem_chunk is not None and new_tokens > self.rem_chunk:
            if self.rem_chunk <= 0 or self.new_chunked is not None:
                return Result.OTHER
            cut = self.rem_chunk  # not floored to a page
        self._charge(request, cut, new_tokens - cut)
        return self.state()

    def state(self) -> Result:
        """Whether there is room for another request."""
        if self.rem_total <= 0 or self.available - self.cur_offset <= 0:
            return Result.NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return Result.OTHER
        return Result.CONTINUE

    def _charge(self, request: Request, new_tokens: int, rest: int) -> None:
        """Take a piece out of the budgets; ``rest`` is what stays of the input for later chunks."""
        ext = self._ceil(new_tokens)
        page = self.config.page_size
        output = expected_output(self.config, request.spec.max_new_tokens)
        if rest:
            output = rest + output if self.config.reserve_all_slots else 0
        self.rem_input -= ext
        if self.rem_chunk is not None:
            self.rem_chunk -= ext
        self.total_offset += tokens_set_aside(ext, output, page)
        self.cur_offset += ext + page
        prefix_len = request.seq_len - new_tokens - rest
        self.admitted.append(Piece(request.rid, prefix_len, new_tokens, not rest, False, request))
        if rest:
            self.new_chunked = request

    def _ceil(self, num_tokens: int) -> int:
        page = self.config.page_size
        return -(-num_tokens // page) * page

    def _floor(self, num_tokens: int) -> int:
        page = self.config.page_size
        return num_tokens // page * page
