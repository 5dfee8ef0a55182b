"""SGLang's event loop for a stream of prompts that arrive in time, in many configurations at once.

The same waits as ``ppsim.cost.slot_loop`` (request lists, metadata, commits, the harvest of slot n, the relay of
outputs round the ring), but what a visit launches is decided when the first rank comes to it: by then prompts have
arrived or not, and the visit may be empty. Equal to the event simulation to the nanosecond where both apply; that is a
property test. Left out are sends that wait for their receiver, jitter, links without an order, latency on the stream,
skipped outputs, faults, batches that depend on tokens (decode), and what is not the first choice of docs/streams.md.

Time goes in waves: in wave n rank k makes its iteration n - k, all ranks side by side. Whatever a rank waits for was
left by a neighbour in wave n - 1, or in the half of wave n before:
    first half    ingest, commit, schedule, receive hidden states, (depth 0: launch,) send the output on
    second half   receive the output of slot n, (depth > 0: launch,) harvest it, send the hidden states
Times are nanoseconds in floats, arrays (stages, configurations). A value that an empty visit leaves is never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ppsim.errors import PpsimError
from ppsim.plan.prompt_feed import Batch, PromptFeed

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

OUTPUT_BYTES = 8  # of a row, as the network of the simulation counts
WAVES_BETWEEN_LOOKS = 64  # at which configurations are done
DONE_SHARE = 0.2  # of them, from which on leaving them out pays
BY_CONFIG = (  # arrays whose last axis is the configurations that still run
    *("index", "cpu", "gpu", "wire", "fence", "list_sent", "meta_asked", "meta_sent", "end"),
    *("hidden_sent", "hidden_at", "hidden_in", "output_at", "output_meta", "output_sent", "output_asked"),
    *("masks", "times", "hidden_ns", "output_ns", "last_end"),
    *("last_launch", "first_start", "busy", "ttft", "last_reply", "num_ended"),
)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What hosts and links add; nanoseconds, ``byte_ns`` a byte. The same for all configurations, but for ``byte_ns``,
    which may be an array over them."""

    schedule_ns: float = 0.0
    process_ns: float = 0.0
    latency_ns: float = 0.0
    control_latency_ns: float = 0.0
    byte_ns: float | Floats = 0.0
    hidden_bytes: int = 0
    poll_ns: float = 0.0
    commit: str = "all"
    after_harvest: bool = True
    comm_overlap: bool = False
    one_stream: bool = True  # a rank's sends and receives stand behind each other, else sends only
    free_empty_visit: bool = False


@dataclass(frozen=True, slots=True)
class StreamResult:
    """One entry a configuration; the makespan as ``ppsim.recording.summary`` defines it."""

    mean_ttft_ns: Floats
    makespan_ns: Floats
    bubble_ratio: Floats

    @staticmethod
    def empty(num_configs: int) -> StreamResult:
        return StreamResult(*(np.zeros(num_configs) for _ in range(3)))


def wait(there: Bools, now: Floats, awaited: Floats) -> None:
    """Move the clocks of those with a batch to what they wait for."""
    np.maximum(now, awaited, out=now, where=there)


