"""Law: a file that somebody else wrote is read, or refused with one sentence and exit code 2; never a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.errors import ScenarioError
from ppsim.parsing import parse_json, parse_toml
from ppsim.scenario.load import validate

DIGITS = "9" * 5000
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def refused(result: Result, says: str) -> None:
    assert result.exit_code == 2, f"{result.stdout}\n{result.stderr}"
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.splitlines()
    assert line.startswith("ppsim: ")
    assert says in line
    assert len(line) < 600


# --- TOML ----------------------------------------------------------------------------------------------------------

BAD_TOML: dict[str, tuple[bytes, str]] = {
    "many digits": (f"seed = {DIGITS}\n".encode(), "a number of thousands of digits"),
    "many digits, negative": (f"seed = -{DIGITS}\n".encode(), "a number of thousands of digits"),
    "many hexadecimal digits": (f"seed = 0x{'f' * 5000}\n".encode(), "a number of thousands of digits"),
    "many digits in an array": (f"[workload]\nrequests = [{{a = {DIGITS}}}]\n".encode(), "a number of thousands"),
    "deep arrays": (f"bugs = {DEEP}\n".encode(), "nested too deeply"),
    "a key of many parts": (b".".join([b"a"] * 50_000) + b" = 1\n", "nested too deeply"),
    "a table of many parts": (b"[" + b".".join([b"a"] * 50_000) + b"]\n", "nested too deeply"),
    "deep tables": (b"a = " + b"{a = " * 5000 + b"1" + b"}" * 5000, "nested too deeply"),
    "many dots": (b"a" + b".a" * 20_000 + b" = 1\n", "a"),
    "deep but readable": (b"bugs = " + b"[" * 400 + b"]" * 400, ""),
    "not UTF-8": (b'name = "\xff\xfe"\n', "line 1: byte 0xff is not UTF-8"),
    "UTF-16": ('name = "a"\n'.encode("utf-16-le"), "UTF-16 without a byte-order mark"),
    "a zero byte": (b'name = "a\0b"\n', "a zero byte is no text"),
    "only zero bytes": (b"\0" * 100, "a zero byte is no text"),
    "a long key": (b"a" * 100_000 + b" = 1\n", "unknown key"),
    "a date": (b"seed = 1979-05-27\n", "seed"),
    "no number": (b"seed = nan\n", "seed"),
}


def test_too_deep_is_said_where_python_itself_goes_deeper() -> None:
    """A library may have raised Python's own limit; the reader of the scenario has one of its own."""
    deep: dict[str, object] = {}
    for _ in range(1000):
        deep = {"a": deep}
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        with pytest.raises(ScenarioError, match="nested too deeply"):
            validate(deep)
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("name", BAD_TOML)
@pytest.mark.parametrize("command", ["run", "explore", "tune", "export", "exec"])
def test_a_scenario_that_cannot_be_read_is_bad_input_in_every_command(name: str, command: str) -> None:
    content, says = BAD_TOML[name]
    Path("s.toml").write_bytes(content)
    refused(ppsim(command, "s.toml"), says)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (f"seed={DIGITS}", "--set seed=...: it holds a number of thousands of digits"),
        (f"bugs={DEEP}", "--set bugs=...: it is nested too deeply"),
        ("bugs=" + "[" * 400 + "]" * 400, ""),
        (f"cluster.pp_size=[{DIGITS}]", "a number of thousands of digits"),
        ("seed=" + "x" * 5000, "seed"),
        ("x" * 5000 + "=1", "unknown key"),
        (".".join("x" * 5000) + "=1", ""),
    ],
)
def test_an_override_that_cannot_be_read_is_bad_input(value: str, says: str) -> None:
    refused(ppsim("run", "unit", "--set", value), says)


@pytest.mark.parametrize("name", BAD_TOML)
def test_a_list_of_scenarios_tells_of_one_that_cannot_be_read_and_goes_on(name: str) -> None:
    Path("scenarios").mkdir()
    Path("scenarios/bad.toml").write_bytes(BAD_TOML[name][0])
    Path("scenarios/good.toml").write_text('description = "a good one"\n')
    result = ppsim("list", "scenarios")
    assert result.exit_code == 0, result.stderr
    assert "a good one" in result.stdout
    assert "Traceback" not in result.stderr


# --- JSON ----------------------------------------------------------------------------------------------------------

