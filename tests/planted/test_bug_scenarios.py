"""Every handed public bug: its scenario passes with the right protocol and shows what the entry expects, and with its
planted bug it fails at the iteration, on the rank and with the invariant that its own ``[expect]`` names. What else it
shows is in ``bug_scenarios.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from typing import Any

import pytest

from ppsim.check.invariants import BY_NAME
from ppsim.plugin import all_bugs
from ppsim.recording import Recording
from ppsim.world import SimulationResult
from tests.planted.catalogue import BARE, FOLDER, ROOT, entries
from tests.worlds.making import deliveries, tokens_of

ENTRIES = entries()
MS = 1_000_000


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_right_protocol_passes_and_does_what_the_entry_expects(name: str) -> None:
    result = ENTRIES[name].run()
    assert result.verdict.kind == "pass", result.verdict.message
    for rank in result.recording.decisions[1:]:
        assert rank == result.recording.decisions[0]
    for what, expected in ENTRIES[name].healthy.items():
        seen = LOOK[what](result)
        assert {key: seen.get(key, NOTHING.get(what)) for key in expected} == expected or within(what, seen, expected)


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_planted_bug_fails_at_the_named_iteration_with_the_named_invariant(name: str) -> None:
    entry = ENTRIES[name]
    expected, verdict = entry.outcome, entry.run(bug=True).verdict
    assert expected.verdict == "fail"
    assert None not in (expected.rule, expected.rank)
    assert (verdict.kind, verdict.invariant, verdict.rank) == ("fail", expected.rule, expected.rank), verdict.message
    assert expected.iteration in (None, verdict.iteration), verdict.message
    assert expected.rid in (None, verdict.rid), verdict.message


@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_without_any_check_the_bug_is_seen_as_late_as_the_table_says(name: str) -> None:
    entry = ENTRIES[name]
    bare = entry.bare or {}
    verdict = entry.run(*BARE, *(["run.max_iterations=400"] if "endless" in bare else []), bug=True).verdict
    if not bare or "endless" in bare:
        assert verdict.kind == ("unknown" if bare else "pass"), verdict.message
        return
    assert (verdict.kind, verdict.invariant) == ("fail", bare["invariant"]), verdict.message
    assert "iteration" not in bare or verdict.iteration == bare["iteration"], verdict.message


def test_every_scenario_has_an_entry_a_sentence_and_its_own_name() -> None:
    files = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.toml")}
    assert set(files) == set(ENTRIES)
    for name, raw in files.items():
        assert raw["name"] == name
        assert raw["description"].endswith(".")
        assert raw["description"].count(". ") == 0
        assert raw["run"]["invariants"]


def test_every_handed_entry_of_these_classes_has_a_scenario() -> None:
    """Divergence to starvation are B01 to B92; the later ones are about chunks, speed and bad input."""
    kinds = tomllib.loads((ROOT / "docs" / "bugs.toml").read_text(encoding="utf-8"))
    handed = {number for kind in kinds.values() for number in kind if number.startswith("B")}
    assert len(handed) == 72
    assert {entry.number for entry in ENTRIES.values()} == {number for number in handed if int(number[1:]) <= 92}


def test_every_planted_bug_of_the_catalogue_is_used_and_names_its_entry() -> None:
    for entry in ENTRIES.values():
        planted = all_bugs()[entry.bug]
        assert entry.number in planted.source, f"{entry.name}: {entry.bug} says {planted.source}"


def test_every_planted_bug_breaks_a_rule_that_is_written_down() -> None:
    rules = set(BY_NAME)
    assert {bug.name: bug.breaks for bug in all_bugs().values() if bug.breaks not in rules} == {}


# --- what a run shows ----------------------------------------------------------------------------------------------


def ended(result: SimulationResult) -> dict[str, int]:
    return {rid: h.iteration for h in result.recording.harvests[-1] for rid in h.finished}


def chunks(result: SimulationResult) -> dict[str, list[list[int]]]:
    """Launches of prompts: every piece before the request's first token."""
    first = first_token(result)
    found: dict[str, list[list[int]]] = {}
    for d in result.recording.decisions[0]:
        for rid, prefix, new in d.pieces:
            if d.iteration <= first.get(rid, d.iteration) and (new > 1 or prefix == 0 or d.mode != "decode"):
                found.setdefault(rid, []).append([d.iteration, new])
    return found


def first_token(result: SimulationResult) -> dict[str, int]:
    return {rid: tokens[1] for rid, tokens in deliveries(result.recording).items() if 1 in tokens}


def batches(result: SimulationResult) -> dict[str, list[str]]:
    return {str(d.iteration): [rid for rid, _, _ in d.pieces] for d in result.recording.decisions[-1]}


def hits(result: SimulationResult) -> dict[str, int]:
    found: dict[str, int] = {}
    for d in result.recording.decisions[-1]:
        for rid, prefix, _ in d.pieces:
            found.setdefault(rid, prefix)
    return found


def replies(result: SimulationResult) -> dict[str, str]:
    return {r.rid: r.status for r in result.recording.replies if r.status != "token"}


def num_tokens(result: SimulationResult) -> dict[str, int]:
    return {rid: len(tokens) for rid, tokens in tokens_of(result.recording).items()}


def retracted(result: SimulationResult) -> dict[str, list[str]]:
    return {str(d.iteration): list(d.retracted) for d in result.recording.decisions[0] if d.retracted}


def terminal_ms(recording: Recording | None) -> dict[str, float]:
    assert recording is not None
    return {r.rid: r.time_ns / MS for r in recording.replies if r.status != "token"}


def ended_ms(result: SimulationResult) -> dict[str, float]:
    return terminal_ms(result.recording)


def prefill_ms(result: SimulationResult) -> dict[str, float]:
    return terminal_ms(result.recording.peer)


def allocated_ms(result: SimulationResult) -> dict[str, float]:
    return {mark.rid: mark.time_ns / MS for mark in result.recording.marks if mark.what == "allocated"}


LOOK: dict[str, Callable[[SimulationResult], dict[str, Any]]] = {
    look.__name__: look
    for look in (
        ended,
        chunks,
        first_token,
        batches,
        hits,
        replies,
        num_tokens,
        retracted,
        ended_ms,
        prefill_ms,
        allocated_ms,
    )
}
NOTHING: dict[str, Any] = {"chunks": []}


def within(what: str, seen: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Ranges of times; everything else is exact."""
    if not what.endswith("_ms"):
        return False
    return all(low <= seen[rid] <= high for rid, (low, high) in expected.items())