class StreamLoop:
    """One pipeline depth and number of stages, many configurations. ``feed`` says what the visits launch."""

    def __init__(self, feed: PromptFeed, around: Surroundings, num_stages: int, depth: int) -> None:
        self.feed, self.around, self.num_stages, self.depth = feed, around, num_stages, depth
        self.num_slots, self.last = num_stages + depth, num_stages - 1
        self.num_prompts = len(feed.lengths) - 1
        alone = num_stages == 1
        self.control = 0.0 if alone else around.control_latency_ns
        self.latency = 0.0 if alone else around.latency_ns
        self.pays_bytes = bool(np.any(np.asarray(around.byte_ns) > 0.0)) and not alone
        n = feed.num_configs
        # clocks of a rank, and what it left for others in its latest visit
        self.cpu, self.gpu, self.wire, self.fence = (np.zeros((num_stages, n)) for _ in range(4))
        self.list_sent, self.meta_asked, self.meta_sent, self.end = (np.zeros((num_stages, n)) for _ in range(4))
        self.hidden_sent, self.hidden_at, self.output_at = (np.zeros((num_stages, n)) for _ in range(3))
        self.hidden_in = np.zeros((num_stages, n))  # what a rank computes on is there
        # outputs go round the ring: a row more, so that the neighbour's is a view (before: the last rank again)
        self.output_meta, self.output_sent, self.output_asked = (np.zeros((num_stages + 1, n)) for _ in range(3))
        # what is launched: row r is iteration "wave - r" of ``masks``, iteration r modulo the window of others
        self.window = num_stages + self.num_slots + 3
        self.masks = np.zeros((self.window, n), dtype=np.bool_)
        self.times = np.zeros((self.window, num_stages, n))
        self.hidden_ns, self.output_ns, self.last_end = (np.zeros((self.window, n)) for _ in range(3))
        self.batches: list[Batch | None] = [None] * self.window
        self.rank = np.arange(num_stages)
        self.sent_on = np.where(self.rank == self.last, self.num_slots - 1, self.rank + self.num_slots)
        # results
        self.index = np.arange(n)  # of the configurations that still run
        self.result = StreamResult.empty(n)
        self.last_launch = np.full(n, -np.inf)
        self.first_start = np.full(n, np.inf)
        self.busy, self.ttft, self.last_reply, self.num_ended = (np.zeros(n) for _ in range(4))

    def run(self) -> StreamResult:
        """Until every prompt of every configuration has its token."""
        limit = 4 * self.num_prompts * (self.num_slots + 2) + 2 * int(self.feed.lengths.sum())
        wave = 0
        while self.num_ended.min() < self.num_prompts:
            self._ingest(wave)
            self._first_half(wave, min(wave + 1, self.num_stages))
            wave += 1
            if wave % WAVES_BETWEEN_LOOKS == 0:
                self._leave_out_done()
            if wave > limit:
                raise PpsimError("fast path: the prompts do not end; this is a bug in ppsim")
        self._book()
        return self.result

    def _book(self) -> None:
        """Results of those that still run, or have just ended."""
        until = self.gpu.max(axis=0)
        self.result.mean_ttft_ns[self.index] = self.ttft / self.num_prompts
        self.result.makespan_ns[self.index] = np.maximum(self.last_reply, until) - self.feed.arrivals_ns[0]
        idle = 1.0 - self.busy / (self.num_stages * (until - self.first_start))
        self.result.bubble_ratio[self.index] = idle

    def _leave_out_done(self) -> None:
        """A few configurations with many small chunks run long after the others: then on their own."""
        goes_on = np.flatnonzero(self.num_ended < self.num_prompts)
        if not len(goes_on) or len(goes_on) > (1.0 - DONE_SHARE) * len(self.index):
            return
        self._book()
        for name in BY_CONFIG:
            setattr(self, name, getattr(self, name)[..., goes_on])
        self.batches = [batch and batch.take(goes_on) for batch in self.batches]
        self.feed.take(goes_on)
        if isinstance(self.around.byte_ns, np.ndarray):
            self.around = replace(self.around, byte_ns=self.around.byte_ns[goes_on])

    # --- what is launched -----------------------------------------------------------------------------------------

    def _ingest(self, i: int) -> None:
        """The first rank takes what has arrived, waiting for it if there is nothing else, and the batch is chosen."""
        feed, row = self.feed, i % self.window
        if not feed.nothing_comes:
            self._wait_for_input(i)
        batch = feed.next_batch(self.cpu[0], i % self.num_slots)
        self.batches[row] = batch
        self.masks[1:] = self.masks[:-1]
        self.masks[0] = batch.mask
        if not batch.mask.any():
            return
        self.last_launch[batch.mask] = i
        self.times[row] = feed.cost.stage_ns(batch.features)
        self.busy += batch.mask * self.times[row].sum(axis=0)
        if self.pays_bytes:
            self.hidden_ns[row] = np.ceil(batch.tokens * self.around.hidden_bytes * self.around.byte_ns)
            self.output_ns[row] = np.ceil(batch.rows * OUTPUT_BYTES * self.around.byte_ns)

    def _wait_for_input(self, i: int) -> None:
        """An idle first rank goes straight to the next arrival, in steps of its polling."""
        feed, now = self.feed, self.cpu[0]
        idle_after = self.num_slots + (self.num_stages > 1)  # the last output is passed on in a visit of its own
        drained = i - self.last_launch >= idle_after
        if not drained.any():
            return
        coming = feed.next_arrival_ns
        idle = drained & (coming > now) & (feed.rest == 0.0) & np.isfinite(coming)
        if idle.any():
            wait_ns = np.where(idle, coming, now) - now
            poll = self.around.poll_ns
            self.cpu[0] = now + (np.ceil(wait_ns / poll) * poll if poll else wait_ns)

    # --- a wave; ``a`` ranks have begun ---------------------------------------------------------------------------

    def _first_half(self, wave: int, a: int) -> None:
        here = self.masks[:a]
        asked = self.cpu[:a]
        now = asked.copy()
        np.maximum(now[1:], self.list_sent[: a - 1] + self.control, out=now[1:])
        if self.around.commit != "none":  # the next rank has asked for the list of the visit before
            np.maximum(now[:-1], asked[1:], out=now[:-1])
        self.list_sent[:a] = now
        if self.around.schedule_ns:
            now += (here if self.around.free_empty_visit else True) * self.around.schedule_ns
        self.meta_asked[:a] = now
        wait(here[1:], now[1:], self.meta_sent[: a - 1] + self.control)
        self._receive(here[1:], self.hidden_at[: a - 1], self.hidden_in[1:a], slice(1, a))
        if not self.depth:
            self._launch(wave, a, now)
        self._send_output(wave, a, now)
        self._second_half(wave, a, now)

    def _receive(self, comes: Bools, arrival: Floats, out: Floats, ranks: slice) -> None:
        """When a payload is there that is received now; what a rank posts later stands behind it in its one stream."""
        if not self.around.one_stream:
            out[:] = arrival
            return
        np.maximum(arrival, self.wire[ranks], out=out)
        np.copyto(self.wire[ranks], out, where=comes)

    def _launch(self, wave: int, a: int, now: Floats) -> None:
        """Commit the hidden states of the last visit, then start the forward."""
        q = min(a, self.last)  # ranks that send hidden states
        before = self.masks[1 : q + 1]
        if self.around.commit == "all":
            wait(before, now[:q], self.meta_asked[1 : q + 1])
        start = np.maximum(self.gpu[:a], now)
        np.maximum(start[1:], self.hidden_in[1:a], out=start[1:])
        if not self.around.comm_overlap:
            wait(before, self.fence[:q], self.hidden_sent[:q])
            np.maximum(start, self.fence[:a], out=start)
        np.minimum(self.first_start, start[0], out=self.first_start, where=self.masks[0])
        start += self.times[(wave - self.rank[:a]) % self.window, self.rank[:a]]
        self.end[:a] = start
        np.copyto(self.gpu[:a], start, where=self.masks[:a])
        if a == self.num_stages:
            self.last_end[(wave - self.last) % self.window] = start[self.last]

    def _send_output(self, wave: int, a: int, now: Floats) -> None:
        """Commit the output sent in the last exchange, then send the next one."""
        mine = self.output_sent[1 : a + 1]
        if self.last:
            before = self.masks[self.sent_on[:a] + 1]
            if self.around.commit == "all":
                wait(before, now, self.output_asked[1 : a + 1])
            if not self.around.comm_overlap:
                wait(before, self.fence[:a], mine)
        sends = self.masks[self.sent_on[:a]]
        self.output_meta[1 : a + 1] = now
        np.maximum(now, self.wire[:a], out=mine)
        np.maximum(mine[: self.last], self.output_at[:a][: self.last], out=mine[: self.last])
        if a == self.num_stages:
            np.maximum(mine[-1], self.last_end[(wave - self.num_slots + 1) % self.window], out=mine[-1])
        if self.pays_bytes:
            mine += self.output_ns[(wave - self.sent_on[:a]) % self.window]
        np.copyto(self.wire[:a], mine, where=sends)
        self.output_meta[0], self.output_sent[0] = self.output_meta[-1], self.output_sent[-1]

    def _second_half(self, wave: int, a: int, now: Floats) -> None:
        comes = self.masks[self.num_slots - 1 : self.num_slots - 1 + a]
        self.output_asked[:a] = now
        self.output_asked[-1] = self.output_asked[0]
        self._receive(comes, self.output_sent[:a] + self.latency, self.output_at[:a], slice(0, a))
        if not self.around.comm_overlap:
            wait(comes, self.fence[:a], self.output_at[:a])
        wait(comes, now, self.output_meta[:a] + self.control)
        if self.depth:
            self._launch(wave, a, now)
        if not self.around.after_harvest:
            self._send_hidden(wave, a, now)
        wait(comes, now, self.output_at[:a])
        if self.around.process_ns:
            now += comes * self.around.process_ns
        self._reply(wave - self.num_slots + 1, now[0])
        if self.around.after_harvest:
            self._send_hidden(wave, a, now)
        self.cpu[:a] = now

    def _send_hidden(self, wave: int, a: int, now: Floats) -> None:
        """After the forward that makes them, after their posting, behind what the rank has sent before."""
        q = min(a, self.last)
        sent = self.hidden_sent[:q]
        self.meta_sent[:q] = now[:q]
        np.maximum(self.end[:q], now[:q], out=sent)
        np.maximum(sent, self.wire[:q], out=sent)
        if self.pays_bytes:
            sent += self.hidden_ns[(wave - self.rank[:q]) % self.window]
        np.copyto(self.wire[:q], sent, where=self.masks[:q])
        np.add(sent, self.latency, out=self.hidden_at[:q])

    def _reply(self, i: int, now: Floats) -> None:
        """The first rank has harvested batch i: prompts that end in it have their token, and their memory is free."""
        batch = self.batches[i % self.window] if i >= 0 else None
        if batch is None or not batch.any_ends:
            return
        ends = batch.num_ending > 0.0
        self.ttft += batch.num_ending * now - batch.ending_arrival_ns
        np.copyto(self.last_reply, now, where=ends)
        self.num_ended += batch.num_ending
        self.feed.free(batch.ending_tokens, batch.num_ending)
