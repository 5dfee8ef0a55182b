"""Law: the page works in a real browser: it draws the recording, zooms, says what is under the pointer, complains of
nothing, asks nobody, and stays usable with 20,000 passes of each rank."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ppsim.core.effects import Reply
from ppsim.recording import PASS, Recording
from ppsim.recording.summary import covered_ns, request_lives
from ppsim.report.lanes import parts_of
from ppsim.report.page import story
from ppsim.report.page.data import run_data
from ppsim.report.page.html import Run, page
from ppsim.report.page.story import Tile
from tests.unit.browser import CTRL, Browser, chromium
from tests.unit.handmade import S, decision, pipeline
from tests.unit.test_page import FAILED, hostile
from tests.worlds.making import passed, requests

pytest.importorskip("bokeh", reason="the page carries the charts of bokeh: pip install 'ppsim[report]'")
pytestmark = [
    pytest.mark.skipif(chromium() is None, reason="no Chromium: apt install chromium"),
    pytest.mark.xdist_group("browser"),
]

MS = 1_000_000
NUM_LONG = 20_000
# Where a time of a lane lies in the window, in pixels.
PLACE = """((x, row) => {{
  const line = window.ppsimPage.timelines[{nth}];
  line.place.querySelector(".chart.detail").scrollIntoView({{block: "center"}});
  const box = line.detailBox.getBoundingClientRect();
  const view = Bokeh.index.get_one(line.detail);
  return [box.left + view.frame.x_scale.compute(line.x(x)), box.top + view.frame.y_scale.compute(-row)];
}})({x}, {row})"""
LINE = "window.ppsimPage.timelines[0]"


def busy_run() -> Recording:
    """Three stages, twelve requests, three slots."""
    made = [{**r, "at_ms": 5.3 * i} for i, r in enumerate(requests(12, prompt=23, output=9))]
    return passed(
        {"cluster.pp_size": 3, "workload.requests": made, "scheduler.pp_max_micro_batch_size": 4, "links.latency_us": 9}
    )


def long_run() -> Recording:
    """Two ranks with 20,000 passes each, of random lengths with gaps and overlaps, one request in each."""
    chance = random.Random(5)
    recording = Recording(2, name="long", seed=1)
    recording.arrival("R1", 0, 4, NUM_LONG)
    now = [0, 0]
    for i in range(NUM_LONG):
        for rank in range(2):
            recording.decision(rank, decision(i, i % 2, ("R1", i, 1), mode="decode"))
            start = max(0, now[rank] + chance.choice((0, -MS, 1, chance.randrange(5 * MS))))
            recording.span(rank, "forward", i % 2, i, start, start + 1 + chance.randrange(9 * MS))
            now[rank] = recording.spans[rank][-1].end_ns
    recording.reply(max(now), Reply("R1", "finished", (), NUM_LONG))
    return recording


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as made:
        yield made


@pytest.fixture(scope="module")
def busy() -> Recording:
    return busy_run()


@pytest.fixture
def opened(browser: Browser, busy: Recording, tmp_path: Path) -> Browser:
    """The page of the busy run, as it opens."""
    show(browser, tmp_path, Run("busy", busy, PASS))
    return browser


@pytest.fixture(autouse=True)
def no_trouble(browser: Browser) -> Iterator[None]:
    """No test may leave an error in the console, nor a request to anybody."""
    yield
    assert browser.troubles() == []
    assert browser.requests() == []


def show(browser: Browser, folder: Path, *runs: Run) -> None:
    path = folder / "page.html"
    path.write_bytes(page(runs))
    browser.open(path)


def place(browser: Browser, at_ns: float, row: int, nth: int = 0) -> tuple[float, float]:
    x, y = browser.js(PLACE.format(x=at_ns, row=row, nth=nth))
    return x, y


def part(browser: Browser) -> tuple[float, float]:
    found = browser.js(f"{LINE}.part()")
    return found["from"], found["to"]


def tip(browser: Browser) -> str:
    words: str = browser.js("document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText")
    return words


def everything(browser: Browser) -> None:
    browser.js("document.querySelector('.all').click()")
    browser.settle()


# --- drawn = computed --------------------------------------------------------------------------------------------


def test_the_boxes_that_are_drawn_are_the_passes_of_the_recording(opened: Browser, busy: Recording) -> None:
    everything(opened)
    drawn = opened.js(f"{LINE}.sources.boxes.data")
    unit = opened.js(f"{LINE}.unitNs")
    found = sorted(zip(drawn["y"], (round(x * unit) for x in drawn["left"]), (round(x * unit) for x in drawn["right"])))
    passes = [(-rank, s.start_ns, s.end_ns) for rank, spans in enumerate(busy.spans) for s in spans]
    assert found == sorted(passes)
    assert len(passes) > 100


def test_what_the_scripts_decode_is_the_recording(opened: Browser, busy: Recording) -> None:
    code = """(({lanes, rids}) => lanes.map((lane) => [lane.start, lane.end, lane.iteration, lane.slot,
      lane.iteration.map((i) => lane.batches.get(i).pieces.map(([r, p, n]) => [rids[r], p, n]))]))(
      window.ppsimPage.runs[0])"""
    for rank, lane in enumerate(opened.js(code)):
        spans = busy.spans[rank]
        by_iteration = {d.iteration: [list(piece) for piece in d.pieces] for d in busy.decisions[rank]}
        assert lane[:4] == [[getattr(s, name) for s in spans] for name in ("start_ns", "end_ns", "iteration", "slot")]
        assert lane[4] == [by_iteration[s.iteration] for s in spans]


AXES = """Bokeh.documents.flatMap((one) => one.roots()).flatMap((figure) => [...figure.below, ...figure.left])
  .filter((axis) => `${axis.axis_label}`.endsWith("logarithmic scale"))
  .map((axis) => [axis.axis_label, [...axis.major_label_overrides].map(([at, says]) => [at, says])])"""


CLOSE = [(8_000_000, 16_700_000), (3_900_000, 4_000_000), (6_600_000, 14_600_000), (38_000_000, 7_000_000_000)]
# Of the axes along the page: where the words of each tick stand, in pixels from its left end to its right one.
STANDS = """Bokeh.documents.flatMap((one) => one.roots()).flatMap((figure) => figure.below
  .filter((axis) => `${axis.axis_label}`.endsWith("logarithmic scale")).map((axis) => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `${axis.major_label_text_font_size} Helvetica, Arial, sans-serif`;
    const scale = Bokeh.index.get_one(figure).frame.x_scale;
    return [...axis.major_label_overrides].map(([at, says]) => {
      const half = pen.measureText(says).width / 2;
      return [scale.compute(at) - half, scale.compute(at) + half];
    });
  }))"""


@pytest.mark.parametrize("times_ns", [*CLOSE, (20_000, 9_000_000_000)])
def test_a_logarithmic_axis_of_durations_has_ticks_that_say_what_they_are(
    times_ns: tuple[int, int], browser: Browser, tmp_path: Path
) -> None:
    """Of one run and of two beside each other, however close the durations are: bare decades had one tick or none."""
    recording = Recording(1, name="by hand")
    low, high = times_ns
    for i in range(4):
        wait = low + (high - low) * i // 3
        recording.arrival(f"R{i}", i * S, 10, 2)
        recording.decision(0, decision(i, 0, (f"R{i}", 0, 10)))
        recording.span(0, "forward", 0, i, i * S, i * S + low)
        recording.reply(i * S + wait, Reply(f"R{i}", "token", (7,), 1))
        recording.reply(i * S + 2 * wait, Reply(f"R{i}", "finished", (7,), 2))
    path = tmp_path / "two.html"
    path.write_bytes(page([Run("a", recording, PASS), Run("b", recording, PASS)]))
    browser.open(path)
    browser.wait("window.ppsimPage && window.ppsimPage.ready")
    axes = browser.js(AXES)
    assert [says for says, _ in axes] == [f"{key}, logarithmic scale" for key in ("TTFT", "TPOT", "TTFT")]
    for _, ticks in axes:
        assert 3 <= len(ticks) <= 12
        assert [at for at, _ in ticks] == sorted(at for at, _ in ticks)
        assert len({says for _, says in ticks}) == len(ticks)
        for at, says in ticks:
            number, unit = says.split()
            assert float(number) * {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1}[unit] == pytest.approx(at)
            assert low / 1.06e9 <= at <= high * 1.06 / 1e9
    stands = browser.js(STANDS)
    assert len(stands) == 2
    for ticks in stands:
        assert all(left[1] + 3 <= right[0] for left, right in pairwise(ticks))
    assert browser.troubles() == []


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_no_number_at_the_top_is_wider_than_its_box(
    browser: Browser, busy: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """All eight that there can be, with counts of five digits."""
    long = [Tile("time", "206.27 ms", "first arrival to last reply"), Tile("input", "1,237,300", "tokens/s")] * 3
    counts = [Tile("requests finished", "400 of 400", ""), Tile("requests finished", "20,000 of 20,000", "")]
    monkeypatch.setattr(story, "tiles", lambda _: counts + long)
    browser.resize(width, 900)
    show(browser, tmp_path, Run("one", busy, PASS))
    browser.settle()
    assert browser.js("document.querySelectorAll('.tile').length") == 8
    wide = browser.js(
        "[...document.querySelectorAll('.tile *')].filter((e) => e.scrollWidth > e.clientWidth && e.clientWidth)"
        ".map((e) => e.textContent)"
    )
    browser.resize(1280, 900)
    assert wide == []


def test_the_shares_of_a_long_run_cover_its_busy_time(browser: Browser, tmp_path: Path) -> None:
    recording = long_run()
    show(browser, tmp_path, Run("long", recording, PASS))
    everything(browser)
    assert browser.js(f"{LINE}.isExact") is False
    for source in ("all", "shares"):
        drawn = browser.js(f"{LINE}.sources.{source}.data")
        unit = browser.js(f"{LINE}.unitNs")
        for rank in range(2):
            area = sum(
                (top - bottom) / 0.8 * (right - left) * unit
                for top, bottom, left, right in zip(*(drawn[k] for k in ("top", "bottom", "left", "right")))
                if round((top + bottom) / 2) == -rank
            )
            assert area == pytest.approx(covered_ns(recording.spans[rank]), rel=1e-6)
    # Usable: a step of the zoom takes less than the blink of an eye, and comes down to single passes.
    slowest = browser.js(
        f"""(() => {{ let slowest = 0; for (let i = 0; i < 12; i++) {{ const began = performance.now();
        {LINE}.zoom(0.5); {LINE}.update(); slowest = Math.max(slowest, performance.now() - began); }}
        return slowest; }})()"""
    )
    assert slowest < 1000  # ms, on a machine that has something else to do too
    browser.settle()
    assert browser.js(f"{LINE}.isExact") is True
    from_ns, to_ns = part(browser)
    for rank in range(2):
        meant = [s for s in recording.spans[rank] if s.end_ns > from_ns and s.start_ns < to_ns]
        assert browser.js(f"{LINE}.sources.boxes.data.y.filter((y) => -y === {rank}).length") == len(meant) > 0
    some = next(
        s for s in recording.spans[1] if s.start_ns > from_ns and s.end_ns < to_ns and s.end_ns - s.start_ns > MS
    )
    browser.point(*place(browser, (some.start_ns + some.end_ns) / 2, 1))
    assert f"iteration\t{some.iteration}\n" in tip(browser)


# --- looking about -------------------------------------------------------------------------------------------------


def test_the_pass_under_the_pointer_is_named_with_slot_requests_chunk_and_times(
    opened: Browser, busy: Recording
) -> None:
    everything(opened)
    decisions = {d.iteration: d for d in busy.decisions[1]}
    chunk = next(s for s in busy.spans[1] if decisions[s.iteration].mode == "extend" and s.iteration > 3)
    opened.point(*place(opened, (chunk.start_ns + chunk.end_ns) / 2, 1))
    words = tip(opened)
    assert words.startswith("PP1: prefill\n")
    assert f"iteration\t{chunk.iteration}\n" in words
    assert f"slot\t{chunk.slot}\n" in words
    for rid, prefix, new in decisions[chunk.iteration].pieces:
        assert f"{rid} [{prefix}:{prefix + new}]" in words
    assert f"from\t{chunk.start_ns / S:.9f}".rstrip("0") in words
    assert "took\t1.000 ms" in words
    hovered = opened.js(f"{LINE}.sources.hovered.data")
    unit = opened.js(f"{LINE}.unitNs")
    assert [hovered["y"], round(hovered["left"][0] * unit)] == [[-1], chunk.start_ns]
    opened.point(5, 5)
    assert tip(opened) == ""


def test_idle_time_under_the_pointer_says_how_long_it_is(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, Run("by hand", pipeline(4, 3), PASS))
    browser.point(*place(browser, 1.5 * S, 3))  # rank 3 waits for the first chunk until 3 s
    assert tip(browser).split("\n")[:4] == ["PP3: idle", "for\t3.000 s", "from\t0.000 s", "to\t3.000 s"]


def test_zoom_by_button_wheel_and_drag(opened: Browser) -> None:
    everything(opened)
    from_ns, to_ns = part(opened)
    opened.js("document.querySelector('.zoom-in').click()")
    opened.settle()
    inner = part(opened)
    assert inner[1] - inner[0] == pytest.approx((to_ns - from_ns) / 2, rel=0.01)
    x, y = place(opened, (inner[0] + inner[1]) / 2, 1)
    opened.wheel(x, y, -120)
    assert part(opened) == inner  # the wheel alone belongs to the page
    x, y = place(opened, (inner[0] + inner[1]) / 2, 1)
    opened.wheel(x, y, -240, modifiers=CTRL)
    nearer = part(opened)
    assert nearer[1] - nearer[0] < 0.95 * (inner[1] - inner[0])
    x, y = place(opened, (nearer[0] + nearer[1]) / 2, 1)
    opened.drag(x, y, x + 150)
    moved = part(opened)
    assert moved[0] < nearer[0]
    assert moved[1] - moved[0] == pytest.approx(nearer[1] - nearer[0], rel=1e-6)


def test_the_ends_of_a_part_are_told_as_exactly_as_it_is_long(opened: Browser) -> None:
    """A thousandth of its length, rounded to a power of ten, tells its ends apart."""
    origin_ns = int(opened.js(f"String({LINE}.run.origin)"))
    for _ in range(3):
        opened.settle()
        length = part(opened)[1] - part(opened)[0]
        step = 10 ** max(0, math.floor(math.log10(length / 1000)))
        text = opened.js("document.querySelector('.part').textContent")
        ends = re.match(r"(\d+)\.(\d{3,9}) s to (\d+)\.(\d{3,9}) s: ", text)
        assert ends, text
        told = [int(whole) * 10**9 + int(rest.ljust(9, "0")) for whole, rest in (ends.groups()[:2], ends.groups()[2:])]
        for at, exact in zip(told, part(opened)):
            assert at % step == 0, text
            assert abs(at - origin_ns - exact) <= step, text
        opened.js("document.querySelector('.zoom-in').click()")


def test_a_part_is_chosen_in_the_overview(opened: Browser) -> None:
    opened.js("document.querySelector('.first').click()")
    opened.settle()
    begins, ends = opened.js(f"{LINE}.run.window.whole")
    x, y = opened.js(
        f"""(() => {{ const line = {LINE}; const box = line.place.querySelector('.overview').getBoundingClientRect();
        const frame = Bokeh.index.get_one(line.overview).frame;
        return [box.left + frame.x_scale.compute(line.x({begins + 0.7 * (ends - begins)})), box.top + 12]; }})()"""
    )
    opened.drag(x, y, x + 100)
    from_ns, to_ns = part(opened)
    share = (from_ns - begins) / (ends - begins)
    assert 0.65 < share < 0.75
    assert to_ns - from_ns < 0.2 * (ends - begins)


def test_a_click_keeps_the_pass_and_leads_to_its_requests(opened: Browser, busy: Recording) -> None:
    everything(opened)
    some = next(s for s in busy.spans[0] if len(busy.decisions[0][s.iteration].pieces) > 1)
    opened.click(*place(opened, (some.start_ns + some.end_ns) / 2, 0))
    names = opened.js("[...document.querySelectorAll('.chosen-pass button')].map((one) => one.textContent)")
    pieces = busy.decisions[0][some.iteration].pieces
    assert names == [f"{rid} [{prefix}:{prefix + new}]" for rid, prefix, new in pieces]
    opened.js("document.querySelector('.chosen-pass button').click()")
    opened.settle()
    assert opened.js("document.querySelector('.chosen-request b').textContent") == pieces[0][0]
    pale = opened.js(f"{LINE}.sources.boxes.data.alpha.filter((one) => one < 1).length")
    without = [s for spans in busy.spans for s in spans if not holds(busy, s.iteration, pieces[0][0])]
    assert pale == len(without) > 0


def holds(recording: Recording, iteration: int, rid: str) -> bool:
    return any(one == rid for one, _, _ in recording.decisions[0][iteration].pieces)


def test_the_requests_sort_by_any_column(opened: Browser, busy: Recording) -> None:
    ttft = {life.rid: life.token_ns[0] - (life.arrived_ns or 0) for life in request_lives(busy)}
    for is_down in (False, True):
        opened.js("document.querySelector('th[data-key=ttft] button').click()")
        rids = opened.js("[...document.querySelectorAll('.requests tbody tr')].map((row) => row.cells[0].textContent)")
        waits = [ttft[rid] for rid in rids]
        assert waits == sorted(ttft.values(), reverse=is_down)
    opened.js("document.querySelector('th[data-key=rid] button').click()")
    rids = opened.js("[...document.querySelectorAll('.requests tbody tr')].map((row) => row.cells[0].textContent)")
    assert rids == [f"R{n}" for n in range(1, 13)]  # R2 before R10


def test_colour_by_slot_has_a_legend_of_slots(opened: Browser) -> None:
    opened.js("document.querySelector('.by').value = 'slot'")
    opened.js("document.querySelector('.by').dispatchEvent(new Event('change'))")
    opened.settle()
    assert opened.js("document.querySelector('.legend').innerText.replace(/\\s+/g, ' ')").startswith("slot 0 slot 1")
    colours = opened.js(f"[...new Set({LINE}.sources.boxes.data.colour)].sort()")
    assert colours == sorted(opened.js("window.ppsimPage.runs[0].slot_colours"))


def test_several_runs_have_a_tab_each(browser: Browser, busy: Recording, tmp_path: Path) -> None:
    show(browser, tmp_path, Run("one", busy, PASS), Run("two", pipeline(4, 3), PASS))
    assert browser.js("[...document.querySelectorAll('.run')].map((one) => one.hidden)") == [False, True]
    browser.js("document.querySelectorAll('.tabs button')[1].click()")
    browser.wait("document.querySelectorAll('.run')[1].querySelector('.requests tbody tr') !== null")
    assert browser.js("[...document.querySelectorAll('.run')].map((one) => one.hidden)") == [True, False]
    browser.settle()
    browser.point(*place(browser, 1.5 * S, 1, nth=1))
    assert tip(browser).startswith("PP1: prefill\niteration\t0\n")


# --- what must not happen ------------------------------------------------------------------------------------------


def test_names_from_a_trace_stay_words(browser: Browser, tmp_path: Path) -> None:
    recording = hostile()
    show(browser, tmp_path, Run(recording.name, recording, FAILED), Run("<img src=x>", recording, FAILED))
    everything(browser)
    for i in range(9):  # a pass of each name, pointed at and chosen
        at = place(browser, (5.5 + i) * S, 0)
        browser.point(*at)
        browser.click(*at)
        browser.js("document.querySelector('.chosen-pass button').click()")
    assert browser.js("typeof window.pwned") == "undefined"
    assert browser.js("document.querySelectorAll('img, iframe, [onerror], [onload]').length") == 0
    assert "<img src=x onerror='window.pwned = 2'>" in browser.js("document.querySelector('.requests').innerText")


@pytest.mark.parametrize("width", [400, 800, 1280])
def test_nothing_is_wider_than_the_window(browser: Browser, busy: Recording, tmp_path: Path, width: int) -> None:
    browser.resize(width, 900)
    show(browser, tmp_path, Run("one", busy, PASS), Run("two", pipeline(4, 3), PASS))
    browser.settle()
    wide = browser.js("document.documentElement.scrollWidth")
    browser.resize(1280, 900)
    assert wide <= width


def test_runs_with_nothing_or_no_time_in_them_open_without_an_error(browser: Browser, tmp_path: Path) -> None:
    nothing = Recording(2, name="nothing")
    unread = Recording(2, name="unread")
    unread.arrival("R1", 5, 10, 1)
    runs = [nothing, unread, pipeline(2, 2, unit_ns=0), pipeline(2, 2, unit_ns=1)]
    show(browser, tmp_path, *(Run(f"{i}", recording, PASS) for i, recording in enumerate(runs)))
    for i in range(len(runs)):
        browser.js(f"document.querySelectorAll('.tabs button')[{i}].click()")
        browser.wait(f"document.querySelectorAll('.run')[{i}].querySelector('.requests thead th') !== null")
        browser.js(f"document.querySelectorAll('.run')[{i}].querySelector('.requests tbody button')?.click()")
        browser.settle()
    assert "Nothing was computed" in browser.js("document.querySelectorAll('.run')[1].textContent")
    assert browser.js("window.ppsimPage.timelines[3].sources.boxes.data.left") == [0, 1, 1, 2]


def test_a_clock_that_begins_late_is_shown_to_the_nanosecond(browser: Browser, tmp_path: Path) -> None:
    late = 10**18 + 7  # more than a browser's numbers hold
    recording = pipeline(2, 2)
    recording.arrivals = []
    recording.ingestions = []
    for rank in range(2):
        recording.spans[rank] = [
            s._replace(start_ns=s.start_ns + late, end_ns=s.end_ns + late) for s in recording.spans[rank]
        ]
    recording.replies = [reply._replace(time_ns=reply.time_ns + late) for reply in recording.replies]
    assert run_data(parts_of(recording), PASS)["origin_ns"] == str(late)
    show(browser, tmp_path, Run("late", recording, PASS))
    browser.point(*place(browser, 1.5 * S, 1))
    assert "from\t1000000001.000000007 s" in tip(browser)
