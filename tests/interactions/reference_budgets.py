"""PrefillAdder of the naive scheduler (protocol.md 4.3): the table of budgets, added up anew at each question."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from tests.interactions.naive_tree import Tokens
from tests.interactions.reference_parts import Job, Microbatch, Row, ceiling, floor

if TYPE_CHECKING:
    from tests.interactions.reference_scheduler import ReferenceScheduler


class Adder:
    """Every remainder is computed from what was taken so far when it is asked for."""

    def __init__(self, server: ReferenceScheduler, slot: Microbatch) -> None:
        self.s, self.k, self.page, self.slot = server, server.k, server.page, slot
        self.mixed = len(slot.running.jobs) if self.k.enable_mixed_chunk else 0
        self.budget = self.chunk_budget()
        self.growth = server.growth(slot)
        self.rows: list[Row] = []
        self.future: list[tuple[Fraction, int]] | None = None  # rule 8

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
    def rem_total(self) -> Fraction:
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
        """False: parked, since not one token of it fits (B100).

        Rule 4: the remainder is truncated, not the growth; what is left below one token counts as nothing left.
        """
        remaining = len(job.all) - job.kv
        budget = min(self.rem_chunk, int(self.rem_total))
        if budget <= 0:
            budget = self.rem_chunk
        if budget <= 0:  # the decodes of a mixed batch use up the chunk budget
            if not self.launches_no_token(job):
                return False
            self.rows.append(Row(job, job.kv, 0, False, False))
            return True
        rest_of_last_page = ceiling(job.kv, self.page) - job.kv
        num = min(remaining, budget, self.s.available + rest_of_last_page)
        if num <= 0:
            return False
        self.rows.append(Row(job, job.kv, num, num == remaining, False))
        return True

    def launches_no_token(self, job: Job) -> bool:
        """Rule 9b: a chunk that decodes leave no budget is launched with 0 tokens; mended, the slot decodes.

        Where they could never ride along (a logprob, no memory) the slot decodes as well: a batch without any token, at
        every visit, would never end. Decodes that have all ended leave the set in that batch.
        """
        alive = [other for other in self.slot.running.jobs if not other.ended]
        fits = self.s.due_pages(alive) <= self.s.available
        return self.k.empty_chunk_pieces and not self.s.mended and fits and self.s.may_mix(self.slot, [job])

    def add_one_req(self, job: Job, found: Tokens) -> str:
        if self.k.prefill_max_requests is not None and len(self.rows) >= self.k.prefill_max_requests:
            return "OTHER"
        if job.spec.ignore_eos and not self.k.enable_radix_cache and not self.k.reserve_all_slots:
            return self.add_one_req_ignore_eos(job)
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
        if not self.k.enable_radix_cache:
            self.s.tree.unlock(found)
        return self.admit(job, found, num)

    def admit(self, job: Job, found: Tokens, num: int) -> str:
        job.kv, job.prefix, job.shared, job.row = len(found), len(found), found, self.s.rows.pop()
        self.rows.append(Row(job, len(found), num, len(found) + num == len(job.all), False))
        return self.budget_state()

    # Rule 8. From add_one_req_ignore_eos in SGLang's schedule_policy.py, in own words.

    def add_one_req_ignore_eos(self, job: Job) -> str:
        """Only with the radix cache off, for a request whose end is known: it cannot stop early.

        Plays the future of this slot: the requests end in the order of the tokens that they have left, each gives its
        memory back when it ends, and until then all that remain grow by one token a step. Admitted if at every end more
        than one token for each request that is still there stays free.
        """
        if ceiling(len(job.all), self.page) > min(Fraction(self.cur_rem), self.rem_total):
            return "NO_TOKEN"
        future = self.foresee(job)
        free = self.cur_rem - ceiling(len(job.all), self.page)
        for number, (left, _) in enumerate(future):
            still_there = len(future) - number
            given_back = sum(occupied for _, occupied in future[:number])
            if free + given_back - left * still_there <= still_there:
                return "NO_TOKEN"
        if len(job.all) <= self.rem_chunk:
            return self.admit(job, (), len(job.all))
        if self.rem_chunk <= 0 or any(not row.last for row in self.rows):
            return "OTHER"  # 4.3: one chunked request at a time (SGLang would forget the first of two here)
        return self.admit(job, (), self.rem_chunk)  # not floored to a page

    def foresee(self, job: Job) -> list[tuple[Fraction, int]]:
        """Put the request into ``future``, (tokens left, tokens occupied) of each that has some left, fewest first.

        The first call in a visit looks at everybody in the slot and in the batch. A later one only inserts its own
        request: before the first that has at least as much left, or, where nobody has, *before* the last.
        """
        if self.future is None:
            everyone = [job, *self.slot.running.jobs, *(row.job for row in self.rows)]
            self.future = sorted((state for j in everyone for state in self.left(j)), key=lambda state: state[0])
            return self.future
        for state in self.left(job):
            longer = [number for number, other in enumerate(self.future) if state[0] <= other[0]]
            self.future.insert(longer[0] if longer else max(len(self.future) - 1, 0), state)
        return self.future

    def left(self, job: Job) -> list[tuple[Fraction, int]]:
        """A request that may stop early is counted with the ratio, one that ignores the end in full."""
        ratio = Fraction(1) if job.spec.ignore_eos else self.s.ratio
        tokens_left = job.spec.max_new_tokens * ratio - len(job.out)
        return [(tokens_left, len(job.all))] if tokens_left > 0 else []
