"""Laws of traces of other formats: what a writer of its own wrote is what is read; nothing is dropped in silence."""

from __future__ import annotations

import gzip
import json
import random
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.core.tokens import count
from ppsim.errors import EXIT_USAGE, TraceError
from ppsim.scenario.load import validate
from ppsim.workload import Workload, build_workload
from ppsim.workload.trace import Reading, read_trace

SECONDS = Path(__file__).parent.parent / "data" / "inputs" / "seconds.jsonl"
Truth = list[tuple[int, int, int]]  # nanoseconds after the first, prompt, output (0: none)


def build(path: Path | str, **keys: object) -> Workload:
    return build_workload(validate({"workload": {"source": "trace", "trace": str(path), **keys}}))


def requests(seed: int, num: int = 40) -> Truth:
    rng, at_us = random.Random(seed), 0
    rows: Truth = []
    for _ in range(num):
        rows.append((at_us * 1000, rng.randint(1, 9000), rng.choice([0, 1, rng.randint(2, 900)])))
        at_us += rng.randint(0, 2_000_000)
    return rows


def read(path: Path, **how: object) -> Truth:
    rows = read_trace(str(path), 512, Reading(**how)).rows  # type: ignore[arg-type]
    return [(row.at_ns, row.input_length, 0 if row.no_output else row.output_length) for row in rows]


def test_seconds_are_asked_for_and_then_read() -> None:
    result = CliRunner().invoke(app, ["run", "mooncake", "--trace", str(SECONDS)])
    assert result.exit_code == EXIT_USAGE
    assert "workload.time_unit" in result.stderr
    assert build(SECONDS, time_unit="s").arrivals[-1].at_ns == 63_018_000_000
    assert build(SECONDS, time_unit="ms").arrivals[-1].at_ns == 63_018_000


def test_whole_seconds_are_asked_for_too(tmp_path: Path) -> None:
    line = '{"timestamp": %d, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
    (tmp_path / "t").write_text("".join(line % (4 * i) for i in range(50)))
    with pytest.raises(TraceError, match=r"workload\.time_unit"):
        build(tmp_path / "t")
    (tmp_path / "t").write_text("".join(line % (400 * i) for i in range(50)))
    assert build(tmp_path / "t").arrivals[-1].at_ns == 49 * 400 * 10**6


