"""Law: what the Gantt picture colours is what the ranks computed, at every zoom and for every number of ranks.

A pixel column is the mean of its interval of time. So in the file each pixel is off by at most half a level of 255 in
each channel (``byte_tolerance``), and a sum over pixels by at most that share of them; nothing else is tolerated.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from ppsim.errors import UsageError
from ppsim.recording import PASS, Recording
from ppsim.recording.schema import Span
from ppsim.recording.summary import bubble_ratio, covered_ns, stage_times, summarize
from ppsim.report.canvas import LEFT, WIDTH
from ppsim.report.gantt import gantt, kv_words, plot_gantt
from ppsim.report.lanes import left_out, parts_of
from ppsim.report.legend import KV_COLOUR, PALETTE, Legend, slot_colours, slot_patches
from ppsim.report.raster import BLANK, EDGE, READABLE_PX, THIN, Rgb
from ppsim.report.window import Window, whole_run
from tests.unit.handmade import pipeline
from tests.unit.pixels import bars_of, byte_tolerance, covered_shares, measured_shares, pixels_of

MS = 1_000_000


def busy_run(pp_size: int, num_passes: int, seed: int, num_slots: int = 4) -> Recording:
    """Passes of very different lengths with gaps of all kinds between them, other ones on every rank."""
    recording = Recording(pp_size, name="random", seed=seed)
    for rank in range(pp_size):
        draw = random.Random(1000 * seed + rank)
        at = draw.randrange(50 * MS)
        for i in range(num_passes):
            length = draw.choice((1, 7 * 10**5, 5 * MS, 5 * MS, 90 * MS))
            recording.span(rank, "forward", i % num_slots, i, at, at + length)
            at += length + draw.choice((0, 0, 0, 1, 10**6, 40 * MS))
    return recording


def expected_row(spans: list[Span], window: Window, only: Rgb | None = None) -> tuple[np.ndarray, np.ndarray]:
    """[WIDTH, 3] colours of a rank's bar in the detailed panel, and the covered share of each column."""
    pixel_ns = (window.end_ns - window.start_ns) / WIDTH
    by_colour: dict[Rgb, list[tuple[int, int]]] = {}
    for span in spans:
        start, end = max(span.start_ns, window.start_ns), min(span.end_ns, window.end_ns)
        if end > start:
            colour = THIN if (end - start) / pixel_ns < READABLE_PX else only or PALETTE[span.slot]
            by_colour.setdefault(colour, []).append((start, end))
    row = np.tile(np.array(BLANK, float), (WIDTH, 1))
    covered = np.zeros(WIDTH)
    for colour, intervals in by_colour.items():
        shares = covered_shares(intervals, window.start_ns, window.end_ns, WIDTH)
        row += shares[:, None] * (np.array(colour, float) - np.array(BLANK, float))
        covered += shares
    return row, covered


def hold_detail(recording: Recording, window: Window, path: Path) -> None:
    """Every pixel of every bar of the detailed panel is what the spans say."""
    pixels = pixels_of(path)
    bars = bars_of(pixels, LEFT, WIDTH)[-recording.num_ranks :]
    assert len(bars) == recording.num_ranks
    for rank, (first, _) in enumerate(bars):
        drawn = pixels[first, LEFT : LEFT + WIDTH].astype(float)  # the upper row: iteration numbers are further down
        wanted, covered = expected_row(recording.spans[rank], window)
        is_edge = np.abs(drawn - EDGE * wanted).max(axis=1) <= 0.5 + 1e-6
        assert (covered[is_edge] > 1 - 1e-6).all()
        assert np.abs(drawn - wanted)[~is_edge].max(initial=0.0) <= 0.5 + 1e-6


SIZES = [(1, 10), (1, 300), (1, 3000), (2, 37), (2, 3000), (4, 10), (4, 300), (4, 3000), (32, 37), (32, 1000)]


