"""Busy times as pixels: how a lane of boxes is painted so that what is coloured is what was covered.

Rule: a pixel column stands for an interval of time, and its colour is the mean over that interval: of each box's colour
for the share of the interval that the box covers, of ``BLANK`` for the rest. So coloured area and computed busy time
agree at every zoom, whether a box is a thousand pixels wide or a thousand boxes share a pixel; what is lost is the
rounding to a byte. Nothing is laid over a box that could hide it: an edge between two boxes of one colour is
a darker shade of that colour.

A box narrower than ``READABLE_PX`` has one colour for all slots (``THIN``), because mixed hues would say nothing: there
the shade is the share. Time that two boxes of a lane cover both belongs to the earlier one, as in
``summary.covered_ns``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ppsim.recording.schema import Span
from ppsim.report.window import Window

Rgb: TypeAlias = tuple[int, int, int]
Floats: TypeAlias = NDArray[np.float64]
Bytes: TypeAlias = NDArray[np.uint8]

BLANK: Rgb = (0xF3, 0xF1, 0xEC)
THIN: Rgb = (0x08, 0x30, 0x6B)
EDGE = 0.55  # how much of its light the edge between two boxes of one colour keeps
READABLE_PX = 2.0  # a box at least as wide is coloured by slot
EDGED_PX = 4.0  # and one at least as wide has an edge against a neighbour of its own colour


class Box(NamedTuple):
    """A pass in a lane, in pixel columns of the window; ``start`` < ``end``."""

    start: float
    end: float
    slot: int
    iteration: int


def boxes(spans: Sequence[Span], window: Window, num_columns: int) -> list[Box]:
    """What of the spans lies in the window, in order of time, without what an earlier one covers already.

    Python's integers hold any time; only the place in the window, from 0 to ``num_columns``, becomes a float.
    """
    begin, length = window.start_ns, window.end_ns - window.start_ns
    found = []
    reached = begin
    for span in sorted(spans, key=lambda s: (s.start_ns, s.end_ns)):
        start, end = max(span.start_ns, reached), min(span.end_ns, window.end_ns)
        if end > start:
            reached = end
            place = ((start - begin) / length * num_columns, (end - begin) / length * num_columns)
            found.append(Box(*place, span.slot, span.iteration))
    return found


def is_thin(box: Box) -> bool:
    return box.end - box.start < READABLE_PX


def shares(lane: Sequence[Box], kinds: Sequence[int], num_kinds: int, num_columns: int) -> Floats:
    """[num_kinds, num_columns]: the share of each column that boxes of each kind cover; ``kinds`` has each box's."""
    if not lane:
        return np.zeros((num_kinds, num_columns))
    start = np.array([box.start for box in lane])
    end = np.array([box.end for box in lane])
    kind = np.array(kinds)
    first = np.minimum(np.floor(start).astype(np.int64), num_columns - 1)
    last = np.minimum(np.floor(end).astype(np.int64), num_columns - 1)  # an end at the right margin is in the last
    inside = first == last
    cells = num_kinds * num_columns
    found = np.bincount(
        np.concatenate((kind * num_columns + first, (kind * num_columns + last)[~inside])),
        np.concatenate((np.where(inside, end - start, first + 1 - start), (end - last)[~inside])),
        cells,
    )
    # Columns strictly between the first and the last are full: +1 where they begin, -1 where they end.
    steps = np.bincount((kind * (num_columns + 1) + first + 1)[~inside], minlength=num_kinds * (num_columns + 1))
    steps -= np.bincount((kind * (num_columns + 1) + last)[~inside], minlength=num_kinds * (num_columns + 1))
    full = np.cumsum(steps.reshape(num_kinds, num_columns + 1), axis=1)[:, :num_columns]
    summed: Floats = np.clip(found.reshape(num_kinds, num_columns) + full, 0.0, 1.0)
    return summed


def painted(lane: Sequence[Box], colours: Mapping[int, Rgb], num_columns: int) -> Bytes:
    """[num_columns, 3]: one row of pixels. ``colours`` of the slots; thin boxes are ``THIN``."""
    places = {slot: i for i, slot in enumerate(colours)}
    kinds = [len(places) if is_thin(box) else places[box.slot] for box in lane]
    shades = np.array([*colours.values(), THIN], dtype=np.float64)
    blank = np.array(BLANK, dtype=np.float64)
    mean = blank + shares(lane, kinds, len(shades), num_columns).T @ (shades - blank)
    for before, box, kind_before, kind in zip(lane, lane[1:], kinds, kinds[1:]):
        if kind == kind_before < len(places) and box.start - before.end < 1.0 and box.end - box.start >= EDGED_PX:
            mean[int(np.ceil(box.start))] *= EDGE
    row: Bytes = np.rint(np.clip(mean, 0.0, 255.0)).astype(np.uint8)
    return row


def shade(share: float) -> Rgb:
    """The colour of a pixel of which thin boxes cover that share."""
    red, green, blue = (round(b + share * (t - b)) for b, t in zip(BLANK, THIN))
    return red, green, blue


def shaded(lane: Sequence[Box], num_columns: int) -> Bytes:
    """[num_columns, 3]: one row of pixels in which shade is the covered share, whatever the slot."""
    share = shares(lane, [0] * len(lane), 1, num_columns)[0]
    blank = np.array(BLANK, dtype=np.float64)
    row: Bytes = np.rint(blank + share[:, None] * (np.array(THIN) - blank)).astype(np.uint8)
    return row


def stacked(layers: Sequence[tuple[Floats, Rgb]], top: float, num_rows: int) -> Bytes:
    """[num_rows, num_columns, 3]: layers upon each other, each as high as its value in a column; ``top`` fills it all.

    A pixel is the mean of what lies in it, so that coloured area is value, as in the bars.
    """
    blank = np.array(BLANK, dtype=np.float64)
    pixels = np.tile(blank, (num_rows, len(layers[0][0]), 1))
    bottoms = np.arange(num_rows - 1, -1, -1, dtype=np.float64)[:, None]  # of the rows, from the first on
    below = np.zeros(len(layers[0][0]))
    for values, colour in layers:
        above = below + np.maximum(values, 0.0) * (num_rows / top)
        share = np.clip(above - bottoms, 0.0, 1.0) - np.clip(below - bottoms, 0.0, 1.0)
        pixels += share[:, :, None] * (np.array(colour) - blank)
        below = above
    rounded: Bytes = np.rint(np.clip(pixels, 0.0, 255.0)).astype(np.uint8)
    return rounded