BAD_JSON: dict[str, bytes] = {
    "many digits": f'{{"hidden_size": {DIGITS}}}'.encode(),
    "deep": DEEP.encode(),
    "deep inside": b'{"a": ' + DEEP.encode() + b"}",
    "deep objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "not UTF-8": b'{"a": "\xff"}',
    "zero bytes": b'{"a": \0}',
    "nothing": b"",
    "cut off": b'{"a": [1, 2',
    "another thing": b"[1, 2, 3]",
    "a number": b"7",
    "no number": b'{"hidden_size": NaN}',
    "huge": b'{"hidden_size": 1e999}',
}


def a_config(content: bytes) -> Result:
    Path("config.json").write_bytes(content)
    return ppsim("volumes", "--model", "config.json", "--tokens", "1000")


def a_folder_with_a_config(content: bytes) -> Result:
    Path("config.json").write_bytes(content)
    return ppsim("run", "unit", "--set", "cost.source=roofline", "--set", "model.key=.", "--set", "gpu.key=h100")


def a_recording(content: bytes) -> Result:
    Path("r.jsonl").write_bytes(content + b"\n")
    return ppsim("show", "r.jsonl")


def a_line_of_a_recording(content: bytes) -> Result:
    assert ppsim("run", "unit", "--out", "whole").exit_code == 0
    lines = Path("whole/recording.jsonl").read_bytes().splitlines()
    lines[3] = content.replace(b"\n", b"")
    Path("whole/recording.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return ppsim("show", "whole", "--schedule")


def a_verdict(content: bytes) -> Result:
    assert ppsim("run", "unit", "--out", "whole").exit_code == 0
    Path("whole/verdict.json").write_bytes(content)
    return ppsim("show", "whole")


def a_trace(content: bytes) -> Result:
    Path("t.jsonl").write_bytes(content)
    return ppsim("run", "mooncake", "--trace", "t.jsonl")


def a_reproduction(content: bytes) -> Result:
    Path("r.json").write_bytes(content)
    return ppsim("replay", "r.json")


def measurements(content: bytes) -> Result:
    Path("m.jsonl").write_bytes(content)
    return ppsim("fit", "m.jsonl")


READERS: tuple[Callable[[bytes], Result], ...] = (
    a_config,
    a_folder_with_a_config,
    a_recording,
    a_line_of_a_recording,
    a_verdict,
    a_trace,
    a_reproduction,
    measurements,
)


@pytest.mark.parametrize("name", BAD_JSON)
@pytest.mark.parametrize("reader", READERS)
def test_json_that_cannot_be_read_is_bad_input(name: str, reader: Callable[[bytes], Result]) -> None:
    result = reader(BAD_JSON[name])
    if reader is measurements:  # it says what it found in what it can read
        assert result.exit_code == 2, result.stderr
        assert "Traceback" not in result.stderr
    else:
        refused(result, "")


@pytest.mark.parametrize("number", [10**30, -(10**30), 10**400, 0, -1])
def test_a_config_with_impossible_sizes_is_refused_with_its_field(number: int) -> None:
    config = {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
    }
    for field in config:
        refused(a_config(json.dumps({**config, field: number}).encode()), f"{field}: must be ")


def test_a_recording_with_impossible_numbers_is_refused_with_its_line() -> None:
    assert ppsim("run", "unit", "--out", "whole").exit_code == 0
    text = Path("whole/recording.jsonl").read_text()
    first = next(line for line in text.splitlines() if line.startswith('["span"'))
    row = json.loads(first)
    row[-1] = 10**400
    Path("whole/recording.jsonl").write_text(text.replace(first, json.dumps(row, separators=(",", ":"))))
    refused(ppsim("show", "whole"), "field 'span.end_ns': expected an integer of at most 128 bits, got 1000")


def test_an_example_of_a_database_that_cannot_be_read_is_dropped() -> None:
    from ppsim.fuzz.database import parsed

    for name, content in BAD_JSON.items():
        assert parsed(content) is None, name


# --- the parsers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parse", [parse_json, parse_toml])
def test_whatever_is_wrong_is_a_value_error_of_one_line(parse: Callable[[str], object]) -> None:
    for content in (DIGITS, DEEP, "\0", "a = ", '{"a": ', f"a = {DIGITS}", f"a = {DEEP}"):
        with pytest.raises(ValueError, match=r"^[^\n]+\Z"):
            parse(content)
    assert parse_json('{"a": [1, 2.5, null]}') == {"a": [1, 2.5, None]}
    assert parse_toml("a = [1, 2.5]\n") == {"a": [1, 2.5]}
