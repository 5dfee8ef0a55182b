"""Law: each picture of ``ppsim plot --kind`` draws what the recording says, pixel by pixel or point by point."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.errors import UsageError
from ppsim.recording import PASS, Recording, Verdict
from ppsim.recording.summary import NS_PER_S, request_lives, summarize
from ppsim.report import canvas, kinds, measured
from ppsim.report.canvas import LEFT, WIDTH
from ppsim.report.channels import BAR, COLOURS, MOST, PASSES, lines_of
from ppsim.report.charts import BLUE, GREEN, HEIGHT, ORANGE, decades, duration, value_ticks
from ppsim.report.chunks import chunks_of
from ppsim.report.kinds import KINDS, Wish, picture
from ppsim.report.kv import alike
from ppsim.report.lanes import parts_of
from ppsim.report.legend import hexa
from ppsim.report.measured import pairs_of
from ppsim.report.raster import BLANK
from ppsim.report.series import kv_use, request_counts
from tests.unit.handmade import decision, harvest, pipeline
from tests.unit.pixels import Floats, bars_of, covered_shares, pixels_of
from tests.worlds.making import requests, run

MS = 1_000_000


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The matplotlib figures behind the pictures that are made."""
    made: list[Any] = []
    real = canvas.encoded
    monkeypatch.setattr(kinds, "encoded", lambda figure, path: made.append(figure) or real(figure, path))
    return made


@pytest.fixture(scope="module")
def busy() -> Recording:
    """Three stages, twenty requests that come in the middle of each other, a pool that is too small for all."""
    made = [{**r, "at_ms": 5.3 * i} for i, r in enumerate(requests(20, prompt=23, output=9))]
    changes = {
        "cluster.pp_size": 3,
        "workload.requests": made,
        "scheduler.max_total_tokens": 160,
        "links.latency_us": 200,
        "links.bandwidth_gb_per_s": 0.01,
    }
    result = run(changes)
    assert result.verdict == PASS
    return result.recording


def drawn(recording: Recording, kind: str, **wish: Any) -> Any:
    Path("a.png").write_bytes(picture(recording, Path("a.png"), Wish(kind, **wish)).content)
    return pixels_of(Path("a.png"))


def wish_of(kind: str, other: Recording, **wish: Any) -> Wish:
    """A kind with the second run that it needs, if it needs one."""
    return Wish(kind, against=other if kind == "measured" else None, **wish)


def integral(series: Any, start: int, end: int, num_columns: int) -> Floats:
    """Mean of a step function in each column: the exact sum over its steps, column by column."""
    found = np.zeros(num_columns)
    for column in range(num_columns):
        a, b = start + (end - start) * column / num_columns, start + (end - start) * (column + 1) / num_columns
        for i, (time, value) in enumerate(zip(series.times, series.values)):
            stop = series.times[i + 1] if i + 1 < len(series.times) else end
            found[column] += value * max(0.0, min(b, stop) - max(a, time))
    return found / ((end - start) / num_columns)


def panel(pixels: Any, axes: Any) -> Any:
    """The pixels of a panel."""
    box = axes.get_window_extent()
    top = len(pixels) - round(box.y1)
    return pixels[top : top + round(box.height), LEFT : LEFT + WIDTH]


# --- areas -------------------------------------------------------------------------------------------------------


def held_area(image: Any, axes: Any, expected: list[tuple[Floats, tuple[int, int, int]]], top: float) -> None:
    """The height of each colour in each column: sum of its share over the rows, by least squares over the colours."""
    base = np.array(BLANK, float)
    ways = np.array([colour for _, colour in expected], float) - base
    flat = image.reshape(-1, 3).astype(float) - base
    shares, *_ = np.linalg.lstsq(ways.T, flat.T, rcond=None)
    heights = shares.reshape(len(expected), *image.shape[:2]).sum(axis=1) * top / HEIGHT
    per_pixel = 1.5 * np.abs(np.linalg.pinv(ways.T)).sum(axis=1).max()  # half a level in each of three channels
    for (wanted, _), found in zip(expected, heights):
        assert np.abs(found - wanted).max() <= per_pixel * top / HEIGHT * 2 + 1e-9  # at most two mixed rows a layer


