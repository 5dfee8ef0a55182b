"""The pipeline as a recurrence over (chunk, stage), many configurations at once: the fast path beside the simulation.

    free    finish[c][k] = max(finish[c][k-1] + link, finish[c-1][k]) + t[c][k]
    window  the same, and stage 0 starts chunk c only when chunk c - W has come back from the last stage, W = P + depth

SGLang's loop itself, step by step, is ``ppsim.cost.slot_loop``. It does not make these two superfluous: in the loop a
first rank waits for request lists, commits and the relay of outputs round the ring even if they cost nothing, so none
of its settings starts a chunk as soon as chunk and stage are free. ``free`` is the lower bound that has a closed form
and judges planners; ``window`` may have another number of slots in each configuration, which the loop, whose slots
decide in which iteration who meets whom, cannot.

``free`` is right for the TTFT of one prompt (within 0.2 %) and far too good for back-to-back requests (up to 36 %): the
slot window sets the efficiency, not (P-1)/(P-1+M) (published.md E2). Identical stages have the closed form
``(sum t + (P-1) max t)`` for per-stage times t, exact for ``free``.

Times are floats in any one unit; nanoseconds are exact up to 2^53, a hundred days. Arrays are (..., chunks, stages);
leading axes are configurations, all of the same number of chunks and stages. A shorter plan is padded with zero times
at its end, which changes nothing before it; ``num_chunks`` says where each one ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ppsim.errors import ScenarioError
from ppsim.later import later

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats: TypeAlias = npt.NDArray[np.float64]
    Ints: TypeAlias = npt.NDArray[np.int64]
else:
    np = later("numpy")


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
