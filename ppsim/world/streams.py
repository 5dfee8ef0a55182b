"""GPU streams of one rank, as the instants at which each becomes free (protocol.md 3.2, 3.3).

    forward   forward passes, in launch order
    schedule  without communication overlap also the waits for sends: forward(i+1) comes after send(i)
    comm      payload sends of the rank, in order (``links.order``)

A decode batch that runs as a CUDA graph leaves its hidden states in one static buffer. The next graph launch must wait
until the send of that buffer is over; an eager launch has a buffer of its own and need not (bugs.md B55).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.core.errors import InvariantViolation


@dataclass(slots=True)
class Payload:
    """Device data behind a message: when it is ready on the rank that holds it, and the tokens if it is an output."""

    ready_ns: int
    iteration: int
    tokens: tuple[int, ...] = ()
    is_static: bool = False  # lives in the graph's static buffer
    num_bytes: int = 0


@dataclass(slots=True)
class Streams:
    """All instants in nanoseconds."""

    rank: int
    comm_overlap: bool
    forward_free: int = 0
    schedule_free: int = 0
    comm_free: int = 0
    fence: int = 0  # end of the last committed send of the static buffer, not yet waited for
    static_sent_until: int = 0
    link_free: dict[int, int] = field(default_factory=dict)

    def launch(
        self, host_ns: int, hidden_ready_ns: int, duration_ns: int, iteration: int, slot: int, graph: bool
    ) -> int:
        """Run a forward pass; the instant at which it starts. Its end is ``forward_free`` afterwards."""
        start = max(host_ns, self.forward_free, hidden_ready_ns)
        if not self.comm_overlap:
            start = max(start, self.schedule_free)
        start = max(start, self.fence)
        self.fence = 0
        if graph and start < self.static_sent_until:
            raise InvariantViolation(
                "INV-39",
                self.rank,
                iteration,
                slot,
                "",
                f"the graph's static hidden-state buffer is rewritten at {start} ns while its send lasts until "
                f"{self.static_sent_until} ns",
            )
        self.forward_free = start + duration_ns
        return start

    def committed(self, payload: Payload, sent_until_ns: int) -> None:
        """A send was waited for: the next forward comes after it (no overlap), or a graph launch is fenced."""
        if not self.comm_overlap:
            self.schedule_free = max(self.schedule_free, sent_until_ns)
        elif payload.is_static:
            self.fence = max(self.fence, sent_until_ns)