@pytest.mark.parametrize(("pp_size", "num_passes"), SIZES)
def test_every_pixel_of_a_bar_has_the_colour_of_what_was_computed_then(
    pp_size: int, num_passes: int, tmp_path: Path
) -> None:
    num_slots = 1 if pp_size == 1 else 4  # one rank, one slot: neighbours of one colour, with an edge between them
    recording = busy_run(pp_size, num_passes, seed=num_passes, num_slots=num_slots)
    whole = whole_run(recording)
    seconds = whole.end_ns / 1e9
    hold_detail(recording, plot_gantt(recording, tmp_path / "a.png"), tmp_path / "a.png")
    for from_s, to_s in ((0.0, seconds), (0.31 * seconds, 0.64 * seconds), (0.5 * seconds, 0.503 * seconds)):
        window = plot_gantt(recording, tmp_path / "b.png", from_s=from_s, to_s=to_s)
        hold_detail(recording, window, tmp_path / "b.png")


@pytest.mark.parametrize(("pp_size", "num_passes"), [(1, 20_000), (4, 20_000), (32, 3000)])
def test_a_long_run_shows_its_busy_time_and_its_bubble_as_the_summary_has_them(
    pp_size: int, num_passes: int, tmp_path: Path
) -> None:
    recording = busy_run(pp_size, num_passes, seed=9)
    whole = whole_run(recording)
    plot_gantt(recording, tmp_path / "all.png", to_s=whole.end_ns / 1e9)
    pixels = pixels_of(tmp_path / "all.png")
    bars = bars_of(pixels, LEFT, WIDTH)
    assert len(bars) == pp_size  # the part is the whole: one panel
    measured = []
    for rank, (first, _) in enumerate(bars):
        shares = measured_shares(pixels[first, LEFT : LEFT + WIDTH], BLANK, THIN)
        busy = covered_ns(recording.spans[rank]) / (whole.end_ns - whole.start_ns)
        assert abs(shares.mean() - busy) <= byte_tolerance(BLANK, THIN)
        measured.append(shares.mean())
    bubble = bubble_ratio([stage_times(recording, rank) for rank in range(pp_size)])
    assert abs(1 - np.mean(measured) - bubble) <= byte_tolerance(BLANK, THIN)


def test_passes_of_a_few_milliseconds_do_not_vanish_in_a_picture_of_ten_seconds(tmp_path: Path) -> None:
    """79 % busy with passes of 4 ms, and a pause of a second in the middle: 79 % of the shade, and none."""
    recording = Recording(1)
    for i in range(2000):
        at = round(i * 4 * MS / 0.79) + (1_000_000_000 if i >= 1000 else 0)
        recording.span(0, "forward", i % 4, i, at, at + 4 * MS)
    window = plot_gantt(recording, tmp_path / "a.png", from_s=0, to_s=10)
    pixels = pixels_of(tmp_path / "a.png")
    row = pixels[bars_of(pixels, LEFT, WIDTH)[-1][0], LEFT : LEFT + WIDTH]
    shares = measured_shares(row, BLANK, THIN)
    px = WIDTH / (window.end_ns - window.start_ns) * 1e9  # pixels a second
    assert abs(shares[round(3.2 * px) : round(4.0 * px)].mean() - 0.79) < 0.79 * 4 * MS / 0.8e9 + 2 / (0.8 * px)
    assert (row[round(5.2 * px) : round(5.9 * px)] == BLANK).all()


