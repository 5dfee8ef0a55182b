"""SGLang's event loop as a recurrence, for a stream of batches that are all there from the start.

Batch c is launched in iteration c of every rank, so a prompt of fixed or planned chunks, or several in a row, is such a
stream. Every wait of protocol.md 1.3 to 1.6 and 3.1 is in it: request lists, metadata, commits, the harvest of slot n,
the relay of outputs round the ring. For a single prompt it equals the event simulation to the nanosecond; that is a
property test. It leaves out sends that wait for their receiver, jitter, links without an order, batches that depend on
tokens, and what is not the first choice of docs/streams.md.

Times are floats in any one unit, arrays (..., chunks, stages) as in ``ppsim.cost.recurrence``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ppsim.cost.recurrence import Floats
from ppsim.errors import ScenarioError


@dataclass(frozen=True, slots=True)
class HostAndLink:
    """What a rank's CPU and the links add, in the unit of the times; scalars or arrays over configurations.

    ``control_latency`` is paid by request lists and metadata, ``latency`` by tensors. ``commit``: which sends of the
    last visit the CPU waits for ("all", "requests", "none"; protocol.md 3.1). ``after_harvest``: hidden states leave
    after the harvest, else after the outputs were exchanged. Without ``comm_overlap`` a forward waits for the sends
    committed and the receives posted before it. ``one_stream``: a rank's sends and receives stand behind each other,
    else its sends only (``links.order`` "stream" and "link"). The scenario has keys of nearly the same names.
    """

    schedule: npt.ArrayLike = 0.0
    process: npt.ArrayLike = 0.0
    latency: npt.ArrayLike = 0.0
    control_latency: npt.ArrayLike = 0.0
    output_transfer: npt.ArrayLike = 0.0
    commit: str = "all"
    after_harvest: bool = True
    comm_overlap: bool = False
    one_stream: bool = True
    free_empty_visit: bool = False


def slot_loop(
    times: npt.ArrayLike,
    depth: int = 0,
    cost: HostAndLink | None = None,
    transfer: npt.ArrayLike = 0.0,
    num_chunks: npt.ArrayLike | None = None,
) -> Floats:
    """When PP0 has post-processed each batch, (..., chunks), in SGLang's loop (protocol.md 1.3 to 1.6).

    ``times`` (..., chunks, stages): batch c is launched in iteration c of every rank. ``transfer`` (..., chunks): time
    its hidden states occupy a link; broadcasts. All configurations share ``depth``.
    """
    work = np.asarray(times, dtype=np.float64)
    if depth < 0:
        raise ScenarioError("cluster.pp_async_batch_depth", f"must not be negative, got {depth}")
    return _Loop(work, depth, cost or HostAndLink(), np.asarray(transfer, dtype=np.float64), num_chunks).run()


class _Loop:
    """State of ``slot_loop``: per rank a CPU and a GPU clock, per (rank, iteration) the instants others wait for.

    A visit falls into two halves, which are evaluated in an order that respects every wait:
        first   ingest, commit, schedule, receive hidden states, (depth 0: launch,) send the output on
        second  receive the output of slot n, (depth > 0: launch,) harvest it, send the hidden states
    A rank's sends, hidden states and outputs alike, go over one link in the order of their posting, and each waits
    there until its own tensor is ready. In one stream its receives stand in that order, too.
    """

    def __init__(
        self, times: Floats, depth: int, cost: HostAndLink, transfer: Floats, num_chunks: npt.ArrayLike | None
    ) -> None:
        self.times, self.depth, self.cost = times, depth, cost
        self.num_chunks, self.num_stages = times.shape[-2:]
        self.lead = times.shape[:-2]
        self.transfer = np.broadcast_to(transfer, times.shape[:-1])
        real = np.asarray(self.num_chunks if num_chunks is None else num_chunks, dtype=np.int64)
        self.real = np.broadcast_to(real, self.lead)
        self.loop = self.num_stages + depth
        self.last = self.num_stages - 1
        alone = self.num_stages == 1
        self.control = np.asarray(0.0 if alone else cost.control_latency, dtype=np.float64)
        self.latency = np.asarray(0.0 if alone else cost.latency, dtype=np.float64)
        shape = (self.num_stages, self.num_chunks + self.loop, *self.lead)
        self.cpu, self.gpu, self.wire, self.fence = (np.zeros((self.num_stages, *self.lead)) for _ in range(4))
        # by (rank, iteration): list asked for and sent; hidden states' metadata asked for and sent, their arrival, end
        # of their send. By (rank, batch): end of the forward; output asked for, its metadata, arrival, end of its send.
        self.list_asked, self.list_sent, self.meta_asked, self.meta_sent = (np.zeros(shape) for _ in range(4))
        self.hidden_in = np.zeros((self.num_stages, *self.lead))  # what a rank computes on in this visit is there
        self.hidden_at, self.hidden_sent, self.end, self.output_asked = (np.zeros(shape) for _ in range(4))
        self.output_meta, self.output_at, self.output_sent = (np.zeros(shape) for _ in range(3))
        self.harvested = np.zeros((*self.lead, self.num_chunks))

    def run(self) -> Floats:
        for half, rank, i in self._order():
            if half == 0:
                self._first_half(rank, i)
            else:
                self._second_half(rank, i)
        return self.harvested

    def _order(self) -> Iterator[tuple[int, int, int]]:
        """(half, rank, iteration) so that everything awaited comes first: 4P i + (4P-2) k, the second half 2P later."""
        p = self.num_stages
        visits = ((h, k, i) for i in range(self.num_chunks + self.loop - 1) for k in range(p) for h in (0, 1))
        return iter(sorted(visits, key=lambda v: (4 * p * v[2] + (4 * p - 2) * v[1] + 2 * p * v[0], v)))

    def _later(self, batch: int, now: Floats, awaited: Floats) -> Floats:
        """The clock after a wait that only configurations with such a batch have to do."""
        if not 0 <= batch < self.num_chunks:
            return now
        return np.asarray(np.where(batch < self.real, np.maximum(now, awaited), now))

    def _first_half(self, k: int, i: int) -> None:
        now = self.cpu[k]
        self.list_asked[k, i] = now
        if k:
            now = np.maximum(now, self.list_sent[k - 1, i] + self.control)
        if self.cost.commit != "none" and k < self.last and i:
            now = np.maximum(now, self.list_asked[k + 1, i - 1])
        self.list_sent[k, i] = now
        costs = (i < self.real) | (not self.cost.free_empty_visit)
        now = now + np.where(costs, np.asarray(self.cost.schedule, dtype=np.float64), 0.0)
        self.meta_asked[k, i] = now
        if k:
            now = self._later(i, now, self.meta_sent[k - 1, i] + self.control)
            self.hidden_in[k] = self._received(k, i, self.hidden_at[k - 1, i])
        if not self.depth:
            now = self._launch(k, i, now)
        self.cpu[k] = self._send_output(k, i, now)

    def _received(self, k: int, batch: int, arrival: Floats) -> Floats:
        """When the payload of a batch is there that rank k receives now, behind what its one stream holds."""
        if self.cost.one_stream:
            arrival = np.maximum(arrival, self.wire[k])
            self.wire[k] = self._later(batch, self.wire[k], arrival)
        return arrival

    def _launch(self, k: int, i: int, now: Floats) -> Floats:
        """Commit the hidden states of the last visit, then start the forward; returns the CPU's clock."""
        if k < self.last and 0 < i <= self.num_chunks:
            if self.cost.commit == "all":
                now = self._later(i - 1, now, self.meta_asked[k + 1, i - 1])
            self.fence[k] = np.maximum(self.fence[k], self.hidden_sent[k, i - 1])
        if i < self.num_chunks:
            start = np.maximum(self.gpu[k], now)
            if k:
                start = np.maximum(start, self.hidden_in[k])
            if not self.cost.comm_overlap:
                start = np.maximum(start, self.fence[k])
            self.end[k, i] = self.gpu[k] = start + self.times[..., i, k]
        return now

    def _posted(self, k: int, i: int) -> int:
        """The batch whose output rank k sends in iteration i: the last rank's of ``depth`` visits ago, else the one it
        received in the last visit."""
        return i - self.depth if k == self.last else i - self.loop

    def _send_output(self, k: int, i: int, now: Floats) -> Floats:
        """Commit the output sent in the last exchange, then send the next one."""
        before, batch = self._posted(k, i - 1), self._posted(k, i)
        if 0 <= before < self.num_chunks and self.last:
            if self.cost.commit == "all":
                now = self._later(before, now, self.output_asked[(k + 1) % self.num_stages, before])
            self.fence[k] = np.maximum(self.fence[k], self.output_sent[k, before])
        if 0 <= batch < self.num_chunks:
            ready = self.end[k, batch] if k == self.last else self.output_at[k, batch]
            self.output_meta[k, batch] = now
            left = np.maximum(np.maximum(ready, now), self.wire[k])
            self.output_sent[k, batch] = left + (self.cost.output_transfer if self.last else 0.0)
            self.wire[k] = self._later(batch, self.wire[k], self.output_sent[k, batch])
        return now

    def _receive_output(self, k: int, i: int, now: Floats) -> Floats:
        batch = i - self.loop + 1
        if not 0 <= batch < self.num_chunks:
            return now
        source = (k - 1) % self.num_stages
        self.output_asked[k, batch] = now
        self.output_at[k, batch] = self._received(k, batch, self.output_sent[source, batch] + self.latency)
        self.fence[k] = self._later(batch, self.fence[k], self.output_at[k, batch])
        return self._later(batch, now, self.output_meta[source, batch] + self.control)

    def _second_half(self, k: int, i: int) -> None:
        now, batch = self._receive_output(k, i, self.cpu[k]), i - self.loop + 1
        if self.depth:
            now = self._launch(k, i, now)
        if not self.cost.after_harvest:
            self._send_hidden(k, i, now)
        if 0 <= batch < self.num_chunks:
            now = np.maximum(now, self.output_at[k, batch]) + np.asarray(self.cost.process)
            if k == 0:
                self.harvested[..., batch] = now
        if self.cost.after_harvest:
            self._send_hidden(k, i, now)
        self.cpu[k] = now

    def _send_hidden(self, k: int, i: int, now: Floats) -> None:
        if i >= self.num_chunks or k == self.last:
            return
        self.meta_sent[k, i] = now
        left = np.maximum(np.maximum(self.end[k, i], now), self.wire[k])
        self.hidden_sent[k, i] = left + self.transfer[..., i]
        self.wire[k] = self._later(i, self.wire[k], self.hidden_sent[k, i])
        self.hidden_at[k, i] = self.hidden_sent[k, i] + self.latency
