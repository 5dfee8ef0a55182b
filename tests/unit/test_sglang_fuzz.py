"""Bad text never breaks the readers, and never makes their counts disagree."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.errors import UsageError
from ppsim.sglang.launch import LaunchLine, read_launch, to_scenario
from ppsim.sglang.logs import LogReport, read_log
from tests.unit._sglang_index import Row, rows

LOGS, LAUNCHES = rows("logs"), rows("launch")
TEXTS = [row.text for row in [*LOGS, *LAUNCHES]]
SNIPPETS = ['"', "'", "$(", "${", "{{", "(", ")", "[", "\\\n", "\n\n", "#", "\0", "9" * 40, "1e999", "nan", "-5", "<A>"]
STATES = ("complete", "short", "cut", "damaged")


def check_log(text: str) -> LogReport:
    """Read, and hold what must hold of any report."""
    report = read_log(text)
    by_state = {state: [line for line in report.batches if line.state == state] for state in STATES}
    assert sum(len(lines) for lines in by_state.values()) == len(report.batches)
    counts = report.counts()
    assert counts["cut"] >= len(by_state["cut"])
    assert counts["damaged"] >= len(by_state["damaged"])
    assert len(report.cut) <= 1, "a text ends once"
    assert all(not line.fields for line in by_state["cut"] + by_state["damaged"]), "never half used"
    good = {line.line for line in by_state["complete"] if line.kind in ("prefill", "prefill_rank")}
    for sample in report.samples:
        assert sample.duration_s > 0
        assert sample.new_tokens > 0
        assert sample.prefix >= 0
        assert sample.line in good or sample.source in ("profile", "table", "progress")
    assert report.num_prefill_batches <= report.num_prefill
    assert f"{len(report.cut)} cut, {len(report.damaged)} damaged" in report.summary()
    report.to_dict()
    return report


def refused(text: str) -> tuple[str, list[LaunchLine]]:
    try:
        return "", read_launch(text)
    except UsageError as error:
        return str(error), []


def check_launch(text: str) -> None:
    message, lines = refused(text)
    assert (not lines) == message.startswith("launch line: ")
    for line in lines:
        line.to_dict()
        assert all(1 <= note.line <= text.count("\n") + 1 for note in [*line.warnings, *line.errors])
        try:
            found = to_scenario(line)
        except UsageError:
            assert line.errors
        else:
            assert not line.errors
            assert set(found) == {"overrides", "not_modelled", "left_open"}


@pytest.mark.parametrize("row", LOGS, ids=lambda row: row.name)
def test_a_log_cut_anywhere_never_gains_a_complete_line(row: Row) -> None:
    text = row.text
    whole = check_log(text)
    for end in range(0, len(text), 13):
        part = check_log(text[:end])
        for kind in ("prefill", "decode", "prefill_rank", "retract"):
            assert len(part.of(kind)) <= len(whole.of(kind)) + len(whole.of(kind, "short"))
        assert len(part.batches) <= len(whole.batches)
        assert len(part.windows) <= len(whole.windows)


@pytest.mark.parametrize("row", LAUNCHES, ids=lambda row: row.name)
def test_a_launch_line_cut_anywhere_is_read_or_refused(row: Row) -> None:
    text = row.text
    for end in range(0, len(text), 17):
        check_launch(text[:end])


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A text with bytes changed, pieces put in, or the tail of another text behind its head."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        what = draw(st.integers(0, 3))
        if what == 0:
            text = text[:at] + draw(st.sampled_from(SNIPPETS)) + text[at:]
        elif what == 1:
            text = text[:at] + draw(st.characters(max_codepoint=0x2FFF, exclude_categories=["Cs"])) + text[at + 1 :]
        elif what == 2:
            text = text[:at] + text[at + draw(st.integers(1, 30)) :]
        elif TEXTS:
            other = draw(st.sampled_from(TEXTS))
            text = text[:at] + other[draw(st.integers(0, len(other))) :]
    return text


@settings(max_examples=400, deadline=None, derandomize=True)
@given(text=mutated())
def test_a_mutated_text_is_read_or_refused(text: str) -> None:
    check_log(text)
    check_launch(text)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(text=st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda data: data.decode("latin-1"))))
def test_any_text_is_read_or_refused(text: str) -> None:
    check_log(text)
    check_launch(text)


def test_an_empty_log_is_a_report_of_nothing() -> None:
    report = check_log("")
    assert report.counts() == dict.fromkeys(report.counts(), 0)
    assert "0 cut, 0 damaged" in report.summary()


REPEATED = {
    "good lines": "[2026-01-01 00:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 8192, #cached-token: 0, "
    "token usage: 0.10, #running-req: 0, #queue-req: 1, #pending-token: 5, input throughput (token/s): 9.00\n",
    "one line": "Prefill batch, #new-seq: 1, ",
    "open brackets": "Prefill batch, (",
    "bytes": "\0\x7f\xff[",
    "blank lines": "\n",
    "exceptions": '[2026-01-01 00:00:00 TP0] Scheduler hit an exception\n  File "a", line 1, in event_loop_pp\n',
}


@pytest.mark.parametrize("piece", REPEATED.values(), ids=REPEATED.keys())
def test_the_time_grows_with_the_length_of_a_log_and_not_faster(piece: str) -> None:
    """Eight times the text in well under 64 times the time: nothing is quadratic, so ten megabytes take seconds."""
    small, large = piece * (100_000 // len(piece)), piece * (800_000 // len(piece))
    took = []
    for text in (small, large):
        begin = time.process_time()
        read_log(text)
        took.append(time.process_time() - begin)
    assert took[1] < 24 * max(took[0], 0.05)


@pytest.mark.slow
def test_a_log_of_ten_megabytes_takes_seconds() -> None:
    piece = REPEATED["good lines"]
    begin = time.process_time()
    report = read_log(piece * (10_000_000 // len(piece)))
    assert report.num_prefill == 10_000_000 // len(piece)
    assert time.process_time() - begin < 60
