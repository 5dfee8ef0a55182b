"""Law: tables and schedules repeat what the recording says; pictures show boxes where passes were and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppsim.errors import UsageError
from ppsim.recording import PASS, Recording
from ppsim.recording.digest import decision_chains
from ppsim.recording.schema import Span
from ppsim.recording.summary import summarize
from ppsim.report.gantt import NUM_BINS, Window, busy_shares, chosen_window, plot_gantt, typical_window
from ppsim.report.schedule import schedule, schedule_text
from ppsim.report.table import seconds, summary_text
from tests.unit.handmade import S, pipeline, two_requests


def test_the_schedule_of_a_rank_joins_what_was_launched_and_what_was_harvested() -> None:
    entries = list(schedule(two_requests(), 0))
    chains = decision_chains(two_requests())[0]
    assert [e["digest"] for e in entries] == chains
    assert {k: entries[1][k] for k in entries[1] if k != "digest"} == {
        "iteration": 1,
        "slot": 1,
        "mode": "extend",
        "pieces": [["b", 0, 30]],
        "harvested": 0,
        "delivered": [["a", 1]],
        "finished": [],
        "retracted": [],
        "free_tokens": 100,
        "evictable_tokens": 0,
        "token_ids": [7],
        "chunked_rid": None,
    }
    assert [e["harvested"] for e in entries] == [None, 0, 1, None]
    assert entries[3]["free_tokens"] is None  # this visit never came to its harvest
    assert entries[3]["mode"] == "empty"


def test_each_rank_has_its_own_schedule_and_others_are_refused() -> None:
    assert [e["pieces"] for e in schedule(two_requests(), 1)][2] == [["a", 20, 2]]
    for rank in (2, -1):
        with pytest.raises(UsageError, match=rf"--rank {rank}: this run has ranks 0 to 1"):
            list(schedule(two_requests(), rank))


def test_the_schedule_for_people_names_positions_tokens_and_harvests() -> None:
    head, first, second, *_ = schedule_text(two_requests(), 0)
    assert head.split() == ["iteration", "slot", "mode", "tokens", "free", "batch", "/", "harvest"]
    assert first.split() == ["0", "0", "extend", "4", "100", "a[16:20]"]
    assert second.split() == ["1", "1", "extend", "30", "100", "b[0:30]", "|", "harvests", "0:", "a#1"]


def test_the_table_shows_the_numbers_of_the_summary() -> None:
    text = summary_text(summarize(two_requests(), PASS))
    rows = {line.split()[0]: line.split() for line in text.splitlines() if line}
    assert rows["requests"][1:4] == ["1", "of", "4"]
    assert rows["time"][1:3] == ["9.00", "s"]
    assert rows["ttft"][1:3] != rows["e2e"][1:3]
    assert rows["e2e"][1:3] == ["9.00", "s"]
    assert rows["0"] == ["0", "2.00", "s", "4.00", "s", "66.7", "%"]
    assert rows["warning:"][1] == "links.send"
    assert summary_text(summarize(Recording(2), PASS)).count("-") >= 16  # no latency has a value


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.0, "0 s"), (1234.5, "1,234.50 s"), (0.0125, "12.50 ms"), (0.0000025, "2.50 us"), (1.0, "1.00 s")],
)
def test_times_have_a_unit_that_fits(value: float | None, text: str) -> None:
    assert seconds(value) == text


def test_busy_shares_of_the_overview_add_up_to_the_busy_time() -> None:
    spans = [Span("forward", 0, i, start, end) for i, (start, end) in enumerate([(0, 3), (100, 977), (977, 1000)])]
    shares = busy_shares(spans, Window(0, 1000))
    edges = [1000 * i // NUM_BINS for i in range(NUM_BINS + 1)]
    assert sum(share * (b - a) for share, a, b in zip(shares, edges, edges[1:], strict=False)) == pytest.approx(903)
    assert shares[0] == 1.0
    assert shares[NUM_BINS // 20] == 0.0
    assert max(shares) <= 1.0


def test_a_short_run_is_shown_whole_and_a_long_one_where_it_is_typically_busy() -> None:
    assert typical_window(pipeline(4, 6)) == Window(0, 9 * S)
    long = Recording(1)
    for i in range(360):  # a third of the run idles half of the time, then two thirds run without a gap
        start = 2 * i if i < 120 else 240 + (i - 120)
        long.span(0, "forward", 0, i, start * S, (start + 1) * S)
    window = typical_window(long)
    assert window.end_ns - window.start_ns == 36 * S  # 36 passes of one second without a gap


def test_a_window_can_be_asked_for_and_must_show_something() -> None:
    assert chosen_window(pipeline(2, 3), 1.0, 2.5) == Window(S, 5 * S // 2)
    assert chosen_window(pipeline(2, 3), None, 2.0) == Window(0, 2 * S)
    for from_s, to_s in ((2.0, 2.0), (3.0, 1.0), (4.0, 9.0), (-2.0, -1.0)):
        with pytest.raises(UsageError, match="the run computes from 0.0 s to 4.0 s"):
            chosen_window(pipeline(2, 3), from_s, to_s)
    with pytest.raises(UsageError, match="no forward pass"):
        chosen_window(Recording(2), None, None)


def test_the_picture_has_slot_colours_where_passes_were_and_none_in_the_bubbles(tmp_path: Path) -> None:
    from matplotlib import image

    path = tmp_path / "gantt.png"
    plot_gantt(pipeline(2, 1), path)
    pixels = image.imread(path)[:, :, :3]
    blue = (abs(pixels - (31 / 255, 119 / 255, 180 / 255)).max(axis=2) < 0.02).nonzero()  # tab10's first: slot 0
    height, width = pixels.shape[:2]
    in_axes = [(y, x) for y, x in zip(*blue) if x < 0.85 * width]  # the legend is to the right
    top = [x for y, x in in_axes if y < 0.5 * height]
    bottom = [x for y, x in in_axes if y > 0.5 * height]
    assert top
    assert bottom
    assert max(top) < min(bottom) + 3  # rank 1 starts where rank 0 ends
    assert abs((max(top) - min(top)) - (max(bottom) - min(bottom))) < 5  # equal stages, equal boxes


def test_the_same_run_gives_the_same_picture_bytes(tmp_path: Path) -> None:
    plot_gantt(pipeline(3, 60), tmp_path / "a.png")
    plot_gantt(pipeline(3, 60), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(("name", "problem"), [("missing/x.png", "No such file"), ("x.nonsense", "not supported")])
def test_a_picture_that_cannot_be_written_is_told(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        plot_gantt(pipeline(2, 2), tmp_path / name)
