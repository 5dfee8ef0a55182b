"""A second scheduler, written naively from the text of protocol.md 4.1 to 4.10 and the decisions of docs/decisions.

It exists to disagree with ``ppsim.core.scheduler``. It shares no code with the scheduler, the admission budgets, the
KV bookkeeping or the radix cache: requests are dictionaries of plain values, the cache is a list of spans, and every
total is added up anew from what is there. Each function carries the number of the section that it follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from ppsim.core.config import RankConfig
from ppsim.core.messages import AbortReq, Input, NewRequest
from ppsim.core.tokens import unpack
from tests.interactions.naive_tree import NaiveTree, Tokens
from tests.interactions.reference_budgets import Adder
from tests.interactions.reference_parts import Batch, Job, Microbatch, Row, ceiling, floor


class ReferenceScheduler:
    """``replies`` are (rid, status, tokens so far); nothing is ever removed from them."""

    def __init__(self, config: RankConfig, capacity_tokens: int) -> None:
        self.k = config
        self.page = config.page_size
        self.capacity = floor(capacity_tokens, self.page)
        self.tree = NaiveTree(self.page)
        self.slots = [Microbatch() for _ in range(config.pp_size + config.pp_async_batch_depth)]
        self.rows = list(range(1, config.max_running_requests + 1))  # taken from the tail, given back there
        self.queue: list[Job] = []
        self.jobs: list[Job] = []  # all that have not ended
        self.chunked: Job | None = None
        self.ratio = config.init_new_token_ratio
        self.owed = 0
        self.replies: list[tuple[str, str, int]] = []
        self.dropped: list[str] = []  # ended without having finished, in order

    # --- memory (4.9, 4.10) ------------------------------------------------------------------------------------

    def own_tokens(self, job: Job) -> int:
        """Tokens of the pages that only this request holds."""
        return 0 if job.shared is None else ceiling(job.kv, self.page) - len(job.shared)

    @property
    def free(self) -> int:
        return self.capacity - self.tree.cached - sum(self.own_tokens(job) for job in self.jobs)

    @property
    def available(self) -> int:
        return self.free + self.tree.evictable

    @property
    def free_rows(self) -> int:
        return len(self.rows)

    def find(self, job: Job) -> Tokens:
        """A request may match at most all but its last token."""
        return self.tree.match(job.all[:-1]) if self.k.enable_radix_cache else ()

    def missing(self, job: Job, num: int) -> int:
        """Tokens of new pages needed for so many more tokens."""
        return ceiling(job.kv + num, self.page) - ceiling(job.kv, self.page)

    def take(self, job: Job, num: int) -> None:
        need = self.missing(job, num)
        if need > self.free:
            self.tree.evict(need - self.free)
        assert need <= self.free, "admission promised memory that is not there"
        job.kv += num

    def release(self, job: Job, insert: bool) -> None:
        assert job.shared is not None
        if insert and self.k.enable_radix_cache:
            self.tree.insert(job.all[: job.kv])
        if self.k.enable_radix_cache:
            self.tree.unlock(job.shared)
        assert job.row is not None
        self.rows.append(job.row)
        job.kv, job.shared, job.row = 0, None, None

    def stash(self, job: Job) -> None:
        """Insert what is computed, match again, move the lock."""
        assert job.shared is not None
        if not self.k.enable_radix_cache:
            return
        self.tree.insert(job.all[: job.kv])
        found = self.tree.match(job.all[: job.kv])
        self.tree.lock(found)
        self.tree.unlock(job.shared)
        job.shared = found

    # --- inputs (4.3, refusal at arrival) ------------------------------------------------------------------------

    def arrive(self, inputs: Iterable[Input]) -> None:
        for spec in inputs:
            if isinstance(spec, AbortReq):
                self.abort(spec)
                continue
            assert isinstance(spec, NewRequest)
            job = Job(spec, tuple(unpack(spec.prompt)))
            everything = len(job.prompt) + spec.max_new_tokens
            never = (
                any(other.rid == job.rid for other in self.jobs)
                or not job.prompt
                or spec.max_new_tokens < 1
                or everything > self.k.context_length
                or everything - 1 > self.capacity
                or len(job.prompt) + self.clip(spec.max_new_tokens) + self.page >= self.capacity
            )
            if never:
                self.replies.append((job.rid, "refused", 0))
            else:
                self.jobs.append(job)
                self.queue.append(job)

    def abort(self, item: AbortReq) -> None:
        """7.4: it launches nothing more, and ends as soon as no launched batch contains it."""
        for job in list(self.jobs):
            if item.abort_all or job.rid == item.rid:
                job.doomed = True
                if job is self.chunked:
                    self.chunked = None
                self.drop_if_landed(job)

    def drop_if_landed(self, job: Job) -> None:
        flying = [row.job for slot in self.slots if slot.launched is not None for row in slot.launched.rows]
        if job in flying:
            return
        if job.shared is not None:
            self.release(job, insert=False)
        self.queue = [other for other in self.queue if other is not job]
        self.drop(job)

    def drop(self, job: Job) -> None:
        self.end(job, "aborted")
        self.dropped.append(job.rid)

    # --- get_next_batch_to_run (4.1) -----------------------------------------------------------------------------

    def schedule(self, iteration: int) -> tuple[Batch | None, list[str]]:
        """The batch of this visit, and who was retracted."""
        slot = self.slots[iteration % len(self.slots)]
        retracted: list[str] = []
        if self.chunked is not None:  # step 3
            assert self.chunked.shared is not None
            if self.chunked.kv > len(self.chunked.shared):
                self.stash(self.chunked)
        self.merge(slot)  # step 4
        batch = None
        if not self.deferred(slot):  # step 6
            batch = self.new_prefill(slot, iteration)
        if batch is None:  # step 7
            batch = self.decode(slot, iteration, retracted)
        slot.launched = batch
        return batch, retracted

    def merge(self, slot: Microbatch) -> None:
        if slot.last is not None and slot.last.mode != "decode":
            members = [row.job for row in slot.last.rows]
            stay = [job for job in members if not job.ended and job not in (slot.last.chunked, self.chunked)]
            if len(stay) < len(members):
                slot.full = False
            slot.running = slot.running + stay
        slot.last = None
        if not slot.running:
            slot.full = False

    def deferred(self, slot: Microbatch) -> bool:
        """prefill_decode_interval: counted in iterations of the rank; a slot with nothing to decode is not held up."""
        if self.owed == 0:
            return False
        self.owed -= 1
        return any(not job.ended for job in slot.running)

    # --- _get_new_batch_prefill_raw (4.2) --------------------------------------------------------------------------

    def new_prefill(self, slot: Microbatch, iteration: int) -> Batch | None:
        if (slot.full or not self.queue) and self.chunked is None:  # step 3
            return None
        if min(self.k.max_micro_batch_size - len(slot.running), self.free_rows) <= 0 and self.chunked is None:  # step 4
            slot.full = True
            return None
        self.sort_queue()  # step 5
        adder = Adder(self, slot)  # steps 6 and 7
        if self.chunked is not None and not adder.add_chunked_req(self.chunked):
            return None
        for job in list(self.queue):  # step 8
            in_slot = self.k.max_micro_batch_size - len(slot.running) - len(adder.rows)
            if in_slot <= 0 or self.free_rows <= 0:
                slot.full = True
            if slot.full:
                break
            answer = adder.add_one_req(job, self.find(job))
            if answer == "NO_TOKEN":
                slot.full = True
            if answer != "CONTINUE":
                break
        if not adder.rows:
            return None
        self.queue = [job for job in self.queue if job.shared is None]  # step 9
        self.chunked = None
        for row in adder.rows:
            if not row.last:
                assert self.chunked is None, "two chunked requests"
                self.chunked = row.job
                row.job.middle += 1
        for row in adder.rows:  # step 10
            self.take(row.job, row.num)
        batch = Batch(iteration, "extend", adder.rows, self.chunked)
        self.mix(slot, batch)  # step 11
        self.owed = self.k.prefill_decode_interval
        return batch

    def sort_queue(self) -> None:
        if self.k.schedule_policy != "lpm" or not self.k.enable_radix_cache or len(self.queue) > 128:
            return
        keys = []
        ahead: list[Tokens] = []  # heads of earlier waiting requests that hit little themselves
        for job in self.queue:
            hit = len(self.find(job))
            last = False
            if hit <= 32 and len(job.all) >= 32:
                last = job.all[:32] in ahead
                ahead.append(job.all[:32])
            keys.append((last, 0 if last else -hit))
        order = sorted(range(len(keys)), key=lambda i: keys[i])  # stable
        self.queue = [self.queue[i] for i in order]

    def mix(self, slot: Microbatch, batch: Batch) -> None:
        """Mixed chunk (4.8)."""
        everyone = slot.running + [row.job for row in batch.rows]
        if not self.k.enable_mixed_chunk or not slot.running or any(job.spec.return_logprob for job in everyone):
            return
        self.filter(slot)
        if not slot.running or not self.make_room(slot.running):
            return
        for job in slot.running:
            batch.rows.append(self.decode_row(job))
        batch.mode = "mixed"
        slot.running = []

    # --- budgets (4.3) -----------------------------------------------------------------------------------------

    def clip(self, num: int) -> int:
        """Expected output; with all_slots nothing is clipped, since the reservation has to hold."""
        return num if self.k.reserve_all_slots else min(num, self.k.clip_max_new_tokens)

    def growth(self, slot: Microbatch) -> int:
        """What is set aside for the output of requests that are not part of this batch."""
        if not self.k.reserve_all_slots:
            total = sum(self.clip(job.wants) for job in slot.running)
            return int(total * self.ratio)
        others = [job for job in self.jobs if job.shared is not None and job is not self.chunked]
        return sum(self.missing(job, len(job.prompt) + job.spec.max_new_tokens - 1 - job.kv) for job in others)

    # --- decode (4.5) ------------------------------------------------------------------------------------------

    def filter(self, slot: Microbatch) -> None:
        stay = [job for job in slot.running if not job.ended]
        if len(stay) < len(slot.running):
            slot.full = False
        slot.running = stay

    def make_room(self, jobs: list[Job]) -> bool:
        """Evict only the shortfall; whether it was enough."""
        need = self.page * sum(job.kv % self.page == 0 for job in jobs)
        if need > self.free:
            self.tree.evict(need - self.free)
        return need <= self.free

    def decode(self, slot: Microbatch, iteration: int, retracted: list[str]) -> Batch | None:
        self.filter(slot)
        if not slot.running:
            slot.full = False
            return None
        if self.make_room(slot.running):
            step = (self.k.init_new_token_ratio - self.k.min_new_token_ratio) / self.k.new_token_ratio_decay_steps
            self.ratio = max(self.ratio - step, self.k.min_new_token_ratio)
        else:
            slot.full = False
            self.retract(slot, retracted)
        if not slot.running:
            return None
        return Batch(iteration, "decode", [self.decode_row(job) for job in slot.running], self.chunked)

    def retract(self, slot: Microbatch, retracted: list[str]) -> None:
        while True:
            fewest = min(len(job.out) for job in slot.running)
            worst = [job for job in slot.running if len(job.out) == fewest]
            longest = max(len(job.prompt) for job in worst)
            victim = [job for job in worst if len(job.prompt) == longest][-1]  # the later one
            if len(slot.running) == 1:
                break
            slot.running.remove(victim)
            self.release(victim, insert=False)
            self.queue.append(victim)
            retracted.append(victim.rid)
            if self.make_room(slot.running):
                break
        if not self.make_room(slot.running):
            (last,) = slot.running
            slot.running = []
            self.release(last, insert=False)
            self.drop(last)
        generated = sum(len(job.out) for job in slot.running)
        limits = sum(job.spec.max_new_tokens for job in slot.running)
        share = Fraction(generated + self.k.retract_decode_steps * len(slot.running), limits + 1)
        self.ratio = min(share, Fraction(1))

    def decode_row(self, job: Job) -> Row:
        start = job.kv
        self.take(job, 1)
        return Row(job, start, 1, True, True)

    # --- harvest (4.4, 4.6, 7.4 finish) --------------------------------------------------------------------------

    def absorb(
        self, iteration: int, tokens: tuple[int, ...] | None
    ) -> tuple[int | None, list[tuple[str, int]], list[str]]:
        """(launch iteration, (rid, n) of each delivered token, who finished)."""
        slot = self.slots[(iteration + 1) % len(self.slots)]
        batch, slot.launched = slot.launched, None
        if batch is None:
            return None, [], []
        slot.last = batch
        delivered, finished = [], []
        for number, row in enumerate(batch.rows):
            job = row.job
            if job.doomed:
                job.middle -= not row.last
                self.drop_if_landed(job)
                continue
            if not row.decode and job.middle > 0:
                job.middle -= 1
                continue
            assert tokens is not None, "the token of a skipped result would be used"
            job.out += (tokens[number],)
            delivered.append((job.rid, len(job.out)))
            stops = not job.spec.ignore_eos and tokens[number] in job.spec.stop_token_ids
            if stops or len(job.out) >= job.spec.max_new_tokens:
                self.release(job, insert=True)
                self.end(job, "finished")
                finished.append(job.rid)
            else:
                self.replies.append((job.rid, "token", len(job.out)))
                if not row.decode:
                    self.stash(job)
        return batch.iteration, delivered, finished

    def end(self, job: Job, status: str) -> None:
        job.ended = True
        self.jobs.remove(job)
        self.replies.append((job.rid, status, len(job.out)))

    @property
    def idle(self) -> bool:
        return not self.jobs and all(slot.launched is None for slot in self.slots)

    def on_idle(self) -> None:
        if self.idle:
            self.ratio = self.k.init_new_token_ratio
