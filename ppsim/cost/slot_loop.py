"""SGLang's event loop as a recurrence, many configurations at once: the one copy of it beside the simulation.

Every wait of protocol.md 1.3 to 1.6 and 3.1 is in it: request lists, metadata, commits, the harvest of slot n, the
relay of outputs round the ring. Who drives it says what each visit launches:

    slot_loop                     batches that are all there from the start: a prompt of fixed or planned chunks, or
                                  several in a row; batch c is launched in iteration c of every rank
    ppsim.plan.stream_loop        prompts that arrive in time: what a visit launches, if anything, is decided when the
                                  first rank comes to it

It equals the event simulation to the nanosecond; property tests hold both drivers against it. It leaves out sends that
wait for their receiver, jitter, links without an order, batches that depend on tokens, and what is not the first choice
of docs/streams.md.

Times are floats in any one unit. ``slot_loop`` takes arrays (..., chunks, stages) as in ``ppsim.cost.recurrence``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ppsim.errors import ScenarioError
from ppsim.later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ppsim.cost.recurrence import Floats, Ints

    Bools: TypeAlias = npt.NDArray[np.bool_]
else:
    np = later("numpy")

BY_CONFIG = (  # arrays whose last axis is the configurations
    *("cpu", "gpu", "wire", "fence", "list_sent", "meta_asked", "meta_sent", "end"),
    *("hidden_sent", "hidden_at", "hidden_in", "output_at", "output_meta", "output_sent", "output_asked"),
    *("masks", "times", "hidden_ns", "output_ns", "last_end", "first_start"),
)
HOST_AND_LINK = ("schedule", "process", "latency", "control")  # a number, or an array over the configurations


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
    its hidden states occupy a link; broadcasts. ``num_chunks`` says where each configuration ends; what stands behind
    its end means nothing. All configurations share ``depth``.
    """
    work = np.asarray(times, dtype=np.float64)
    if depth < 0:
        raise ScenarioError("cluster.pp_async_batch_depth", f"must not be negative, got {depth}")
    (*lead, chunks, stages), cost = work.shape, cost or HostAndLink()

    def flat(value: npt.ArrayLike) -> float | Floats:
        """Of each configuration, side by side."""
        found = number(value)
        return found if isinstance(found, float) else np.broadcast_to(found, lead).reshape(-1)

    real = np.broadcast_to(np.asarray(chunks if num_chunks is None else num_chunks), lead).reshape(-1)
    hidden = np.broadcast_to(np.asarray(transfer, dtype=np.float64), work.shape[:-1]).reshape(len(real), chunks).T
    output = flat(cost.output_transfer)
    fields = {name: flat(getattr(cost, name)) for name in ("schedule", "process", "latency", "control_latency")}
    pays_bytes = bool(np.any(hidden)) or bool(np.any(np.asarray(output)))
    ring = RingWaves(len(real), stages, depth, replace(cost, **fields), pays_bytes)  # type: ignore[arg-type]
    by_chunk = np.ascontiguousarray(work.reshape(len(real), chunks, stages).transpose(1, 2, 0))
    harvested = np.zeros((chunks, len(real)))
    for wave in range(chunks + ring.num_slots - 1):
        if wave < chunks:
            ring.launch(wave, wave < real, by_chunk[wave], hidden[wave], output)
        else:
            ring.launch_nothing()
        now = ring.step(wave)
        if wave >= ring.num_slots - 1:
            harvested[wave - ring.num_slots + 1] = now
    return harvested.T.reshape(*lead, chunks)


def number(value: npt.ArrayLike) -> float | Floats:
    """As a number if it is one, else as an array."""
    found = np.asarray(value, dtype=np.float64)
    return found if found.ndim else float(found)


def wait(there: Bools, now: Floats, awaited: Floats) -> None:
    """Move the clocks of those with a batch to what they wait for."""
    np.maximum(now, awaited, out=now, where=there)


