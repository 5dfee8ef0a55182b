"""The budgets of one prefill batch (SGLang's PrefillAdder; protocol.md 4.3).

    rem_input   max_prefill_tokens           minus page-ceiled new tokens of what is admitted
    rem_chunk   chunk budget of this batch   minus the same; None: chunking is off
    rem_total   free + evictable tokens      minus expected decode growth of the slot's running set (times the ratio),
                                             minus new tokens, max_new_tokens and a page for what is admitted
    cur_rem     free + evictable tokens      minus new tokens and a page for what is admitted

The decode growth of the other slots is not reserved (as in SGLang, which leans on retraction) unless
``reserve_all_slots`` is set (open_choices.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ppsim.core.config import RankConfig
from ppsim.core.pool import Pool
from ppsim.core.prefix import RadixCache
from ppsim.core.ratio import NewTokenRatio
from ppsim.core.request import Request


class Result(Enum):
    """Whether the next waiting request may be tried."""

    CONTINUE = "continue"
    NO_TOKEN = "no_token"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that gets ``new_tokens`` more tokens in this batch; ``is_last_chunk`` if they complete its input."""

    request: Request
    new_tokens: int
    is_last_chunk: bool


class PrefillAdder:
    """Fills one prefill batch. ``reserved`` are the running requests whose decode growth is set aside."""

    def __init__(
        self,
        config: RankConfig,
        pool: Pool,
        tree: RadixCache,
        ratio: NewTokenRatio,
        reserved: Iterable[Request],
        chunk_budget: int | None,
        num_mixed: int,
    ) -> None:
        self.config, self.pool, self.tree = config, pool, tree
        self.rem_input = config.max_prefill_tokens - num_mixed
        self.rem_chunk = None if chunk_budget is None else chunk_budget - num_mixed
        clip = config.clip_max_new_tokens
        growth = sum(min(max(r.spec.max_new_tokens - len(r.output_ids), 0), clip) for r in reserved)
        share = ratio.value
        self.total_offset = num_mixed + growth * share.numerator // share.denominator
        self.cur_offset = num_mixed
        self.admitted: list[Admitted] = []
        self.new_chunked: Request | None = None
        self.cut_by_memory = False  # memory, not the chunk budget, limits the continued chunk

    @property
    def available(self) -> int:
        return self.pool.free_tokens + self.tree.evictable_tokens

    @property
    def rem_total(self) -> int:
        return self.available - self.total_offset

    def add_chunked(self, request: Request) -> bool:
        """Continue the chunked request; False if it has to be parked because no token of memory is left.

        It is not floored to a page where memory, not the chunk budget, cuts it (open_choices.md).
        """
        assert self.rem_chunk is not None
        remaining = request.seq_len - request.kv_len
        budget = min(self.rem_chunk, self.rem_total)
        if budget <= 0:  # it holds memory, so it must go on rather than wait for its own growth to fit
            budget = self.rem_chunk
        spare = len(request.pages) * self.pool.page_size - request.kv_len  # rest of its last page
        new_tokens = min(remaining, budget, self.available + spare)
        if new_tokens <= 0:
            return False
        is_last = new_tokens == remaining
        self.cut_by_memory = new_tokens < min(remaining, self.rem_chunk)
        self._charge(request, new_tokens, is_last)
        return True

    def add(self, request: Request, prefix_len: int) -> Result:
        """Try a waiting request whose first ``prefix_len`` tokens are cached; the caller has locked that prefix."""
        config = self.config
        if config.prefill_max_requests is not None and len(self.admitted) >= config.prefill_max_requests:
            return Result.OTHER
        new_tokens = request.seq_len - prefix_len
        remaining_output = max(request.spec.max_new_tokens - len(request.output_ids), 0)
        total = new_tokens + min(remaining_output, config.clip_max_new_tokens) + config.page_size
        if total >= self.rem_total:
            return Result.NO_TOKEN
        if self.rem_chunk is None:
            if self.admitted and self._ceil(new_tokens) >= self.rem_input:
                return Result.OTHER
        elif self._ceil(new_tokens) > self.rem_chunk:
            cut = self._floor(prefix_len + self._floor(self.rem_chunk)) - prefix_len
            if cut <= 0:
                return Result.OTHER
            self._charge(request, cut, False)
            return self.state()
        self._charge(request, new_tokens, True)
        return self.state()

    def state(self) -> Result:
        """Whether there is room for another request."""
        if self.rem_total <= 0 or self.available - self.cur_offset <= 0:
            return Result.NO_TOKEN
        if self.rem_input <= 0 or (self.rem_chunk is not None and self.rem_chunk <= 0):
            return Result.OTHER
        return Result.CONTINUE

    def _charge(self, request: Request, new_tokens: int, is_last: bool) -> None:
        ext = self._ceil(new_tokens)
        page = self.config.page_size
        output = min(request.spec.max_new_tokens, self.config.clip_max_new_tokens) if is_last else 0
        self.rem_input -= ext
        if self.rem_chunk is not None:
            self.rem_chunk -= ext
        self.total_offset += ext + output + page
        self.cur_offset += ext + page
        self.admitted.append(Admitted(request, new_tokens, is_last))
        if not is_last:
            self.new_chunked = request

    def _ceil(self, num_tokens: int) -> int:
        page = self.config.page_size
        return -(-num_tokens // page) * page

    def _floor(self, num_tokens: int) -> int:
        page = self.config.page_size
        return num_tokens // page * page
