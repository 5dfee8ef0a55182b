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

    ``control_latency`` is paid by request lists, metadata and outputs, ``latency`` by tensors; ``commit``: the sends of
    the last visit are awaited (protocol.md 3.1); ``after_harvest``: hidden states leave after the harvest (1.3).
    """

    schedule: npt.ArrayLike = 0.0
    process: npt.ArrayLike = 0.0
    latency: npt.ArrayLike = 0.0
    control_latency: npt.ArrayLike = 0.0
    commit: bool = True
    after_harvest: bool = True
    comm_overlap: bool = True
    empty_visit_free: bool = False


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
        shape = (self.num_stages, self.num_chunks + self.loop, *self.lead)
        self.cpu = np.zeros((self.num_stages, *self.lead))
        self.gpu = np.zeros_like(self.cpu)
        self.wire = np.zeros_like(self.cpu)  # when the rank's link is free again
        self.ingested, self.requests, self.meta_sent, self.meta_got = (np.zeros(shape) for _ in range(4))
        self.hidden, self.sent, self.end = (np.zeros(shape) for _ in range(3))
        self.output_sent, self.output_ready, self.output_got = (np.zeros(shape) for _ in range(3))
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
        now, last = self.cpu[k], self.num_stages - 1
        control = np.asarray(self.cost.control_latency, dtype=np.float64)
        if k:
            now = np.maximum(now, self.requests[k - 1, i] + control)
        self.ingested[k, i] = now
        if self.cost.commit and k < last and i:
            now = np.maximum(now, self.ingested[k + 1, i - 1])
        self.requests[k, i] = now
        busy = i < self.num_chunks
        if busy or not self.cost.empty_visit_free:
            now = now + np.asarray(self.cost.schedule)
        if busy and k:
            now = np.maximum(now, self.meta_sent[k - 1, i] + control)
        self.meta_got[k, i] = now
        if not self.depth:
            now = self._launch(k, i, now)
        self._send_output(k, i, now)
        self.cpu[k] = now

    def _launch(self, k: int, i: int, now: Floats) -> Floats:
        """Commit the hidden states of the last visit, then start the forward; returns the CPU's clock."""
        if i >= self.num_chunks:
            return now
        if self.cost.commit and k < self.num_stages - 1 and i:
            now = np.maximum(now, self.meta_got[k + 1, i - 1])
        start = np.maximum(self.gpu[k], now)
        if k:
            start = np.maximum(start, self.hidden[k - 1, i])
        if not self.cost.comm_overlap and i:
            start = np.maximum(start, self.sent[k, i - 1])
        self.end[k, i] = self.gpu[k] = start + self.times[..., i, k]
        return now

    def _send_output(self, k: int, i: int, now: Floats) -> None:
        """The last rank sends the batch of ``depth`` visits ago, the others pass on what the last visit received."""
        last = self.num_stages - 1
        batch = i - self.depth if k == last else i - self.loop
        if 0 <= batch < self.num_chunks:
            self.output_sent[k, batch] = now
            ready = self.end[k, batch] if k == last else self.output_got[k, batch]
            self.output_ready[k, batch] = np.maximum(ready, now)

    def _receive_output(self, k: int, i: int, now: Floats) -> Floats:
        batch = i - self.loop + 1
        if not 0 <= batch < self.num_chunks:
            return now
        source = (k - 1) % self.num_stages
        alone = self.num_stages == 1
        control = 0.0 if alone else np.asarray(self.cost.control_latency, dtype=np.float64)
        latency = 0.0 if alone else np.asarray(self.cost.latency, dtype=np.float64)
        self.output_got[k, batch] = self.output_ready[source, batch] + latency
        return np.asarray(np.maximum(now, self.output_sent[source, batch] + control))

    def _second_half(self, k: int, i: int) -> None:
        now, batch = self.cpu[k], i - self.loop + 1
        if not self.depth and not self.cost.after_harvest:
            self._send_hidden(k, i, now)
        now = self._receive_output(k, i, now)
        if self.depth:
            now = self._launch(k, i, now)
            if not self.cost.after_harvest:
                self._send_hidden(k, i, now)
        if 0 <= batch < self.num_chunks:
            now = np.maximum(now, self.output_got[k, batch])
            processed = now + np.asarray(self.cost.process)
            now = np.where(batch < self.real, processed, now)
            if k == 0:
                self.harvested[..., batch] = now
        if self.cost.after_harvest:
            self._send_hidden(k, i, now)
        self.cpu[k] = now

    def _send_hidden(self, k: int, i: int, now: Floats) -> None:
        if i >= self.num_chunks or k == self.num_stages - 1:
            return
        self.meta_sent[k, i] = now
        leaves = np.maximum(np.maximum(self.end[k, i], now), self.wire[k])
        self.wire[k] = self.sent[k, i] = leaves + self.transfer[..., i]
        self.hidden[k, i] = self.sent[k, i] + np.asarray(self.cost.latency, dtype=np.float64)
