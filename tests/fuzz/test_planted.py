"""The tester is tested: planted bugs are found, named, shrunk, replayed bit for bit, and are gone without the bug.

One bug of each kind here; ``docs/results/planted_bugs.md`` has all of them, in CPU seconds.
"""

from __future__ import annotations

import json
import re
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import bench_planted
from ppsim.check.invariants import INVARIANTS, RULES
from ppsim.cli.entry import app
from ppsim.cli.finding import statement
from ppsim.errors import EXIT_LIVENESS, EXIT_SAFETY
from ppsim.fuzz.campaign import run_campaign
from ppsim.fuzz.experiment import run_experiment
from ppsim.fuzz.pair import BUSY_TOKENS
from ppsim.fuzz.repro import save
from ppsim.fuzz.round import Order
from ppsim.plugin import all_bugs, load
from tests.fuzz.generated import experiments_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "results" / "planted_bugs.md"
CATALOGUE = ROOT / "docs" / "bugs.toml"
MAX_EXAMPLES = 200

DOZEN = (
    "inputs_read_backwards",  # plain: the request list
    "logprobs_not_relayed",  # plain: outputs
    "middle_chunk_counted_twice",  # chunked
    "free_at_abort",  # abort
    "token_before_abort",  # abort
    "good_and_bad",  # pd: votes
    "polls_only_when_busy",  # pd: liveness
    "missing_is_ready",  # pd: the consensus store
    "rejection_not_told",  # pair
    "retraction_without_effect",  # retraction
    "grammar_by_own_view",  # grammar
    "own_storage_hits",  # hicache
    "prefill_limit_ignored",  # fairness
    "all_send_first",  # blocking
)


LONG = ("polls_only_when_busy",)
"""30 s to shrink (docs/results/planted_bugs.md); two others are of its profile, and ``make planted`` looks for all."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] if n in LONG else []) for n in DOZEN])
def test_a_planted_bug_is_found_named_shrunk_and_replayed_and_it_is_the_bug(name: str, tmp_path: Path) -> None:
    planted = all_bugs()[name]
    result = run_campaign(Order(planted.profile, 0, MAX_EXAMPLES, bugs=(name,)))
    assert len(result.findings) == 1
    found = result.findings[0]
    expected = planted.breaks
    assert found.repro.signature.invariant == expected
    size = found.repro.experiment.size()
    assert size["requests"] <= 3
    assert size["pp_size"] <= 3
    assert size["choices"] <= 2

    healthy = run_experiment(found.repro.experiment)
    assert healthy.verdict.kind == "pass", healthy.verdict.message

    file = tmp_path / "repro.json"
    save(file, found.repro)
    again = CliRunner().invoke(app, ["replay", str(file), "--json"])
    assert again.exit_code in (EXIT_SAFETY, EXIT_LIVENESS)
    report = json.loads(again.stdout)
    assert (report["reproduced"], report["invariant"]) == (True, expected)


def test_the_command_prints_what_other_work_builds_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["bugs", "page_lost_at_finish", "other_tokens", "--budget", "60", "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == ["page_lost_at_finish", "other_tokens"]
    for row in rows:
        assert {"name", "found", "examples", "seconds", "invariant", "shrunk", "repro"} <= set(row)
        assert set(row["shrunk"]) == {"requests", "pp_size", "choices"}
        assert (row["found"], row["invariant"]) == (True, all_bugs()[row["name"]].breaks)
        assert CliRunner().invoke(app, ["replay", row["repro"]]).exit_code == EXIT_SAFETY


def test_the_dozen_has_every_profile_but_that_of_everything() -> None:
    profiles = {all_bugs()[name].profile for name in DOZEN}
    assert profiles == {bug.profile for bug in all_bugs().values()}


# --- the catalogue -------------------------------------------------------------------------------------------------


def test_every_rule_has_a_planted_bug_or_says_why_not() -> None:
    broken = {bug.breaks for bug in all_bugs().values()}
    assert broken >= {invariant.name for invariant in INVARIANTS if not invariant.unbreakable}
    assert broken >= {rule.name for rule in RULES}


def test_every_rule_that_a_bug_breaks_is_listed_with_its_statement() -> None:
    listed = CliRunner().invoke(app, ["list", "invariants", "--json"])
    assert {bug.breaks for bug in all_bugs().values()} <= {rule["name"] for rule in json.loads(listed.stdout)}
    assert all(statement(bug.breaks) for bug in all_bugs().values())


def test_every_handed_bug_of_scheduling_communication_kv_or_consensus_is_planted() -> None:
    """B01 to B92; the later entries are about plans, times and refusals, but for the chunk without memory (B100)."""
    kinds = tomllib.loads(CATALOGUE.read_text(encoding="utf-8"))
    handed = [number for kind, entries in kinds.items() if kind != "sources" for number in entries if number[0] == "B"]
    wanted = [entry for entry in handed if int(entry[1:]) < 94 or entry == "B100"]
    assert len(wanted) > 50
    sources = " ".join(bug.source for bug in all_bugs().values())
    assert [entry for entry in wanted if not re.search(rf"\b{entry}\b", sources)] == []


# --- the page ------------------------------------------------------------------------------------------------------


def rows_of_the_page() -> dict[str, list[str]]:
    """Cells of each row by the name of the bug."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_the_page_has_every_planted_bug_and_each_was_found_in_time() -> None:
    rows = rows_of_the_page()
    assert sorted(rows) == sorted(all_bugs())
    for name, (source, profile, breaks, _, _, seconds, *_) in rows.items():
        bug = all_bugs()[name]
        assert (source, profile, breaks) == (bug.source, bug.profile, bug.breaks), f"measure {name} again"
        assert float(seconds) <= bench_planted.BUDGET_S


def test_the_page_says_why_of_each_that_is_larger_or_is_seen_by_another_rule() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, (_, _, breaks, seen, _, _, _, requests, stages, _) in rows_of_the_page().items():
        large = int(requests) > bench_planted.MAX_REQUESTS or int(stages) > bench_planted.MAX_STAGES
        assert (f"- `{name}`: " in text) == large
        assert (f"- `{name}` ({seen}): " in text) == (seen != breaks)


def test_of_two_pipelines_some_examples_give_up_one_that_waits_behind_a_long_prompt() -> None:
    """Without them nobody has been away for so long, and a campaign of 60 s does not find the bug (600 examples)."""
    examples = [e for e in experiments_of("pair", 150) if e.raw["workload"]["requests"][0]["prompt"] == BUSY_TOKENS]
    change = load(["failed_request_keeps_its_turn"]).change
    assert "INV-87" in {run_experiment(example, change).verdict.invariant for example in examples}


# --- examples are worth something ----------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["plain", "pd"])
def test_no_example_is_made_from_the_one_before(profile: str) -> None:
    """Hypothesis likes to copy drawn values; independent ones are seen in the same iteration by all ranks seldom."""
    experiments = experiments_of(profile, 120)
    assert len({experiment.key() for experiment in experiments}) >= 115
    sizes: list[Any] = [e.raw["scheduler"]["max_total_tokens"] for e in experiments]
    repeated = sum(one == other for one, other in pairwise(sizes))
    facts = [f["at"] for e in experiments for f in e.raw.get("observations", {}).get("listed", ()) if f["at"][0] < 999]
    alike = [at for at in facts if len(at) > 1 and len({*at}) == 1]
    assert repeated < 60
    assert len(alike) <= len(facts) // 10
