"""Reads pictures back: pixels of a PNG, its bars, and what a recording should look like there, by another way.

The oracle knows nothing of how pictures are painted. It takes the busy time up to t, a piecewise linear function whose
corners are the ends of the spans, at both edges of every pixel column; the difference is the covered share.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bytes = NDArray[np.uint8]


def pixels_of(path: Path) -> Bytes:
    """[rows, columns, 3] of a PNG."""
    from matplotlib import image

    return np.rint(image.imread(path)[:, :, :3] * 255).astype(np.uint8)


def bars_of(pixels: Bytes, left: int, width: int) -> list[tuple[int, int]]:
    """[first, stop) pixel rows that hold hardly any white between these columns: the bars, from top to bottom.

    Iteration numbers in a box may be white. The line of an axis, three pixels high, is no bar.
    """
    inner = pixels[:, left : left + width]
    full = (inner != 255).any(axis=2).mean(axis=1) > 0.7
    edges = np.flatnonzero(np.diff(np.concatenate(([0], full.astype(np.int8), [0]))))
    return [(int(first), int(stop)) for first, stop in zip(edges[::2], edges[1::2]) if stop - first > 3]


def covered_shares(intervals: Iterable[tuple[int, int]], start: int, end: int, num_columns: int) -> Floats:
    """Share of each of ``num_columns`` equal parts of [start, end) that the union of the intervals covers."""
    corners, busy = [float(start)], [0.0]
    for first, stop in sorted(intervals):
        first, stop = max(first, start, int(corners[-1])), min(stop, end)
        if stop > first:
            corners += [first, stop]
            busy += [busy[-1], busy[-1] + (stop - first)]
    corners.append(float(end))
    busy.append(busy[-1])
    edges = start + (end - start) * np.arange(num_columns + 1) / num_columns
    shares: Floats = np.diff(np.interp(edges, corners, busy)) / ((end - start) / num_columns)
    return shares


def measured_shares(row: Bytes, blank: tuple[int, int, int], full: tuple[int, int, int]) -> Floats:
    """How far each pixel of a row is on its way from the one colour to the other, 0 to 1."""
    way = np.array(full, float) - np.array(blank, float)
    shares: Floats = (row.astype(float) - np.array(blank, float)) @ way / (way @ way)
    return shares


def byte_tolerance(blank: tuple[int, int, int], full: tuple[int, int, int]) -> float:
    """By how much rounding to bytes can move ``measured_shares``: half a level in each channel, all one way."""
    way = np.abs(np.array(full, float) - np.array(blank, float))
    return float(0.5 * way.sum() / (way @ way)) + 1e-9
