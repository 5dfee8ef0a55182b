"""Law: every number of a scenario may be anything: it is refused with its key, its bound and its value, or it runs.

Each numeric key of the tree is tried where it matters (``test_scenario_keys``), one value at a time. No value may end
in a traceback, hang, or take all the memory.
"""

from __future__ import annotations

import copy
import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ppsim.cli.every_report import write_and_read
from ppsim.errors import PpsimError, ScenarioError
from ppsim.fuzz.limit import Limit
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import section_in, validate
from ppsim.scenario.tree import Scenario as Tree
from ppsim.workload import build_workload
from ppsim.world import simulate
from tests.unit.test_scenario_keys import KEYS
from tests.worlds.making import scenario

INF = float("inf")
BEYOND: tuple[float, ...] = (
    -(10**30),
    -1e300,
    -INF,
    2**63,
    2**64,
    10**30,
    1e300,
    1.7976931348623157e308,
    INF,
    math.nan,
)
"""No key takes these, but for those of ``TAKES``."""
WITHIN: tuple[float, ...] = (-1, 0, 5e-324, 1e-300, 1e-12, 1e-6, 1, 10**4, 10**5, 10**6, 10**9, 1e12, 2**31 - 1, 2**31)
"""These may run, be refused by the key's bound, or contradict something else."""
TAKES = {"seed": (2**63,)}
SLOW = {"cluster.pp_size": (10**4,)}  # nothing: a thousand stages do run, but not in a second
GIB = 2**30


def is_numeric(annotation: Any) -> bool:
    if annotation in (int, float):
        return True
    return any(is_numeric(part) for part in getattr(annotation, "__args__", ()))


def field_of(key: str) -> Any:
    model: type[BaseModel] | None = Tree
    field = None
    for part in key.split("."):
        assert model is not None
        field = model.model_fields[part]
        model = section_in(field.annotation)
    assert field is not None
    return field.annotation


# What [expect] says steers no run and lies under names of the user's own: test_expect.py has its bad values.
NUMERIC = sorted(key for key in KEYS if is_numeric(field_of(key)) and not key.startswith("expect."))


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(inner) for key, inner in value.items() if inner is not None}
    return [without_none(inner) for inner in value] if isinstance(value, list) else value


def with_value(key: str, value: float) -> tuple[dict[str, Any], str]:
    """The scenario in which the key matters, with another value of it; and the dotted place of that value."""
    case = KEYS[key]
    raw = without_none(copy.deepcopy(scenario({**case.base, **case.change}, {}).model_dump(mode="json")))
    if key != "run.max_iterations":
        raw["run"]["max_iterations"] = 150
    node, place = raw, []
    parts = key.split(".")
    for part in parts[:-1]:
        node, place = node[part], [*place, part]
        if isinstance(node, list):
            node, place = node[0], [*place, "0"]
    if isinstance(node.get(parts[-1]), list):
        node[parts[-1]] = [value, *node[parts[-1]][1:]]
        place.append(parts[-1])
        return raw, ".".join([*place, "0"])
    node[parts[-1]] = value
    return raw, ".".join([*place, parts[-1]])


@contextmanager
def little_memory(num_bytes: int) -> Iterator[None]:
    """No more than so many bytes beyond what the process has: else MemoryError."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(raw: dict[str, Any]) -> PpsimError | None:
    """What refuses the scenario; None if it runs, and everything that it leaves can be written and read."""
    limit = Limit(60.0)
    try:
        with little_memory(2 * GIB), limit:
            made = validate(raw)
            check_scenario(made)
            result = simulate(made, began=limit.began)
            assert result.verdict.kind in ("pass", "fail", "unknown")
            if result.verdict.kind == "pass":
                write_and_read(made, result)
    except PpsimError as error:
        return error
    return None


@pytest.mark.parametrize("key", NUMERIC)
def test_a_value_that_no_key_takes_is_refused_with_key_bound_and_value(key: str) -> None:
    for value in BEYOND:
        if value in TAKES.get(key, ()):
            continue
        raw, place = with_value(key, value)
        error = outcome(raw)
        assert isinstance(error, ScenarioError), f"{key} = {value!r} is taken"
        assert error.field == place, f"{key} = {value!r}: {error}"
        assert any(word in error.problem for word in ("must be",)), str(error)
        assert repr(value) in str(error) or f"{value:g}" in str(error), f"{key} = {value!r}: {error}"
        assert len(str(error)) < 300


@pytest.mark.parametrize("key", NUMERIC)
def test_any_other_value_runs_or_is_refused(key: str) -> None:
    for value in WITHIN:
        raw, _ = with_value(key, value)
        error = outcome(raw)
        assert error is None or 10 < len(str(error)) < 500, f"{key} = {value!r}: {error}"


# --- what is no number of one key -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"num_requests": 200_000, "input_length": {"value": 16_777_216, "max": 16_777_216}},
            "the first 33 requests",
        ),
        ({"num_requests": 200_000, "input_length": {"value": 131_072}}, "the first 4097 requests have 537001984"),
    ],
)
def test_prompts_that_no_memory_holds_are_refused_before_they_are_made(changes: dict[str, Any], says: str) -> None:
    with little_memory(3 * GIB), pytest.raises(ScenarioError, match=says) as caught:
        build_workload(validate({"workload": {"source": "generated", **changes}}))
    assert caught.value.field == "workload"
    assert "a run may hold 536870912 (fewer requests (workload.num_requests), or shorter prompts)" in str(caught.value)


def test_prompts_of_a_script_and_of_a_trace_are_counted_too(tmp_path: Path) -> None:
    long = [{"rid": f"R{n}", "prompt": 16_777_216} for n in range(40)]
    with little_memory(3 * GIB), pytest.raises(ScenarioError, match="the first 33 requests"):
        build_workload(validate({"workload": {"source": "requests", "requests": long}}))
    row = {"timestamp": 1, "input_length": 2**24, "output_length": 2, "hash_ids": list(range(2**15))}
    (tmp_path / "t.jsonl").write_text((json.dumps(row) + "\n") * 40)
    with little_memory(3 * GIB), pytest.raises(ScenarioError, match="the first 33 requests"):
        build_workload(validate({"workload": {"source": "trace", "trace": str(tmp_path / "t.jsonl")}}))


def test_ranks_beyond_those_that_a_recording_holds_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"8 on each of 1024 stages are 8192 ranks, at most 4096"):
        check_scenario(
            validate({"cluster": {"pp_size": 1024, "tp_size": 8, "tp_replicas": 8}, "cost": {"source": "unit"}})
        )


def test_a_clock_that_passes_all_time_ends_the_run() -> None:
    """A pass of 31 years each: the tenth of them is beyond 2**63 ns."""
    raw = {
        "cluster": {"pp_size": 1},
        "cost": {"source": "unit", "unit_ms": 1e12},
        "workload": {"requests": [{"rid": "R1", "prompt": 4, "output": 50}]},
    }
    made = validate(raw)
    result = simulate(made)
    assert (result.verdict.kind, result.verdict.exit_code, result.verdict.rank) == ("unknown", 5, 0)
    assert "its clock shows 1e+19 ns, more than the 292 years of 9223372036854775807" in result.verdict.message
    assert result.verdict.iteration == 10