def top_of(axes: Any) -> float:
    """The value at the upper edge, from the ticks: the only thing that a reader has."""
    places, labels = axes.get_yticks(), [label.get_text() for label in axes.get_yticklabels()]
    (y0, v0), (y1, v1) = [(y, int(v.replace(",", ""))) for y, v in (*zip(places, labels),)][:: len(places) - 1][:2]
    return float(v0 + (v1 - v0) * (0 - y0) / (y1 - y0))


def test_running_and_waiting_requests_fill_their_area(busy: Recording, figures: list[Any]) -> None:
    pixels = drawn(busy, "requests")
    axes = figures[0].axes[0]
    counts = request_counts(busy)
    start, end = 0, max(s.end_ns for spans in busy.spans for s in spans)
    end = max(end, busy.replies[-1].time_ns)
    running, waiting = (integral(s, start, end, WIDTH) for s in (counts.running, counts.waiting))
    assert waiting.max() > 2
    image = panel(pixels, axes)
    clear = steady(counts, start, end)
    layers = [(running[clear], BLUE), (waiting[clear], ORANGE)]
    held_area(image[:, clear], axes, layers, top_of(axes))
    coloured = (image != BLANK).any(axis=2).sum(axis=0)  # rows with any colour: up to the peak
    for column in range(WIDTH):
        a, b = (start + (end - start) * (column + i) / WIDTH for i in (0, 1))
        times = [a, *(t for one in counts for t in one.times if a < t < b)]
        peak = max(sum(value_at(one, time) for one in counts) for time in times)
        assert coloured[column] == pytest.approx(peak / top_of(axes) * HEIGHT, abs=1.01)


def value_at(series: Any, time: float) -> int:
    before = [value for start, value in zip(series.times, series.values) if start <= time]
    return before[-1] if before else 0


def steady(series: Any, start: int, end: int) -> Any:
    """Columns in which nothing changes: in the others a peak within the pixel is pale, above the mean."""
    times = np.array(sorted({time for one in series for time in one.times}))
    columns = np.floor((times - start) / (end - start) * WIDTH).astype(int)
    clear = np.ones(WIDTH, bool)
    clear[columns[(columns >= 0) & (columns < WIDTH)]] = False
    assert clear.sum() > WIDTH // 2
    return clear


def test_kv_tokens_fill_their_area(busy: Recording, figures: list[Any]) -> None:
    pixels = drawn(busy, "kv")
    assert len(figures[0].axes) == 1  # three ranks that count alike
    axes = figures[0].axes[0]
    use = kv_use(busy, 0)
    end = max(busy.replies[-1].time_ns, max(s.end_ns for spans in busy.spans for s in spans))
    held, cached = (integral(s, 0, end, WIDTH) for s in (use.in_use, use.cached))
    image = panel(pixels, axes)
    clear = steady((use.in_use, use.cached), 0, end)
    layers = [(held[clear], BLUE), (cached[clear], GREEN)]
    held_area(image[:, clear], axes, layers, top_of(axes))
    assert top_of(axes) == pytest.approx(160)


def test_a_pool_that_stays_nearly_free_is_no_flat_line_and_the_words_say_where_the_axis_ends(
    figures: list[Any],
) -> None:
    """The same twenty requests, in a pool a hundred times larger than what they use."""
    made = [{**r, "at_ms": 5.3 * i} for i, r in enumerate(requests(20, prompt=23, output=9))]
    recording = run({"workload.requests": made, "scheduler.max_total_tokens": 30_000}).recording
    pixels = drawn(recording, "kv")
    axes = figures[0].axes[0]
    use = kv_use(recording, 0)
    peak = max(a + b for a, b in zip(*(by_time(use)), strict=True))
    assert use.pool == 30_000
    assert peak < 1000
    assert top_of(axes) == pytest.approx(1.05 * peak, rel=1e-3)
    (words,) = (t.get_text() for t in figures[0].texts if t.get_text().startswith("KV tokens of PP0"))
    assert f"of a pool of 30,000; the axis ends at {100 * 1.05 * peak / 30_000:.2g} % of the pool" in words
    end = max(recording.replies[-1].time_ns, max(s.end_ns for spans in recording.spans for s in spans))
    clear = steady((use.in_use, use.cached), 0, end)
    held, cached = (integral(s, 0, end, WIDTH) for s in (use.in_use, use.cached))
    layers = [(held[clear], BLUE), (cached[clear], GREEN)]
    held_area(panel(pixels, axes)[:, clear], axes, layers, top_of(axes))


