"""What a user is told of visits that a rule left empty: counted from decisions, shown in table, schedule, picture."""

from __future__ import annotations

from pathlib import Path

from ppsim.core.effects import CLOSED, DEFERRED
from ppsim.recording import PASS, Recording
from ppsim.recording.digest import run_digest
from ppsim.recording.reader import read_recording
from ppsim.recording.stalls import MAX_CLOSINGS, stalls
from ppsim.recording.summary import summarize
from ppsim.recording.writer import write_recording
from ppsim.report.notes import notes
from ppsim.report.schedule import schedule_text
from ppsim.report.table import summary_text
from tests.unit.handmade import decision, harvest, pipeline
from tests.worlds.making import UNIT, run


def told(*visits: tuple[int, str]) -> Recording:
    """Visits as (slot, stall), one an iteration; "0": a batch with a piece of no token."""
    recording = Recording(1, name="told")
    for iteration, (slot, stall) in enumerate(visits):
        pieces = (("a", 0, 0),) if stall == "0" else ()
        made = decision(iteration, slot, *pieces)._replace(stall="" if stall == "0" else stall)
        recording.decision(0, made)
        recording.harvest(0, harvest(iteration, slot, None))
    return recording


def test_a_slot_that_is_closed_to_the_end_has_been_closed_since_its_first_closed_visit() -> None:
    found = stalls(told((0, ""), (1, CLOSED), (0, ""), (1, CLOSED)))
    assert found.sentences() == [
        "slot 1 has been closed since iteration 1 (2 visits): batch_is_full with nothing running"
    ]


def test_a_slot_that_opened_again_was_closed_from_to() -> None:
    found = stalls(told((0, CLOSED), (0, CLOSED), (0, ""), (0, CLOSED)))
    assert found.sentences() == [
        "slot 0 was closed from iteration 0 to 1 (2 visits): batch_is_full with nothing running",
        "slot 0 has been closed since iteration 3 (1 visit): batch_is_full with nothing running",
    ]


def test_deferred_visits_and_pieces_of_no_token_are_counted() -> None:
    found = stalls(told((0, DEFERRED), (1, DEFERRED), (0, "0")))
    assert (found.num_deferred, found.num_empty_pieces, found.closings) == (2, 1, ())
    assert [line.split(":")[0] for line in found.sentences()] == [
        "2 visits stayed empty",
        "1 batch has a piece of 0 tokens of a prompt",
    ]


def test_a_slot_that_closes_again_and_again_does_not_fill_the_page() -> None:
    found = stalls(told(*[(0, CLOSED), (0, "")] * (MAX_CLOSINGS + 3)))
    assert len(found.closings) == MAX_CLOSINGS + 3
    assert len(found.sentences()) == MAX_CLOSINGS + 1
    assert found.sentences()[-1] == "slots were closed 3 more times"


def test_summary_table_schedule_and_picture_say_it() -> None:
    recording = told((0, ""), (1, CLOSED), (0, "0"), (1, DEFERRED))
    summary = summarize(recording, PASS)
    sentences = stalls(recording).sentences()
    assert summary["rules_told"] == sentences
    assert len(sentences) == 3
    assert summary["closed_slots"] == [{"slot": 1, "since_iteration": 1, "until_iteration": 1, "num_visits": 1}]
    assert (summary["num_deferred_visits"], summary["num_empty_pieces"]) == (1, 1)
    for sentence in sentences:
        assert f"rules       {sentence}" in summary_text(summary).split("\n")
    assert notes(recording) == sentences  # what the picture writes under its title
    assert " | closed" in list(schedule_text(recording))[2]


def test_nothing_is_said_where_nothing_happened() -> None:
    recording = pipeline(2, 3)
    assert stalls(recording).sentences() == []
    assert "rules" not in summary_text(summarize(recording, PASS))
    assert notes(recording) == []


def test_it_survives_the_file_and_a_recording_without_it_is_read_with_the_same_digest(tmp_path: Path) -> None:
    """The field is written where it is not empty: an older file is what this writes for a run without such visits."""
    recording = told((0, ""), (1, CLOSED))
    path = tmp_path / "recording.jsonl"
    write_recording(recording, path)
    assert [d.stall for d in read_recording(path).decisions[0]] == ["", CLOSED]
    lines = path.read_text().split("\n")
    assert [len(line.split(",")) for line in lines if '"decision"' in line] == [9, 10]
    plain = told((0, ""), (1, ""))
    write_recording(plain, path)
    assert run_digest(read_recording(path)) == run_digest(plain) != run_digest(recording)


def test_a_run_of_the_world_says_since_when_its_slot_is_closed() -> None:
    changes = {
        "scheduler.chunked_prefill_size": -1,
        "scheduler.max_total_tokens": 30,
        "scheduler.pp_max_micro_batch_size": 4,
        "workload.requests": [
            {"rid": "R0", "prompt": 10, "output": 10, "at_iteration": 0},
            {"rid": "R1", "prompt": 10, "output": 10, "at_iteration": 1},
        ],
    }
    assert stalls(run(changes, UNIT).recording).sentences()[0].startswith("slot 1 has been closed since iteration 1 (")
    assert stalls(run({**changes, "scheduler.rules": "mended"}, UNIT).recording).sentences() == []