class RingWaves:
    """State of the loop of one pipeline depth and number of stages, arrays (stages, configurations).

    Time goes in waves: in wave n rank k makes its iteration n - k, all ranks side by side. Whatever a rank waits for
    was left by a neighbour in wave n - 1, or in the half of wave n before:
        first half    ingest, commit, schedule, receive hidden states, (depth 0: launch,) send the output on
        second half   receive the output of slot n, (depth > 0: launch,) harvest it, send the hidden states
    A rank's sends, hidden states and outputs alike, go over one link in the order of their posting, and each waits
    there until its own tensor is ready. In one stream its receives stand in that order, too. A value that an empty
    visit leaves is never looked at. ``pays_bytes``: whether any payload takes time on a link.
    """

    def __init__(self, num_configs: int, num_stages: int, depth: int, cost: HostAndLink, pays_bytes: bool) -> None:
        self.num_stages, self.depth, self.cost = num_stages, depth, cost
        self.num_slots, self.last = num_stages + depth, num_stages - 1
        alone, n = num_stages == 1, num_configs
        self.schedule, self.process = number(cost.schedule), number(cost.process)
        self.latency = 0.0 if alone else number(cost.latency)
        self.control = 0.0 if alone else number(cost.control_latency)
        self.pays_schedule, self.pays_process = bool(np.any(self.schedule)), bool(np.any(self.process))
        self.pays_bytes = pays_bytes and not alone
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
        self.first_start = np.full(n, np.inf)  # of a forward on the first rank
        self.rank = np.arange(num_stages)
        self.sent_on = np.where(self.rank == self.last, self.num_slots - 1, self.rank + self.num_slots)

    def take(self, index: Ints) -> None:
        """Go on with some of the configurations."""
        for name in BY_CONFIG:
            setattr(self, name, getattr(self, name)[..., index])
        for name in HOST_AND_LINK:
            value = getattr(self, name)
            if not isinstance(value, float):
                setattr(self, name, value[index])

    def launch_nothing(self) -> None:
        """The next visit of the first rank is empty in every configuration."""
        self.masks[1:] = self.masks[:-1]
        self.masks[0] = False

    def launch(self, i: int, mask: Bools, times: Floats, hidden: npt.ArrayLike, output: npt.ArrayLike) -> None:
        """Iteration ``i`` of the first rank launches a batch where ``mask``. ``times`` (stages, configurations) of its
        forwards, ``hidden`` and ``output``: time that its payloads occupy a link."""
        self.masks[1:] = self.masks[:-1]
        self.masks[0] = mask
        row = i % self.window
        self.times[row] = times
        if self.pays_bytes:
            self.hidden_ns[row], self.output_ns[row] = hidden, output

    def step(self, wave: int) -> Floats:
        """A wave, after its launch. The clock of the first rank, which has harvested what it launched ``num_slots`` - 1
        waves before."""
        a = min(wave + 1, self.num_stages)  # ranks that have begun
        now = self.cpu[:a].copy()
        self._first_half(wave, a, now)
        self._second_half(wave, a, now)
        self.cpu[:a] = now
        return np.asarray(self.cpu[0])

    def _first_half(self, wave: int, a: int, now: Floats) -> None:
        here, asked = self.masks[:a], self.cpu[:a]
        np.maximum(now[1:], self.list_sent[: a - 1] + self.control, out=now[1:])
        if self.cost.commit != "none":  # the next rank has asked for the list of the visit before
            np.maximum(now[:-1], asked[1:], out=now[:-1])
        self.list_sent[:a] = now
        if self.pays_schedule:
            now += (here if self.cost.free_empty_visit else True) * self.schedule
        self.meta_asked[:a] = now
        wait(here[1:], now[1:], self.meta_sent[: a - 1] + self.control)
        self._receive(here[1:], self.hidden_at[: a - 1], self.hidden_in[1:a], slice(1, a))
        if not self.depth:
            self._launch(wave, a, now)
        self._send_output(wave, a, now)

    def _receive(self, comes: Bools, arrival: Floats, out: Floats, ranks: slice) -> None:
        """When a payload is there that is received now; what a rank posts later stands behind it in its one stream."""
        if not self.cost.one_stream:
            out[:] = arrival
            return
        np.maximum(arrival, self.wire[ranks], out=out)
        np.copyto(self.wire[ranks], out, where=comes)

    def _launch(self, wave: int, a: int, now: Floats) -> None:
        """Commit the hidden states of the last visit, then start the forward."""
        q = min(a, self.last)  # ranks that send hidden states
        before = self.masks[1 : q + 1]
        if self.cost.commit == "all":
            wait(before, now[:q], self.meta_asked[1 : q + 1])
        start = np.maximum(self.gpu[:a], now)
        np.maximum(start[1:], self.hidden_in[1:a], out=start[1:])
        if not self.cost.comm_overlap:
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
            if self.cost.commit == "all":
                wait(before, now, self.output_asked[1 : a + 1])
            if not self.cost.comm_overlap:
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
        if not self.cost.comm_overlap:
            wait(comes, self.fence[:a], self.output_at[:a])
        wait(comes, now, self.output_meta[:a] + self.control)
        if self.depth:
            self._launch(wave, a, now)
        if not self.cost.after_harvest:
            self._send_hidden(wave, a, now)
        wait(comes, now, self.output_at[:a])
        if self.pays_process:
            now += comes * self.process
        if self.cost.after_harvest:
            self._send_hidden(wave, a, now)

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