def by_time(use: Any) -> tuple[list[int], list[int]]:
    """Held and cached tokens at every instant at which either changes."""
    times = sorted({*use.in_use.times, *use.cached.times})
    return [value_at(use.in_use, t) for t in times], [value_at(use.cached, t) for t in times]


def test_ranks_that_count_differently_have_panels_of_their_own() -> None:
    recording = pipeline(3, 4)
    assert alike(recording) == [[0, 1, 2]]
    recording.harvests[1][2] = harvest(2, 0, None, free=55)
    assert alike(recording) == [[0, 2], [1]]
    assert alike(Recording(2)) == []


def test_more_panels_than_are_drawn_are_counted(figures: list[Any]) -> None:
    recording = pipeline(11, 4)
    for rank in range(1, 11):
        recording.harvests[rank][2] = harvest(2, 0, None, free=50 + rank)
    drawn(recording, "kv")
    words = [t.get_text() for t in figures[0].texts]
    assert sum(text.startswith("KV tokens of PP") for text in words) == 8
    assert "3 more groups of ranks that counted otherwise are not drawn (--side: one pipeline)" in words


@pytest.mark.parametrize("top", [1.0, 1.05, 4.2, 94.5, 1_936_576.0, 3e12])
def test_ticks_of_a_count_are_whole_and_within_the_panel(top: float) -> None:
    values = value_ticks(top)
    assert values[0] == 0
    assert values[-1] <= top
    assert 2 <= len(values) <= 6
    assert len({b - a for a, b in pairwise(values)}) == 1


# --- dots --------------------------------------------------------------------------------------------------------


def test_every_request_has_its_ttft_and_tpot_at_its_arrival(busy: Recording, figures: list[Any]) -> None:
    drawn(busy, "requests")
    ttft, tpot = figures[0].axes[1:]
    lives = request_lives(busy)
    end = max(busy.replies[-1].time_ns, max(s.end_ns for spans in busy.spans for s in spans))
    wanted = {
        "ttft": [life.token_ns[0] - (life.arrived_ns or 0) for life in lives],
        "tpot": [(life.token_ns[-1] - life.token_ns[0]) / (len(life.token_ns) - 1) for life in lives],
    }
    for axes, values in ((ttft, wanted["ttft"]), (tpot, wanted["tpot"])):
        places = {label.get_text(): y for y, label in zip(axes.get_yticks(), axes.get_yticklabels())}
        (low, y_low), (high, y_high) = ((nanoseconds(t), y) for t, y in (*places.items(),)[:: len(places) - 1])
        dots = axes.collections[0].get_offsets()
        for (x, y), life, value in zip(dots, lives, values, strict=True):
            assert x == pytest.approx((life.arrived_ns or 0) / end * WIDTH)
            read = low * (high / low) ** ((y - y_low) / (y_high - y_low))
            assert read == pytest.approx(value, rel=1e-6)
    summary = summarize(busy, PASS)
    says = [[text.get_text() for text in axes.texts] for axes in (ttft, tpot)]
    for name, found in zip(("ttft_s", "tpot_s"), says):
        assert found == [f"p{q} {duration(summary[name][f'p{q}'] * NS_PER_S)}" for q in (50, 99)]


def nanoseconds(text: str) -> float:
    number, unit = text.split()
    return float(number.replace(",", "")) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]


@pytest.mark.parametrize("values", [[5.0], [1.0, 10.0], [3e3, 8e11], [999.0, 1001.0], [1e9]])
def test_decades_hold_all_values_and_their_ticks_are_durations(values: list[float]) -> None:
    scale = decades(values)
    assert all(0 <= scale.y(value) <= HEIGHT for value in values)
    places, labels = scale.ticks()
    assert all(scale.y(nanoseconds(label)) == pytest.approx(y) for y, label in zip(places, labels, strict=True))