@pytest.mark.parametrize("offset_min", [None, 0, 330, -480, 840])
@pytest.mark.parametrize("seed", [1, 2])
def test_an_azure_trace_of_any_zone(tmp_path: Path, offset_min: int | None, seed: int) -> None:
    truth = requests(seed)
    zone = None if offset_min is None else timezone(timedelta(minutes=offset_min))
    start = datetime(2024, 5, 10, 23, 59, 58, tzinfo=UTC)
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    for at_ns, prompt, output in truth:
        moment = start + timedelta(microseconds=at_ns // 1000)
        shown = moment.replace(tzinfo=None) if zone is None else moment.astimezone(zone)
        text += f"{shown.isoformat(sep=' ', timespec='microseconds')},{prompt},{output or random.choice(['', '0'])}\n"
    (tmp_path / "t.csv").write_text(text)
    assert read(tmp_path / "t.csv") == truth
    without = sum(output == 0 for _, _, output in truth)
    assert any(f"{without} of 40 requests have no output" in warning for warning in build(tmp_path / "t.csv").warnings)


def test_rows_of_different_zones_are_in_order_of_time(tmp_path: Path) -> None:
    rows = ["2024-05-10 12:00:00+02:00,1,1", "2024-05-10 10:00:01Z,2,1", "2024-05-10 10:00:02,3,1"]
    (tmp_path / "t.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    w = build(tmp_path / "t.csv")
    assert [(a.at_ns, count(a.request.prompt)) for a in w.arrivals] == [(0, 1), (10**9, 2), (2 * 10**9, 3)]
    assert any("1 times without a zone are taken as UTC" in warning for warning in w.warnings)


def test_burstgpt(tmp_path: Path) -> None:
    truth = requests(3)
    text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    for at_ns, prompt, output in truth:
        seconds = f"{at_ns // 10**9}.{at_ns % 10**9:09d}"
        text += f"{seconds},ChatGPT,{prompt},{output},{prompt + output},Conversation log\n"
    (tmp_path / "t.csv").write_text(text)
    assert read(tmp_path / "t.csv") == truth


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(("name", "unit", "scale"), [("at", "us", 1000), ("at_us", None, 1000), ("at (ns)", None, 1)])
def test_any_csv_by_naming_columns(tmp_path: Path, delimiter: str, name: str, unit: str | None, scale: int) -> None:
    truth = requests(4)
    table = [["who", "q out", name, "q in"], *(["x", str(o), str(at // scale), str(p)] for at, p, o in truth)]
    (tmp_path / "t").write_text("\n".join(delimiter.join(row) for row in table))
    how = {"time": name, "prompt": "q in", "output": "q out", "time_unit": unit}
    assert read(tmp_path / "t", **how) == truth
    if unit:
        with pytest.raises(TraceError, match=r"workload\.time_unit"):
            read(tmp_path / "t", **{**how, "time_unit": None})


def test_objects_by_naming_fields_and_times_of_a_clock(tmp_path: Path) -> None:
    truth = requests(5)
    rows = [{"t_ns": 1_700_000_000 * 10**9 + at, "p": p, "o": o or None} for at, p, o in truth]
    (tmp_path / "t").write_text("\n".join(json.dumps(row) for row in rows))
    assert read(tmp_path / "t", time="t_ns", prompt="p", output="o") == truth


def test_an_array_and_gzip_read_as_the_lines(tmp_path: Path) -> None:
    lines = [line for line in SECONDS.read_text().splitlines() if line]
    (tmp_path / "array").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    (tmp_path / "packed").write_bytes(gzip.compress(SECONDS.read_bytes()))
    right = read(SECONDS, time_unit="s")
    assert len(right) == 40
    assert read(tmp_path / "array", time_unit="s") == right
    assert read(tmp_path / "packed", time_unit="s") == right


BAD = [
    "garbage",
    "{",
    '{"timestamp": 1}',
    "\xff",
    '{"timestamp": -1, "input_length": 9, "output_length": 1, "hash_ids": [1]}',
]


def test_every_bad_line_is_counted_and_named_and_the_rest_is_read(tmp_path: Path) -> None:
    rng = random.Random(6)
    good = '{"timestamp": %d, "input_length": 9, "output_length": 1, "hash_ids": [1]}'
    lines = [(good % (i * 1000)).encode() for i in range(20_000)]
    bad = sorted(rng.sample(range(20_000), 10))
    for i in bad:
        lines[i] = rng.choice(BAD).encode("latin-1")
    (tmp_path / "t").write_bytes(b"\n".join(lines))
    with pytest.raises(TraceError) as refused:
        read_trace(str(tmp_path / "t"))
    assert refused.value.line in [i + 1 for i in bad]
    trace = read_trace(str(tmp_path / "t"), 512, Reading(skip_bad_lines=True))
    assert [row.at_ns for row in trace.rows] == [i * 10**9 for i in range(20_000) if i not in bad]
    assert "10 bad lines skipped, 19990 requests read" in trace.warnings[0]
    assert [int(warning.split(":")[2]) for warning in trace.warnings[1:]] == [i + 1 for i in bad]


def test_a_file_of_bad_lines_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("{}\n{}\n")
    with pytest.raises(TraceError, match="no fields"):
        read_trace(str(tmp_path / "t"), 512, Reading(skip_bad_lines=True))


def blocks(size: int, lengths: range) -> str:
    """A trace whose prompts have an id for each ``size`` tokens."""
    rows = [
        {"timestamp": 1000 * n, "input_length": x, "output_length": 1, "hash_ids": list(range(-(-x // size)))}
        for n, x in enumerate(lengths)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize("size", [24, 1000])
def test_a_block_size_that_is_no_power_of_two_is_found_or_asked_for(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x"
    path.write_text(blocks(size, range(3, 5 * size, size // 2 + 1)))  # rows that several sizes fit
    with pytest.raises(TraceError, match=r"one id stands for \d+ to \d+ tokens .*say workload.block_tokens") as caught:
        read_trace(str(path))
    least, greatest = (
        int(word) for word in str(caught.value).split("stands for ")[1].split(" tokens")[0].split(" to ")
    )
    assert least <= size <= greatest
    assert len(read_trace(str(path), block_tokens=size).rows) > 5
    path.write_text(blocks(size, range(size * 2, size * 2 + 2)))  # 2 sizes and the next prompt needs a block more
    assert read_trace(str(path)).block_tokens == size


def test_a_bad_line_does_not_hide_the_block_size(tmp_path: Path) -> None:
    path = tmp_path / "x"
    bad = '{"timestamp": 99, "input_length": 90, "output_length": 1, "hash_ids": [7]}\n'
    path.write_text(blocks(16, range(1, 200, 3)) + bad)
    trace = read_trace(str(path), how=Reading(skip_bad_lines=True))
    assert trace.block_tokens == 16
    assert len(trace.rows) == len(range(1, 200, 3))
    assert "1 bad lines skipped" in " ".join(trace.warnings)
    assert "has 1 ids, but input_length 90 needs 6 blocks of 16" in " ".join(trace.warnings)


def test_a_known_header_with_another_delimiter_is_known(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("TIMESTAMP;ContextTokens;GeneratedTokens\n2024-05-12 00:00:00+05:45;10;\n")
    (row,) = read_trace(str(path)).rows
    assert (row.input_length, row.output_length, row.no_output) == (10, 1, True)
    path.write_text("Timestamp\tModel\tRequest tokens\tResponse tokens\n5\tGPT-4\t10\t3\n")
    (row,) = read_trace(str(path)).rows
    assert (row.at_ns, row.input_length, row.output_length) == (5 * 10**9, 10, 3)
