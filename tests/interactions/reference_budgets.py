"""PrefillAdder of the naive scheduler (protocol.md 4.3): the table of budgets, added up anew at each question."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.interactions.naive_tree import Tokens
from tests.interactions.reference_parts import Job, Microbatch, Row, ceiling, floor

if TYPE_CHECKING:
    from tests.interactions.reference_scheduler import ReferenceScheduler


class Adder:
    """Every remainder is computed from what was taken so far when it is asked for."""

    def __init__(self, server: ReferenceScheduler, slot: Microbatch) -> None:
        self.s, self.k, self.page = server, server.k, server.page
        self.mixed = len(slot.running) if self.k.enable_mixed_chunk else 0
        self.budget = self.chunk_budget()
        self.growth = server.growth(slot)
        self.rows: list[Row] = []

    def chunk_budget(self) -> int | None:
        chunked = self.s.chunked
        if self.k.chunked_prefill_size is None or chunked is None:
            return self.k.chunked_prefill_size
        sizes = [size for start, size in self.k.chunk_table if start <= chunked.kv]
        return sizes[-1] if sizes and sizes[-1] > 0 else self.k.chunked_prefill_size

    # The table of 4.3.

    @property
    def ext(self) -> int:
        return sum(ceiling(row.num, self.page) for row in self.rows)

    @property
    def rem_input(self) -> int:
        return self.k.max_prefill_tokens - self.mixed - self.ext

    @property
    def rem_chunk(self) -> int:
        return 10**9 if self.budget is None else self.budget - self.mixed - self.ext

    @property
    def rem_total(self) -> int:
        output = sum(self.s.clip(row.job.spec.max_new_tokens) for row in self.rows if row.last)
        if self.k.reserve_all_slots:  # the rest of a cut prompt and its output are needed as well
            for row in self.rows:
                if not row.last:
                    output += len(row.job.all) - row.start - row.num + row.job.spec.max_new_tokens
        return self.s.available - self.mixed - self.growth - self.ext - output - self.page * len(self.rows)

    @property
    def cur_rem(self) -> int:
        return self.s.available - self.mixed - self.ext - self.page * len(self.rows)

    def budget_state(self) -> str:
        if self.rem_total <= 0 or self.cur_rem <= 0:
            return "NO_TOKEN"
        return "OTHER" if self.rem_input <= 0 or self.rem_chunk <= 0 else "CONTINUE"

    def add_chunked_req(self, job: Job) -> bool:
        """False: parked, since not one token of it fits (B100)."""
        remaining = len(job.all) - job.kv
        budget = min(self.rem_chunk, self.rem_total)
        if budget <= 0:
            budget = self.rem_chunk
        rest_of_last_page = ceiling(job.kv, self.page) - job.kv
        num = min(remaining, budget, self.s.available + rest_of_last_page)
        if num <= 0:
            return False
        self.rows.append(Row(job, job.kv, num, num == remaining, False))
        return True

    def add_one_req(self, job: Job, found: Tokens) -> str:
        if self.k.prefill_max_requests is not None and len(self.rows) >= self.k.prefill_max_requests:
            return "OTHER"
        new = len(job.all) - len(found)
        total = new + self.s.clip(max(job.wants, 0)) + self.page
        if total >= self.rem_total:
            return "NO_TOKEN"
        if self.budget is None and self.rows and ceiling(new, self.page) >= self.rem_input:
            return "OTHER"
        self.s.tree.lock(found)
        if total >= self.rem_total:
            self.s.tree.unlock(found)
            return "NO_TOKEN"
        num = new
        if ceiling(new, self.page) > self.rem_chunk:
            num = floor(len(found) + floor(self.rem_chunk, self.page), self.page) - len(found)
            if num <= 0:
                self.s.tree.unlock(found)
                return "OTHER"
        job.kv, job.shared, job.row = len(found), found, self.s.rows.pop()
        if not self.k.enable_radix_cache:
            self.s.tree.unlock(found)
        self.rows.append(Row(job, len(found), num, num == new, False))
        return self.budget_state()
