"""KV transfers between two pipelines, as they happen in time: handshakes, writes, failures, limits.

Rules guarded here:

    a write begins only after the forward pass that computed it has ended, in every case (bugs.md B34)
    who gives up begins no write, lets those under way land, and only then has failed; its peer is told (B33, B84, B71)
    a receiver that gave up tells all its senders and waits for their word, but not longer than its lease (B38)
    a refused request is told to the other side at once (B40)
    an end is final: what comes later is ignored (protocol.md 6.1)

Ranks run ahead on clocks of their own and only post what they do. Everything between the sides happens here, in order
of time, and no sooner than all ranks have come there: ``advance`` handles what lies strictly before an instant.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, TypeAlias

from simpy import Environment

from ppsim.check.physical import sent_before_computed
from ppsim.check.transfers import not_covered_once
from ppsim.core.consensus import KVPoll
from ppsim.core.errors import InvariantViolation
from ppsim.core.surroundings import Surroundings
from ppsim.scenario.rank import kv_bytes_of_tokens
from ppsim.scenario.tree import KvFault, Scenario
from ppsim.world.pair.ends import End, Peers, Progress, Receiver, Sender, Write
from ppsim.world.pair.sides import DECODE, PREFILL

NS_PER_US = 1000
NS_PER_MS = 1_000_000

Happening: TypeAlias = tuple[int, int, int, int, Callable[..., None], tuple[Any, ...]]
"""(instant, acts before consequences, rank, number, what, arguments): ordered by the first four, never all equal."""


@dataclass(slots=True)
class Limits:
    """Instants relative to what they wait for, in ns; 0: no limit."""

    message_ns: int
    kv_latency_ns: int
    bootstrap_ns: int
    receive_ns: int
    lease_ns: int


def limits_of(s: Scenario) -> Limits:
    """A message to the other side takes at least a nanosecond: nobody learns of anything in the instant it happens."""
    d = s.disaggregation
    return Limits(
        max(1, round(d.control_latency_us * NS_PER_US)),
        round(d.kv_latency_us * NS_PER_US),
        round(d.bootstrap_timeout_ms * NS_PER_MS),
        round(d.receive_timeout_ms * NS_PER_MS),
        round(d.lease_ms * NS_PER_MS),
    )


@dataclass(slots=True)
class Link:
    """The KV link of one prefill rank: one write at a time, in the order in which they were asked for."""

    queue: deque[Write] = field(default_factory=deque)
    busy: bool = False


class Transfers:
    """All rooms of a run. ``on_change`` is called with side, end and instant whenever a status has changed."""

    def __init__(self, env: Environment, s: Scenario, peers: Peers, surroundings: Surroundings) -> None:
        self.env, self.scenario, self.peers, self.surroundings = env, s, peers, surroundings
        self.limits = limits_of(s)
        self.num_prefill = peers.prefill_stages * peers.width
        self.senders: dict[tuple[int, int], Sender] = {}
        self.receivers: dict[tuple[int, int], Receiver] = {}
        self.links = [Link() for _ in range(self.num_prefill)]
        self.heap: list[Happening] = []
        self.num_posted: dict[int, int] = {}  # acts of each rank
        self.num_followed = 0  # consequences
        self.last_change_ns = {PREFILL: -1, DECODE: -1}
        self.num_late_signals = self.num_expired_leases = 0
        self.sampled: dict[int, int] = {}  # by room: what the last prefill stage sampled for the end of the prompt
        self.guilty = ""  # the side on which an error ended the run
        self.on_change: Callable[[str, End, int], None] = lambda side, end, at_ns: None
        self.on_write: Callable[[Write], None] = lambda write: None
        self.whole_bootstrap_limit = s.disaggregation.bootstrap == "vote"  # else the first rank alone looks at it

    # --- time --------------------------------------------------------------------------------------------------

    def post(self, at_ns: int, rank: int, what: Callable[..., None], *args: Any) -> None:
        """A rank does something at its local time. ``rank``: decode ranks are numbered after the prefill ranks."""
        number = self.num_posted[rank] = self.num_posted.get(rank, 0) + 1
        self._schedule((at_ns, 0, rank, number, what, args))

    def follow(self, at_ns: int, what: Callable[..., None], *args: Any) -> None:
        """Something that follows from what has happened."""
        self.num_followed += 1
        self._schedule((at_ns, 1, 0, self.num_followed, what, args))

    def _schedule(self, happening: Happening) -> None:
        heappush(self.heap, happening)
        # Handled also if no rank comes to look: a rank may sleep until something changes.
        due = self.env.timeout(happening[0] + 1 - self.env.now)
        due.callbacks.append(lambda _: self.advance(int(self.env.now)))

    def advance(self, now_ns: int) -> None:
        """Let everything happen that lies before an instant. No rank may be behind it any more."""
        heap = self.heap
        while heap and heap[0][0] < now_ns:
            at_ns, _, _, _, what, args = heappop(heap)
            what(at_ns, *args)

    def _change(self, side: str, end: End, status: int, at_ns: int) -> bool:
        if end.is_terminal or end.status == status:
            return False
        end.status = status
        end.history.append((at_ns, status))
        self.last_change_ns[side] = at_ns
        self.on_change(side, end, at_ns)
        return True

    # --- who is who ----------------------------------------------------------------------------------------------

    def sender(self, rank: int, room: int) -> Sender:
        return self.senders.setdefault((rank, room), Sender(rank, room))

    def receiver(self, rank: int, room: int) -> Receiver:
        return self.receivers.setdefault((rank, room), Receiver(rank, room))

    def _tell_receiver(self, at_ns: int, sender: Sender, what: Callable[..., None], *args: Any) -> None:
        receiver = self.receiver(self.peers.receiver_of(sender.rank), sender.room)
        self.follow(at_ns + self.limits.message_ns, what, receiver, sender.rank, *args)

    def _tell_senders(self, at_ns: int, receiver: Receiver, what: Callable[..., None]) -> None:
        for rank in self.peers.senders_of(receiver.rank):
            if rank not in receiver.ended:
                self.follow(at_ns + self.limits.message_ns, what, self.sender(rank, receiver.room))

    # --- prefill side ----------------------------------------------------------------------------------------------

    def sender_registers(self, at_ns: int, rank: int, room: int, rid: str) -> None:
        """The prefill rank has read the request."""
        sender = self.sender(rank, room)
        sender.rid = rid
        if sender.gave_up:
            self._change(PREFILL, sender, KVPoll.FAILED, at_ns)
            return
        self._change(PREFILL, sender, KVPoll.BOOTSTRAPPING, at_ns)
        self._tell_receiver(at_ns, sender, self._sender_is_known)
        if self.limits.bootstrap_ns and (rank == 0 or self.whole_bootstrap_limit):
            self.follow(at_ns + self.limits.bootstrap_ns, self._bootstrap_limit, sender)

    def _bootstrap_limit(self, at_ns: int, sender: Sender) -> None:
        if not sender.has_pages:
            self.sender_gives_up(at_ns, sender, "failed")

    def _pages_come(self, at_ns: int, sender: Sender) -> None:
        if sender.gave_up:
            self.num_late_signals += 1
            return
        sender.has_pages = True
        self._change(PREFILL, sender, KVPoll.WAITING_FOR_INPUT, at_ns)

    def write_asked(self, at_ns: int, write: Write) -> None:
        """The prefill rank wants KV sent. What comes after the sender gave up is dropped."""
        sender = self.sender(write.rank, write.room)
        write.asked_ns = at_ns
        if sender.gave_up or sender.is_terminal or sender.is_silent:
            write.progress = Progress.OVER
            return
        if not sender.has_pages:
            raise self._violation("INV-47", write, "KV is to be sent although the receiver has given no pages yet")
        self._change(PREFILL, sender, KVPoll.TRANSFERRING, at_ns)
        sender.writes.append(write)
        self.links[write.rank].queue.append(write)
        self._next_write(at_ns, write.rank)

    def _next_write(self, at_ns: int, rank: int) -> None:
        """Begin the write at the head of the link's queue, or come back when its forward pass has ended."""
        link = self.links[rank]
        while link.queue and not link.busy:
            write = link.queue[0]
            num_tokens = write.stop - write.start
            after_ns = self.surroundings.write_begins_ns(write.room, write.rank, num_tokens, write.computed_ns)
            if after_ns > at_ns:
                self.follow(after_ns, self._next_write, rank)
                return
            link.queue.popleft()
            self._begin(at_ns, write)

    def _begin(self, at_ns: int, write: Write) -> None:
        sender = self.sender(write.rank, write.room)
        wrong = sent_before_computed(at_ns, write.computed_ns)
        if wrong:
            raise self._violation("INV-65", write, wrong)
        fault = self._fault(write)
        if fault is not None and fault.what == "failed":
            write.progress = Progress.OVER
            self.sender_gives_up(at_ns, sender, "failed")
            return
        if fault is not None:
            write.progress = Progress.LOST
            sender.is_silent = True
            self._cancel_queued(sender)
            if self.limits.lease_ns:
                self.follow(at_ns + self.limits.lease_ns, self._lost_for_good, write)
            return
        self._check_target(at_ns, write)
        write.progress, write.begin_ns = Progress.ON_THE_WIRE, at_ns
        self.links[write.rank].busy = True
        self.follow(at_ns + write.duration_ns, self._wire_is_free, write)

    def _wire_is_free(self, at_ns: int, write: Write) -> None:
        write.progress = Progress.LANDING
        self.links[write.rank].busy = False
        self.follow(at_ns + self.limits.kv_latency_ns, self._lands, write)
        self._next_write(at_ns, write.rank)

    def _lands(self, at_ns: int, write: Write) -> None:
        self._check_target(at_ns, write)
        write.progress, write.landed_ns, write.arrived = Progress.OVER, at_ns, True
        self.on_write(write)
        sender = self.sender(write.rank, write.room)
        if sender.gave_up:
            self._sender_is_quiet(at_ns, sender)
        elif write.is_last:
            self._commits(at_ns, sender, write)

    def _commits(self, at_ns: int, sender: Sender, write: Write) -> None:
        """The last write is there, and with it the first token: all of the prompt must be."""
        wrong = not_covered_once(sender.landed(), write.num_prompt)
        if wrong:
            raise self._violation("INV-74", write, f"the transfer counts as complete, but {wrong}")
        if self._change(PREFILL, sender, KVPoll.SUCCESS, at_ns):
            self._tell_receiver(at_ns, sender, self._sender_ended, True, write.token)

    def sender_gives_up(self, at_ns: int, sender: Sender, what: str) -> None:
        """Aborted, refused, failed, or told to stop: begin nothing more."""
        if sender.gave_up or sender.is_terminal or sender.is_silent:
            return
        sender.gave_up = True
        self._cancel_queued(sender)
        self._sender_is_quiet(at_ns, sender, what)
        self._next_write(at_ns, sender.rank)

    def _cancel_queued(self, sender: Sender) -> None:
        link = self.links[sender.rank]
        for write in link.queue:
            if write.room == sender.room:
                write.progress = Progress.OVER
        link.queue = deque(write for write in link.queue if write.room != sender.room)

    def _sender_is_quiet(self, at_ns: int, sender: Sender, what: str = "failed") -> None:
        """If nothing is under way any more: failed, and the receiver may take its pages back."""
        if sender.num_under_way and self._drains(sender):
            return
        if sender.status is not None and not self._change(PREFILL, sender, KVPoll.FAILED, at_ns):
            return
        if self.surroundings.tells_peer(sender.room, sender.rank, PREFILL, what):
            self._tell_receiver(at_ns, sender, self._sender_ended, False, None)

    def _lost_for_good(self, at_ns: int, write: Write) -> None:
        """The sender's own lease: it touches the pages no longer, but nobody is told."""
        write.progress = Progress.OVER
        self._change(PREFILL, self.sender(write.rank, write.room), KVPoll.FAILED, at_ns)

    def _fault(self, write: Write) -> KvFault | None:
        for fault in self.scenario.disaggregation.kv_faults:
            if (fault.rid, fault.rank, fault.nth) == (write.rid, write.rank, write.nth):
                return fault
        return None

    # --- decode side -----------------------------------------------------------------------------------------------

    def receiver_registers(self, at_ns: int, rank: int, room: int, rid: str) -> None:
        """The decode rank has read the request."""
        receiver = self.receiver(rank, room)
        receiver.rid = rid
        if receiver.gave_up:
            self._change(DECODE, receiver, KVPoll.FAILED, at_ns)
            return
        self._change(DECODE, receiver, KVPoll.BOOTSTRAPPING, at_ns)
        self._handshake(at_ns, receiver)

    def _sender_is_known(self, at_ns: int, receiver: Receiver, prefill_rank: int) -> None:
        receiver.known.add(prefill_rank)
        if not receiver.gave_up:
            self._handshake(at_ns, receiver)

    def _handshake(self, at_ns: int, receiver: Receiver) -> None:
        if receiver.status == KVPoll.BOOTSTRAPPING and receiver.known.issuperset(self.peers.senders_of(receiver.rank)):
            self._change(DECODE, receiver, KVPoll.WAITING_FOR_INPUT, at_ns)

    def pages_given(self, at_ns: int, rank: int, room: int) -> None:
        """The decode rank has allocated memory and tells its senders where."""
        receiver = self.receiver(rank, room)
        if receiver.is_terminal:
            return
        receiver.gave_pages = True
        self._change(DECODE, receiver, KVPoll.TRANSFERRING, at_ns)
        self._tell_senders(at_ns, receiver, self._pages_come)
        if self.limits.receive_ns:
            self.follow(at_ns + self.limits.receive_ns, self.receiver_gives_up, receiver, "stop")

    def _sender_ended(
        self, at_ns: int, receiver: Receiver, prefill_rank: int, succeeded: bool, token: int | None
    ) -> None:
        if receiver.is_terminal or prefill_rank in receiver.ended:
            self.num_late_signals += 1
            return
        receiver.ended[prefill_rank] = succeeded
        if token is not None:
            receiver.tokens.append(token)
        if not succeeded:
            self.receiver_gives_up(at_ns, receiver, "stop")
        self._receiver_may_end(at_ns, receiver)

    def receiver_gives_up(self, at_ns: int, receiver: Receiver, what: str) -> None:
        """Aborted, refused, too late, or a sender failed: tell all senders to stop, and wait for their word."""
        if receiver.gave_up or receiver.is_terminal:
            return
        receiver.gave_up = True
        if self.surroundings.tells_peer(receiver.room, receiver.rank, DECODE, what):
            self._tell_senders(at_ns, receiver, self._told_to_stop)
        if self.limits.lease_ns:
            self.follow(at_ns + self.limits.lease_ns, self._lease_ends, receiver)
        self._receiver_may_end(at_ns, receiver)

    def _told_to_stop(self, at_ns: int, sender: Sender) -> None:
        self.sender_gives_up(at_ns, sender, "failed")

    def _receiver_may_end(self, at_ns: int, receiver: Receiver) -> None:
        """An end for the ranks to see: all senders have ended, or gave no pages to anybody."""
        all_ended = len(receiver.ended) == len(self.peers.senders_of(receiver.rank))
        if receiver.gave_up and (all_ended or not receiver.gave_pages or not self._drains(receiver)):
            if receiver.status is not None:
                self._change(DECODE, receiver, KVPoll.FAILED, at_ns)
        elif all_ended:
            self._change(DECODE, receiver, KVPoll.SUCCESS, at_ns)

    def _drains(self, end: Sender | Receiver) -> bool:
        return self.surroundings.transfer_drains(end.room, end.rank)

    def _lease_ends(self, at_ns: int, receiver: Receiver) -> None:
        """No word for too long: a sender that lives would have stopped by now."""
        if not self.surroundings.lease_ends(receiver.room, receiver.rank):
            return
        if receiver.status is not None and self._change(DECODE, receiver, KVPoll.FAILED, at_ns):
            self.num_expired_leases += 1

    # --- checks ----------------------------------------------------------------------------------------------------

    def _check_target(self, at_ns: int, write: Write) -> None:
        """No write touches pages that their owner has given back (invariant 64; bugs.md I10)."""
        receiver = self.receiver(self.peers.receiver_of(write.rank), write.room)
        if receiver.freed_ns is not None:
            text = f"KV is written at {at_ns} ns to pages that decode rank {receiver.rank} gave back at"
            raise self._violation("INV-64", write, f"{text} {receiver.freed_ns} ns")

    def _violation(self, invariant: str, write: Write, text: str) -> InvariantViolation:
        self.guilty = PREFILL
        text = f"write {write.nth} (tokens {write.start}:{write.stop}): {text}"
        return InvariantViolation(invariant, write.rank, write.iteration, write.slot, write.rid, text)

    def wire_ns(self, rank: int, num_tokens: int) -> int:
        """Time on the wire of KV for so many tokens: of this stage's layers, and of this tensor-parallel rank."""
        s, rate = self.scenario, self.scenario.disaggregation.kv_bandwidth_gb_per_s
        if rate == 0:
            return 0
        num_bytes = kv_bytes_of_tokens(s, rank // self.peers.width, num_tokens)
        return -(-num_bytes * 1_000_000 // max(1, round(rate * 1_000_000)))
