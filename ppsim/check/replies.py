"""What a client is told is held against what was delivered to its request, token by token, and against its wishes.

    INV-61   every request gets exactly one terminal reply: in the iteration in which it ends, and in no other
    INV-76   the tokens of a request are told 1..n, in order, once each, as they were sampled
    INV-77   a request ends with the token that its limit or a stop token says, and not before

That a rank's deliveries are the samples of the last stage is ``together.py``'s; a decode server's first token was
sampled by the other side, and only a world knows it there (``Seat.first_sampled``).
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from ppsim.check.observers import Seat, last_phase
from ppsim.core import effects as fx
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import NewRequest
from ppsim.core.schedule.journal import Flushed

ENDS = ("finished", "aborted")


@dataclass(slots=True)
class Told:
    """What the client of one request was told. ``delivered``: (n, token) still to be told."""

    spec: NewRequest
    num_told: int = 0
    delivered: deque[tuple[int, int]] = field(default_factory=deque)


class Replies:
    """Of the first rank, the only one that has clients."""

    def __init__(self, r: Seat) -> None:
        self.r = r
        self.role = r.rank.config.role
        self.told: dict[str, deque[Told]] = {}  # lives of an id: one may end in the iteration in which the next begins
        self.owing: dict[str, None] = {}  # ids of which something is delivered and not told
        self.flushes: Counter[str] = Counter()  # granted, and not answered yet
        self.ended: list[str] = []  # in this iteration
        self.ends_told: list[str] = []

    def watch(self) -> None:
        """Hang it on its rank."""
        before, after = self.r.observers.before, self.r.observers.after
        before(self.iteration_over, fx.Ingest)
        before(self.decided, fx.Decided)
        after(self.harvested, fx.Harvested)
        before(self.replied, fx.Reply)

    def decided(self, _: object) -> None:
        """Inputs were applied: who was accepted in this iteration has been told nothing yet."""
        rank = self.r.rank
        for flushed in rank.journal.of(Flushed):
            self.flushes[flushed.rid] += 1
        if not rank.inputs:
            return
        new = [item for item in rank.inputs if isinstance(item, NewRequest)]
        accepted = Counter(item.rid for item in new)  # not all: the same request may have come twice
        accepted.subtract(reply.rid for reply in rank.journal.of(fx.Reply) if reply.status == "refused")
        for item in new:
            request = rank.scheduler.requests.get(item.rid)
            is_here = request is not None and request.arrived == rank.iteration and request.spec.prompt == item.prompt
            if is_here and accepted[item.rid] > 0:
                accepted[item.rid] -= 1
                self.told.setdefault(item.rid, deque()).append(Told(item))

    def harvested(self, effect: fx.Harvested, _: object) -> None:
        """These tokens and ends must be told before the iteration is over."""
        harvest = effect.harvest
        self.ended += harvest.finished
        for (rid, n), token in zip(harvest.delivered, harvest.token_ids, strict=True):
            lives = self.told.get(rid)
            if not lives:
                continue
            first = self.r.first_sampled(lives[-1].spec) if n == 1 and self.role == "decode" else None
            if first is not None and token != first:
                self.fail("INV-76", rid, f"its first token is {token}, the prefill side sampled {first}")
            lives[-1].delivered.append((n, token))
            self.owing[rid] = None

    def replied(self, reply: fx.Reply) -> None:
        """A reply is on its way to the client."""
        if reply.status == "refused" or self._is_flush(reply):
            return
        if reply.status in ENDS:
            self.ends_told.append(reply.rid)
        lives = self.told.get(reply.rid)
        if not lives:
            return  # nothing was accepted under this id, or it has ended: INV-61
        told = lives[0]
        if reply.token_ids:
            self._tells(told, reply)
        elif reply.status != "aborted":
            self.fail("INV-76", reply.rid, f"a {reply.status!r} reply has no token")
        if reply.status == "aborted":
            num_known = told.num_told + len(told.delivered)
            if reply.num_output_tokens != num_known:
                text = f"it is told to have ended after {reply.num_output_tokens} tokens, it has got {num_known}"
                self.fail("INV-76", reply.rid, text)
        else:
            self._ends_where_it_should(told, reply)
        if reply.status in ENDS:
            lives.popleft()
        if not lives:
            del self.told[reply.rid]
        if not lives or not lives[-1].delivered:
            self.owing.pop(reply.rid, None)

    def _tells(self, told: Told, reply: fx.Reply) -> None:
        if reply.num_output_tokens != told.num_told + 1 or len(reply.token_ids) != 1:
            came = f"token {reply.num_output_tokens}" + (f" of {len(reply.token_ids)}" if reply.token_ids[1:] else "")
            self.fail("INV-76", reply.rid, f"{came} is told, token {told.num_told + 1} was due")
        if not told.delivered:
            self.fail("INV-76", reply.rid, f"token {reply.num_output_tokens} is told, but none was delivered")
        n, token = told.delivered.popleft()
        if (n, token) != (reply.num_output_tokens, reply.token_ids[0]):
            came = f"token {reply.num_output_tokens} is told as {reply.token_ids[0]}"
            self.fail("INV-76", reply.rid, f"{came}, but token {n} was sampled as {token}")
        told.num_told = n

    def _ends_where_it_should(self, told: Told, reply: fx.Reply) -> None:
        """INV-77: against what the client asked for. A prefill server makes one token."""
        spec, n = told.spec, told.num_told
        limit = 1 if self.role == "prefill" else spec.max_new_tokens
        stops = not spec.ignore_eos and reply.token_ids[0] in spec.stop_token_ids
        is_due = n >= limit or stops
        if is_due == (reply.status == "finished"):
            reason = ("stop" if stops else "length") if is_due else ""
            if self.role != "prefill" and reply.reason != reason:
                self.fail("INV-77", reply.rid, f"token {n} is told with reason {reply.reason!r}, which is {reason!r}")
            return
        why = "it has met a stop token" if stops else f"it has all of its {limit} tokens" if is_due else ""
        wrong = f"token {n} is not told as the last one, but {why}"
        if not is_due:
            wrong = f"it ends with token {n}, which is no stop token, of {limit}"
        self.fail("INV-77", reply.rid, wrong)

    def iteration_over(self, _: object) -> None:
        """The next iteration begins: nothing of the last one is still to be told."""
        if self.ended != self.ends_told:
            ended, told = Counter(self.ended), Counter(self.ends_told)
            for rid in [*(ended - told), *(told - ended)]:
                text = f"it has ended {ended[rid]} times in the last iteration, its client was told so {told[rid]}"
                self.fail("INV-61", rid, f"{text} times", late=True)
        if self.ended or self.ends_told:
            self.ended, self.ends_told = [], []
        if self.role == "prefill":
            return  # its client hears of the token when the KV is with the other side
        for rid in self.owing:
            n, _ = self.told[rid][-1].delivered[0]
            self.fail("INV-76", rid, f"token {n} was delivered in the last iteration and never told", late=True)

    def _is_flush(self, reply: fx.Reply) -> bool:
        """The answer to a flush that was granted and not answered yet; its id may be that of a request."""
        if not self.flushes[reply.rid] or reply.token_ids or reply.status != "finished":
            return False
        self.flushes[reply.rid] -= 1
        return True

    def fail(self, rule: str, rid: str, text: str, *, late: bool = False) -> None:
        """``late``: it is about the iteration before."""
        rank = self.r.rank
        iteration = rank.iteration - late
        slot, phase = iteration % rank.config.num_slots, last_phase(self.r) if late else ""
        raise InvariantViolation(rule, self.r.rank_id, iteration, slot, rid, text, phase)