def test_an_overview_shades_each_column_by_the_share_that_was_computed(tmp_path: Path) -> None:
    recording = busy_run(3, 400, seed=5)
    whole = whole_run(recording)
    plot_gantt(recording, tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    for rank, (first, stop) in enumerate(bars_of(pixels, LEFT, WIDTH)[:3]):
        wanted = covered_shares(
            [(s.start_ns, s.end_ns) for s in recording.spans[rank]], whole.start_ns, whole.end_ns, WIDTH
        )
        for row in (first, stop - 1):
            drawn = measured_shares(pixels[row, LEFT : LEFT + WIDTH], BLANK, THIN)
            assert np.abs(drawn - wanted).max() <= byte_tolerance(BLANK, THIN)


def test_wide_boxes_have_as_many_coloured_pixels_as_they_are_long(tmp_path: Path) -> None:
    """Counting pixels that are neither paper nor bubble, as a reader would: each end of a box may add one."""
    recording = pipeline(8, 12)
    plot_gantt(recording, tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    for first, stop in bars_of(pixels, LEFT, WIDTH):
        for row in range(first, stop):
            coloured = (pixels[row, LEFT : LEFT + WIDTH] != BLANK).any(axis=1).sum()
            assert abs(coloured - WIDTH * 12 / 19) <= 2


def test_passes_that_overlap_are_not_counted_twice(tmp_path: Path) -> None:
    recording = Recording(1)
    for i, (start, end) in enumerate([(0, 600), (500, 700), (650, 660), (900, 1000)]):
        recording.span(0, "forward", i % 4, i, start * MS, end * MS)
    plot_gantt(recording, tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    (bar,) = bars_of(pixels, LEFT, WIDTH)
    row = pixels[bar[0], LEFT : LEFT + WIDTH]
    assert (row[: round(0.6 * WIDTH) - 1] == PALETTE[0]).all()
    assert (row[round(0.6 * WIDTH) + 1 : round(0.7 * WIDTH) - 1] == PALETTE[1]).all()
    assert (row[round(0.7 * WIDTH) + 1 : round(0.9 * WIDTH) - 1] == BLANK).all()


def test_two_pipelines_and_their_transfers_have_lanes_of_their_own(tmp_path: Path) -> None:
    """Prefill on two ranks, each with its KV below; decode on one. Every lane shows its own busy time and no other."""
    prefill, decode = busy_run(2, 30, seed=3), busy_run(1, 50, seed=4)
    for rank in range(2):
        for i in range(20):
            at = 90 * MS * i + 40 * MS * rank
            prefill.span(rank, "kv", i % 4, i, at, at + 55 * MS)
    decode.peer = prefill
    whole = whole_run(prefill, decode)
    plot_gantt(decode, tmp_path / "a.png", from_s=0)
    pixels = pixels_of(tmp_path / "a.png")
    lanes = [
        (prefill, 0, "forward"),
        (prefill, 1, "forward"),
        (prefill, 0, "kv"),
        (prefill, 1, "kv"),
        (decode, 0, "forward"),
    ]
    bars = bars_of(pixels, LEFT, WIDTH)[-len(lanes) :]
    for (recording, rank, stream), (first, stop) in zip(lanes, bars, strict=True):
        spans = [s for s in recording.spans[rank] if s.stream == stream]
        wanted, covered = expected_row(spans, whole, KV_COLOUR if stream == "kv" else None)
        drawn = pixels[first, LEFT : LEFT + WIDTH].astype(float)
        is_edge = np.abs(drawn - EDGE * wanted).max(axis=1) <= 0.5 + 1e-6
        assert (covered[is_edge] > 1 - 1e-6).all()
        assert np.abs(drawn - wanted)[~is_edge].max() <= 0.5 + 1e-6
        assert stop - first > 20


def test_of_two_pipelines_one_can_be_asked_for_and_of_one_none(tmp_path: Path) -> None:
    decode = pipeline(1, 3)
    decode.peer = pipeline(3, 5)
    for side, num_lanes in (("prefill", 3), ("decode", 1), (None, 4)):
        picture = gantt(decode, tmp_path / "a.png", side=side)
        (tmp_path / "a.png").write_bytes(picture.content)
        assert len(bars_of(pixels_of(tmp_path / "a.png"), LEFT, WIDTH)) == num_lanes
    assert gantt(decode, tmp_path / "a.png", side="decode").window == Window(0, 3 * 10**9)
    with pytest.raises(UsageError, match="--side prefill: this run has one pipeline"):
        gantt(pipeline(2, 2), tmp_path / "a.png", side="prefill")


def test_lanes_of_kv_have_words_and_what_nobody_can_see_in_them_is_counted() -> None:
    """Ten seconds on 1,240 pixels: transfers of 1 s, of 1 ms and of no time at all."""
    decode = pipeline(1, 3)
    decode.peer = pipeline(2, 9)
    assert kv_words(parts_of(decode), Window(0, 10 * 10**9)) == []
    for rank, length_ns in ((0, 10**9), (0, 10**6), (1, 0), (1, 10**9)):
        decode.peer.span(rank, "kv", 0, 1, 2 * 10**9, 2 * 10**9 + length_ns)
    told = 'A lane "KV from" shows when a prefill rank sends KV to the decode side'
    shorter = "2 of 4 in the part that is drawn are shorter than a pixel"
    assert kv_words(parts_of(decode), Window(0, 10 * 10**9)) == [f"{told}: {shorter}."]
    assert kv_words(parts_of(decode), Window(2 * 10**9, 2 * 10**9 + 10**6)) == [
        f"{told}: 1 of 4 in the part that is drawn are shorter than a pixel."
    ]


def test_what_is_recorded_and_not_drawn_is_told() -> None:
    recording = pipeline(2, 2)
    assert left_out(parts_of(recording)) == []
    for rank in (0, 1):
        recording.span(rank, "write", 0, 1, 0, 5)
    recording.span(0, "load", 0, 1, 0, 5)
    told = "Not drawn, of each rank: at most 1 loads from host memory, 1 writes to host memory."
    assert left_out(parts_of(recording)) == [told]
    used = summarize(recording, PASS)["tier_copies"]  # what ppsim show says
    assert (used["load"]["num"], used["write"]["num"]) == (1, 1)
    recording.span(1, "load", 0, 1, 0, 5)
    alone = pipeline(1, 2)
    alone.span(0, "prefetch", 0, 1, 0, 5)
    alone.peer = recording
    assert left_out(parts_of(alone)) == [
        "Not drawn, of each prefill rank: 1 loads from host memory, 1 writes to host memory.",
        "Not drawn, of the decode rank: 1 fetches from storage.",
    ]


@pytest.mark.parametrize("num_slots", [1, 3, 10, 11, 14, 21, 32, 40, 77])
def test_no_two_slots_share_a_colour(num_slots: int) -> None:
    colours = slot_colours(range(num_slots))
    assert list(colours) == list(range(num_slots))
    assert len(set(colours.values())) == num_slots
    assert KV_COLOUR not in colours.values()


@pytest.mark.parametrize(("num_slots", "height"), [(3, 54), (12, 54), (40, 54), (200, 54), (32, 900), (60, 216)])
def test_a_legend_has_every_slot_or_says_how_many_it_leaves_out(num_slots: int, height: int) -> None:
    colours = slot_colours(range(num_slots))
    legend = Legend(colours, 0, num_slots)
    labels = [patch.get_label() for patch in slot_patches(colours, legend.slot_lines(height))]
    left = num_slots - len(labels)
    if left:
        assert labels[:-1] == [f"slot {i}" for i in range(len(labels) - 1)]
        assert labels[-1] == f"+ {left + 1} more"
    else:
        assert labels == [f"slot {i}" for i in range(num_slots)]


def test_the_number_of_things_to_draw_does_not_grow_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ppsim.report.gantt as gantt

    counted: list[int] = []
    monkeypatch.setattr(gantt, "encoded", lambda figure, path: counted.append(len(figure.findobj())) or b"")
    for num_passes in (300, 20_000):
        plot_gantt(busy_run(4, num_passes, seed=1), tmp_path / "a.png", from_s=0)
    assert counted[1] <= counted[0] + 20  # ticks and their labels
    assert counted[1] < 400


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_run_gives_the_same_bytes_in_every_format_and_under_any_settings(ending: str, tmp_path: Path) -> None:
    import matplotlib

    plot_gantt(busy_run(3, 60, seed=2), tmp_path / f"a.{ending}")
    with matplotlib.rc_context({"axes.facecolor": "red", "font.size": 20, "svg.hashsalt": None, "savefig.dpi": 50}):
        plot_gantt(busy_run(3, 60, seed=2), tmp_path / f"b.{ending}")
    assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()


def test_a_name_with_a_dollar_sign_is_a_name_and_no_formula(tmp_path: Path) -> None:
    recording = pipeline(2, 3)
    recording.name = r"a $\frac{1$ name"
    plot_gantt(recording, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 0
