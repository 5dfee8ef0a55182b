"""Draws: a function of the seed in every process; and under Hypothesis they shrink as its own strategies do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import find, settings

import ppsim
from ppsim.fuzz.draws import SeededDraws
from ppsim.fuzz.experiment import Experiment
from tests.fuzz.generated import experiments_of

ROOT = Path(__file__).resolve().parents[2]
KEYS = """
from tests.fuzz.generated import experiments_of
print([experiment.key() for experiment in experiments_of("all", 20)])
"""


def test_a_seed_draws_the_same_in_any_process_under_any_hash_seed() -> None:
    here = [experiment.key() for experiment in experiments_of("all", 20)]
    for hash_seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        answer = subprocess.run(
            [sys.executable, "-c", KEYS], capture_output=True, text=True, check=True, env=environment, cwd=ROOT
        )
        assert answer.stdout.strip() == repr(here)


def test_an_example_depends_on_its_number_alone() -> None:
    """The twentieth is what it is, whether or not the nineteen before it are made."""
    assert experiments_of("pd", 20)[-1].key() == experiments_of("pd", 20)[19].key()
    assert len({experiment.key() for experiment in experiments_of("all", 300)}) == 300
    assert experiments_of("all", 3, 1)[2].key() != experiments_of("all", 3, 2)[2].key()


@pytest.mark.parametrize("n", [2, 3, 7, 12])
def test_every_number_has_the_same_chance(n: int) -> None:
    """Chi-square with n - 1 degrees of freedom: its mean is n - 1, its deviation sqrt(2 (n - 1)); five of these."""
    draw, num = SeededDraws(n), 6000
    counts = Counter(draw.below(n) for _ in range(num))
    assert set(counts) == set(range(n))
    chi = sum((count - num / n) ** 2 / (num / n) for count in counts.values())
    assert chi < (n - 1) + 5 * (2 * (n - 1)) ** 0.5


def test_some_are_different_ones() -> None:
    draw = SeededDraws(5)
    lengths = Counter()
    for _ in range(300):
        found = draw.some("abcd", 1, 3)
        assert len(set(found)) == len(found)
        lengths[len(found)] += 1
    assert set(lengths) == {1, 2, 3}


def test_with_hypothesis_what_is_found_is_shrunk_to_the_simplest_of_its_kind() -> None:
    """Three stages are wanted: the rest of the cluster, who answers, and what may go wrong are at their least."""

    def wanted(experiment: Experiment) -> bool:
        return bool(experiment.raw["cluster"]["pp_size"] == 3)

    found = find(ppsim.experiments("pd"), wanted, settings=settings(max_examples=100, derandomize=True, database=None))
    raw = found.raw
    assert raw["cluster"] == {"pp_size": 3, "pp_async_batch_depth": 0, "tp_size": 1, "tp_replicas": 1}
    assert {r["prompt"] for r in raw["workload"]["requests"]} == {1}
    assert not {"observations", "chance", "faults", "hicache", "timeouts"} & set(raw)
    assert found.chooser.kind == "tape"


def test_nothing_private_of_hypothesis_is_used() -> None:
    """What is not its public interface changes from one version to the next."""
    private = re.compile(r"hypothesis\.(internal|strategies\._|_)|from hypothesis import .*\b_")
    for path in (ROOT / "ppsim").rglob("*.py"):
        assert not private.search(path.read_text(encoding="utf-8")), path
