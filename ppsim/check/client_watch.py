"""What the first rank owes its clients, ``run.check`` on or off: one terminal reply for each request, progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ppsim.check.observers import Seat
from ppsim.core.effects import Decided, Decision, Ingest, Reply
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import FlushCache, Input, NewRequest, Shutdown
from ppsim.core.tokens import count
from ppsim.errors import EXIT_LIVENESS, EXIT_UNKNOWN, PpsimError

MAX_EMPTY_ITERATIONS = 20_000
"""Iterations of the first rank without any batch, while requests wait, that count as a livelock."""

MAX_REMEMBERED = 1000
"""Of a run that keeps no records: requests whose ending is still known, for whoever answers them once more."""

MAX_QUIET_ITERATIONS, MAX_QUIET_PER_TOKEN = 100_000, 64
"""Iterations of the first rank between two inputs or replies, and how many more for each token that is asked for.

Batches may run, copies and transfers may end meanwhile: prompts are computed, retracted and computed again. But a batch
is a token at least, and a request that is computed so many times over gets nowhere.
"""


class StopRun(PpsimError):
    """The run is given up: ``max_iterations`` is reached (unknown), or nothing moves any more (liveness)."""

    def __init__(self, message: str, code: int, iteration: int, rank: int = 0) -> None:
        super().__init__(message, code, iteration, rank)
        self.message, self.exit_code, self.iteration, self.rank = message, code, iteration, rank

    def __str__(self) -> str:
        return self.message


class Watch:
    """Sees what the first rank reads, decides and replies. A reply of any other rank is a failure in itself."""

    def __init__(
        self,
        max_iterations: int,
        num_requests: int,
        progress: Callable[[int, int], None] | None,
        *,
        forgets: bool = False,
    ) -> None:
        self.max_iterations = max_iterations
        self.num_requests = num_requests
        self.progress = progress
        self.forgets = forgets  # the ends of all but the latest requests
        self.num_ended = 0
        self.ended: dict[str, str] = {}
        self.owed: dict[str, int] = {}  # terminal replies still to come
        self.empty_iterations = 0
        self.quiet_iterations = 0  # since the last input or reply
        self.max_quiet = MAX_QUIET_ITERATIONS
        self.replies_left = 0  # what the requests so far may answer; more of them is no progress
        self.held_up: dict[int, str] = {}  # slot -> the rule that left its latest visit empty (docs/batches.md)
        self.is_shut = False  # Shutdown was handed out: nothing more will come
        self.beside: Callable[[int], int] | None = None  # is told where the first rank is; the reply: when to tell next
        self.tell_at = 0

    def watch(self, r: Seat) -> None:
        """Hang it on a rank. Call before the rank runs."""
        before, after, rank = r.observers.before, r.observers.after, r.rank
        if r.rank_id:
            before(lambda effect: no_client(r, effect), Reply)
            return
        after(lambda effect, inputs: self.ingested(effect.iteration, inputs, effect.idle), Ingest)
        after(lambda effect, _: self.decided(effect.decision), Decided)
        after(lambda effect, _: self.replied(effect, rank.iteration, rank.slot), Reply)

    def ingested(self, iteration: int, inputs: Sequence[Input], idle: bool) -> None:
        """The first rank starts an iteration. An id may come again: every request and flush is owed a reply."""
        for item in inputs:
            if isinstance(item, NewRequest | FlushCache):
                self.owed[item.rid] = self.owed.get(item.rid, 0) + 1
                self.replies_left += 1
            if isinstance(item, NewRequest):
                self.replies_left += item.max_new_tokens
                self.max_quiet += MAX_QUIET_PER_TOKEN * (count(item.prompt) + item.max_new_tokens)
        if self.max_iterations and iteration >= self.max_iterations:
            raise StopRun(f"stopped at run.max_iterations = {self.max_iterations}", EXIT_UNKNOWN, iteration)
        if (inputs or idle) and not self.is_shut:
            self.empty_iterations = self.quiet_iterations = 0
        if inputs:
            self.is_shut |= any(isinstance(item, Shutdown) for item in inputs)
        self._is_alive(iteration)

    def decided(self, decision: Decision) -> None:
        """The first rank has decided: is it getting anywhere?"""
        if self.beside is not None and decision.iteration >= self.tell_at:
            self.tell_at = self.beside(decision.iteration)
        has_tokens = any(new_tokens for _, _, new_tokens in decision.pieces)
        self.empty_iterations = 0 if has_tokens else self.empty_iterations + 1
        self.quiet_iterations += 1
        why = "a piece of 0 tokens" if decision.pieces else decision.stall
        if not has_tokens and why:
            self.held_up[decision.slot] = why
        else:
            self.held_up.pop(decision.slot, None)
        if self.empty_iterations > MAX_EMPTY_ITERATIONS + 1 or self.quiet_iterations > self.max_quiet + 1:
            self._is_alive(decision.iteration)  # it does not even read its inputs any more

    def passed(self, num: int, iteration: int) -> None:
        """The first rank has passed ``num`` visits of empty slots without input; ``iteration`` is its next one."""
        self.empty_iterations += num
        self.quiet_iterations += num
        if self.max_iterations and iteration > self.max_iterations:
            raise StopRun(f"stopped at run.max_iterations = {self.max_iterations}", EXIT_UNKNOWN, iteration)
        self._is_alive(iteration)

    def _is_alive(self, iteration: int) -> None:
        """Raises StopRun where the first rank goes round and round and nothing comes of it."""
        if self.empty_iterations > MAX_EMPTY_ITERATIONS:
            what = "although requests are waiting" if not self.is_shut else "after the last input was read"
            text = f"no batch for {MAX_EMPTY_ITERATIONS} iterations {what} (livelock)"
        elif self.quiet_iterations > self.max_quiet:
            text = f"no input and no reply for {self.max_quiet} iterations although batches run (livelock)"
        else:
            return
        rules = ", ".join(f"slot {slot} is {why}" for slot, why in sorted(self.held_up.items()))
        raise StopRun(text + (f"; held up by scheduler.rules: {rules}" if rules else ""), EXIT_LIVENESS, iteration)

    def replied(self, reply: Reply, iteration: int, slot: int) -> None:
        """A reply left for the client: nothing follows a terminal one (invariant 61)."""
        if not self.owed.get(reply.rid):
            raise InvariantViolation(
                "INV-61",
                0,
                iteration,
                slot,
                reply.rid,
                f"a {reply.status!r} reply follows the terminal reply {self.ended.get(reply.rid)!r}",
            )
        if self.replies_left > 0:
            self.replies_left -= 1
            self.quiet_iterations = 0
        if reply.status != "token":
            self.owed[reply.rid] -= 1
            if not self.owed[reply.rid]:
                del self.owed[reply.rid]
            self.num_ended += 1
            self.ended[reply.rid] = reply.status
            if self.forgets and len(self.ended) > MAX_REMEMBERED:
                del self.ended[next(iter(self.ended))]
            if self.progress is not None:
                self.progress(self.num_ended, self.num_requests)


def no_client(r: Seat, reply: Reply) -> None:
    """Only the first rank has clients."""
    text = f"it answers the client of {reply.rid}; only the first rank has clients"
    raise InvariantViolation("INV-61", r.rank_id, r.rank.iteration, r.rank.slot, reply.rid, text)
