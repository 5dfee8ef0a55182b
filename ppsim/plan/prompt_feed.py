"""Which pieces the scheduler puts into the next batch, in many configurations at once.

The rules of ``core/schedule`` (admission.py, scheduler.py) for prompts that need one output token each and share no
prefix: a prompt that is being cut goes on, what is left of the chunk goes to the next prompts in order of arrival, one
of them may be cut, and nothing is admitted that the pool cannot hold to its end. Decode batches never come up.

The scheduler itself is Python objects for each request of each configuration: far too slow here, so it cannot
be asked here. What a prompt needs and what it takes off the budgets are the functions of
``core/schedule/admission.py``; that the order of looks at them is the scheduler's is held by a property test against
the scheduler itself (tests/unit/test_prompt_feed.py).

So no slot ever has a decode set, and ``batch_is_full`` matters in one case: who waits does not fit and nothing is
launched. Then the slot is closed (``RankConfig.reopen_empty_slots``) until the chunk of a prompt passes through it;
behind any other batch the merge drops the prompts that have ended, and the flag falls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ppsim.core.schedule.admission import need_to_admit, tokens_set_aside
from ppsim.plan.array_cost import ArrayCost
from ppsim.plan.chunk_rule import ChunkRule

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

ONE_OUTPUT_TOKEN = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """One entry a configuration. ``max_rows`` requests in all, ``max_pieces`` in a batch, ``pool_tokens`` of KV.
    ``ppsim.scenario.rank`` says what they are.

    ``page_size`` and the rules are the same in all: they belong to the engine, not to the search.
    """

    page_size: float
    max_prefill_tokens: float
    max_rows: Floats
    max_pieces: Floats
    pool_tokens: Floats
    reopen_empty_slots: bool = False
    chunk_counts_as_row: bool = True

    def take(self, index: Ints) -> Limits:
        """The same for some of the configurations."""
        names = ("max_rows", "max_pieces", "pool_tokens")
        return replace(self, **{name: getattr(self, name)[index] for name in names})


@dataclass(slots=True)
class Batch:
    """What one iteration launches. ``mask`` is false where the visit is empty. Sums over the prompts that end in it."""

    mask: Bools
    features: Floats
    tokens: Floats
    rows: Floats
    any_ends: bool
    num_ending: Floats
    ending_arrival_ns: Floats
    ending_tokens: Floats

    def take(self, index: Ints) -> Batch:
        """What is still asked of a launched batch, for some of the configurations."""
        ends = (values[index] for values in (self.num_ending, self.ending_arrival_ns, self.ending_tokens))
        return Batch(self.mask[index], self.features, self.tokens, self.rows, self.any_ends, *ends)


class PromptFeed:
    """State of the waiting queue and of the prompt that is being cut, one entry a configuration.

    ``lengths`` and ``arrivals_ns`` (in order) are the same for all configurations.
    """

    def __init__(self, cost: ArrayCost, rule: ChunkRule, limits: Limits, lengths: Floats, arrivals_ns: Floats) -> None:
        self.cost, self.rule, self.limits = cost, rule, limits
        self.lengths = np.append(lengths, 0.0)
        self.arrivals_ns = np.append(arrivals_ns, np.inf)
        self.num_configs = len(limits.pool_tokens)
        self.next_prompt = np.zeros(self.num_configs, dtype=np.int64)
        self.done, self.rest, self.arrived_ns, self.length = (np.zeros(self.num_configs) for _ in range(4))
        self.held_tokens, self.held_rows = np.zeros(self.num_configs), np.zeros(self.num_configs)
        self.nothing = np.zeros(self.num_configs)
        self.closed: dict[int, Bools] = {}  # by slot; a slot without an entry was never closed

    @property
    def nothing_comes(self) -> bool:
        """Whether every prompt was touched by a batch in every configuration."""
        return bool(self.next_prompt.min() == len(self.lengths) - 1)

    @property
    def next_arrival_ns(self) -> Floats:
        """When the first prompt that no batch has touched arrives; infinite if there is none."""
        return np.asarray(self.arrivals_ns[self.next_prompt])

    def take(self, index: Ints) -> None:
        """Go on with some of the configurations."""
        for name in ("next_prompt", "done", "rest", "arrived_ns", "length", "held_tokens", "held_rows", "nothing"):
            setattr(self, name, getattr(self, name)[index])
        self.closed = {slot: closed[index] for slot, closed in self.closed.items()}
        self.cost, self.rule, self.limits = self.cost.take(index), self.rule.take(index), self.limits.take(index)
        self.num_configs = len(index)

    def free(self, tokens: Floats, rows: Floats) -> None:
        """Prompts have ended: their pages and rows can be had again."""
        self.held_tokens -= tokens
        self.held_rows -= rows

    def pages(self, tokens: Floats) -> Floats:
        """Tokens rounded up to whole pages."""
        page = self.limits.page_size
        return tokens if page == 1.0 else np.asarray(np.ceil(tokens / page) * page)

    def next_batch(self, now_ns: Floats, slot: int) -> Batch:
        """Fill the batch of a slot with what has arrived by ``now_ns``."""
        filling = _Filling(self, self.closed.get(slot))
        filling.continue_prompt()
        if not self.nothing_comes and filling.may_admit(now_ns):
            while filling.admit_next(now_ns):
                pass
        batch = filling.batch()
        if not self.limits.reopen_empty_slots and (filling.closes is not None or slot in self.closed):
            closed = self.closed.get(slot, np.zeros(self.num_configs, dtype=np.bool_))
            closed = closed if filling.closes is None else closed | filling.closes
            self.closed[slot] = closed & ~batch.mask
        return batch


class _Filling:
    """One batch while it is filled, with the budgets of ``PrefillAdder``."""

    def __init__(self, feed: PromptFeed, closed: Bools | None) -> None:
        self.feed, self.closed = feed, closed
        self.closes: Bools | None = None  # where who waits did not fit and nothing was launched
        self.goes_on = feed.rest > 0.0
        self.num_pieces = self.goes_on.astype(np.float64)
        self.budget = feed.rule.base
        self.tokens, self.features = feed.nothing, np.zeros((feed.cost.num_features, feed.num_configs))
        self.any_ends = False
        self.num_ending = self.ending_arrival = self.ending_tokens = feed.nothing

    def continue_prompt(self) -> None:
        """The next chunk of the prompt that is being cut; the state of the queue is not looked at afterwards."""
        feed = self.feed
        if not self.goes_on.any():
            return
        self.budget = np.where(self.goes_on, feed.rule.next_chunk(feed.done), feed.rule.base)
        take = np.minimum(feed.rest, self.budget)  # nothing where there is no rest
        before, feed.done = feed.done, feed.done + take
        feed.rest = feed.rest - take
        self._add(self.goes_on, before, take, np.ones_like(self.goes_on), feed.arrived_ns, feed.length)

    def may_admit(self, now_ns: Floats) -> bool:
        """Whether any configuration has budget left and a prompt that waits; then the budgets are set up."""
        feed, limits = self.feed, self.feed.limits
        paged = feed.pages(self.tokens)
        self.rem_chunk = self.budget - paged
        self.open = self.rem_chunk > 0.0
        if self.closed is not None:
            self.open &= ~self.closed
        if not (self.open & (feed.next_arrival_ns <= now_ns)).any():
            return False
        self.rem_input = limits.max_prefill_tokens - paged
        ends = self.goes_on & (feed.rest == 0.0)
        self.used = tokens_set_aside(paged, ends * ONE_OUTPUT_TOKEN, self.goes_on * limits.page_size)
        self.room = limits.pool_tokens - feed.held_tokens + self.held_here()
        self.free_rows = limits.max_rows - feed.held_rows - self.goes_on * limits.chunk_counts_as_row
        return True

    def held_here(self) -> Floats:
        """Tokens of the pages that this batch has taken already: they are counted as used, not as held."""
        feed = self.feed
        if not self.goes_on.any():
            return feed.nothing
        return feed.pages(feed.done) - feed.pages(feed.done - self.tokens)

    def admit_next(self, now_ns: Floats) -> bool:
        """Try the next waiting prompt; whether any configuration may try another one."""
        feed, limits = self.feed, self.feed.limits
        index = feed.next_prompt
        waits = self.open & (feed.arrivals_ns[index] <= now_ns)
        tries = waits & (self.num_pieces < limits.max_pieces) & (self.free_rows > 0.0)
        new = feed.lengths[index]
        tries &= need_to_admit(new, ONE_OUTPUT_TOKEN, limits.page_size) < self.room - self.used
        is_left = waits & ~tries & (self.num_pieces == 0.0)
        if is_left.any():
            self.closes = is_left
        whole = feed.pages(new) <= self.rem_chunk
        if not tries.any():
            return False
        # Budgets are whole pages, so what is cut takes all that is left, and nothing is cut after it.
        take = np.where(tries, np.where(whole, new, self.rem_chunk), 0.0)
        rest = new - take
        starts = tries & (rest > 0.0)
        np.copyto(feed.rest, rest, where=starts)
        np.copyto(feed.done, take, where=starts)
        np.copyto(feed.length, new, where=starts)
        np.copyto(feed.arrived_ns, feed.arrivals_ns[index], where=starts)
        self._add(tries, feed.nothing, take, self.num_pieces == 0.0, feed.arrivals_ns[index], new)
        self._charge(tries, take, rest)
        feed.next_prompt = index + tries
        self.open = tries & (self.rem_chunk > 0.0) & (self.rem_input > 0.0)
        return bool(self.open.any())

    def _charge(self, on: Bools, take: Floats, rest: Floats) -> None:
        """Take an admitted prompt's piece out of the budgets."""
        page = self.feed.limits.page_size
        paged = self.feed.pages(take)
        self.num_pieces = self.num_pieces + on
        self.feed.held_rows += on
        self.free_rows -= on
        self.rem_chunk = self.rem_chunk - paged
        self.rem_input = self.rem_input - paged
        self.used = self.used + tokens_set_aside(paged, on * ONE_OUTPUT_TOKEN * (rest == 0.0), on * page)

    def _add(
        self, on: Bools, prefix: Floats, take: Floats, is_first: Bools, arrived_ns: Floats, length: Floats
    ) -> None:
        """A piece of ``take`` tokens where ``on`` (0 elsewhere), and the prompt's end if nothing is left of it."""
        feed = self.feed
        self.features += on * feed.cost.piece(prefix, take, is_first)
        self.tokens = self.tokens + take
        feed.held_tokens += feed.pages(prefix + take) - feed.pages(prefix)
        ends = on & (prefix + take == length)
        if ends.any():
            self.any_ends = True
            self.num_ending = self.num_ending + ends
            self.ending_arrival = self.ending_arrival + np.where(ends, arrived_ns, 0.0)
            self.ending_tokens = self.ending_tokens + ends * feed.pages(length)

    def batch(self) -> Batch:
        return Batch(
            self.num_pieces > 0.0,
            self.features,
            self.tokens,
            self.num_pieces,
            self.any_ends,
            self.num_ending,
            self.ending_arrival,
            self.ending_tokens,
        )
