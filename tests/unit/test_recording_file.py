"""Law: a recording that was written and read back is the same recording, and anything else is refused by its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ppsim.core.effects import Decision, Harvest
from ppsim.core.messages import NewRequest
from ppsim.core.tokens import pack
from ppsim.recording import Recording
from ppsim.recording.codec import decision_fields, decision_text, harvest_fields, harvest_text, line_of
from ppsim.recording.diff import first_difference
from ppsim.recording.digest import run_digest
from ppsim.recording.reader import RecordingError, read_lines, read_recording
from ppsim.recording.schema import Stand
from ppsim.recording.writer import write_recording
from tests.unit.handmade import decision, pipeline, two_requests


def written(recording: Recording, path: Path) -> list[str]:
    write_recording(recording, path)
    return path.read_text().splitlines(keepends=True)


def everything(r: Recording) -> list[object]:
    ingested = [i[:3] for i in r.ingestions]
    logical = [r.decisions, r.harvests, r.observations, r.samples, r.replies, ingested]
    return [
        *logical,
        r.visits,
        r.messages,
        r.stands,
        r.spans,
        r.arrivals,
        r.warnings,
        r.name,
        r.seed,
        r.world,
        r.pp_size,
        r.tp_replicas,
    ]


def with_channels(num_messages: int) -> Recording:
    """Visits and messages over several rows, also with times that go back and iterations that repeat."""
    recording = pipeline(3, 5)
    for src, dst, kind in ((0, 1, "hidden"), (2, 0, "output"), (0, 1, "output")):
        for i in range(num_messages):
            leaves = 10**15 + (i * 7919) % 1000 - 5 * i
            recording.message(src, dst, kind, i // 2, leaves, leaves + i % 3, leaves + i % 3 + (i * i) % 11)
    recording.stands = [Stand(0, 3, 1, "waits", 2, 10**15), Stand(1, 3, None, "runs", None, None)]
    for rank in range(3):
        recording.visits[rank] = [(i * i * 31 + rank) % (10**12) for i in range(num_messages)]
    return recording


MANY = [with_channels(0), with_channels(1), with_channels(256), with_channels(257), with_channels(700)]


@pytest.mark.parametrize(
    "recording", [*MANY, pipeline(3, 5), two_requests(), Recording(2, tp_replicas=2, world="exec")]
)
def test_reading_gives_back_every_record_and_writing_again_the_same_bytes(recording: Recording, tmp_path: Path) -> None:
    first = written(recording, tmp_path / "a.jsonl")
    back = read_recording(tmp_path / "a.jsonl")
    assert everything(back) == everything(recording)
    assert written(back, tmp_path / "b.jsonl") == first


def test_names_that_are_awkward_in_json_survive(tmp_path: Path) -> None:
    recording = Recording(1, name='say "é\n\u2028"')
    recording.arrival("\U0001f600\\", 0, 1, 1)
    recording.decision(0, decision(0, 0, ("\U0001f600\\", 0, 1)))
    write_recording(recording, tmp_path / "a.jsonl")
    assert everything(read_recording(tmp_path / "a.jsonl")) == everything(recording)


def test_looks_at_the_world_are_counted_within_an_iteration_and_reading_nothing_is_no_record() -> None:
    recording = two_requests()
    assert [(o.iteration, o.nth) for o in recording.observations[0]] == [(2, 0), (2, 1), (3, 0)]
    assert [i.iteration for i in recording.ingestions] == [0, 1, 2, 4]


def test_two_recordings_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = written(two_requests(), path)
    path.write_text("".join([*lines, *lines]))
    with pytest.raises(RecordingError, match=rf"a\.jsonl:{len(lines) + 1}: text after the end record"):
        read_recording(path)


def test_replicas_that_agree_are_written_once_and_the_one_record_that_differs_stands_out(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in written(two_requests(), tmp_path / "a.jsonl")[1:]]
    rank_one = [line for line in lines if line[0] in ("decision", "harvest", "same") and line[1] == 1]
    assert [line[:1] + line[2:5] for line in rank_one] == [
        ["same", "decision", 0, 2],
        ["decision", 2, 0, "decode"],
        ["same", "decision", 3, 1],
        ["same", "harvest", 0, 3],
    ]


def test_bytes_do_not_depend_on_which_rank_was_served_first(tmp_path: Path) -> None:
    ahead, behind = Recording(2), Recording(2)
    records = [decision(i, 0, ("r", i, 1)) for i in range(4)]
    for rank in (0, 1):
        for record in records:
            ahead.decision(rank, record)
    for rank in (1, 0):
        for i in range(4):
            behind.decision(rank, decision(i, 0, ("r", i, 1)))
    assert written(ahead, tmp_path / "a") == written(behind, tmp_path / "b")


def test_prompts_are_kept_as_length_and_digest(tmp_path: Path) -> None:
    long = Recording(1)
    long.ingested(0, (NewRequest("R1", pack(range(1_000_000)), 1),), 0)
    lines = written(long, tmp_path / "a.jsonl")
    (ingested,) = (json.loads(line) for line in lines if line.startswith('["ingested"'))
    assert ingested[3][0][:3] == ["new", "R1", 1_000_000]
    assert len(json.dumps(ingested)) < 400
    one, other = Recording(1), Recording(1)
    one.ingested(0, (NewRequest("r", pack([1, 2]), 1),), 0)
    other.ingested(0, (NewRequest("r", pack([1, 3]), 1),), 0)
    found = first_difference(one, other)
    assert found is not None
    assert (found.kind, found.field) == ("ingested", "inputs[0]")


def test_every_cut_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    whole = "".join(written(two_requests(), path))
    for cut in range(len(whole)):
        with pytest.raises(RecordingError) as caught:
            read_lines("a.jsonl", iter(whole[:cut].splitlines(keepends=True)))
        line = whole[:cut].count("\n") + (0 if whole[:cut].endswith("\n") or not cut else 1)
        assert caught.value.line == line or (cut < whole.index("\n") + 1 and caught.value.line == 1), cut


def test_every_line_that_is_missing_doubled_or_swapped_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = written(two_requests(), path)
    for i in range(len(lines)):
        for damaged in (lines[:i] + lines[i + 1 :], lines[: i + 1] + lines[i:]):
            path.write_text("".join(damaged))
            with pytest.raises(RecordingError):
                read_recording(path)


def test_a_changed_decision_is_noticed_by_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    text = "".join(written(two_requests(), path))
    assert '["a",16,4]' in text
    path.write_text(text.replace('["a",16,4]', '["a",15,4]'))
    with pytest.raises(RecordingError, match=r"digest [0-9a-f]{16}, the end record says [0-9a-f]{16}"):
        read_recording(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('["decision",0,"x",0,"extend",[],[],null,"s"]', "field 'decision.iteration': expected an integer, got 'x'"),
        ('["decision",0,true,0,"extend",[],[],null,"s"]', "expected an integer, got True"),
        ('["decision",0,0,0,"extend",[["a",1]],[],null,"s"]', "field 'decision.pieces': expected an array of 3"),
        ('["decision",9,0,0,"extend",[],[],null,"s"]', "rank 9, but the run has ranks 0 to 1"),
        ('["decision",-1,0,0,"extend",[],[],null,"s"]', "rank -1, but the run has ranks 0 to 1"),
        ('["decision",0,0]', "expected 8 fields"),
        ('["same",1,"decision",0,99]', "rank 1 takes decisions 0 to 98 of rank 0"),
        ('["same",0,"decision",0,1]', "rank 0 takes"),
        ('["same",1,"spans",0,1]', "expected decision or harvest"),
        ('["surprise",1]', "expected one of arrival, ingested"),
        ('{"a":1}', "expected an array that begins with the kind"),
        ('["span",0,', "is not JSON at column"),
        ('["visits",0,1,[5]]', "rank 0 goes on with iteration 1, but has 0 so far"),
        ('["visits",2,0,[5]]', "rank 2, but the run has ranks 0 to 1"),
        ('["visits",0,0,[5.0]]', "field 'visits.times': expected an integer"),
        ('["messages",0,1,"hidden",[1,2,3]]', "3 times, expected four a message"),
        ('["messages",0,9,"hidden",[]]', "rank 9, but the run has ranks 0 to 1"),
        ('["stand",0,1,2,"x",9,null]', "rank 9, but the run has ranks 0 to 1"),
        ('["stand",0,1,2,"x",null,"soon"]', "field 'stand.since_ns': expected an integer"),
        ("", "is not JSON"),
        ('["span",0,"forward",0,0,0,1e3]', "expected an integer, got 1000.0"),
    ],
)
def test_a_line_that_makes_no_sense_is_named_with_file_line_and_field(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = written(two_requests(), path)
    path.write_text("".join([*lines[:2], line + "\n", *lines[2:]]))
    with pytest.raises(RecordingError) as caught:
        read_recording(path)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\n", "no ASCII text"),
        (b"[1]\n", "is not a recording"),
        (b"rid,arrival\n", "is not a recording"),
        (b'{"format":"ppsim-recording","version":99}\n', "schema version 99, this ppsim reads version 1"),
        (b'{"format":"ppsim-recording","version":1,"name":"x","seed":0,"world":"sim"}\n', "'pp_size': expected int"),
        (
            b'{"format":"ppsim-recording","version":1,"name":"","seed":0,"world":"","pp_size":0,"tp_replicas":1}\n',
            "impossible sizes",
        ),
    ],
)
def test_a_file_that_is_no_recording_says_so(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=message):
        read_recording(path)


def test_the_digest_is_about_decisions_and_not_about_time_or_the_world() -> None:
    base = run_digest(two_requests())
    slower = two_requests()
    slower.spans = [[span._replace(end_ns=span.end_ns + 5) for span in spans] for spans in slower.spans]
    slower.replies = [reply._replace(time_ns=reply.time_ns * 2) for reply in slower.replies]
    slower.world, slower.name, slower.seed = "exec", "other", 99
    assert run_digest(slower) == base


def test_the_digest_changes_with_each_logical_field() -> None:
    changes: list[Callable[[Recording], object]] = [
        lambda r: r.decisions[0].pop(),
        lambda r: r.decisions[1].__setitem__(1, decision(1, 1, ("b", 0, 30), state="other")),
        lambda r: r.harvests[1].pop(),
        lambda r: r.replies.pop(),
        lambda r: r.replies.__setitem__(0, r.replies[0]._replace(reason="because")),
        lambda r: r.replies.__setitem__(0, r.replies[0]._replace(iteration=77)),
    ]
    digests = {run_digest(two_requests())}
    for change in changes:
        recording = two_requests()
        change(recording)
        digests.add(run_digest(recording))
    assert len(digests) == 7


def test_parts_recorded_by_single_ranks_become_the_whole_recording(tmp_path: Path) -> None:
    whole = two_requests()
    parts = [two_requests() for _ in range(2)]
    for rank, part in enumerate(parts):
        for lists in (part.decisions, part.harvests, part.observations, part.spans):
            lists[1 - rank].clear()
        if rank == 0:
            part.samples.clear()
        else:
            part.warnings.clear()
    merged = Recording(2, name=whole.name, seed=whole.seed)
    for rank, part in enumerate(parts):
        merged.absorb(rank, part)
    assert written(merged, tmp_path / "a") == written(whole, tmp_path / "b")


def test_records_that_are_put_into_text_by_hand_have_the_form_of_all_others() -> None:
    names = ("R1", 'say "e\u0301\n"', "\U0001f600\\", "\x00\x7f", "")
    for n, name in enumerate(names):
        pieces = tuple((other, n, n + 1) for other in names[:n])
        made = Decision(n, n % 2, "mixed", pieces, names[n:], name if n % 2 else None, "0f" * 8, "closed" * (n % 3))
        assert f'["decision",{n},{decision_text(made)}]' == line_of("decision", n, *decision_fields(made))
        places = tuple((other, k) for k, other in enumerate(names[:n]))
        ended = Harvest(n, n % 2, n if n % 2 else None, places, names[n:], tuple(range(n)), 5, n)
        assert f'["harvest",{n},{harvest_text(ended)}]' == line_of("harvest", n, *harvest_fields(ended))