def test_requests_without_a_token_are_counted(figures: list[Any]) -> None:
    recording = pipeline(2, 3)
    recording.arrival("late", 1, 5, 1)
    drawn(recording, "requests")
    says = [text.get_text() for text in figures[0].texts]
    assert "TTFT of 1 requests on a logarithmic scale, by time of arrival (no first token: 1)" in says
    assert "TPOT of 0 requests, by time of arrival (fewer than two tokens: 2)" in says


# --- channels ----------------------------------------------------------------------------------------------------


def test_every_message_is_an_arrow_from_its_sender_to_its_receiver(busy: Recording, figures: list[Any]) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    start_s, end_s = 0.02, 0.06
    pixels = drawn(busy, "channels", from_s=start_s, to_s=end_s)
    axes = figures[0].axes[0]
    start, length = start_s * 1e9, (end_s - start_s) * 1e9
    found = {c: c.get_segments() for c in axes.collections if isinstance(c, LineCollection)}
    num = 0
    for collection, segments in found.items():
        (kind,) = (
            k for k, colour in COLOURS.items() if np.allclose(collection.get_colors()[0][:3], np.array(colour) / 255)
        )
        wanted = []
        for (src, dst, name), messages in sorted(busy.messages.items()):
            for m in messages:
                if name == kind and m.leaves_ns < start + length and m.arrival_ns > start:
                    wanted.append((src, dst, m.leaves_ns, m.arrival_ns))
        pitch = axes.get_ylim()[0] / 3
        for segment, (src, dst, leaves, arrival) in zip(segments, wanted, strict=True):
            (x0, y0), (x1, y1) = segment[0], segment[-1]
            assert x0 == pytest.approx((leaves - start) / length * WIDTH)
            assert x1 == pytest.approx((arrival - start) / length * WIDTH)
            assert (int(y0 // pitch), int(y1 // pitch)) == (src, dst)
        num += len(wanted)
        (heads,) = (c for c in axes.collections if isinstance(c, PolyCollection) and same_colour(c, kind))
        tips = [path.vertices[0] for path in heads.get_paths()]
        np.testing.assert_allclose(tips, [segment[-1] for segment in segments])
    assert num > 20
    shades = np.array([PASSES[0], PASSES[1]], float) - np.array(BLANK, float)
    rounding = 0.5 * np.abs(np.linalg.pinv(shades.T)).sum(axis=1).max() + 1e-9  # half a level in each channel
    for rank, (first, stop) in enumerate(bars_of(pixels, LEFT, WIDTH)):
        assert stop - first == round(BAR * pitch)
        row = pixels[first, LEFT : LEFT + WIDTH]  # above the numbers
        spans = sorted((s.start_ns, s.end_ns) for s in busy.spans[rank] if s.stream == "forward")
        for parity in (0, 1):  # every second pass has the one shade, the others the other
            found_shares = two_shades(row)[parity]
            wanted_shares = covered_shares(spans[parity::2], round(start), round(start + length), WIDTH)
            assert np.abs(found_shares - wanted_shares).max() <= rounding


def same_colour(collection: Any, kind: str) -> bool:
    return bool(np.allclose(collection.get_facecolors()[0][:3], np.array(COLOURS[kind]) / 255))


def two_shades(row: Any) -> Floats:
    """[2, columns]: how much of each pixel has each of the two shades of passes, by least squares."""
    base = np.array(BLANK, float)
    ways = np.array([PASSES[0], PASSES[1]], float) - base
    shares, *_ = np.linalg.lstsq(ways.T, row.astype(float).T - base[:, None], rcond=None)
    return np.asarray(shares)


def test_passes_that_touch_and_messages_that_take_one_way_are_told_apart(figures: list[Any]) -> None:
    """Eight chunks without a pause on links that take no time: hidden states and outputs go down at one instant."""
    from matplotlib.collections import LineCollection

    recording = run({"cluster.pp_size": 3, "workload.requests": requests(1, prompt=32, output=1)}).recording
    pixels = drawn(recording, "channels")
    axes = figures[0].axes[0]
    ways: dict[tuple[float, ...], list[Any]] = {}
    for collection in axes.collections:
        if isinstance(collection, LineCollection):
            for segment in collection.get_segments():
                ways.setdefault(tuple(np.round([*segment[0], *segment[-1]], 3)), []).append(segment)
    shared = [found for found in ways.values() if len(found) > 1]
    assert shared
    for first, second in shared:
        middle = [np.array(way).mean(axis=0) for way in (first, second)]
        assert np.linalg.norm(middle[0] - middle[1]) > 4  # pixels
    (top, stop), *_ = bars_of(pixels, LEFT, WIDTH)
    row = pixels[top, LEFT : LEFT + WIDTH].astype(int)
    changes = np.flatnonzero(np.abs(np.diff(row, axis=0)).sum(axis=1) > 60)
    spans = [s for s in recording.spans[0] if s.stream == "forward"]
    assert len(spans) > 5
    assert len(changes) >= len(spans)  # an edge a pass, though none of them pauses
    assert stop - top == round(BAR * axes.get_ylim()[0] / 3)


def test_kv_goes_to_the_same_stage_of_the_decode_side_or_to_the_only_one() -> None:
    for decode_size, wanted in ((1, [(0, 3), (1, 3), (2, 3)]), (3, [(0, 3), (1, 4), (2, 5)])):
        decode = pipeline(decode_size, 2)
        decode.peer = pipeline(3, 2)
        for rank in range(3):
            decode.peer.span(rank, "kv", 0, 1, 100 * rank, 100 * rank + 7)
        found = [(line.src, line.dst) for line in lines_of(parts_of(decode)) if line.kind == "kv"]
        assert found == wanted


def test_channels_that_are_not_there_or_too_many_are_refused() -> None:
    with pytest.raises(UsageError, match="no messages between ranks"):
        drawn(pipeline(1, 3), "channels")
    recording = pipeline(2, 3)
    for i in range(MOST + 1):
        recording.message(0, 1, "hidden", i, i, i + 1, i + 2)
    with pytest.raises(UsageError, match=r"4,001 messages cannot be told apart in one picture, 4,000 can"):
        drawn(recording, "channels")
    assert drawn(recording, "channels", from_s=0.0, to_s=0.000003).shape


# --- chunks ------------------------------------------------------------------------------------------------------


def two_prompts() -> Recording:
    """a: 0-10, 10-20, 20-25 in 2, 3, 1 s; a decode step; b beside a decode step, which is left out; b: 4-9 in 9 s."""
    r = Recording(1, name="by hand")
    r.arrival("a", 0, 25, 3)
    r.arrival("b", 0, 9, 3)
    lengths = [2, 3, 1, 5, 7, 9]
    pieces = [
        [("a", 0, 10)],
        [("a", 10, 10)],
        [("a", 20, 5)],
        [("a", 25, 1)],
        [("a", 26, 1), ("b", 0, 4)],
        [("b", 4, 5)],
    ]
    time = 0
    for i, (length, piece) in enumerate(zip(lengths, pieces)):
        r.decision(0, decision(i, 0, *piece))
        r.span(0, "forward", 0, i, time * 10**9, (time + length) * 10**9)
        time += length
    return r


def test_pieces_are_told_from_decode_steps_and_from_mixed_passes() -> None:
    found = chunks_of(two_prompts(), "x")
    assert [(p.prefix_len, p.num_tokens, p.duration_ns // 10**9, p.is_last) for p in found.pieces] == [
        (0, 10, 2, False),
        (10, 10, 3, False),
        (20, 5, 1, True),
        (4, 5, 9, True),
    ]
    assert found.num_left_out == 1
    assert found.ratio == 1.5
    assert found.words() == "x: 4 pieces, longest / shortest 1.50, 1 passes with other work are left out"


def test_each_piece_is_a_dot_at_its_prefix_and_its_time(figures: list[Any]) -> None:
    drawn(two_prompts(), "chunks", against=two_prompts())
    axes = figures[0].axes[0]
    x_ticks = {int(t.get_text().replace(",", "")): x for x, t in zip(axes.get_xticks(), axes.get_xticklabels())}
    y_ticks = {nanoseconds(t.get_text()): y for y, t in zip(axes.get_yticks(), axes.get_yticklabels())}
    (xa, pa), *_, (xb, pb) = x_ticks.items()
    (ta, ya), *_, (tb, yb) = y_ticks.items()
    seen = []
    for dots in axes.collections:
        for x, y in dots.get_offsets():
            prefix, time = xa + (x - pa) / (pb - pa) * (xb - xa), ta + (y - ya) / (yb - ya) * (tb - ta)
            seen.append((round(prefix), round(time / 1e9)))
    assert seen == [(0, 2), (10, 3), (20, 1), (4, 9)] * 2
    assert [t.get_text() for t in axes.get_legend().get_texts()] == [
        "piece",
        "last piece",
        "against: piece",
        "against: last piece",
    ]


def test_dynamic_chunks_are_flatter_than_fixed_ones_and_the_picture_says_so() -> None:
    found = []
    for is_dynamic in (False, True):
        changes = {
            "cost.source": "quadratic",
            "cost.prefill_a_ms_per_token2": 1e-6,
            "cost.prefill_b_ms_per_token": 1e-3,
            "scheduler.chunked_prefill_size": 2048,
            "scheduler.enable_dynamic_chunking": is_dynamic,
            "scheduler.max_total_tokens": 65536,
            "workload.requests": requests(1, prompt=32768, output=1),
        }
        found.append(chunks_of(run(changes).recording, "x").ratio)
    assert found[0] is not None
    assert found[1] is not None
    assert found[1] < found[0]


# --- all of them -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_gives_the_same_bytes_in_every_format(kind: str, busy: Recording) -> None:
    for ending in ("png", "svg", "pdf"):
        first, second = (
            picture(busy, Path(f"a.{ending}"), wish_of(kind, busy, from_s=0.01, to_s=0.05)).content for _ in range(2)
        )
        assert first == second
        assert len(first) > 1000


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_run_says_its_verdict_in_every_picture(
    kind: str, busy: Recording, figures: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppsim.report.gantt.encoded", kinds.encoded)
    verdict = Verdict("fail", 3, "watchdog: nothing moves")
    picture(busy, Path("a.png"), wish_of(kind, busy), verdict)
    says = [text.get_text() for text in figures[0].texts]
    assert "FAIL (exit code 3): watchdog: nothing moves" in says


def test_the_number_of_artists_does_not_grow_with_the_run(figures: list[Any]) -> None:
    for num in (20, 2000):
        draw = random.Random(num)
        recording = Recording(2)
        for i in range(num):
            recording.arrival(f"R{i}", i * MS, 10, 2)
            for rank in (0, 1):
                recording.decision(rank, decision(i, 0, (f"R{i}", 0, 10)))
                recording.harvest(rank, harvest(i, 0, None, free=draw.randrange(100)))
                recording.span(rank, "forward", 0, i, i * MS, i * MS + draw.randrange(MS))
        for kind in ("requests", "kv", "chunks"):
            drawn(recording, kind)
    for small, large in zip(figures[:3], figures[3:]):
        assert len(large.findobj()) <= len(small.findobj()) + 60


COMMANDS = [
    (["--kind", "requests"], 0, "mine/requests.png\n"),
    (["--kind", "kv"], 0, "mine/kv.png\n"),
    (["--kind", "chunks"], 0, "mine/chunks.png\n"),
    (["--kind", "chunks", "--against", "mine"], 0, "mine/chunks.png\n"),
    (["--kind", "channels"], 0, "mine/channels.png\n"),
    (["--kind", "measured", "--against", "mine"], 0, "mine/measured.png\n"),
    (["--kind", "measured"], 2, "--kind measured: needs a second run"),
    (["--kind", "flowers"], 2, "flowers"),
    (["--kind", "kv", "--against", "mine"], 2, "--against: belongs to --kind chunks and measured, not to kv"),
    (["--kind", "chunks", "--against", "nothing"], 2, "run 'nothing' does not exist"),
    (["--kind", "kv", "--side", "prefill"], 2, "--side prefill: this run has one pipeline"),
    (["--kind", "requests", "--from", "nan"], 2, "--from nan"),
    (["--kind", "requests", "--from", "99"], 2, "shows nothing"),
]


@pytest.mark.parametrize(
    ("options", "code", "says"), COMMANDS, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_the_command_draws_each_kind_or_says_why_not(options: list[str], code: int, says: str) -> None:
    CliRunner().invoke(app, ["run", "unit", "--out", "mine"])
    result = CliRunner().invoke(app, ["plot", "mine", *options])
    assert result.exit_code == code
    assert says in (result.stdout if code == 0 else result.stderr)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_which_nothing_has_happened_is_refused_in_a_sentence(kind: str) -> None:
    with pytest.raises(UsageError, match=r"nothing to (plot|draw)"):
        drawn(Recording(2), kind, against=wish_of(kind, Recording(2)).against)


def test_colours_differ_for_the_colour_blind() -> None:
    assert len({hexa(colour) for colour in COLOURS.values()}) == 3


# --- simulated against measured ----------------------------------------------------------------------------------


def timed(lengths: list[int], world: Any = "sim", alone: int = 0) -> Recording:
    """One rank: a prompt piece, then decode steps, of so many milliseconds; ``alone`` more that the other has not."""
    r = Recording(1, name="x", seed=1, world=world)
    r.arrival("A", 0, 10, len(lengths) + alone)
    time = 0
    for i, length in enumerate([*lengths, *[1] * alone]):
        pieces = (("A", 0, 10),) if i == 0 else (("A", 9 + i, 1),)
        r.decision(0, decision(i, 0, *pieces, mode="extend" if i == 0 else "decode"))
        r.span(0, "forward", 0, i, time * MS, (time + length) * MS)
        time += length
    return r


def test_a_pass_that_two_runs_have_is_a_dot_at_its_two_times(figures: list[Any]) -> None:
    drawn(timed([40, 3, 5], alone=2), "measured", against=timed([50, 2, 4], "exec"))
    axes = figures[0].axes[0]
    dots = [(round(x / MS, 6), round(y / MS, 6)) for c in axes.collections for x, y in c.get_offsets()]
    assert dots == [(50, 40), (2, 3), (4, 5)]
    assert axes.get_xlim() == axes.get_ylim()
    ((x0, x1), (y0, y1)) = axes.lines[0].get_data()
    assert (x0, x1) == (y0, y1) == axes.get_xlim()  # the diagonal
    words = [t.get_text() for t in figures[0].texts]
    told = "3 passes, time in x (sim) over time in x (exec): median 1.25, from 0.8 to 1.5, 0 % within a tenth"
    assert f"{told}; 2 others have no equal in x (exec)" in words


def test_passes_that_were_decided_otherwise_are_no_pair(figures: list[Any]) -> None:
    mine, other = timed([40, 3]), timed([50, 2], "exec")
    other.decisions[0][1] = decision(1, 0, ("B", 10, 1), mode="decode")
    assert [pair.mine_ns for pair in pairs_of(mine, other).found] == [40 * MS]
    assert pairs_of(mine, other).num_left_out == 1
    with pytest.raises(UsageError, match="no forward pass of x"):
        drawn(timed([1]), "measured", against=two_prompts())


@pytest.mark.parametrize("times", [[2_600_000, 3_900_000], [30_000_000], [5500, 7500], [1000, 900_000_000]])
def test_an_axis_of_measured_times_has_ticks_however_close_they_are(times: list[int]) -> None:
    low, high = measured.limits(times)
    ticks = measured.ticks_of(low, high)
    assert len(ticks) >= 3
    assert ticks == sorted(ticks)
    assert low <= ticks[0] < ticks[-1] <= high


def test_letters_that_a_picture_cannot_show_are_told_in_one_sentence() -> None:
    recording = pipeline(2, 2)
    recording.name = "\u65e5\u672c\u65e5 run"
    with pytest.warns(canvas.LettersLeftOut) as told:
        picture(recording, Path("a.png"), Wish("gantt"))
    sentence = "the font of pictures has no \u65e5 \u672c: a box stands for each"
    assert [str(warning.message) for warning in told] == [sentence]


def test_a_command_tells_it_as_a_line_of_its_own_and_not_as_a_warning_of_python() -> None:
    text = '[cluster]\npp_size = 2\n[workload]\nsource = "chunks"\nnum_chunks = 2\n'
    Path("named.toml").write_text(f'name = "\u65e5 run"\n{text}', encoding="utf-8")
    command = CliRunner()
    assert command.invoke(app, ["run", "named.toml", "--out", "named"]).exit_code == 0
    drawn = command.invoke(app, ["plot", "named"])
    assert drawn.exit_code == 0
    assert drawn.stderr == "ppsim: the font of pictures has no \u65e5: a box stands for each\n"
