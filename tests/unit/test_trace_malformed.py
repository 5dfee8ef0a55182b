"""Law: a trace that cannot be read ends in one TraceError with file, line and field; it is never loaded by half."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppsim.core.tokens import count
from ppsim.errors import EXIT_USAGE, TraceError
from ppsim.scenario.load import validate
from ppsim.workload import Workload, build_workload
from ppsim.workload.trace import SHIPPED, Trace, read_trace

GOOD = '{"timestamp": 0, "input_length": 600, "output_length": 2, "hash_ids": [0, 1]}\n'
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
ROW = "2023-11-16 18:17:03.9799600,4808,10\r\n"


def mooncake(**changes: object) -> str:
    """A good line, then one with these fields; None in place of a value drops the field."""
    fields = {"timestamp": 5, "input_length": 600, "output_length": 2, "hash_ids": [0, 1], **changes}
    return GOOD + json.dumps({key: value for key, value in fields.items() if value != "dropped"})


def azure(row: str) -> str:
    return HEADER + ROW + row + "\r\n"


MALFORMED = [
    # name, content, line, field, words of the message
    ("empty", "", 0, "file", "empty"),
    ("only blank lines", "\n \r\n\n", 0, "file", "empty"),
    ("binary", b"\x7fELF\x02\x01\x01\x00\x00", 1, "file", "not a text file"),
    ("gzip", b"\x1f\x8b\x08\x00abc", 1, "file", "as gzip it is damaged"),
    ("zstd", b"\x28\xb5\x2f\xfd\x00", 0, "file", "zstd -d"),
    ("zero byte in line 2", GOOD + "{\0}", 2, "file", "zero byte"),
    ("bad UTF-8 in line 2", GOOD.encode() + b"{\xff}", 2, "file", "0xff at offset 79"),
    ("neither format", "hello\n", 1, "format", "'hello'"),
    ("a field missing in an array", "[\n" + GOOD + ',\n{"timestamp": 0}]', 4, "input_length", "is missing"),
    ("an array that breaks off", "[" + GOOD + ",", 2, "json", "element 1 of the array is no JSON"),
    ("an array without commas", "[" + GOOD + GOOD, 2, "json", "expected ',' or ']'"),
    ("text behind an array", "[" + GOOD + "]\nmore", 3, "json", "text behind the array"),
    ("an array of numbers", "[1, 2]", 1, "format", "expected a JSON object"),
    ("fractions of what", mooncake(timestamp=0.25), 2, "timestamp", "workload.time_unit"),
    ("an empty conversation", '{"id": "a", "conversations": []}', 1, "conversations", "a list with something in it"),
    ("another CSV", "time,in,out\n1,2,3\n", 1, "format", "TIMESTAMP,ContextTokens"),
    ("broken JSON", GOOD + '{"timestamp": 1, "input', 2, "json", "at column"),
    ("a list for a line", GOOD + "[1, 2]", 2, "json", "expected a JSON object, got [1, 2]"),
    ("two objects in a line", GOOD + GOOD.strip() * 2, 2, "json", "Extra data"),
    ("NaN", GOOD + '{"timestamp": NaN}', 2, "json", "NaN"),
    ("deep nesting", GOOD + '{"timestamp": ' + "[" * 100_000, 2, "json", "nested too deeply"),
    ("five thousand digits", GOOD + '{"timestamp": ' + "1" * 5000 + "}", 2, "json", "digits"),
    ("impossible exponent", GOOD + '{"timestamp": 1e99999999999999999999}', 2, "json", "not a JSON object"),
    ("azure after mooncake", GOOD + ROW, 2, "json", "not a JSON object"),
    ("no timestamp", mooncake(timestamp="dropped"), 2, "timestamp", "is missing"),
    ("no input_length", mooncake(input_length="dropped"), 2, "input_length", "is missing"),
    ("no output_length", mooncake(output_length="dropped"), 2, "output_length", "is missing"),
    ("no hash_ids", mooncake(hash_ids="dropped"), 2, "hash_ids", "is missing"),
    ("empty object", GOOD + "{}", 2, "timestamp", "no fields"),
    ("timestamp a string", mooncake(timestamp="5"), 2, "timestamp", "got '5'"),
    ("timestamp true", mooncake(timestamp=True), 2, "timestamp", "got true"),
    ("timestamp null", mooncake(timestamp=None), 2, "timestamp", "got null"),
    ("timestamp negative", mooncake(timestamp=-1), 2, "timestamp", "got -1"),
    ("timestamp beyond the clock", mooncake(timestamp=10**18), 2, "timestamp", "ms, got 1000000000000000000"),
    ("timestamp a huge float", GOOD + '{"timestamp": 1e999, "input_length": 1, "output_length": 1, "hash_ids": [1]}',
     2, "timestamp", "got 1E+999"),
    ("length a string", mooncake(input_length="600"), 2, "input_length", "got '600'"),
    ("length true", mooncake(input_length=True, hash_ids=[0]), 2, "input_length", "expected an integer, got true"),
    ("length a float", mooncake(input_length=600.0), 2, "input_length", "expected an integer, got 600.0"),
    ("length zero", mooncake(input_length=0, hash_ids=[]), 2, "input_length", "positive number of tokens, got 0"),
    ("length negative", mooncake(input_length=-7), 2, "input_length", "got -7"),
    ("length enormous", mooncake(input_length=10**12), 2, "input_length", "at most"),
    ("length of 40 digits", mooncake(input_length=10**40), 2, "input_length", "30 digits"),
    ("output negative", mooncake(output_length=-1), 2, "output_length", "got -1"),
    ("output a list", mooncake(output_length=[2]), 2, "output_length", "got [2]"),
    ("ids too few", mooncake(hash_ids=[0]), 2, "hash_ids", "has 1 ids, but input_length 600 needs 2 blocks of 512"),
    ("ids too many", mooncake(hash_ids=[0, 1, 2]), 2, "hash_ids", "has 3 ids"),
    ("ids not a list", mooncake(hash_ids={"0": 1}), 2, "hash_ids", "expected a list"),
    ("id a string", mooncake(hash_ids=[0, "x"]), 2, "hash_ids", "entry 1: expected an integer"),
    ("id a float", mooncake(hash_ids=[0.5, 1]), 2, "hash_ids", "entry 0: expected an integer"),
    ("id negative", mooncake(hash_ids=[-1, 1]), 2, "hash_ids", "got -1"),
    ("id beyond 64 bits", mooncake(hash_ids=[0, 2**63]), 2, "hash_ids", "entry 1"),
    ("azure header alone", HEADER, 1, "file", "no requests"),
    ("azure column missing", "TIMESTAMP,ContextTokens\r\n", 1, "GeneratedTokens", "one column"),
    ("azure column twice", HEADER.strip() + ",ContextTokens\r\n", 1, "ContextTokens", "one column"),
    ("azure column in other letters", "timestamp,ContextTokens,GeneratedTokens\r\n", 1, "TIMESTAMP", "one column"),
    ("azure cell missing", azure("2023-11-16 18:17:04.0,5"), 3, "GeneratedTokens", "expected 3 cells"),
    ("azure cell too many", azure("2023-11-16 18:17:04.0,5,6,7"), 3, "line", "got 4"),
    ("azure no timestamp", azure(",5,6"), 3, "TIMESTAMP", "expected a moment"),
    ("azure epoch seconds", azure("1700158623.5,5,6"), 3, "TIMESTAMP", "expected a moment"),
    ("azure month 13", azure("2023-13-16 18:17:04,5,6"), 3, "TIMESTAMP", "month"),
    ("azure hour 25", azure("2023-11-16 25:17:04,5,6"), 3, "TIMESTAMP", "hour"),
    ("azure ten digits", azure("2023-11-16 18:17:04.1234567890,5,6"), 3, "TIMESTAMP", "expected a moment"),
    ("azure other digits", azure("2023-11-16 18:17:0४,5,6"), 3, "TIMESTAMP", "expected a moment"),
    ("azure years apart", azure("2423-11-16 18:17:04,5,6"), 3, "TIMESTAMP", "292 years"),
    ("azure length empty", azure("2023-11-16 18:17:04,,6"), 3, "ContextTokens", "expected an integer, got ''"),
    ("azure length a float", azure("2023-11-16 18:17:04,5.0,6"), 3, "ContextTokens", "got '5.0'"),
    ("azure length with separator", azure("2023-11-16 18:17:04,1_000,6"), 3, "ContextTokens", "got '1_000'"),
    ("azure length zero", azure("2023-11-16 18:17:04,0,6"), 3, "ContextTokens", "got 0"),
    ("azure output negative", azure("2023-11-16 18:17:04,5,-6"), 3, "GeneratedTokens", "got -6"),
    ("azure open quote", azure('"2023-11-16 18:17:04,5,6'), 3, "line", "not a line of CSV"),
]  # fmt: skip


def write(folder: Path, content: str | bytes) -> str:
    path = folder / "trace"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def build(path: str, **keys: object) -> Workload:
    return build_workload(validate({"workload": {"source": "trace", "trace": path, **keys}}))


@pytest.mark.parametrize(
    ("content", "line", "field", "words"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED]
)
def test_a_malformed_trace_names_file_line_and_field(
    tmp_path: Path, content: str | bytes, line: int, field: str, words: str
) -> None:
    path = write(tmp_path, content)
    with pytest.raises(TraceError) as refused:
        build(path)
    error, text = refused.value, str(refused.value)
    assert (error.path, error.line, error.field) == (path, line, field)
    assert words in text
    assert text.startswith(f"{path}:{line}: field '{field}'" if line else f"{path}: ")
    assert "\n" not in text
    assert len(text) < len(path) + 220
    assert error.exit_code == EXIT_USAGE


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path, words in (
        (tmp_path / "missing.jsonl", "does not exist"),
        (tmp_path, "is a directory"),
        ("", "is a directory"),
        ("/dev/zero", "is a device"),
        ("nul\0byte", "does not exist|cannot be read"),
        ("x" * 5000, "cannot be read"),
    ):
        with pytest.raises(TraceError, match=words) as refused:
            build(str(path))
        assert refused.value.line == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read any file")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    os.chmod(path, 0)
    with pytest.raises(TraceError, match="cannot be read"):
        build(path)


# --- what is accepted ------------------------------------------------------------------------------------------


def test_an_unsorted_trace_is_sorted_stably_with_a_warning(tmp_path: Path) -> None:
    at_ms = [0, 9, 3, 9, 3, 4]
    path = write(tmp_path, "".join(GOOD.replace('"timestamp": 0', f'"timestamp": {t}') for t in at_ms))
    w = build(path)
    assert [(a.request.rid, a.at_ns) for a in w.arrivals] == [
        (f"R{n}", t * 10**6) for n, t in [(1, 0), (3, 3), (5, 3), (6, 4), (2, 9), (4, 9)]
    ]
    (warning,) = w.warnings
    assert "2 of 6 requests" in warning
    assert "line 3" in warning


def test_an_unsorted_azure_trace_starts_with_its_earliest_row(tmp_path: Path) -> None:
    path = write(tmp_path, HEADER + "2024-02-28 23:59:59.5,1,1\r\n2024-02-28 23:59:59.2500001,2,1\r\n")
    w = build(path)
    assert [(a.at_ns, count(a.request.prompt)) for a in w.arrivals] == [(0, 2), (249_999_900, 1)]
    assert len(w.warnings) == 1


def test_harmless_spelling_is_accepted(tmp_path: Path) -> None:
    second = mooncake(timestamp=0.25, type="text").split("\n")[1].replace("text", "a line\u2028separator in a string")
    good = "\ufeff" + GOOD.replace("\n", "\r\n") + "\r\n" + second
    assert [a.at_ns for a in build(write(tmp_path, good), time_unit="ms").arrivals] == [0, 250_000]
    azure_2024 = (
        "\ufeffGeneratedTokens,Model,ContextTokens,TIMESTAMP\n"
        "7,a,11,2024-02-29 23:59:59.999999+00:00\n"
        '8,"b,c",12,2024-03-01T00:00:00Z'
    )
    came = build(write(tmp_path, azure_2024)).arrivals
    assert [(a.at_ns, count(a.request.prompt), a.output_length) for a in came] == [(0, 11, 7), (1000, 12, 8)]


def test_block_tokens_says_how_many_ids_a_prompt_has(tmp_path: Path) -> None:
    path = write(tmp_path, '{"timestamp": 0, "input_length": 33, "output_length": 1, "hash_ids": [5, 6, 7]}')
    section = {"source": "trace", "trace": path, "block_tokens": 16}
    (a,) = build_workload(validate({"workload": section})).arrivals
    assert count(a.request.prompt) == 33


# --- never by half ---------------------------------------------------------------------------------------------


def test_a_trace_cut_inside_a_line_is_refused_at_that_line(tmp_path: Path) -> None:
    content = (GOOD * 3).encode()
    for cut in range(1, len(content) + 1):
        num_whole, rest = divmod(cut, len(GOOD))
        path = write(tmp_path, content[:cut])
        if rest in (0, len(GOOD) - 1):
            assert len(read_trace(path, 512).rows) == num_whole + (rest > 0)
        else:
            with pytest.raises(TraceError) as refused:
                read_trace(path, 512)
            assert refused.value.line == num_whole + 1


def read_or_refuse(path: str) -> Trace | None:
    try:
        return read_trace(path, 512)
    except TraceError:
        return None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), start=st.sampled_from(["", GOOD, HEADER]))
def test_any_bytes_give_rows_or_a_trace_error(tmp_path: Path, content: bytes, start: str) -> None:
    trace = read_or_refuse(write(tmp_path, start.encode() + content))
    if trace is not None:
        lines = [line for line in (start.encode() + content).decode("utf-8-sig").split("\n") if line.strip()]
        assert len(trace.rows) == len(lines) - (start == HEADER)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from([GOOD, mooncake().splitlines()[1] + "\n"]), min_size=1, max_size=3)
    | st.lists(st.just(ROW), min_size=1, max_size=3).map(lambda rows: [HEADER, *rows]),
    edits=st.lists(st.tuples(st.integers(0, 300), st.sampled_from('0-9.,"{}[]:eE+ x\0é')), min_size=1, max_size=3),
)
def test_a_damaged_trace_gives_all_rows_or_a_trace_error(
    tmp_path: Path, lines: list[str], edits: list[tuple[int, str]]
) -> None:
    text = "".join(lines)
    for place, character in edits:
        place %= len(text)
        if text[place] != "\n":
            text = text[:place] + character + text[place + 1 :]
    trace = read_or_refuse(write(tmp_path, text))
    if trace is not None:
        assert len(trace.rows) == len(lines) - (lines[0] == HEADER)
        assert all(row.input_length > 0 and row.output_length > 0 and row.at_ns >= 0 for row in trace.rows)


def test_the_shipped_trace_reads_without_a_warning() -> None:
    trace = read_trace(None, 512)
    assert (trace.path, trace.warnings) == (SHIPPED, ())
