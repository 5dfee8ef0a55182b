"""The pipeline as a recurrence over (chunk, stage), many configurations at once: the fast path beside the simulation.

    free    finish[c][k] = max(finish[c][k-1] + link, finish[c-1][k]) + t[c][k]
    window  the same, and stage 0 starts chunk c only when chunk c - W has come back from the last stage, W = P + depth
    loop    SGLang's loop itself, step by step, for a stream of batches that are all there from the start: ``slot_loop``

``free`` is right for the TTFT of one prompt (within 0.2 %) and far too good for back-to-back requests (up to 36 %): the
slot window sets the efficiency, not (P-1)/(P-1+M) (numbers.md E2). Identical stages have the closed form
``(sum t + (P-1) max t)`` for per-stage times t, exact for ``free``.

Times are floats in any one unit; nanoseconds are exact up to 2^53, a hundred days. Arrays are (..., chunks, stages);
leading axes are configurations, all of the same number of chunks and stages. A shorter plan is padded with zero times
at its end, which changes nothing before it; ``num_chunks`` says where each one ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ppsim.errors import ScenarioError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def stage_times(chunk_times: npt.ArrayLike, shares: npt.ArrayLike) -> Floats:
    """(..., chunks) times of the whole model and (..., stages) shares to (..., chunks, stages)."""
    chunks, parts = np.asarray(chunk_times, dtype=np.float64), np.asarray(shares, dtype=np.float64)
    return chunks[..., :, None] * parts[..., None, :]


def free_running(times: npt.ArrayLike, host: npt.ArrayLike = 0.0, link: npt.ArrayLike = 0.0) -> Floats:
    """Finish of every chunk on every stage, each stage starting as soon as chunk and stage are there.

    ``host`` is added to every chunk on every stage, ``link`` to every hand-over; both broadcast over configurations.
    """
    return _sweep(np.asarray(times, dtype=np.float64), None, host, link)


def slot_window(
    times: npt.ArrayLike, depth: npt.ArrayLike = 0, host: npt.ArrayLike = 0.0, link: npt.ArrayLike = 0.0
) -> Floats:
    """Finish of every chunk on every stage when stage 0 waits for the return of the chunk P + depth before."""
    work = np.asarray(times, dtype=np.float64)
    window = work.shape[-1] + np.asarray(depth, dtype=np.int64)
    if np.any(window < work.shape[-1]):
        raise ScenarioError("cluster.pp_async_batch_depth", f"must not be negative, got {np.min(depth)}")
    return _sweep(work, window, host, link)


def _sweep(times: Floats, window: Ints | np.int64 | None, host: npt.ArrayLike, link: npt.ArrayLike) -> Floats:
    num_chunks, num_stages = times.shape[-2:]
    lead = times.shape[:-2]
    extra, hop = (np.broadcast_to(np.asarray(v, dtype=np.float64), lead) for v in (host, link))
    slots = None if window is None else np.broadcast_to(window, lead)
    finish = np.zeros_like(times)
    for c in range(num_chunks):
        for k in range(num_stages):
            start = finish[..., c - 1, k] if c else np.zeros(lead)
            if k:
                start = np.maximum(start, finish[..., c, k - 1] + hop)
            elif slots is not None:
                start = np.maximum(start, _returned(finish, c, slots, hop))
            finish[..., c, k] = start + times[..., c, k] + extra
    return finish


def _returned(finish: Floats, chunk: int, slots: Ints, hop: Floats) -> Floats:
    """When chunk - slots is back at stage 0; 0 for the first ones."""
    source = chunk - slots
    index = np.broadcast_to(np.maximum(source, 0)[..., None], (*finish.shape[:-2], 1))
    last = np.take_along_axis(finish[..., :, -1], index, axis=-1)[..., 0]
    return np.where(source >= 0, last + hop, 0.0)


def makespan(finish: Floats, num_chunks: npt.ArrayLike | None = None) -> Floats:
    """End of the last chunk on the last stage, one for each configuration."""
    if num_chunks is None:
        return np.asarray(finish[..., -1, -1])
    index = np.broadcast_to(np.asarray(num_chunks, dtype=np.int64), finish.shape[:-2])[..., None] - 1
    return np.asarray(np.take_along_axis(finish[..., :, -1], index, axis=-1)[..., 0])


def pad(plans: list[Floats]) -> tuple[Floats, Ints]:
    """(chunks, stages) arrays of unequal length to one (configurations, chunks, stages), and their lengths."""
    longest = max(len(p) for p in plans)
    out = np.zeros((len(plans), longest, plans[0].shape[-1]))
    for i, p in enumerate(plans):
        out[i, : len(p)] = p
    return out, np.array([len(p) for p in plans], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class HostAndLink:
    """What a rank's CPU and the links add, in the unit of the times; scalars or arrays over configurations.

    ``control_latency`` is paid by request lists and metadata, ``latency`` by tensors. ``commit``: which sends of the last
    visit the CPU waits for ("all", "requests", "none"; protocol.md 3.1). ``after_harvest``: hidden states leave after
    the harvest, else after the outputs were exchanged. Without ``comm_overlap`` a forward waits for the sends committed
    before it. Keys of the same names, or nearly, are in the scenario.
    """

    schedule: npt.ArrayLike = 0.0
    process: npt.ArrayLike = 0.0
    latency: npt.ArrayLike = 0.0
    control_latency: npt.ArrayLike = 0.0
    output_transfer: npt.ArrayLike = 0.0
    commit: str = "all"
    after_harvest: bool = True
    comm_overlap: bool = False
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
    A rank's sends, hidden states and outputs alike, go over one link in the order of their posting, and each waits there
    until its own tensor is ready.
    """

    def __init__(
        self, times: Floats, depth: int, cost: HostAndLink, transfer: Floats, num_chunks: npt.ArrayLike | None
    ) -> None:
        self.times, self.depth, self.cost = times, depth, cost
        self.num_chunks, self.num_stages = times.shape[-2:]
        self.lead = times.shape[:-2]
        self.transfer = np.broadcast_to(transfer, times.shape[:-1])
        real = self.num_chunks if num_chunks is None else np.asarray(num_chunks, dtype=np.int64)
        self.real = np.broadcast_to(np.asarray(real), self.lead)
        self.loop = self.num_stages + depth
        self.last = self.num_stages - 1
        alone = self.num_stages == 1
        self.control = np.asarray(0.0 if alone else cost.control_latency, dtype=np.float64)
        self.latency = np.asarray(0.0 if alone else cost.latency, dtype=np.float64)
        shape = (self.num_stages, self.num_chunks + self.loop, *self.lead)
        self.cpu, self.gpu, self.wire, self.fence = (np.zeros((self.num_stages, *self.lead)) for _ in range(4))
        # by (rank, iteration): list asked for and sent; hidden states' metadata asked for and sent, their arrival, end of
        # their send. By (rank, batch): end of the forward; output asked for, its metadata sent, arrival, end of its send.
        self.list_asked, self.list_sent, self.meta_asked, self.meta_sent = (np.zeros(shape) for _ in range(4))
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

    def _first_half(self, k: int, i: int) -> None:
        now = self.cpu[k]
        self.list_asked[k, i] = now
        if k:
            now = np.maximum(now, self.list_sent[k - 1, i] + self.control)
        if self.cost.commit != "none" and k < self.last and i:
            now = np.maximum(now, self.list_asked[k + 1, i - 1])
        self.list_sent[k, i] = now
        if i < self.num_chunks or not self.cost.free_empty_visit:
            now = now + np.asarray(self.cost.schedule)
        self.meta_asked[k, i] = now
        if k and i < self.num_chunks:
            now = np.maximum(now, self.meta_sent[k - 1, i] + self.control)
        if not self.depth:
            now = self._launch(k, i, now)
        self.cpu[k] = self._send_output(k, i, now)

    def _launch(self, k: int, i: int, now: Floats) -> Floats:
        """Commit the hidden states of the last visit, then start the forward; returns the CPU's clock."""
        if k < self.last and 0 < i <= self.num_chunks:
            if self.cost.commit == "all":
                now = np.maximum(now, self.meta_asked[k + 1, i - 1])
            self.fence[k] = np.maximum(self.fence[k], self.hidden_sent[k, i - 1])
        if i < self.num_chunks:
            start = np.maximum(self.gpu[k], now)
            if k:
                start = np.maximum(start, self.hidden_at[k - 1, i])
            if not self.cost.comm_overlap:
                start = np.maximum(start, self.fence[k])
            self.end[k, i] = self.gpu[k] = start + self.times[..., i, k]
        return now

    def _posted(self, k: int, i: int) -> int:
        """The batch whose output rank k sends in iteration i: the last rank's of ``depth`` visits ago, else the one that
        the last visit received."""
        return i - self.depth if k == self.last else i - self.loop

    def _send_output(self, k: int, i: int, now: Floats) -> Floats:
        """Commit the output sent in the last exchange, then send the next one."""
        before, batch = self._posted(k, i - 1), self._posted(k, i)
        if 0 <= before < self.num_chunks and self.last:
            if self.cost.commit == "all":
                now = np.maximum(now, self.output_asked[(k + 1) % self.num_stages, before])
            self.fence[k] = np.maximum(self.fence[k], self.output_sent[k, before])
        if 0 <= batch < self.num_chunks:
            ready = self.end[k, batch] if k == self.last else self.output_at[k, batch]
            self.output_meta[k, batch] = now
            left = np.maximum(np.maximum(ready, now), self.wire[k])
            self.wire[k] = self.output_sent[k, batch] = left + (self.cost.output_transfer if self.last else 0.0)
        return now

    def _receive_output(self, k: int, i: int, now: Floats) -> Floats:
        batch = i - self.loop + 1
        if not 0 <= batch < self.num_chunks:
            return now
        source = (k - 1) % self.num_stages
        self.output_asked[k, batch] = now
        self.output_at[k, batch] = self.output_sent[source, batch] + self.latency
        return np.asarray(np.maximum(now, self.output_meta[source, batch] + self.control))

    def _second_half(self, k: int, i: int) -> None:
        now, batch = self._receive_output(k, i, self.cpu[k]), i - self.loop + 1
        if self.depth:
            now = self._launch(k, i, now)
        if not self.cost.after_harvest:
            self._send_hidden(k, i, now)
        if 0 <= batch < self.num_chunks:
            now = np.maximum(now, self.output_at[k, batch])
            now = np.where(batch < self.real, now + np.asarray(self.cost.process), now)
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
        self.wire[k] = self.hidden_sent[k, i] = left + self.transfer[..., i]
        self.hidden_at[k, i] = self.hidden_sent[k, i] + self.latency
