"""Readers of measured chunks: CSV with a header, JSON lines; a bad line is named with file, line and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from ppsim.cost.samples import Sample, read_samples
from ppsim.errors import ScenarioError, TraceError


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_csv_and_json_lines_give_the_same_samples(tmp_path: Path) -> None:
    table = write(tmp_path, "a.csv", "prefix,new_tokens,time_ms\n0,4096,120.5\n4096, 4096, 130\n")
    lines = write(
        tmp_path,
        "a.jsonl",
        '{"prefix": 0, "new_tokens": 4096, "time_ms": 120.5}\n\n{"prefix": 4096, "new": 4096, "time_s": 0.13}\n',
    )
    assert read_samples(table) == read_samples(lines) == (Sample(0, 4096, 120.5), Sample(4096, 4096, 130.0))


@pytest.mark.parametrize(
    ("name", "factor"), [("time_ms", 1.0), ("latency_ms", 1.0), ("time_s", 1e3), ("time_us", 1e-3), ("time_ns", 1e-6)]
)
def test_units_come_from_the_name_of_the_column(tmp_path: Path, name: str, factor: float) -> None:
    path = write(tmp_path, "a.csv", f"Prefix_Len,Extend_Len,{name}\n5,7,2000\n")
    (sample,) = read_samples(path)
    assert (sample.prefix_len, sample.new_tokens) == (5, 7)
    assert sample.time_ms == pytest.approx(2000 * factor)


@pytest.mark.parametrize(
    ("row", "field", "problem"),
    [
        ("0,4096,-3", "time_ms", "must be a finite number >= 0, got '-3'"),
        ("0,4096,nan", "time_ms", "must be a finite number >= 0, got 'nan'"),
        ("0,4096,inf", "time_ms", "must be a finite number >= 0, got 'inf'"),
        ("0,4096,fast", "time_ms", "must be a number, got 'fast'"),
        ("0,0,1", "new_tokens", "must be a whole number >= 1, got '0'"),
        ("-1,5,1", "prefix", "must be a finite number >= 0, got '-1'"),
        ("0,2.5,1", "new_tokens", "must be a whole number >= 1, got '2.5'"),
        ("0,4096", "time_ms", "must be a finite number >= 0, got None"),
        ("0,4096,1,9", "columns", "1 more than the header has"),
    ],
)
def test_a_bad_row_is_named_with_its_line_and_field(tmp_path: Path, row: str, field: str, problem: str) -> None:
    path = write(tmp_path, "a.csv", f"prefix,new_tokens,time_ms\n0,64,1\n{row}\n")
    with pytest.raises(TraceError) as caught:
        read_samples(path)
    assert str(caught.value) == f"{path}:3: field '{field}': {problem}"


def test_missing_columns_and_broken_lines_are_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"a.csv:2: field 'time_ms': is missing; known names: time_ms"):
        read_samples(write(tmp_path, "a.csv", "prefix,new\n0,5\n"))
    with pytest.raises(TraceError, match=r"b.csv:2: field 'new': is missing"):
        read_samples(write(tmp_path, "b.csv", "prefix,time_ms\n0,5\n"))
    with pytest.raises(TraceError, match=r"c.jsonl:2: field 'line': is not JSON"):
        read_samples(write(tmp_path, "c.jsonl", '{"prefix": 0, "new": 4, "ms": 1}\n{"prefix": 0,\n'))
    with pytest.raises(TraceError, match=r"d.jsonl:2: field 'line': must be a JSON object, got list"):
        read_samples(write(tmp_path, "d.jsonl", '{"prefix": 0, "new": 4, "ms": 1}\n[1]\n'))


def test_empty_missing_and_binary_files_are_one_message(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="holds no sample"):
        read_samples(write(tmp_path, "a.csv", ""))
    with pytest.raises(ScenarioError, match="holds no sample"):
        read_samples(write(tmp_path, "b.csv", "prefix,new,time_ms\n"))
    with pytest.raises(ScenarioError, match="cannot be read: No such file"):
        read_samples(tmp_path / "none.csv")
    (tmp_path / "c.csv").write_bytes(b"\xff\x00\x81")
    with pytest.raises(ScenarioError, match="is no text: line 1: byte 0xff is not UTF-8"):
        read_samples(tmp_path / "c.csv")


@pytest.mark.parametrize("row", ['{"a":' + "[" * 50_000, "0," + "1" * 200_000 + ",3"])
def test_rows_that_no_reader_takes_are_one_message(tmp_path: Path, row: str) -> None:
    """Nested deeper than the JSON reader goes, a field longer than the CSV reader takes."""
    head = '{"prefix": 0, "new": 4, "ms": 1}' if row[0] == "{" else "prefix,new_tokens,time_ms"
    with pytest.raises(TraceError, match=r": field 'line': is not (JSON|CSV): "):
        read_samples(write(tmp_path, "a.txt", f"{head}\n{row}\n"))
