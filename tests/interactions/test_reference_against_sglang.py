"""The naive scheduler beside recorded runs of SGLang's own: every field of every visit (``recorded.py``).

What the runs cannot tell apart (rules 4, 5, 6, 8 and 9b) is in ``test_reference_rules.py``.
"""

from __future__ import annotations

import pytest

from tests.interactions.recorded import EIGHTY, TWENTY, Run, first_difference, load_runs, naive_visits

RUNS = load_runs(TWENTY)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run["seed"])
def test_the_naive_scheduler_does_in_every_visit_what_sglang_did(run: Run) -> None:
    assert first_difference(run, naive_visits(run)) == ""


@pytest.mark.skipif(not EIGHTY.exists(), reason=f"{EIGHTY} is not there: twenty of its runs are tested")
def test_and_so_in_all_eighty() -> None:
    runs = load_runs(EIGHTY)
    assert len(runs) == 80
    assert [found for run in runs if (found := first_difference(run, naive_visits(run)))] == []
    by_seed = {run["seed"]: run for run in runs}
    assert all(by_seed[run["seed"]] == run for run in RUNS), "the twenty are twenty of them, unchanged"


def test_each_mended_rule_that_can_matter_here_is_seen() -> None:
    """The comparison is not blind: with the mended rules most runs differ, first in the flag or in an empty visit."""
    found = [first_difference(run, naive_visits(run, "mended")) for run in RUNS]
    assert any("full: SGLang True, naive False" in text for text in found), "rule 1b"
    assert any("mode: SGLang empty, naive extend" in text for text in found), "rule 2"
    assert sum(text != "" for text in found) >= len(RUNS) // 2


def test_every_field_is_compared() -> None:
    run = next(
        run for run in RUNS if any(v["retracted"] for v in run["visits"]) and any(v["aborted"] for v in run["visits"])
    )
    for field in run["visits"][0]:
        visits = naive_visits(run)
        visits[7] = visits[7] | {field: 2**20}
        assert f"visit 7, {field}: " in first_difference(run, visits)
