"""Law: a trace file comes in whole and unchanged. The oracle is another reading of the same real files."""

from __future__ import annotations

import bisect
import json
from itertools import combinations, pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import pytest

from ppsim.core.tokens import common_prefix, count
from ppsim.scenario.load import validate
from ppsim.workload import Workload, build_workload

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"
pytestmark = pytest.mark.skipif(not TRACES.is_dir(), reason=f"the real trace excerpts are not at {TRACES}")

MOONCAKE = ("mooncake_conversation_1000.jsonl", "mooncake_synthetic_1000.jsonl")
AZURE = ("azure_llm_2023_code_1000.csv", "azure_llm_2023_conv_1000.csv")
KNOWN: dict[str, Workload] = {}


def workload(name: str) -> Workload:
    if name not in KNOWN:
        KNOWN[name] = build_workload(validate({"workload": {"source": "trace", "trace": str(TRACES / name)}}))
    return KNOWN[name]


def records(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (TRACES / name).read_text().splitlines()]


def test_the_excerpts_have_the_sums_of_an_independent_count() -> None:
    """Sums of both length columns of each file, counted with awk."""
    for name, inputs, outputs in (
        (MOONCAKE[0], 13_732_944, 349_357),
        (MOONCAKE[1], 11_851_558, 196_039),
        (AZURE[0], 2_122_354, 27_621),
        (AZURE[1], 1_014_189, 247_262),
    ):
        arrivals = workload(name).arrivals
        assert len(arrivals) == 1000
        assert sum(count(a.request.prompt) for a in arrivals) == inputs
        assert sum(a.request.max_new_tokens for a in arrivals) == outputs


@pytest.mark.parametrize("name", MOONCAKE)
def test_a_mooncake_row_becomes_one_request(name: str) -> None:
    w, rows = workload(name), records(name)
    assert w.warnings == ()
    came = [(a.at_ns, count(a.request.prompt), a.output_length) for a in w.arrivals]
    assert came == [(r["timestamp"] * 10**6, r["input_length"], r["output_length"]) for r in rows]
    assert [a.request.rid for a in w.arrivals] == [f"R{i}" for i in range(1, 1001)]


@pytest.mark.parametrize("name", AZURE)
def test_an_azure_row_becomes_one_request_at_its_exact_time(name: str) -> None:
    frame = pd.read_csv(TRACES / name, parse_dates=["TIMESTAMP"])
    at_ns = (frame["TIMESTAMP"] - frame["TIMESTAMP"].min()).to_numpy(dtype="timedelta64[ns]").astype(np.int64)
    expected = list(zip(at_ns.tolist(), frame["ContextTokens"].tolist(), frame["GeneratedTokens"].tolist()))
    w = workload(name)
    assert [(a.at_ns, count(a.request.prompt), a.output_length) for a in w.arrivals] == expected


@pytest.mark.parametrize("name", AZURE)
def test_azure_prompts_share_nothing(name: str) -> None:
    ordered = sorted(a.request.prompt for a in workload(name).arrivals)
    assert max(common_prefix(a, b) for a, b in pairwise(ordered)) == 0


def leading_equal(a: list[int], b: list[int]) -> int:
    equal = 0
    for x, y in zip(a, b):
        if x != y:
            break
        equal += 1
    return equal


@pytest.mark.parametrize("name", MOONCAKE)
def test_two_requests_share_exactly_their_leading_equal_hash_ids(name: str) -> None:
    w, rows = workload(name), records(name)
    shares = {}
    for i, j in combinations(range(1000), 2):
        equal = leading_equal(rows[i]["hash_ids"], rows[j]["hash_ids"])
        if equal > 1:
            shares[i, j] = equal
    random = Random(3)
    for _ in range(2000):
        i, j = sorted(random.sample(range(1000), 2))
        shares[i, j] = leading_equal(rows[i]["hash_ids"], rows[j]["hash_ids"])
    for (i, j), equal in shares.items():
        expected = min(512 * equal, rows[i]["input_length"], rows[j]["input_length"])
        assert common_prefix(w.arrivals[i].request.prompt, w.arrivals[j].request.prompt) == expected, (i, j)


@pytest.mark.parametrize("name", MOONCAKE)
def test_an_infinite_cache_finds_the_same_tokens_by_ids_and_by_content(name: str) -> None:
    """By ids: the longest match with any earlier row. By content: the neighbours in the sorted order of all prompts.

    Bytes in lexicographic order have their longest common prefix with a neighbour, so this looks at every pair.
    """
    w, rows = workload(name), records(name)
    by_ids = [
        max((min(512 * leading_equal(row["hash_ids"], earlier["hash_ids"]), row["input_length"],
                 earlier["input_length"]) for earlier in rows[:i]), default=0)
        for i, row in enumerate(rows)
    ]  # fmt: skip
    seen: list[bytes] = []
    by_content = []
    for a in w.arrivals:
        place = bisect.bisect(seen, a.request.prompt)
        neighbours = seen[max(0, place - 1) : place + 1]
        by_content.append(max((common_prefix(a.request.prompt, other) for other in neighbours), default=0))
        seen.insert(place, a.request.prompt)
    assert by_content == by_ids
    assert 0.15 < sum(by_ids) / sum(r["input_length"] for r in rows) < 0.25


def test_num_requests_takes_the_first_rows_and_zero_takes_all() -> None:
    whole = workload(AZURE[0])
    for num_requests, expected in ((7, 7), (0, 1000), (5000, 1000)):
        section = {"source": "trace", "trace": str(TRACES / AZURE[0]), "num_requests": num_requests}
        assert build_workload(validate({"workload": section})).arrivals == whole.arrivals[:expected]
