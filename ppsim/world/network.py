"""Links between ranks: latency, bandwidth, in-order delivery, eager or rendezvous sends (protocol.md 2, 3.1).

A message has a metadata part, which the hosts exchange, and for device data a payload, which the streams carry. A
parcel is one message on its way. Its ``posted_ns`` is the instant at which the receiver asked for it: a control send
is complete only then, which is what keeps a rank at most about one iteration ahead of the next (protocol.md 1.9).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from ppsim.core.messages import Hidden, Lane, Message, Output
from ppsim.scenario.tree import Links
from ppsim.world.choices import Choices
from ppsim.world.streams import Payload, Streams

NS_PER_US = 1000
Address: TypeAlias = tuple[int, int, Lane]


@dataclass(slots=True, eq=False)
class Parcel:
    """One message on its way from ``src`` to ``dst``."""

    src: int
    dst: int
    message: Message
    meta_ns: int  # its metadata is at the receiver
    payload: Payload | None = None
    arrival_ns: int = 0  # its payload is at the receiver
    sent_until_ns: int = 0  # the sender's buffer is read until then
    posted_ns: int | None = None  # the receiver asked for it
    under_way: bool = False  # its payload transfer has begun; a rendezvous begins when both sides are there
    paired_ns: int | None = None  # rendezvous submitted together with a receive: ready since then, blocks nobody


@dataclass(slots=True)
class Network:
    """All links of a run. ``tensor_bytes`` gives the payload size of a hidden-state token and an output row."""

    links: Links
    choices: Choices
    hidden_bytes: int
    output_bytes: int = 8
    queues: dict[Address, deque[Parcel]] = field(default_factory=dict)
    works: dict[int, Parcel] = field(default_factory=dict)  # sends whose buffer is still held, in order
    num_sent: int = 0
    in_order: dict[tuple[int, int, str], int] = field(default_factory=dict)

    def control_latency_ns(self) -> int:
        us = self.links.latency_us if self.links.control_latency_us is None else self.links.control_latency_us
        return round(us * NS_PER_US)

    def post(self, src: int, dst: int, message: Message, host_ns: int, streams: Streams, paired: bool = False) -> int:
        """Put a message on its way at the sender's host time; the reply is its work handle."""
        if message.lane is Lane.START:  # the run's time begins when the ranks have agreed
            parcel = Parcel(src, dst, message, host_ns)
        else:
            draw = "check" if message.lane is Lane.CHECK else "meta"  # the checker shifts nobody else's jitter
            meta = host_ns + self.control_latency_ns() + self._jitter(src, dst, draw)
            parcel = Parcel(src, dst, message, self._keep_order(src, dst, message.lane.value, meta))
        if isinstance(message, Hidden | Output):
            assert isinstance(message.payload, Payload)
            parcel.payload = message.payload
            if self.links.send == "eager":
                self.transfer(parcel, host_ns, streams)
            elif paired:
                parcel.paired_ns = host_ns
        self.queues.setdefault((src, dst, message.lane), deque()).append(parcel)
        self.num_sent += 1
        self.works[self.num_sent] = parcel
        return self.num_sent

    def transfer(self, parcel: Parcel, earliest_ns: int, streams: Streams) -> None:
        """Send the payload: after what produces it, behind what ``links.order`` says, for bytes over bandwidth."""
        payload, message = parcel.payload, parcel.message
        assert payload is not None
        parcel.under_way = True
        start = max(earliest_ns, payload.ready_ns)
        if self.links.order == "stream":
            start = max(start, streams.comm_free)
        elif self.links.order == "link":
            start = max(start, streams.link_free.get(parcel.dst, 0))
        rows = message.num_tokens if isinstance(message, Hidden) else getattr(message, "num_rows", 0)
        row_bytes = self.hidden_bytes if isinstance(message, Hidden) else self.output_bytes
        latency = round(self.links.latency_us * NS_PER_US)
        end = start + self._wire_ns(rows * row_bytes) + (latency if self.links.latency_on_stream else 0)
        streams.comm_free = max(streams.comm_free, end)
        streams.link_free[parcel.dst] = end
        parcel.sent_until_ns = end
        if payload.is_static:
            streams.static_sent_until = end
        arrival = (
            end + (0 if self.links.latency_on_stream else latency) + self._jitter(parcel.src, parcel.dst, "payload")
        )
        # Without an order between sends only messages of one kind stay behind each other.
        queue = message.kind.value if self.links.order == "none" else "payload"
        parcel.arrival_ns = self._keep_order(parcel.src, parcel.dst, queue, arrival)

    def head(self, src: int, dst: int, lane: Lane) -> Parcel | None:
        """The next message of a lane, without taking it."""
        queue = self.queues.get((src, dst, lane))
        return queue[0] if queue else None

    def take(self, src: int, dst: int, lane: Lane) -> Parcel:
        return self.queues[(src, dst, lane)].popleft()

    def _wire_ns(self, num_bytes: int) -> int:
        rate = self.links.bandwidth_gb_per_s
        return 0 if rate == 0 else -(-num_bytes * 1000 // max(1, round(rate * 1000)))

    def _keep_order(self, src: int, dst: int, what: str, at_ns: int) -> int:
        key = (src, dst, what)
        at_ns = max(at_ns, self.in_order.get(key, 0))
        self.in_order[key] = at_ns
        return at_ns

    def _jitter(self, src: int, dst: int, what: str) -> int:
        limit = round(self.links.jitter_us * NS_PER_US)
        return self.choices.below(f"jitter {what} {src}->{dst}", limit + 1) if limit else 0
