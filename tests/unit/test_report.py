"""Law: tables and schedules repeat what the recording says; pictures show boxes where passes were and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from ppsim.errors import UsageError
from ppsim.recording import PASS, Recording
from ppsim.recording.digest import decision_chains
from ppsim.recording.summary import summarize
from ppsim.report.gantt import plot_gantt
from ppsim.report.schedule import schedule, schedule_text
from ppsim.report.table import seconds, summary_text
from ppsim.report.window import Window, chosen_window, ticks, typical_window, whole_run, words_on_cut
from tests.unit.handmade import S, harvest, pipeline, two_requests


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
        "stall": "",
    }
    assert [e["harvested"] for e in entries] == [None, 0, 1, None]
    assert entries[3]["free_tokens"] is None  # this visit never came to its harvest
    assert entries[3]["mode"] == "empty"


def test_each_rank_has_its_own_schedule_and_others_are_refused() -> None:
    assert [e["pieces"] for e in schedule(two_requests(), 1)][2] == [["a", 20, 2]]
    recording = two_requests()
    recording.harvests[1][0] = harvest(0, 1, None, free=64)
    assert [next(schedule(recording, rank))["free_tokens"] for rank in (0, 1)] == [100, 64]
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


def chosen(recording: Recording, from_s: float | None = None, to_s: float | None = None) -> Window:
    whole = whole_run(recording)
    return chosen_window(whole, typical_window(whole, recording.spans[0]), from_s, to_s)


def test_a_short_run_is_shown_whole_and_a_long_one_where_half_of_the_computing_is_done() -> None:
    assert chosen(pipeline(4, 6)) == Window(0, 9 * S)
    long = Recording(1)
    at = 0
    for i, length in enumerate(
        [1] * 400 + [10] * 80 + [1] * 400
    ):  # half of 1600 s is done in the middle ten-second pass
        long.span(0, "forward", 0, i, at * S, (at + length) * S)
        at += length + (1000 if i == 10 else 0)  # and a long pause, which does not count
    window = chosen(long)
    assert window == Window((1000 + 400 + 220) * S, (1000 + 400 + 580) * S)


def test_a_window_can_be_asked_for_and_must_show_something() -> None:
    assert chosen(pipeline(2, 3), 1.0, 2.5) == Window(S, 5 * S // 2)
    assert chosen(pipeline(2, 3), None, 2.0) == Window(0, 2 * S)
    for from_s, to_s in ((2.0, 2.0), (3.0, 1.0), (4.0, 9.0), (-2.0, -1.0), (1e300, None), (None, -1e300), (1.0, 1.0)):
        with pytest.raises(UsageError, match=r"the run computes from 0\.0 s to 4\.0 s"):
            chosen(pipeline(2, 3), from_s, to_s)
    with pytest.raises(UsageError, match="no forward pass"):
        chosen(Recording(2), None, None)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_of_seconds_is_refused_by_its_option(value: float) -> None:
    with pytest.raises(UsageError, match=f"--from {value}: expected a number of seconds"):
        chosen(pipeline(2, 3), value, 2.0)
    with pytest.raises(UsageError, match=f"--to {value}: expected a number of seconds"):
        chosen(pipeline(2, 3), None, value)


def test_a_window_beyond_the_run_is_cut_to_it_and_the_user_is_told() -> None:
    recording = Recording(1)
    recording.span(0, "forward", 0, 0, S, 3 * S)
    for from_s, to_s in ((-5.0, 1e300), (0.0, 3.5)):
        window = chosen(recording, from_s, to_s)
        assert window == Window(S, 3 * S)
        first, last = words_on_cut(window, from_s, to_s)
        assert first.startswith(f"--from {from_s:g}: ")
        assert "starts at 1.0 s" in first
        assert last.startswith(f"--to {to_s:g}: ")
        assert "ends at 3.0 s" in last
    assert words_on_cut(chosen(recording, 1.0, 3.0), 1.0, 3.0) == []
    assert words_on_cut(chosen(recording, None, None), None, None) == []


@pytest.mark.parametrize(
    ("start", "end", "labels"),
    [
        (0, 4 * S, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0", "3.5", "4.0"]),
        (0, 2_500, ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]),  # microseconds
        (68_200_000_001, 68_200_000_004, [f"68.20000000{i}" for i in (1, 2, 3, 4)]),
        (123_456_789 * S, 123_456_790 * S, [f"123456789.{i}" for i in (0, 2, 4, 6, 8)] + ["123456790.0"]),
        (10**29, 10**29 + 2, [f"{10**20}.00000000{i}" for i in (0, 1, 2)]),
    ],
)
def test_ticks_are_plain_numbers_of_a_unit_at_their_places(start: int, end: int, labels: list[str]) -> None:
    places, found = ticks(Window(start, end), 1240)
    assert found == labels
    unit = {2_500: 1_000}.get(end, S)
    for place, label in zip(places, found, strict=True):
        whole, _, digits = label.partition(".")
        time = int(whole) * unit + (int(digits) * unit // 10 ** len(digits) if digits else 0)
        assert place == pytest.approx((time - start) / (end - start) * 1240)


def test_labels_of_ticks_never_touch() -> None:
    for digits in range(30):
        for length in (1, 7, 10**3, 10**6, 10**9, 10**12):
            start = 10**digits
            places, labels = ticks(Window(start, start + length), 1240)
            assert all(0 <= place <= 1240 for place in places)
            assert len(labels) <= 11
            assert len(labels) < 3 or len(labels) * (len(labels[-1]) + 2) * 9 <= 1240


def test_the_picture_has_slot_colours_where_passes_were_and_none_in_the_bubbles(tmp_path: Path) -> None:
    from matplotlib import image

    path = tmp_path / "gantt.png"
    plot_gantt(pipeline(2, 1), path)
    pixels = image.imread(path)[:, :, :3]
    blue = abs(pixels - (31 / 255, 119 / 255, 180 / 255)).max(axis=2) < 0.02  # tab10's first colour: slot 0
    height = len(blue)
    upper = widest_stretch(blue[: height // 2])
    lower = widest_stretch(blue[height // 2 :])
    assert upper[1] - upper[0] > 500
    assert 0 <= lower[0] - upper[1] <= 3  # rank 1 starts where rank 0 ends, and not before
    assert abs((upper[1] - upper[0]) - (lower[1] - lower[0])) <= 3  # equal stages, equal boxes


def widest_stretch(marked: NDArray[np.bool_]) -> tuple[int, int]:
    """[start, stop) of the widest unbroken stretch of marked pixels in any row; the legend's patch is narrow."""
    best = (0, 0)
    for row in marked:
        changes = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(int), [0]))))
        for start, stop in zip(changes[::2], changes[1::2], strict=True):
            best = max(best, (int(start), int(stop)), key=lambda s: s[1] - s[0])
    return best


def test_the_same_run_gives_the_same_picture_bytes(tmp_path: Path) -> None:
    plot_gantt(pipeline(3, 60), tmp_path / "a.png")
    plot_gantt(pipeline(3, 60), tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize(("name", "problem"), [("missing/x.png", "No such file"), ("x.nonsense", "not supported")])
def test_a_picture_that_cannot_be_written_is_told(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        plot_gantt(pipeline(2, 2), tmp_path / name)
