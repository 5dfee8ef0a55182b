"""The clients: who sends what, and when. One code for both worlds.

Rule: what is sent follows from the workload and from the replies that have reached the clients, and from nothing else.

    open loop        a request comes at its own time or iteration, whatever the server does
    concurrency N    N clients: each sends its next request in the nanosecond in which its last one has ended
    session          turn after turn: a turn is sent ``at_ns`` behind the end of the one before, and its prompt is that
                     one's prompt, the answer as it was delivered, and new tokens. A client has a session to its end
"""

from __future__ import annotations

from bisect import insort, insort_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ppsim.core.effects import Reply
from ppsim.core.messages import Input, NewRequest
from ppsim.core.tokens import pack
from ppsim.workload.arrivals import Ahead, Arrival, Workload, by_moment


def moment(item: tuple[int, Input]) -> int:
    return item[0]


class Sent(NamedTuple):
    """A request that a client sends at ``at_ns``, whole: a later turn has its history in front."""

    at_ns: int
    request: NewRequest


@dataclass(slots=True)
class Conversation:
    """What a client knows of the request that it waits for."""

    request: NewRequest
    answer: list[int] = field(default_factory=list)


class Clients:
    """Inputs by iteration and by time, and what replies add to them.

    ``turnaround_ns``: between the end of an answer and the next request at the least. Two servers have two clocks: a
    request can reach the other one only after the answer has left. ``arrives`` is told of each request that is made
    while the run goes on and waits for nobody's answer (``Workload.coming``).
    """

    def __init__(
        self, workload: Workload, turnaround_ns: int = 0, arrives: Callable[[Arrival], None] | None = None
    ) -> None:
        opening = workload.opening
        coming = Ahead(iter(()) if workload.coming is None else workload.coming())
        self.arrives = arrives
        if workload.concurrency and coming:
            opening = tuple([self._taken(coming) for _ in range(workload.concurrency) if coming])
        items: list[tuple[int | None, int | None, Input]] = [
            *((a.at_iteration, a.at_ns, a.request) for a in opening),
            *((c.at_iteration, c.at_ns, c.input) for c in workload.controls),
        ]
        self.by_iteration = by_moment([(at, item) for at, _, item in items if at is not None])
        self.by_time = by_moment([(at or 0, item) for iteration, at, item in items if iteration is None])
        self.turnaround_ns = turnaround_ns
        self.followers = {a.follows: a for a in workload.arrivals if a.follows}
        self.answers_matter = bool(workload.concurrency or self.followers)
        self.waiting = coming if workload.concurrency and workload.coming else deque(workload.heads[len(opening) :])
        self.under_way = {a.request.rid: Conversation(a.request) for a in opening} if self.answers_matter else {}
        self.unsent: list[tuple[str, str, str]] = []  # a turn that never comes, the one before it, how that one ended
        self.coming = Ahead(iter(())) if workload.concurrency else coming
        self.next_coming: NewRequest | None = None  # of ``coming``, among the inputs by time until it is read
        self._fetch()

    def _taken(self, coming: Ahead) -> Arrival:
        arrival = coming.popleft()
        if self.arrives is not None:
            self.arrives(arrival)
        return arrival

    def _fetch(self) -> None:
        """Put the next request that is made on the way among the inputs: of the same time, ahead of aborts."""
        self.next_coming = None
        if self.coming:
            arrival = self._taken(self.coming)
            self.next_coming = arrival.request
            insort_left(self.by_time, (arrival.at_ns or 0, arrival.request), key=moment)

    @property
    def expects(self) -> bool:
        """Whether an answer that is still to come brings another request."""
        return bool(self.waiting) or any(rid in self.followers for rid in self.under_way)

    def due(self, iteration: int, now_ns: int) -> tuple[Input, ...]:
        """What is to be read now, and is forgotten here: first what names an iteration; in order, ties as sent."""
        found: list[Input] = []
        for queue, limit in ((self.by_iteration, iteration), (self.by_time, now_ns)):
            while queue and queue[0][0] <= limit:
                found.append(queue.popleft()[1])
                if found[-1] is self.next_coming:
                    self._fetch()
        return tuple(found)

    def replied(self, reply: Reply, now_ns: int) -> Sequence[Sent]:
        """A reply has reached its client; the requests that it sends because of it are among the inputs now."""
        mine = self.under_way.get(reply.rid)
        if mine is None:  # nobody waits for it: an open loop, or a reply about something else (a flush)
            return ()
        mine.answer.extend(reply.token_ids)
        if reply.status == "token":
            return ()
        del self.under_way[reply.rid]
        following = self.followers.get(reply.rid)
        if following is not None and reply.status == "finished":
            history = mine.request.prompt + pack(mine.answer)
            return [self.send(following, history, now_ns)]
        if following is not None:
            self.unsent.append((following.request.rid, reply.rid, reply.status))
        return [self.send(self.waiting.popleft(), b"", now_ns)] if self.waiting else ()

    def send(self, arrival: Arrival, history: bytes, now_ns: int) -> Sent:
        request = replace(arrival.request, prompt=history + arrival.request.prompt) if history else arrival.request
        self.under_way[request.rid] = Conversation(request)
        sent = Sent(now_ns + max(arrival.at_ns or 0, self.turnaround_ns), request)
        self.put(sent)
        return sent

    def put(self, sent: Sent) -> None:
        insort(self.by_time, (sent.at_ns, sent.request), key=moment)

    def told(self) -> tuple[str, ...]:
        """Sentences about turns that never came."""
        if not self.unsent:
            return ()
        num = 0
        for rid, _, _ in self.unsent:
            while rid:  # the turn and all behind it
                num += 1
                behind = self.followers.get(rid)
                rid = "" if behind is None else behind.request.rid
        first, before, status = self.unsent[0]
        return (
            f"{num} turns of {len(self.unsent)} sessions were never sent: the turn before was not answered to its end "
            f"(first: {first}, for {before} was {status})",
        )
