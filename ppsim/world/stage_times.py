"""The clocks of one rank where one rank decides for all: a few integers, and what each word of a script does to them.

Rule: a word takes exactly the time that ``driver.py``, ``network.py`` and ``streams.py`` give to its effect where sends
are eager and nothing is drawn; property tests hold the two against each other to the nanosecond. All times are ns.

    host            the rank's CPU                       wire         end of all payloads that its stream holds
    forward_free    its forward stream                   link_free    end of its sends
    waits_until     what its next forward comes after    fence        end of the send of its static buffer

``i`` is this rank's own iteration, everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ppsim.check.physical import graph_buffer_rewritten
from ppsim.core.effects import Reply
from ppsim.recording.schema import Message, Span
from ppsim.scenario.tree import Scenario
from ppsim.world.network import Network

NS_PER_US = 1000
PHRASES = {
    ("take_list", "commit_list", "send_list", "decide_nothing"): "open_nothing",
    ("take_list", "commit_list", "send_list", "decide"): "open_batch",
    ("commit_list", "send_list", "decide_nothing", "tell_decided"): "open_nothing",
    ("commit_list", "send_list", "decide", "tell_decided"): "open_batch",
    ("take_list", "decide_nothing"): "open_nothing",
    ("take_list", "decide"): "open_batch",
    ("take_output", "await_tokens", "harvest"): "take_and_harvest",
}
"""Words that nearly every script has behind each other, and the method that does them in one: a call costs more than
what it does. The first words of a visit are other ones on the first and on the last rank."""


class CannotRepresent(Exception):
    """The run comes to something that only the event world can tell."""


@dataclass(slots=True, eq=False)
class Flight:
    """A launched batch, of all ranks. ``ready``: when its output is there, by rank."""

    iteration: int
    slot: int
    is_graph: bool
    durations: list[int]
    hidden_ns: int  # its payloads occupy a link
    output_ns: int
    ready: list[int]


class Parcel:
    """A payload on its way, as its receiver and its sender will ask for it."""

    __slots__ = ("arrival", "asked", "flight", "is_hidden", "is_static", "leaves", "meta", "until")

    def __init__(
        self, is_hidden: bool, flight: Flight, meta: int, leaves: int, until: int, arrival: int, is_static: bool
    ) -> None:
        self.is_hidden, self.flight, self.is_static = is_hidden, flight, is_static
        self.meta, self.leaves, self.until, self.arrival = meta, leaves, until, arrival
        self.asked = 0


class Tell(Protocol):
    """Answers of the first rank leave at this instant: those behind the decision of an iteration (place 0), or its
    harvest (1)."""

    def __call__(self, place: int, now_ns: int) -> None: ...


class StageTimes:
    """One rank. ``flights`` are the launched batches by iteration, shared by all ranks; ``told`` what waits to be told,
    by place."""

    def __init__(
        self,
        rank: int,
        scenario: Scenario,
        network: Network,
        flights: dict[int, Flight],
        told: tuple[list[Reply], list[Reply]],
        tell: Tell,
    ) -> None:
        self.rank, self.flights, self.told, self.tell = rank, flights, told, tell
        cluster, links, host = scenario.cluster, scenario.links, scenario.host
        self.is_first, self.is_last = rank == 0, rank == cluster.pp_size - 1
        self.overlap = cluster.comm_overlap
        self.control_ns, self.latency_ns = network.control_latency_ns, network.latency_ns
        self.schedule_ns, self.process_ns = round(host.schedule_us * NS_PER_US), round(host.process_us * NS_PER_US)
        self.nothing_ns = 0 if host.free_empty_visit else self.schedule_ns
        self.in_stream, self.in_link = links.order == "stream", links.order == "link"
        self.without_order = not (self.in_stream or self.in_link)
        self.latency_on_stream = links.latency_on_stream
        self.asks_lists, self.asks_tensors = links.commit != "none", links.commit == "all"
        self.until_received = links.commit_over == "received"
        self.holds_posted = links.schedule_hold == "post" and not self.overlap
        self.fences_commits = links.graph_fence == "commit" and self.overlap
        self.reads_stream = links.token_read == "schedule_stream" and not self.overlap
        self.host = self.forward_free = self.wire = self.link_free = self.waits_until = self.fence = 0
        self.static_until = 0
        self.list_at = self.list_asked = 0  # of the list that it sent last: it is there; the next rank asked for it
        self.hidden_ready = self.launch_end = 0
        self.last_arrival = {True: 0, False: 0}  # by what stays behind each other
        self.lane: deque[Parcel] = deque()  # sent to the next rank and not yet taken
        self.uncommitted: dict[bool, deque[Parcel]] = {True: deque(), False: deque()}  # by kind: hidden states or not
        self.parked: dict[bool, deque[int]] = {True: deque(), False: deque()}  # taken before they were asked for
        self.before = self  # the rank whose messages it takes
        self.output_sent_age = self.output_read_age = 0
        self.visits: list[int] = []
        self.spans: list[Span] = []
        self.received: dict[bool, list[Message]] = {True: [], False: []}

    def spoken(self, words: tuple[str, ...]) -> list[Callable[[int], None]]:
        """What the words of a script do, a call each or one for a phrase."""
        names: list[str] = []
        while words:
            length = next((n for n in range(len(words), 1, -1) if words[:n] in PHRASES), 1)
            names.append(PHRASES[words[:length]] if length > 1 else words[0])
            words = words[length:]
        return [getattr(self, name) for name in names]

    # --- request lists -------------------------------------------------------------------------------------------

    def take_list(self, i: int) -> None:
        before = self.before
        before.list_asked = self.host
        if before.list_at > self.host:
            self.host = before.list_at

    def commit_list(self, i: int) -> None:
        if self.asks_lists:
            if self.list_asked > self.host:
                self.host = self.list_asked
            if self.until_received and self.list_at > self.host:
                self.host = self.list_at

    def send_list(self, i: int) -> None:
        self.list_at = self.host + self.control_ns

    # --- decisions: phrases ---------------------------------------------------------------------------------------

    def open_nothing(self, i: int) -> None:
        """The list is taken and passed on, and there is no batch."""
        self.visits.append(self._list_passed_on())
        self.host += self.nothing_ns
        if self.is_first and self.told[0]:
            self.tell(0, self.host)

    def open_batch(self, i: int) -> None:
        """The same with a batch."""
        self.visits.append(self._list_passed_on())
        self.host += self.schedule_ns
        if self.is_first and self.told[0]:
            self.tell(0, self.host)

    def _list_passed_on(self) -> int:
        """``take_list``, ``commit_list`` and ``send_list``, as far as this rank has them; when that is done."""
        host = self.host
        if not self.is_first:
            before = self.before
            before.list_asked = host
            if before.list_at > host:
                host = before.list_at
        if not self.is_last:
            if self.asks_lists:
                if self.list_asked > host:
                    host = self.list_asked
                if self.until_received and self.list_at > host:
                    host = self.list_at
            self.list_at = host + self.control_ns
        self.host = host
        return host

    def take_and_harvest(self, i: int) -> None:
        """An output is taken, waited for on the host, and post-processed."""
        self._take(False)
        self.await_tokens(i)
        self.host += self.process_ns

    # --- decisions -----------------------------------------------------------------------------------------------

    def decide(self, i: int) -> None:
        self.visits.append(self.host)
        self.host += self.schedule_ns

    def decide_nothing(self, i: int) -> None:
        self.visits.append(self.host)
        self.host += self.nothing_ns

    def harvest(self, i: int) -> None:
        self.host += self.process_ns

    def tell_decided(self, i: int) -> None:
        if self.told[0]:
            self.tell(0, self.host)

    def tell_harvested(self, i: int) -> None:
        if self.told[1]:
            self.tell(1, self.host)

    # --- the device ----------------------------------------------------------------------------------------------

    def launch(self, i: int) -> None:
        flight, start = self.flights[i], self.host
        for free_at in (self.forward_free, self.hidden_ready, self.fence):
            if free_at > start:
                start = free_at
        if not self.overlap and start < self.waits_until:
            start = self.waits_until
        self.fence = 0
        if flight.is_graph and not self.is_last and graph_buffer_rewritten(start, self.static_until):
            raise CannotRepresent("a graph's buffer is written while it is sent")
        end = self.forward_free = self.launch_end = start + flight.durations[self.rank]
        self.spans.append(Span("forward", flight.slot, i, start, end))
        if self.is_last:
            flight.ready[self.rank] = end

    def await_tokens(self, i: int) -> None:
        ready = self.flights[i - self.output_read_age].ready[self.rank]
        if self.reads_stream and self.waits_until > ready:
            ready = self.waits_until
        if ready > self.host:
            self.host = ready

    # --- payloads ------------------------------------------------------------------------------------------------

    def send_hidden(self, i: int) -> None:
        flight = self.flights[i]
        self._send(True, flight, self.launch_end, flight.hidden_ns, flight.is_graph and not self.is_last)

    def send_output(self, i: int) -> None:
        flight = self.flights[i - self.output_sent_age]
        self._send(False, flight, flight.ready[self.rank], flight.output_ns, False)

    def _send(self, is_hidden: bool, flight: Flight, ready: int, num_ns: int, is_static: bool) -> None:
        """Post a payload that is ready at an instant and occupies its link for so long."""
        host = self.host
        if ready > self.waits_until:
            self.waits_until = ready
        leaves = ready if ready > host else host
        if self.in_stream:
            if self.wire > leaves:
                leaves = self.wire
        elif self.in_link and self.link_free > leaves:
            leaves = self.link_free
        until = leaves + num_ns
        arrival = until + self.latency_ns
        if self.latency_on_stream:
            until = arrival
        if until > self.wire:
            self.wire = until
        self.link_free = until
        if is_static:
            self.static_until = until
        if self.holds_posted and until > self.waits_until:
            self.waits_until = until
        behind = is_hidden and self.without_order  # then only one kind stays in order
        if arrival < self.last_arrival[behind]:
            arrival = self.last_arrival[behind]
        self.last_arrival[behind] = arrival
        parcel = Parcel(is_hidden, flight, host + self.control_ns, leaves, until, arrival, is_static)
        self.lane.append(parcel)
        self.uncommitted[is_hidden].append(parcel)

    def take_hidden(self, i: int) -> None:
        self.hidden_ready = self._take(True)

    def take_output(self, i: int) -> None:
        self._take(False)

    def _take(self, is_hidden: bool) -> int:
        """When the next payload of a kind is here. What comes before it on the lane is taken too, and put aside."""
        parked = self.parked[is_hidden]
        if parked:
            return parked.popleft()
        lane = self.before.lane
        while True:
            parcel = lane.popleft()
            ready = self._receive(parcel)
            if parcel.is_hidden is is_hidden:
                return ready
            self.parked[parcel.is_hidden].append(ready)

    def _receive(self, parcel: Parcel) -> int:
        parcel.asked = host = self.host
        if parcel.meta > host:
            self.host = host = parcel.meta
        end = parcel.arrival
        if end < host:
            end = host
        if self.in_stream:
            if end < self.wire:
                end = self.wire
            self.wire = end
        if end > self.waits_until:
            self.waits_until = end
        flight = parcel.flight
        times = Message(flight.iteration, parcel.leaves, parcel.until, parcel.arrival)
        self.received[parcel.is_hidden].append(times)
        if not parcel.is_hidden:
            flight.ready[self.rank] = end
        return end

    def commit_hidden(self, i: int) -> None:
        self._commit(self.uncommitted[True].popleft())

    def commit_output(self, i: int) -> None:
        self._commit(self.uncommitted[False].popleft())

    def _commit(self, parcel: Parcel) -> None:
        if self.asks_tensors:
            if parcel.asked > self.host:
                self.host = parcel.asked
            if self.until_received and parcel.meta > self.host:
                self.host = parcel.meta
        if parcel.until > self.waits_until:
            self.waits_until = parcel.until
        if self.overlap and parcel.is_static:
            self.fence = max(self.fence, parcel.until)
            if self.fences_commits:
                self.fence = max(self.fence, self.wire if self.in_stream else self.waits_until)
