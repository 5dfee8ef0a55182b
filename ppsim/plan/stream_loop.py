"""SGLang's event loop for a stream of prompts that arrive in time, in many configurations at once.

The waits are those of ``ppsim.cost.slot_loop.RingWaves``. Here is what a visit launches: it is decided when the first
rank comes to it, by then prompts have arrived or not, and the visit may be empty. Equal to the event simulation to the
nanosecond where both apply; that is a property test. Left out are sends that wait for their receiver, jitter, links
without an order, latency on the stream, skipped outputs, faults, batches that depend on tokens (decode), and what is
not the first choice of docs/streams.md.

Times are nanoseconds in floats, arrays (stages, configurations).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ppsim.cost.slot_loop import HostAndLink, RingWaves
from ppsim.errors import PpsimError
from ppsim.plan.prompt_feed import Batch, PromptFeed

Floats = npt.NDArray[np.float64]

OUTPUT_BYTES = 8  # of a row, as the network of the simulation counts
WAVES_BETWEEN_LOOKS = 64  # at which configurations are done
DONE_SHARE = 0.2  # of them, from which on leaving them out pays
BY_CONFIG = ("index", "last_launch", "busy", "ttft", "last_reply", "num_ended")  # of those that still run


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What hosts and links add, in nanoseconds; ``per_bytes`` bytes occupy a link for ``byte_ns`` (whole numbers, so
    that the end of a payload is exact). The same for all configurations, but ``byte_ns`` may be an array over them."""

    schedule_ns: float = 0.0
    process_ns: float = 0.0
    latency_ns: float = 0.0
    control_latency_ns: float = 0.0
    byte_ns: float | Floats = 0.0
    per_bytes: float = 1.0
    hidden_bytes: int = 0
    poll_ns: float = 0.0
    commit: str = "all"
    after_harvest: bool = True
    comm_overlap: bool = False
    one_stream: bool = True  # a rank's sends and receives stand behind each other, else sends only
    free_empty_visit: bool = False

    def occupies_ns(self, num_bytes: Floats) -> Floats:
        """How long payloads take on a link, rounded up, as ``Network.occupies_ns`` of the simulation."""
        return np.asarray(np.ceil(num_bytes * self.byte_ns / self.per_bytes))

    def host_and_link(self) -> HostAndLink:
        """Likewise, without what depends on the bytes of a batch."""
        return HostAndLink(
            schedule=self.schedule_ns,
            process=self.process_ns,
            latency=self.latency_ns,
            control_latency=self.control_latency_ns,
            commit=self.commit,
            after_harvest=self.after_harvest,
            comm_overlap=self.comm_overlap,
            one_stream=self.one_stream,
            free_empty_visit=self.free_empty_visit,
        )


@dataclass(frozen=True, slots=True)
class StreamResult:
    """One entry a configuration; the makespan as ``ppsim.recording.summary`` defines it."""

    mean_ttft_ns: Floats
    makespan_ns: Floats
    bubble_ratio: Floats

    @staticmethod
    def empty(num_configs: int) -> StreamResult:
        return StreamResult(*(np.zeros(num_configs) for _ in range(3)))


