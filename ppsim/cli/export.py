"""``ppsim export``: the launch line of a scenario; of an imported one the line that was given, changed, with a diff."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption, ScenarioArg, SetOption, scenario_of, tell_unjudged

if TYPE_CHECKING:
    from ppsim.scenario import Scenario


@guarded
def export(scenario: ScenarioArg, overrides: SetOption = None, as_json: JsonOption = False) -> int:
    """Print the SGLang launch line of a scenario."""
    from ppsim.sglang.edit import edited
    from ppsim.sglang.launch import to_launch_line

    loaded = scenario_of(scenario, None, None, overrides)
    text, notes = to_launch_line(loaded), not_in_line(loaded)
    _, changes, without = edited(loaded) or (text, [], [])
    notes += without
    tell_unjudged(loaded, "export")
    if as_json:
        found = {"name": loaded.name, "sglang": text, "not_in_line": notes}
        print(json.dumps({**found, "changes": changes} if loaded.launch_line is not None else found))
        return 0
    print(text)
    for change in changes:
        say(f"changed: {change}")
    if loaded.launch_line is not None and not changes:
        say("unchanged: the line that was given")
    for note in notes:
        say(f"not in the line: {note}")
    return 0


def not_in_line(s: Scenario) -> list[str]:
    """What SGLang has no flag for, or what a command cannot say, although it changes the schedule."""
    from ppsim.scenario.rank import SGLANG, rule_set

    c, out = s.scheduler, []
    if s.model.path is None and s.model.key is None:
        out.append("model.path is not set: <MODEL_PATH> stands for it")
    if isinstance(c.max_total_tokens, tuple):
        out.append("scheduler.max_total_tokens differs between ranks: SGLang takes the smallest for all")
    for key, value in rule_set(c).items():
        if value != SGLANG[key]:
            out.append(f"scheduler.{key} = {str(value).lower()}: SGLang decides otherwise, and has no flag for it")
    for key in ("reserve_decode", "max_consecutive_prefills", "max_consecutive_chunks"):
        if getattr(c, key) != type(c).model_fields[key].default:
            out.append(f"scheduler.{key} = {getattr(c, key)!r}: SGLang has no flag for it")
    if c.chunk_planner != "sglang":
        out.append(f"scheduler.chunk_planner = {c.chunk_planner!r}: a planner of ppsim's own")
    if s.bugs:
        out.append(f"bugs = {list(s.bugs)}: planted ones")
    return out
