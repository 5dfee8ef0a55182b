"""From a scenario that was imported back to its line: what the scenario changed is changed in it, and nothing else."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from ppsim.errors import PpsimError
from ppsim.scenario.tree import Scenario
from ppsim.sglang import vllm
from ppsim.sglang.result import LaunchLine, plain
from ppsim.sglang.scenario import ROWS, Row, has_key, is_set, to_scenario
from ppsim.sglang.settle import settled
from ppsim.sglang.source import Source

Lines = tuple[str, list[str], list[str]]


def edited(scenario: Scenario) -> Lines | None:
    """The line that was given, changed to the scenario; the rows of the diff; what the engine has no flag for.

    None where there is no such line: the scenario was not imported, or describes both sides.
    """
    line = given_line(scenario)
    if line is None or line.source is None:
        return None
    source, without = line.source, []
    was = settled(to_scenario(line))["overrides"]
    for row in ROWS:
        if not has_key(row.key):
            continue
        now = attrgetter(row.key)(scenario)
        if row.name == "tp_size":
            cp = was.get("cluster.cp_size", 1)
            same = now * scenario.cluster.cp_size == was.get(row.key, 1) * cp
        elif row.key in was:
            same = plain(now) == was[row.key] or row.to_flag(now) == row.to_flag(was[row.key])
        else:
            same = not is_set(scenario, row.key) or now is None
        if not same and not change(source, line.engine, row, scenario, now):
            without.append(f"{row.key} = {plain(now)!r}: {line.engine} has no flag for it")
    if scenario.cluster.cp_size != was.get("cluster.cp_size", 1) and not source.change(
        "attn_cp_size", scenario.cluster.cp_size
    ):
        without.append(f"cluster.cp_size = {scenario.cluster.cp_size}: {line.engine} has no flag for it")
    return source.text, source.changes, without


def given_line(scenario: Scenario) -> LaunchLine | None:
    if scenario.launch_line is None or scenario.disaggregation.role == "pd":
        return None
    from ppsim.sglang.launch import read_launch

    try:
        lines = read_launch(scenario.launch_line)
    except PpsimError:
        return None
    return lines[0] if len(lines) == 1 and not lines[0].errors else None


def change(source: Source, engine: str, row: Row, scenario: Scenario, now: Any) -> bool:
    value, dest = row.to_flag(now), row.name
    if row.name == "tp_size":
        value *= scenario.cluster.cp_size
    if engine == "vllm":
        dest = next((own for own, name in vllm.NAMES.items() if name == row.name), row.name)
        if row.name == "chunked_prefill_size" and now == -1:
            return source.change("enable_chunked_prefill", False)
        if row.name == "max_prefill_tokens" and now == scenario.scheduler.chunked_prefill_size:
            return True  # one number for both
        value = not value if dest in vllm.NEGATED else value
    return source.change(dest, value)
