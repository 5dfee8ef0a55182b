"""``ppsim conform``: twenty runs of SGLang's own scheduler (tests/data), and files that are no recording."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.conform import Difference, RecordedRun, config_of, first_difference, read_runs
from ppsim.conform.format import Wrong, fields_of_a_visit, run_of
from ppsim.errors import TraceError
from tests.unit.rule_mutants import KEYS, MUTANTS, Mutant, without_key

DATA = Path(__file__).resolve().parents[1] / "data"
TWENTY = DATA / "sglang_runs.jsonl.gz"
EIGHTY = Path(__file__).resolve().parents[3] / "shared" / "data" / "sglang" / "runs" / "scheduler.jsonl"


@cache
def twenty() -> tuple[RecordedRun, ...]:
    return tuple(read_runs(str(TWENTY)))


@cache
def first_line() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(gzip.decompress(TWENTY.read_bytes()).split(b"\n")[0])
    return made


# --- right -------------------------------------------------------------------------------------------------------


def test_every_field_of_every_visit_of_twenty_runs_is_as_sglang_decided() -> None:
    assert len(twenty()) == 20
    assert [first_difference(run) for run in twenty()] == [None] * 20


@pytest.mark.skipif(not EIGHTY.exists(), reason="the eighty runs are not part of the repository")
def test_all_eighty_recorded_runs_are_equal() -> None:
    runs = read_runs(str(EIGHTY))
    assert [d for d in map(first_difference, runs) if d is not None] == []
    assert len(runs) == 80


@pytest.mark.parametrize("rule", [rule for rule in KEYS if rule != "9b"])
def test_without_a_rule_that_has_a_key_some_of_the_twenty_differ(rule: str) -> None:
    found = [first_difference(run, without_key(config_of(run), rule)) for run in twenty()]
    assert any(found)
    assert not all(found)


@pytest.mark.parametrize("rule", ["1a", "3a", "3b", "3c"])
def test_without_another_rule_some_of_the_twenty_differ(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant: Mutant = MUTANTS[rule]
    mutant(monkeypatch)
    assert any(first_difference(run) for run in twenty())


# --- a difference ------------------------------------------------------------------------------------------------

OTHER: dict[str, Any] = {
    "mode": "decode",
    "pieces": (("R0", 0, 1),),
    "retracted": ("R0",),
    "aborted": ("R0",),
    "chunked": "R3",
    "waiting": ("R0", "R0"),
    "running": ("R0", "R0"),
    "full": None,
    "ratio": 0.123,
    "free": 1,
    "ev": 1,
    "free2": 1,
    "ev2": 1,
}


@pytest.mark.parametrize("field", list(fields_of_a_visit()))
def test_any_field_of_any_visit_that_differs_is_named_with_both_values(field: str) -> None:
    run = twenty()[0]
    number = next(i for i, v in enumerate(run.visits) if v.mode == "extend")
    visit = run.visits[number]
    other = (not visit.full) if field == "full" else OTHER[field]
    visits = (*run.visits[:number], replace(visit, **{field: other}), *run.visits[number + 1 :])
    found = first_difference(replace(run, visits=visits))
    right = getattr(visit, field)
    assert isinstance(found, Difference)
    assert (found.seed, found.line, found.visit, found.field, found.recorded) == (run.seed, 1, number, field, other)
    assert float(found.here) == pytest.approx(right, abs=1e-9) if field == "ratio" else found.here == right


def conform(path: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["conform", str(path), *options])
    return result.exit_code, result.output


def test_the_command_says_equal_and_ends_with_0() -> None:
    code, output = conform(TWENTY)
    assert (code, output.split(" are equal")[0]) == (0, "20 of 20 runs")


def test_the_command_names_the_first_difference_of_each_run_and_ends_with_1(tmp_path: Path) -> None:
    lines = gzip.decompress(TWENTY.read_bytes()).decode().split("\n")[:3]
    raw = [json.loads(line) for line in lines]
    raw[1]["visits"][5]["ratio"] = 0.5
    raw[2]["visits"][9]["waiting"] = ["R0"]
    raw[2]["visits"][10]["waiting"] = ["R0"]
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(run) + "\n" for run in raw))
    code, output = conform(path)
    assert code == 1
    assert f"run {raw[1]['seed']} (line 2) differs in visit 5, field ratio:\n  recorded  0.5\n" in output
    assert f"run {raw[2]['seed']} (line 3) differs in visit 9, field waiting:\n" in output
    assert "1 of 3 runs are equal" in output
    code, output = conform(path, "--json")
    report = json.loads(output)
    assert code == 1
    assert report["num_equal"] == 1
    assert [run["equal"] for run in report["runs"]] == [True, False, False]
    assert report["runs"][1]["recorded"] == 0.5
    assert report["runs"][1]["field"] == "ratio"


def test_a_request_that_is_refused_here_is_said() -> None:
    run = twenty()[0]
    greedy = replace(run.requests[0], max_new_tokens=10**6)
    found = first_difference(replace(run, requests=(greedy, *run.requests[1:])))
    assert found is not None
    assert "was refused here: " in found.note


# --- no recording --------------------------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], object]


def at(*path: Any, to: Any) -> Change:
    """Set what stands at a path."""

    def change(run: dict[str, Any]) -> None:
        target: Any = run
        for step in path[:-1]:
            target = target[step]
        target[path[-1]] = to

    return change


def gone(*path: Any) -> Change:
    def change(run: dict[str, Any]) -> None:
        target: Any = run
        for step in path[:-1]:
            target = target[step]
        del target[path[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (at("version", to=2), "version"),
        (at("version", to="1"), "version"),
        (at("seed", to=1.5), "seed"),
        (gone("seed"), "seed"),
        (at("more", to=1), "more"),
        (gone("config", "page_size"), "config.page_size"),
        (at("config", "page_size", to=0), "config.page_size"),
        (at("config", "page_size", to=10**6), "config.page_size"),
        (at("config", "pp_size", to=10**9), "config.pp_size"),
        (at("config", "max_running_requests", to=10**12), "config.max_running_requests"),
        (at("config", "schedule_policy", to="random"), "config.schedule_policy"),
        (at("config", "schedule_policy", to=["fcfs"]), "config.schedule_policy"),
        (at("config", "radix_cache", to=1), "config.radix_cache"),
        (at("config", "tp_size", to=1), "config.tp_size"),
        (at("config", "chunk_table", to=[[4, 2], [3, 1]]), "config.chunk_table"),
        (at("config", "chunk_table", to=[[4]]), "config.chunk_table[0]"),
        (at("config", to=[]), "config"),
        (at("requests", to={}), "requests"),
        (at("requests", 0, "prompt", to=[]), "requests[0].prompt"),
        (at("requests", 0, "prompt", to=[-1]), "requests[0].prompt[0]"),
        (at("requests", 0, "prompt", to=[2**32]), "requests[0].prompt[0]"),
        (at("requests", 0, "prompt", to=[True]), "requests[0].prompt[0]"),
        (at("requests", 0, "max_new_tokens", to=-1), "requests[0].max_new_tokens"),
        (at("requests", 0, "at_iteration", to=-3), "requests[0].at_iteration"),
        (at("requests", 0, "at_iteration", to=10**6), "requests[0].at_iteration"),
        (at("requests", 1, "rid", to="R0"), "requests[1].rid"),
        (at("requests", 0, "rid", to=""), "requests[0].rid"),
        (at("requests", 0, "colour", to="red"), "requests[0].colour"),
        (at("requests", 0, "samples", to=[0]), "requests[0].samples"),
        (at("requests", 1, "samples", to=[]), "requests[1].samples"),
        (at("visits", to=[]), "visits"),
        (at("visits", 3, "mode", to="prefill"), "visits[3].mode"),
        (at("visits", 3, "pieces", to=[]), "visits[3].pieces"),
        (at("visits", 0, "pieces", to=[["R0", 0, 1]]), "visits[0].pieces"),
        (at("visits", 3, "pieces", to=[["R0", 0]]), "visits[3].pieces[0]"),
        (at("visits", 3, "pieces", to=[["R0", 0, -1]]), "visits[3].pieces[0][2]"),
        (at("visits", 3, "pieces", to=[["R0", 0, 1], ["R0", 1, 1]]), "visits[3].pieces"),
        (at("visits", 3, "waiting", to=["R99"]), "visits[3].waiting"),
        (at("visits", 3, "running", to="R0"), "visits[3].running"),
        (at("visits", 3, "ratio", to=-0.5), "visits[3].ratio"),
        (at("visits", 3, "ratio", to="0.7"), "visits[3].ratio"),
        (at("visits", 3, "free", to=10**7), "visits[3].free"),
        (at("visits", 3, "free2", to=1.0), "visits[3].free2"),
        (at("visits", 3, "full", to=0), "visits[3].full"),
        (gone("visits", 3, "ev2"), "visits[3].ev2"),
        (at("visits", 3, to=None), "visits[3]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_a_recording_is_refused_with_line_and_field(change: Change, field: str, tmp_path: Path) -> None:
    run = copy.deepcopy(first_line())
    change(run)
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(first_line()) + "\n" + json.dumps(run) + "\n")
    code, output = conform(path)
    assert code == 2, output
    assert output.startswith(f"ppsim: {path}:2: field '{field}': "), output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "holds no run"),
        (b"\n \n", "holds no run"),
        (b"[1, 2]\n", "expected an object"),
        (b"nothing\n", "is not JSON at column 1"),
        (b'{"seed": 1, "seed": 2}\n', "stands twice"),
        (b'{"seed": NaN}\n', "NaN is no number"),
        (b'{"seed": -Infinity}\n', "-Infinity is no number"),
        (b'{"seed": ' + b"9" * 5000 + b"}\n", "is not JSON"),
        (b"[" * 100_000 + b"\n", "nested too deeply"),
        (b"\xff\xfe\n", "is not text"),
    ],
)
def test_what_is_no_json_is_refused_with_its_line(text: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_bytes(text)
    code, output = conform(path)
    assert code == 2
    assert problem in output
    assert str(path) in output
    assert "Traceback" not in output


def test_a_line_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(first_line())[:-40])
    code, output = conform(path)
    assert code == 2
    assert f"{path}:1:" in output
    assert "cut off" in output


@pytest.mark.parametrize(
    "data",
    [b"plain", gzip.compress(b"x" * 1000, mtime=0)[:-9], b"\x1f\x8b\x08\x00garbage"],
    ids=["text", "cut off", "no gzip behind its mark"],
)
def test_what_is_no_whole_gzip_file_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl.gz"
    path.write_bytes(data)
    code, output = conform(path)
    assert code == 2
    assert "zip" in output
    assert "Traceback" not in output


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        code, output = conform(path)
        assert code == 2
        assert "Traceback" not in output


def test_a_missing_version_is_version_1(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps({"version": 1, **first_line()}) + "\n")
    assert "version" not in first_line()
    assert conform(path)[0] == 0


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 12),
    st.sampled_from([2**31, 2**62, 2**63, 0.5, 1e300, "", "R0", "R1", "fcfs", "lpm", [], {}, ["R0"], [[0, 1]]]),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[place for key, inner in items for place in places(inner, (*path, key))]] if path or items else []


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.data())
def test_whatever_stands_anywhere_ends_in_a_difference_or_in_one_message(data: st.DataObject) -> None:
    """Any value at any place of a run: it is equal, it differs, or it is refused; nothing else is raised."""
    run = copy.deepcopy(first_line())
    run["visits"] = run["visits"][:12]
    for _ in range(data.draw(st.integers(1, 3))):
        every = [place for place in places(run) if place]
        at(*data.draw(st.sampled_from(every)), to=data.draw(VALUES))(run)
    with contextlib.suppress(Wrong, TraceError):
        first_difference(run_of("runs.jsonl", 1, json.loads(json.dumps(run))))
