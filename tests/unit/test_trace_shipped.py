"""Law: the shipped trace is made by the committed generator, and has the published statistics.

Published figures: Mooncake conversation trace, whole file of 12,031 requests (Qin et al., FAST 2025). The tolerances
are what 400 requests allow: lengths are one value for each 1/399 of the distribution, so a quantile is off by at most
one such step; the hit share by one long prompt.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppsim.core.tokens import count
from ppsim.scenario.load import validate
from ppsim.workload import build_workload
from ppsim.workload.make_trace import trace_text

SHIPPED = files("ppsim") / "data" / "generated_mooncake_like.jsonl"
TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in SHIPPED.read_text().splitlines()]


def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([row[name] for row in rows()], dtype=np.int64)


def test_the_generator_makes_the_shipped_bytes() -> None:
    assert trace_text().encode() == SHIPPED.read_bytes()


def test_the_generator_is_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ppsim.workload.make_trace"]
    subprocess.run([*command, str(tmp_path / "again.jsonl")], check=True, timeout=120)
    assert (tmp_path / "again.jsonl").read_bytes() == SHIPPED.read_bytes()
    failed = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert failed.returncode != 0
    assert "cannot be written" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_the_trace_is_small_enough_to_ship_and_long_enough_to_serve() -> None:
    assert len(SHIPPED.read_bytes()) < 300_000
    assert 300 <= len(rows()) <= 400


@pytest.mark.parametrize(("share", "published"), [(50, 6_909), (90, 27_367), (99, 85_400), (100, 126_195)])
def test_input_quantiles_are_the_published_ones(share: int, published: int) -> None:
    assert np.percentile(column("input_length"), share) == pytest.approx(published, rel=0.02)


def test_means_rate_and_long_prompts_are_the_published_ones() -> None:
    at_ms, inputs, outputs = column("timestamp"), column("input_length"), column("output_length")
    assert inputs.mean() == pytest.approx(12_035, rel=0.01)
    assert outputs.mean() == pytest.approx(343, rel=0.01)
    assert (len(at_ms) - 1) / (at_ms[-1] - at_ms[0]) * 1000 == pytest.approx(3.40, rel=0.001)
    assert (inputs > 32_768).mean() == pytest.approx(0.069, abs=1 / 399)


def test_arrivals_look_like_a_poisson_process() -> None:
    gaps = np.diff(column("timestamp"))
    assert gaps.min() >= 0
    # Exponential gaps have a coefficient of variation of 1; its standard error for 399 of them is about 0.05.
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.15)


def test_an_infinite_cache_finds_the_published_share() -> None:
    seen: set[int] = set()
    hit = total = 0
    for row in rows():
        leading = 0
        while leading < len(row["hash_ids"]) and row["hash_ids"][leading] in seen:
            leading += 1
        length = row["input_length"]
        hit += min(512 * leading, length)
        total += length
        seen.update(row["hash_ids"])
    assert hit / total == pytest.approx(0.374, abs=0.01)


def test_ids_are_numbered_by_first_use_and_one_for_each_block() -> None:
    known = -1
    for row in rows():
        assert len(row["hash_ids"]) == -(-row["input_length"] // 512)
        for block in row["hash_ids"]:
            assert block <= known + 1
            known = max(known, block)


def test_every_request_fits_the_default_context() -> None:
    assert (column("input_length") + column("output_length")).max() < 131_072


def test_it_is_the_trace_of_a_scenario_that_names_none() -> None:
    arrivals = build_workload(validate({"workload": {"source": "trace"}})).arrivals
    assert [count(a.request.prompt) for a in arrivals] == column("input_length").tolist()
    assert [a.at_ns for a in arrivals] == (column("timestamp") * 10**6).tolist()


@pytest.mark.skipif(not TRACES.is_dir(), reason=f"the real trace excerpts are not at {TRACES}")
def test_no_row_is_copied_from_the_real_trace() -> None:
    def pairs(lines: list[str]) -> set[tuple[int, int]]:
        read = [json.loads(line) for line in lines]
        return {(row["input_length"], row["output_length"]) for row in read if row["input_length"] > 3000}

    real = (TRACES / "mooncake_conversation_1000.jsonl").read_text().splitlines()
    assert not pairs(real) & pairs(SHIPPED.read_text().splitlines())
