"""Links between ranks: latency, bandwidth, in-order delivery, eager or rendezvous sends (protocol.md 2, 3.1).

A message has a metadata part, which the hosts exchange, and for device data a payload, which the streams carry. A
parcel is one message on its way. Its ``posted_ns`` is the instant at which the receiver asked for it: a control send
is complete only then, which is what keeps a rank at most about one iteration ahead of the next (protocol.md 1.9).
What carries a payload, what it waits for and who waits for it is the table of docs/streams.md.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeAlias

from ppsim.core.messages import Hidden, Lane, Message, Output
from ppsim.scenario.tree import Links
from ppsim.world.choices import Choices
from ppsim.world.streams import Payload, Streams

NS_PER_US = 1000
Address: TypeAlias = tuple[int, int, Lane]
CARRIERS = (Hidden, Output)
"""The messages that carry device data."""


@dataclass(slots=True, eq=False)
class Parcel:
    """One message on its way from ``src`` to ``dst``."""

    src: int
    dst: int
    message: Message
    meta_ns: int  # its metadata is at the receiver
    payload: Payload | None = None
    arrival_ns: int = 0  # its payload is at the receiver
    leaves_ns: int = 0  # its payload begins to leave
    sent_until_ns: int = 0  # the sender's buffer is read until then
    posted_ns: int | None = None  # the receiver asked for it
    received_ns: int | None = None  # the receiver's stream has received its payload
    sendable_ns: int = 0  # its payload may leave from then on, as far as what follows asks
    is_clear: bool = False  # the receiver lets it leave
    under_way: bool = False  # when its payload leaves and arrives is known
    behind_ns: int | None = None  # end of what its sender's stream held before it


@dataclass(slots=True)
class Network:
    """All links of a run. ``tensor_bytes`` gives the payload size of a hidden-state token and an output row."""

    links: Links
    choices: Choices
    hidden_bytes: int
    comm_overlap: bool = False
    output_bytes: int = 8
    queues: dict[Address, deque[Parcel]] = field(default_factory=dict)
    works: dict[int, Parcel] = field(default_factory=dict)  # sends whose buffer is still held, in order
    held: dict[int, list[Parcel]] = field(default_factory=dict)  # by sender: payloads that wait for their receiver
    pairs: dict[int, Parcel] = field(default_factory=dict)  # by sender: half a pair, until its receive is over
    num_sent: int = 0
    in_order: dict[tuple[int, int, object], int] = field(default_factory=dict)
    # From ``links``, once: nanoseconds, and nanoseconds a byte as an exact ratio of integers.
    latency_ns: int = field(init=False)
    control_latency_ns: int = field(init=False)
    jitter_ns: int = field(init=False)
    byte_ns: tuple[int, int] = field(init=False)
    matched: bool = field(init=False)  # a payload waits until its receive begins on the receiver's stream
    leaves_at_once: bool = field(init=False)  # a payload needs nothing of its receiver
    order: str = field(init=False)  # ``links.order``
    latency_on_stream: bool = field(init=False)
    holds_host: bool = field(init=False)  # a send is a rendezvous
    may_overtake: bool = field(init=False)  # a payload could arrive before one that was sent before it
    awaited: frozenset[Lane] = field(init=False)  # a commit waits until the receiver has asked for the message

    def __post_init__(self) -> None:
        links = self.links
        self.latency_ns = round(links.latency_us * NS_PER_US)
        control_us = links.latency_us if links.control_latency_us is None else links.control_latency_us
        self.control_latency_ns = round(control_us * NS_PER_US)
        self.jitter_ns = round(links.jitter_us * NS_PER_US)
        rate = Fraction(str(links.bandwidth_gb_per_s))  # GB/s is bytes a nanosecond
        self.byte_ns = (rate.denominator, rate.numerator) if rate else (0, 1)
        self.matched = links.payload == "matched" and not self.comm_overlap
        self.leaves_at_once = links.send == "eager" and not self.matched
        self.order, self.latency_on_stream = links.order, links.latency_on_stream
        self.holds_host = links.send != "eager"
        self.may_overtake = bool(self.jitter_ns) or links.order == "none" or not self.leaves_at_once
        unawaited = {"all": (), "requests": (Lane.TENSOR,)}.get(links.commit, tuple(Lane))
        self.awaited = frozenset(lane for lane in Lane if lane is Lane.START or lane not in unawaited)

    def post(self, src: int, dst: int, message: Message, host_ns: int, streams: Streams, paired: bool = False) -> int:
        """Put a message on its way at the sender's host time; the reply is its work handle."""
        lane = message.lane
        # Later than the one before or not: a receiver takes them in order, and its clock does not go back.
        parcel = Parcel(src, dst, message, host_ns + self.control_latency_ns)
        if lane is Lane.START:  # the run's time begins when the ranks have agreed
            parcel.meta_ns = host_ns
        elif self.jitter_ns:  # the checker shifts nobody else's draws
            parcel.meta_ns += self._jitter(src, dst, "check" if lane is Lane.CHECK else "meta")
        if lane is Lane.TENSOR:
            self._post_payload(parcel, host_ns, streams, paired)
        queue = self.queues.get((src, dst, lane))
        if queue is None:
            queue = self.queues[src, dst, lane] = deque()
        queue.append(parcel)
        self.num_sent = work = self.num_sent + 1
        self.works[work] = parcel
        return work

    def _post_payload(self, parcel: Parcel, host_ns: int, streams: Streams, paired: bool) -> None:
        """It leaves now, or is held for its receiver."""
        message = parcel.message
        assert isinstance(message, CARRIERS)
        payload = message.payload
        assert isinstance(payload, Payload)
        parcel.payload = payload
        parcel.sendable_ns = host_ns
        if payload.ready_ns > streams.waits_until:  # the event of what it sends is waited for as soon as it is posted
            streams.waits_until = payload.ready_ns
        if paired:
            self.pairs[parcel.src] = parcel
        if self.leaves_at_once:
            self._transfer(parcel, streams)
        else:
            self.held.setdefault(parcel.src, []).append(parcel)

    def ask(self, parcel: Parcel, host_ns: int, sender: Streams) -> None:
        """The receiver's host asks for a message: a rendezvous may leave."""
        parcel.posted_ns = host_ns
        if parcel.payload is not None and not self.leaves_at_once:
            if self.holds_host:
                parcel.sendable_ns = max(parcel.sendable_ns, host_ns)
            if not self.matched:
                self._clear(parcel, sender)

    def receive(self, parcel: Parcel, host_ns: int, streams: Streams, sender: Streams) -> None:
        """Receive a payload whose metadata the host has at ``host_ns``. Nothing that the receiver has posted before is
        still held.

        What was submitted in a pair starts as one: the receive stands behind what stands before its send, and behind
        the event of what that sends, but not behind the send itself.
        """
        behind = streams.comm_free
        half = self.pairs.get(parcel.dst) if self.pairs else None
        if half is not None and half.payload is not None:
            if half.behind_ns is None:
                half.behind_ns = behind
            behind = max(half.behind_ns, half.payload.ready_ns, streams.received_until)
        if self.matched:
            begin = max(host_ns, streams.receive_turn(behind))
            parcel.sendable_ns = max(parcel.sendable_ns, begin)
            self._clear(parcel, sender)
        parcel.received_ns = streams.received(max(parcel.arrival_ns, host_ns), behind)

    def released_ns(self, parcel: Parcel) -> int | None:
        """When a rendezvous lets its sender's host go on; None while that is not known."""
        return parcel.posted_ns if self.links.rendezvous_hold == "posted" else parcel.received_ns

    def before(self, rank: int) -> Parcel | None:
        """The first payload that a rank has posted and that is held for its receiver; not half of an open pair."""
        for parcel in self.held.get(rank, ()):
            if parcel is not self.pairs.get(rank):
                return parcel
        return None

    def _clear(self, parcel: Parcel, sender: Streams) -> None:
        """The receiver lets a payload go; it leaves behind those that its sender has posted before it."""
        parcel.is_clear = True
        held = self.held[parcel.src]
        if self.order == "none":
            held.remove(parcel)
            self._transfer(parcel, sender)
            return
        while held and held[0].is_clear:  # a rank's payloads all go to one other: its link is its stream
            self._transfer(held.pop(0), sender)

    def _transfer(self, parcel: Parcel, streams: Streams) -> None:
        """Send the payload: after what produces it, behind what ``links.order`` says, for bytes over bandwidth."""
        payload, message, dst = parcel.payload, parcel.message, parcel.dst
        assert payload is not None
        parcel.under_way = True
        start = parcel.sendable_ns
        if payload.ready_ns > start:
            start = payload.ready_ns
        if self.order == "stream":
            behind = parcel.behind_ns
            if behind is None:
                behind = parcel.behind_ns = streams.comm_free
            if behind > start:
                start = behind
        elif self.order == "link":
            start = max(start, streams.link_free.get(dst, 0))
        if isinstance(message, Hidden):
            num_bytes = message.num_tokens * self.hidden_bytes
        else:
            assert isinstance(message, Output)
            num_bytes = message.num_rows * self.output_bytes
        end = start + self.occupies_ns(num_bytes)
        parcel.leaves_ns = start
        arrival = end + self.latency_ns
        if self.latency_on_stream:
            end = arrival
        streams.sent(dst, end, payload.is_static)
        parcel.sent_until_ns = end
        if self.jitter_ns:
            arrival += self._jitter(parcel.src, dst, "payload")
        if self.may_overtake:  # without an order between sends only messages of one kind stay behind each other
            what = message.kind if self.order == "none" else "payload"
            arrival = self._keep_order((parcel.src, dst, what), arrival)
        parcel.arrival_ns = arrival

    def occupies_ns(self, num_bytes: int) -> int:
        """How long a payload takes on a link, rounded up."""
        over, under = self.byte_ns
        return -(-num_bytes * over // under)

    def head(self, src: int, dst: int, lane: Lane) -> Parcel | None:
        """The next message of a lane, without taking it."""
        queue = self.queues.get((src, dst, lane))
        return queue[0] if queue else None

    def _keep_order(self, key: tuple[int, int, object], at_ns: int) -> int:
        """No earlier than what went before on this link."""
        before = self.in_order.get(key, 0)
        if at_ns < before:
            return before
        self.in_order[key] = at_ns
        return at_ns

    def _jitter(self, src: int, dst: int, what: str) -> int:
        return self.choices.below(f"jitter {what} {src}->{dst}", self.jitter_ns + 1)
