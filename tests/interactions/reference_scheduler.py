"""A second scheduler, written naively from the text of protocol.md 4.1 to 4.10 and the rules of docs/batches.md.

It exists to disagree with ``core/schedule/scheduler.py``. It has no code of the scheduler, the admission budgets, the
KV bookkeeping or the radix cache: requests are dictionaries of plain values, the cache is a list of spans, and every
total is added up anew from what is there. Each function carries the number of the section that it follows, and
"rule N" where SGLang's own scheduler was measured to do something else or more exact than the text; what it then does
is held against recorded runs of SGLang in ``test_reference_against_sglang.py``.

``rules`` = "sglang" decides as SGLang does. "mended" differs where SGLang lets a slot or a visit
go to waste: rules 1b, 2 (``self.mended``) and what has a switch of its own in the configuration (3, 9a, 9b).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from ppsim.core.config import RankConfig
from ppsim.core.messages import AbortReq, Input, NewRequest
from ppsim.core.tokens import unpack
from tests.interactions.naive_tree import NaiveTree, Tokens
from tests.interactions.reference_budgets import Adder
from tests.interactions.reference_parts import Batch, Job, Microbatch, Row, RunningBatch, ceiling, floor


class ReferenceScheduler:
    """``replies`` are (rid, status, tokens so far); nothing is ever removed from them."""

    def __init__(self, config: RankConfig, capacity_tokens: int, rules: str = "sglang") -> None:
        assert rules in ("sglang", "mended")
        self.mended = rules == "mended"
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
        self.sweep_had_batch = False
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

    def evict_shortfall(self, wanted: int) -> None:
        """4.5: nothing is evicted that is not short."""
        if wanted > self.free:
            self.tree.evict(wanted - self.free)

    def take(self, job: Job, num: int) -> None:
        assert self.missing(job, num) <= self.free, "admission promised memory that is not there"
        job.kv += num

    def release(self, job: Job, insert: bool) -> None:
        assert job.shared is not None
        if insert and self.k.enable_radix_cache:
            self.tree.insert(job.all[: job.kv])
        if self.k.enable_radix_cache:
            self.tree.unlock(job.shared)
        assert job.row is not None
        self.rows.append(job.row)
        job.kv, job.prefix, job.shared, job.row = 0, 0, None, None

    def stash(self, job: Job) -> None:
        """4.10 unfinished: insert what is computed, match again, move the lock."""
        assert job.shared is not None
        job.prefix = job.kv
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
        if self.chunked is not None and self.chunked.kv > self.chunked.prefix:  # step 3
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
        """4.1 step 4. Rule 1a: ``full`` is the running batch's own, so another batch object has another flag."""
        if slot.last is not None and slot.last.mode != "decode":
            members = [row.job for row in slot.last.rows]
            stay = [job for job in members if not job.ended and job not in (slot.last.chunked, self.chunked)]
            if len(stay) < len(members):
                slot.running.full = False  # rule 1a (a)
            if stay and not slot.running.jobs:
                slot.running = RunningBatch(stay)  # rule 1a (b): the harvested batch itself, which was never full
            else:
                slot.running.jobs = slot.running.jobs + stay
        slot.last = None
        if self.mended and not slot.running.jobs:
            slot.running.full = False  # rule 1b: with SGLang's rules an empty and full one stays closed

    def deferred(self, slot: Microbatch) -> bool:
        """4.1 step 6, prefill_decode_interval, counted in iterations of the rank.

        Rule 2: a slot with nothing to decode is held up as well, and so is a running chunk; not in the mended rules.
        """
        if self.owed == 0:
            return False
        self.owed -= 1
        return not self.mended or any(not job.ended for job in slot.running.jobs)

    # --- _get_new_batch_prefill_raw (4.2) --------------------------------------------------------------------------

    def new_prefill(self, slot: Microbatch, iteration: int) -> Batch | None:
        running = slot.running
        # Rule 9a: the row of a continued chunk counts among the free ones, though it has its row already.
        held = 0 if self.k.chunk_counts_as_row or self.chunked is None else 1
        places = min(self.k.max_micro_batch_size - len(running.jobs), self.free_rows + held)
        if (running.full or not self.queue) and self.chunked is None:  # step 3
            return None
        if places <= 0 and self.chunked is None:  # step 4
            running.full = True
            return None
        self.sort_queue()  # step 5
        adder = Adder(self, slot)  # steps 6 and 7
        if self.chunked is not None and not adder.add_chunked_req(self.chunked):
            return None
        for job in list(self.queue):  # step 8
            if len(adder.rows) >= places:
                running.full = True
            if running.full:
                break
            answer = adder.add_one_req(job, self.find(job))
            if answer == "NO_TOKEN":
                running.full = True
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
        self.allocate(adder.rows)  # step 10
        batch = Batch(iteration, "extend", adder.rows, self.chunked)
        self.mix(slot, batch)  # step 11
        self.owed = self.k.prefill_decode_interval
        return batch

    def allocate(self, rows: list[Row]) -> None:
        """4.2 step 10. Rule 3b: with pages, one more page a request is made free, whether it is needed or not."""
        ahead = sum(row.num for row in rows) + (self.page * len(rows) if self.page > 1 else 0)
        due = sum(self.missing(row.job, row.num) for row in rows)
        self.evict_shortfall(ahead if self.k.evict_ahead else due)
        for row in rows:
            self.take(row.job, row.num)

    def sort_queue(self) -> None:
        """4.2 step 5, lpm. Rule 6: the *whole* prompt is matched, only the sort key leaves the last token out."""
        if self.k.schedule_policy != "lpm" or not self.k.enable_radix_cache or len(self.queue) > 128:
            return
        keys = []
        ahead: list[Tokens] = []  # heads of earlier waiting requests that hit little themselves
        for job in self.queue:
            hit = len(self.tree.match(job.all))
            last = False
            if hit <= 32 and len(job.all) >= 32:
                last = job.all[:32] in ahead
                ahead.append(job.all[:32])
            keys.append((last, 0 if last else -min(hit, len(job.all) - 1)))
        order = sorted(range(len(keys)), key=lambda i: keys[i])  # stable
        self.queue = [self.queue[i] for i in order]

    def may_mix(self, slot: Microbatch, jobs: list[Job]) -> bool:
        """4.8: a logprob on either side keeps prefill and decode apart."""
        everyone = slot.running.jobs + jobs
        return self.k.enable_mixed_chunk and not any(job.spec.return_logprob for job in everyone)

    def mix(self, slot: Microbatch, batch: Batch) -> None:
        """Mixed chunk (4.8). What is left of the decode set is a new, empty batch object with the old flag."""
        if not slot.running.jobs or not self.may_mix(slot, [row.job for row in batch.rows]):
            return
        slot.running.jobs = [
            job for job in slot.running.jobs if not job.ended
        ]  # no decode visit: rule 1a (c) is silent
        if not slot.running.jobs or not self.make_room(slot.running.jobs):
            return
        batch.rows += self.decode_rows(slot.running.jobs)
        batch.mode = "mixed"
        slot.running = RunningBatch([], slot.running.full)

    # --- budgets (4.3) -----------------------------------------------------------------------------------------

    def clip(self, num: int) -> int:
        """Expected output; with all_slots nothing is clipped, since the reservation has to hold."""
        return num if self.k.reserve_all_slots else min(num, self.k.clip_max_new_tokens)

    def growth(self, slot: Microbatch) -> Fraction:
        """What is set aside for the output of requests that are not part of this batch; exact (rule 4)."""
        if not self.k.reserve_all_slots:
            return sum(self.clip(job.wants) for job in slot.running.jobs) * self.ratio
        others = [job for job in self.jobs if job.shared is not None and job is not self.chunked]
        needs = [self.missing(job, len(job.prompt) + job.spec.max_new_tokens - 1 - job.kv) for job in others]
        return Fraction(sum(needs))

    # --- decode (4.5) ------------------------------------------------------------------------------------------

    def due_pages(self, jobs: list[Job]) -> int:
        """Tokens of the pages that the next token of each needs."""
        return self.page * sum(job.kv % self.page == 0 for job in jobs)

    def make_room(self, jobs: list[Job]) -> bool:
        """Evict only the shortfall; whether it was enough."""
        self.evict_shortfall(self.due_pages(jobs))
        return self.due_pages(jobs) <= self.free

    def decode(self, slot: Microbatch, iteration: int, retracted: list[str]) -> Batch | None:
        running = slot.running
        before = len(running.jobs)
        running.jobs = [job for job in running.jobs if not job.ended]
        if running.jobs:
            if self.make_room(running.jobs):
                step = (self.k.init_new_token_ratio - self.k.min_new_token_ratio) / self.k.new_token_ratio_decay_steps
                self.ratio = max(self.ratio - step, self.k.min_new_token_ratio)
            else:
                self.retract(running, retracted)
        if len(running.jobs) < before:
            running.full = False  # rule 1a (c); rule 1b: a set that was empty already does not come here
        if not running.jobs:
            return None
        return Batch(iteration, "decode", self.decode_rows(running.jobs), self.chunked)

    def retract(self, running: RunningBatch, retracted: list[str]) -> None:
        # Most output first, then the shorter prompt; of equals the earlier. Rule 5: those that stay keep this order.
        running.jobs = sorted(running.jobs, key=lambda job: (-len(job.out), len(job.prompt)))
        while len(running.jobs) > 1:  # at least one goes
            victim = running.jobs.pop()
            self.release(victim, insert=False)
            if self.k.evict_ahead:
                self.evict_shortfall(self.k.retract_decode_steps * len(running.jobs))  # rule 3c
            self.queue.append(victim)
            retracted.append(victim.rid)
            if self.make_room(running.jobs):
                break
        if not self.make_room(running.jobs):
            (last,) = running.jobs
            running.jobs = []
            self.release(last, insert=False)
            self.drop(last)
        generated = sum(len(job.out) for job in running.jobs)
        limits = sum(job.spec.max_new_tokens for job in running.jobs)
        share = Fraction(generated + self.k.retract_decode_steps * len(running.jobs), limits + 1)
        self.ratio = min(share, Fraction(1))

    def decode_rows(self, jobs: list[Job]) -> list[Row]:
        """One token each. Rule 3a: with pages, one page a request is made free, unless one asks for logprobs."""
        if self.k.evict_ahead and not any(job.spec.return_logprob for job in jobs):
            self.evict_shortfall(self.page * len(jobs))
        rows = [Row(job, job.kv, 1, True, True) for job in jobs]
        for job in jobs:
            self.take(job, 1)
        return rows

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

    def end_of_iteration(self, iteration: int, had_batch: bool) -> None:
        """1.3 step 12: after a sweep without any batch the idle housekeeping."""
        self.sweep_had_batch |= had_batch
        if (iteration + 1) % len(self.slots) == 0:
            if not self.sweep_had_batch:
                self.on_idle()
            self.sweep_had_batch = False

    def on_idle(self) -> None:
        """Section 9."""
        if self.idle:
            self.ratio = self.k.init_new_token_ratio