class StreamLoop:
    """One pipeline depth and number of stages, many configurations. ``feed`` says what the visits launch."""

    def __init__(self, feed: PromptFeed, around: Surroundings, num_stages: int, depth: int) -> None:
        self.feed, self.around, self.num_stages, self.depth = feed, around, num_stages, depth
        self.pays_bytes = bool(np.any(np.asarray(around.byte_ns) > 0.0))
        self.num_prompts = len(feed.lengths) - 1
        n = feed.num_configs
        self.ring = RingWaves(n, num_stages, depth, around.host_and_link(), self.pays_bytes)
        self.num_slots = self.ring.num_slots
        self.batches: list[Batch | None] = [None] * self.num_slots  # by the slot that launched it
        # results
        self.index = np.arange(n)  # of the configurations that still run
        self.result = StreamResult.empty(n)
        self.last_launch = np.full(n, -np.inf)
        self.busy, self.ttft, self.last_reply, self.num_ended = (np.zeros(n) for _ in range(4))

    def run(self) -> StreamResult:
        """Until every prompt of every configuration has its token."""
        limit = 4 * self.num_prompts * (self.num_slots + 2) + 2 * int(self.feed.lengths.sum())
        wave = 0
        while self.num_ended.min() < self.num_prompts:
            self._ingest(wave)
            self._reply(wave - self.num_slots + 1, self.ring.step(wave))
            wave += 1
            if wave % WAVES_BETWEEN_LOOKS == 0:
                self._leave_out_done()
            if wave > limit:
                raise PpsimError("fast path: the prompts do not end; this is a bug in ppsim")
        self._book()
        return self.result

    def _book(self) -> None:
        """Results of those that still run, or have just ended."""
        until = self.ring.gpu.max(axis=0)
        self.result.mean_ttft_ns[self.index] = self.ttft / self.num_prompts
        self.result.makespan_ns[self.index] = np.maximum(self.last_reply, until) - self.feed.arrivals_ns[0]
        idle = 1.0 - self.busy / (self.num_stages * (until - self.ring.first_start))
        self.result.bubble_ratio[self.index] = idle

    def _leave_out_done(self) -> None:
        """A few configurations with many small chunks run long after the others: then on their own."""
        goes_on = np.flatnonzero(self.num_ended < self.num_prompts)
        if not len(goes_on) or len(goes_on) > (1.0 - DONE_SHARE) * len(self.index):
            return
        self._book()
        for name in BY_CONFIG:
            setattr(self, name, getattr(self, name)[goes_on])
        self.ring.take(goes_on)
        self.batches = [batch and batch.take(goes_on) for batch in self.batches]
        self.feed.take(goes_on)
        if isinstance(self.around.byte_ns, np.ndarray):
            self.around = replace(self.around, byte_ns=self.around.byte_ns[goes_on])

    # --- what is launched -----------------------------------------------------------------------------------------

    def _ingest(self, i: int) -> None:
        """The first rank takes what has arrived, waiting for it if there is nothing else, and the batch is chosen."""
        feed, ring = self.feed, self.ring
        if not feed.nothing_comes:
            self._wait_for_input(i)
        batch = feed.next_batch(ring.cpu[0], i % self.num_slots)
        self.batches[i % self.num_slots] = batch
        if not batch.mask.any():
            ring.launch_nothing()
            return
        self.last_launch[batch.mask] = i
        times = feed.cost.stage_ns(batch.features)
        self.busy += batch.mask * times.sum(axis=0)
        hidden = output = feed.nothing
        if self.pays_bytes:
            hidden = self.around.occupies_ns(batch.tokens * self.around.hidden_bytes)
            output = self.around.occupies_ns(batch.rows * OUTPUT_BYTES)
        ring.launch(i, batch.mask, times, hidden, output)

    def _wait_for_input(self, i: int) -> None:
        """An idle first rank goes straight to the next arrival, in steps of its polling."""
        feed, now = self.feed, self.ring.cpu[0]
        idle_after = self.num_slots + (self.num_stages > 1)  # the last output is passed on in a visit of its own
        drained = i - self.last_launch >= idle_after
        if not drained.any():
            return
        coming = feed.next_arrival_ns
        idle = drained & (coming > now) & (feed.rest == 0.0) & np.isfinite(coming)
        if idle.any():
            wait_ns = np.where(idle, coming, now) - now
            poll = self.around.poll_ns
            self.ring.cpu[0] = now + (np.ceil(wait_ns / poll) * poll if poll else wait_ns)

    def _reply(self, i: int, now: Floats) -> None:
        """The first rank has harvested batch i: prompts that end in it have their token, and their memory is free."""
        batch = self.batches[i % self.num_slots] if i >= 0 else None
        if batch is None or not batch.any_ends:
            return
        ends = batch.num_ending > 0.0
        self.ttft += batch.num_ending * now - batch.ending_arrival_ns
        np.copyto(self.last_reply, now, where=ends)
        self.num_ended += batch.num_ending
        self.feed.free(batch.ending_tokens, batch.num_ending)
