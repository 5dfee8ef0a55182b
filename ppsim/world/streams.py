"""GPU streams of one rank, as the instants at which each becomes free (protocol.md 3.2, 3.3; docs/streams.md).

    forward   forward passes, in launch order
    payloads  what carries payloads, sends and receives alike: one stream in order of posting, one for the sends of each
              link, or one for each payload (``links.order``)
    waits     what the host has put waits into: the schedule stream without communication overlap, the communication
              stream with it. A receive is waited for when it is posted, a send when it is committed, the
              event of what it sends when it is posted

Without overlap a forward comes after all that ``waits`` holds when it is launched. With overlap it comes after its own
hidden states, and after the fence: a decode batch that runs as a CUDA graph leaves its hidden states in one static
buffer, and the next launch must wait until the send of that buffer is over (bugs.md B55).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.check.physical import graph_buffer_rewritten
from ppsim.core.errors import InvariantViolation
from ppsim.scenario.tree import Links


@dataclass(slots=True)
class Payload:
    """Device data behind a message: when it is ready on the rank that holds it, and the tokens if it is an output."""

    ready_ns: int
    iteration: int
    tokens: tuple[int, ...] = ()
    is_static: bool = False  # lives in the graph's static buffer
    rank: int = -1  # whose launch of ``iteration`` has made it


@dataclass(slots=True)
class Streams:
    """All instants in nanoseconds."""

    rank: int
    comm_overlap: bool
    links: Links
    forward_free: int = 0
    comm_free: int = 0  # end of all payloads posted so far, where one stream carries them in order
    link_free: dict[int, int] = field(default_factory=dict)  # likewise of the sends to each rank
    received_until: int = 0  # end of what it has received so far; all of it comes from one rank
    waits_until: int = 0
    fence: int = 0  # end of the last committed send of the static buffer, not yet waited for
    static_sent_until: int = 0
    in_order: bool = field(init=False)  # one stream for all payloads
    holds_posted: bool = field(init=False)
    reads_stream: bool = field(init=False)  # tokens are read after what the schedule stream holds
    fences_commits: bool = field(init=False)

    def __post_init__(self) -> None:
        self.in_order = self.links.order == "stream"
        self.holds_posted = self.links.schedule_hold == "post" and not self.comm_overlap
        self.fences_commits = self.links.graph_fence == "commit" and self.comm_overlap
        self.reads_stream = self.links.token_read == "schedule_stream" and not self.comm_overlap

    def launch(
        self, host_ns: int, hidden_ready_ns: int, duration_ns: int, iteration: int, slot: int, graph: bool
    ) -> int:
        """Run a forward pass; the instant at which it starts. Its end is ``forward_free`` afterwards."""
        start = max(host_ns, self.forward_free, hidden_ready_ns, self.fence)
        if not self.comm_overlap and start < self.waits_until:
            start = self.waits_until
        self.fence = 0
        wrong = graph_buffer_rewritten(start, self.static_sent_until) if graph else ""
        if wrong:
            raise InvariantViolation("INV-39", self.rank, iteration, slot, "", wrong)
        self.forward_free = start + duration_ns
        return start

    def receive_turn(self, behind_ns: int) -> int:
        """When a receive that is posted now begins, as far as what stands before it is concerned."""
        return {"stream": behind_ns, "link": self.received_until, "none": 0}[self.links.order]

    def sent(self, dst: int, end_ns: int, is_static: bool) -> None:
        """The payload of a send that was posted leaves until ``end_ns``."""
        if end_ns > self.comm_free:
            self.comm_free = end_ns
        self.link_free[dst] = end_ns
        if is_static:
            self.static_sent_until = end_ns
        if self.holds_posted and end_ns > self.waits_until:
            self.waits_until = end_ns

    def received(self, arrival_ns: int, behind_ns: int) -> int:
        """When a receive is over that was posted now. In one stream it stands behind what ends at ``behind_ns``."""
        end = arrival_ns
        if self.in_order:
            if end < behind_ns:
                end = behind_ns
            if end > self.comm_free:
                self.comm_free = end
        if end > self.waits_until:
            self.waits_until = end
        if end > self.received_until:
            self.received_until = end
        return end

    def committed(self, payload: Payload, sent_until_ns: int) -> None:
        """A send was waited for: the next forward comes after it (no overlap), or after the fence of its buffer."""
        if sent_until_ns > self.waits_until:
            self.waits_until = sent_until_ns
        if self.comm_overlap and payload.is_static:
            self.fence = max(self.fence, sent_until_ns)
            if self.fences_commits:  # the event stands behind what the stream holds by now
                self.fence = max(self.fence, self.comm_free if self.in_order else self.waits_until)

    def read_after(self, ready_ns: int) -> int:
        """When the host has the tokens of an output that is there at ``ready_ns``."""
        return max(ready_ns, self.waits_until) if self.reads_stream else ready_ns
