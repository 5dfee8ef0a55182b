"""``ppsim compare``: crossover bandwidths against formulas worked out by hand, and efficiency for each GPU."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ppsim.cli.compare import pictures
from ppsim.cli.entry import app
from ppsim.errors import ScenarioError, UsageError
from ppsim.plan.compare import Comparison, Question, compare, crossing
from ppsim.plan.compare_links import Overheads
from ppsim.plan.compare_question import Decode
from ppsim.report.crossover import covers_curve, free_box, overlap

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, MLP = 80, 8192, 64, 8, 128, 28672  # Llama-3.1-70B
BF16_FLOPS, LINK, EFFICIENCY = 989e12, 450e9, 0.5  # H100 SXM
PROMPT, CHUNK, GROUP, STAGES = 65536, 4096, 8, 4
GPUS = GROUP * STAGES


@pytest.fixture(scope="module")
def llama() -> Comparison:
    links = (20.0, 100.0, 400.0)
    return compare(
        Question("llama-3.1-70b", "h100", GPUS, PROMPT, link_gb_per_s=links, efficiency=EFFICIENCY, chunk=CHUNK)
    )


@pytest.fixture(scope="module")
def deepseek() -> Comparison:
    return compare(Question("deepseek-v3.1", "h20", 32, chunk=12288, speedup=2.54, link_gb_per_s=(50.0, 100.0)))


# --- by hand -------------------------------------------------------------------------------------------------------


def flops(prefix: int, new: int) -> float:
    """All layers: two for each weight, attention over half a square and the prefix."""
    weights = HIDDEN * (2 * HEADS + 2 * KV_HEADS) * HEAD_DIM + 3 * HIDDEN * MLP
    return LAYERS * (2.0 * weights * new + 4.0 * HEADS * HEAD_DIM * (prefix * new + new * new / 2))


def all_reduce_s(tokens: int, ranks: int, bytes_per_s: float, layers: int = LAYERS) -> float:
    """Two of a BF16 hidden state a layer, 2 (N - 1) / N of it over the ring."""
    return layers * 2 * 2 * (ranks - 1) / ranks * tokens * HIDDEN * 2 / bytes_per_s


def tp_ttft_s(gb_per_s: float) -> float:
    return flops(0, PROMPT) / (GPUS * BF16_FLOPS * EFFICIENCY) + all_reduce_s(PROMPT, GPUS, gb_per_s * 1e9)


def base_ttft_s() -> float:
    return flops(0, PROMPT) / (GROUP * BF16_FLOPS * EFFICIENCY) + all_reduce_s(PROMPT, GROUP, LINK)


def pp_ttft_s(gb_per_s: float) -> float:
    """Identical stages: the sum of the chunk times, and the last and longest one once more for each seam. Without
    overlap of communication a forward waits for the send of the one before."""
    rates = GPUS * BF16_FLOPS * EFFICIENCY
    reduce_s = all_reduce_s(CHUNK, GROUP, LINK, LAYERS // STAGES)
    times = [flops(prefix, CHUNK) / rates + reduce_s for prefix in range(0, PROMPT, CHUNK)]
    send_s = CHUNK * HIDDEN * 2 / (gb_per_s * 1e9)
    return sum(times) + (len(times) - 1) * send_s + (STAGES - 1) * (times[-1] + send_s)


def solve(ahead: Any, low: float = 1.0, high: float = 1e4) -> float:
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if ahead(middle) > 0 else (middle, high)
    return low


def test_times_are_those_of_the_formulas(llama: Comparison) -> None:
    assert llama.base.ttft_s == pytest.approx(base_ttft_s(), rel=0.01)
    found = {(s.way, s.link_gb_per_s): s.ttft_s for s in llama.standings}
    for gb_per_s in (20.0, 100.0, 400.0):
        assert found["tp", gb_per_s] == pytest.approx(tp_ttft_s(gb_per_s), rel=0.01)
        assert found["pp", gb_per_s] == pytest.approx(pp_ttft_s(gb_per_s), rel=0.01)


def test_the_crossover_is_where_the_formulas_cross(llama: Comparison) -> None:
    by_hand = solve(lambda b: pp_ttft_s(b) - tp_ttft_s(b))
    (found,) = [c for c in llama.crossovers if (c.way, c.rival, c.by) == ("tp", "pp", "ttft")]
    assert found.gb_per_s == pytest.approx(by_hand, rel=0.03)


def nodes_ttft_s(gb_per_s: float, num_nodes: int) -> float:
    """Tensor parallelism over nodes of eight with a NIC a GPU, and what layers and all-reduces cost for each chunk."""
    hidden = PROMPT * HIDDEN * 2
    moving = LAYERS * 2 * (2 * 7 / 8 * hidden / LINK + 2 * (num_nodes - 1) / num_nodes * hidden / 8 / (gb_per_s * 1e9))
    fixed_us = LAYERS * (35.0 + 2 * (6.8 + 14 * 0.6 + 2 * (num_nodes - 1) * 5.0)) * (PROMPT // CHUNK)
    return flops(0, PROMPT) / (num_nodes * GROUP * BF16_FLOPS * EFFICIENCY) + moving + fixed_us * 1e-6


def test_without_a_link_the_nics_of_the_gpu_table_join_the_nodes() -> None:
    found = compare(Question("llama-3.1-70b", "h100", GPUS, PROMPT, efficiency=EFFICIENCY, chunk=CHUNK))
    assert {s.link_gb_per_s for s in found.standings} == {50.0}
    (tp,) = [s for s in found.standings if s.way == "tp"]
    assert tp.ttft_s == pytest.approx(nodes_ttft_s(50.0, STAGES), rel=0.01)
    assert found.base.ttft_s == pytest.approx(nodes_ttft_s(50.0, 1), rel=0.01)
    assert "nodes of 8 GPUs with 8 NICs each" in " ".join(found.notes)
    few = Question(
        "llama-3.1-70b", "h100", GPUS, PROMPT, None, (), EFFICIENCY, CHUNK, nics_per_node=2, nic_gb_per_s=(200.0,)
    )
    (same,) = [s for s in compare(few).standings if s.way == "tp"]
    assert same.ttft_s == pytest.approx(tp.ttft_s)  # two NICs of 200 GB/s carry what eight of 50 do


def test_a_measured_speedup_says_what_a_nic_gives() -> None:
    wanted = 2.0
    by_hand = solve(lambda b: nodes_ttft_s(b, 1) / nodes_ttft_s(b, STAGES) - wanted)
    q = Question("llama-3.1-70b", "h100", GPUS, PROMPT, efficiency=EFFICIENCY, chunk=CHUNK, speedup=wanted)
    assert compare(q).speedup_gb_per_s == pytest.approx(by_hand, rel=0.02)


def test_a_measured_speedup_says_what_one_link_gives() -> None:
    wanted = 2.0
    by_hand = solve(lambda b: base_ttft_s() / tp_ttft_s(b) - wanted)
    q = Question("llama-3.1-70b", "h100", GPUS, PROMPT, None, (50.0,), EFFICIENCY, CHUNK, speedup=wanted)
    assert compare(q).speedup_gb_per_s == pytest.approx(by_hand, rel=0.02)


def test_the_published_speedup_of_tp32_needs_about_63_gb_per_s(deepseek: Comparison) -> None:
    """published.md E2: 2.54 times at 63 GB/s, about 2.31 at 50, 2.96 at 100."""
    found = deepseek
    assert found.speedup_gb_per_s == pytest.approx(63.0, rel=0.06)
    tp = {s.link_gb_per_s: s.speedup for s in found.standings if s.way == "tp"}
    assert tp[50.0] == pytest.approx(2.31, rel=0.03)
    assert tp[100.0] == pytest.approx(2.96, rel=0.03)
    told = " ".join(found.notes)
    assert "is not published: no single figure is a prediction" not in told  # the links were given
    assert "is not published: no single figure is a prediction" in " ".join(
        compare(Question("deepseek-v3.1", "h20", 32, chunk=12288)).notes
    )


# --- what is made of them -------------------------------------------------------------------------------------------


def test_a_crossover_is_where_the_order_changes(llama: Comparison) -> None:
    at = next(c.gb_per_s for c in llama.crossovers if (c.way, c.rival, c.by) == ("tp", "pp", "throughput"))
    assert at is not None
    q = Question("llama-3.1-70b", "h100", GPUS, PROMPT, None, (0.97 * at, 1.03 * at), EFFICIENCY, CHUNK)
    rates = {(s.way, s.link_gb_per_s): s.input_tokens_per_s for s in compare(q).standings}
    assert rates["tp", 0.97 * at] < rates["pp", 0.97 * at]
    assert rates["tp", 1.03 * at] > rates["pp", 1.03 * at]


def test_efficiency_is_the_speedup_divided_by_the_gpu_multiple(llama: Comparison) -> None:
    gpus_of_base = prod((llama.base.split.pp_size, llama.base.split.tp_size, llama.base.split.cp_size))
    for s in llama.standings:
        multiple = prod((s.split.pp_size, s.split.tp_size, s.split.cp_size)) / gpus_of_base
        assert multiple == STAGES
        assert s.efficiency == pytest.approx(s.input_tokens_per_s / llama.base.input_tokens_per_s / multiple)
        assert s.ttft_efficiency == pytest.approx(llama.base.ttft_s / s.ttft_s / multiple)
        assert 0.0 < s.efficiency <= 1.0
        assert 0.0 < s.ttft_efficiency <= 1.0


@pytest.mark.parametrize("way", ["pp", "tp", "cp"])
def test_a_faster_link_never_hurts(llama: Comparison, way: str) -> None:
    times = [s.ttft_s for s in llama.standings if s.way == way]
    rates = [s.input_tokens_per_s for s in llama.standings if s.way == way]
    assert times == sorted(times, reverse=True)
    assert rates == sorted(rates)


@pytest.mark.parametrize(("fixed", "per_link", "at"), [(1.0, 63.0, 63.0), (0.25, 1.0, 4.0), (3.0, 999.0, 333.0)])
def test_a_crossing_is_found_wherever_it_is(fixed: float, per_link: float, at: float) -> None:
    assert crossing(lambda links: [fixed - per_link / b for b in links]) == pytest.approx(at, rel=2e-3)


def test_without_a_change_of_sign_there_is_no_crossing() -> None:
    assert crossing(lambda links: [1.0] * len(links)) is None
    assert crossing(lambda links: [-1.0] * len(links)) is None


# --- what cannot be -------------------------------------------------------------------------------------------------


def test_a_way_that_cannot_be_cut_is_named_and_the_others_are_compared() -> None:
    found = compare(Question("qwen3-8b", "h100", 48, 16384, tp_size=1, chunk=4096))
    assert found.cannot_run["pp"] == "48 stages cannot be cut from 36 layers"
    assert found.cannot_run["tp"].startswith("48 does not divide the 32 attention heads")
    assert {s.way for s in found.standings} == {"cp"}
    assert found.crossovers == []


def test_memory_that_is_too_small_is_told_beside_the_figures(deepseek: Comparison) -> None:
    found = deepseek
    assert set(found.does_not_fit) == {"base", "cp"}
    assert found.does_not_fit["base"].startswith("stage 0 lacks ")
    assert " GB" in found.does_not_fit["base"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_gpus": 0}, "--gpus 0: expected 2 to"),
        ({"num_gpus": 5000}, "--gpus 5000"),
        ({"num_gpus": 8, "tp_size": 8}, "--gpus 8: expected two or more groups of 8"),
        ({"tp_size": 5}, "5 does not divide the 64 attention heads"),
        ({"prompt": 0}, "--prompt 0"),
        ({"num_requests": 0}, "--requests 0"),
        ({"link_gb_per_s": (0.0,)}, "--link-gb-per-s 0"),
        ({"link_gb_per_s": (float("nan"),)}, "--link-gb-per-s nan"),
        ({"efficiency": 0.0}, "--efficiency 0"),
        ({"efficiency": float("nan")}, "--efficiency nan"),
        ({"chunk": 100}, "--chunk 100: expected a multiple of 64"),
        ({"speedup": -1.0}, "--speedup -1"),
        ({"gpus_per_node": 0}, "--gpus-per-node 0"),
        ({"nics_per_node": 0}, "--nics-per-node 0"),
        ({"nic_gb_per_s": (-1.0,)}, "--nic-gb-per-s -1"),
        ({"nic_gb_per_s": (50.0,), "link_gb_per_s": (50.0,)}, "--link-gb-per-s is one link between the groups"),
        ({"nics_per_node": 4, "num_gpus": 8, "tp_size": 4}, "--gpus 8: expected more than a node of 8"),
        ({"nics_per_node": 4, "tp_size": 16}, "--tp 16: expected a group inside a node of 8"),
        ({"overheads": Overheads(layer_overhead_us=-1.0)}, "--layer-overhead-us -1"),
        ({"overheads": Overheads(nic_latency_us=float("nan"))}, "--nic-latency-us nan"),
        ({"decode": Decode(0, 128)}, "--concurrency 0"),
        ({"decode": Decode(8, 0)}, "--output-tokens 0"),
        ({"decode": Decode(8, 128, -1)}, "--serve -1"),
        ({"decode": Decode(8, 1, 16)}, "there is no decode to serve"),
        ({"model": "lama-3.1-70b"}, "nearest: llama-3.1-70b"),
        ({"gpu": "h1000"}, "nearest: h100"),
    ],
)
def test_what_means_nothing_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {"model": "llama-3.1-70b", "gpu": "h100", "num_gpus": 32, **changes}
    with pytest.raises((UsageError, ScenarioError)) as caught:
        compare(Question(**asked))
    assert message in str(caught.value)


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_prints_its_json_and_draws_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "curve.png"
    words = ["--model", "qwen3-8b", "--gpu", "h100", "--gpus", "4", "--prompt", "16384", "--requests", "2"]
    result = CliRunner().invoke(app, ["compare", *words, "--json", "-o", str(picture)])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    found = json.loads(result.stdout)
    assert {row["way"] for row in found["ways"]} == {"pp", "tp", "cp"}
    for row in found["ways"]:
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["gpu_multiple"])
        assert {"ttft_s", "input_tokens_per_s", "link_gb_per_s", "chunk", "fits", "why_not"} <= set(row)
    assert {(c["way"], c["rival"]) for c in found["crossovers"]} == {("tp", "pp"), ("cp", "pp"), ("tp", "cp")}
    assert all((c["link_gb_per_s"] is None) == (c["ahead"] is not None) for c in found["crossovers"])
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert found["file"] == str(picture)
    text = CliRunner().invoke(app, ["compare", *words]).stdout
    assert "overtakes" in text or "at any link" in text
    assert "effic." in text


def test_a_picture_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    words = ["--model", "qwen3-8b", "--gpu", "h100", "--gpus", "2", "--prompt", "8192", "--requests", "1"]
    for name in ("curve.nothing", "missing/curve.png"):
        result = CliRunner().invoke(app, ["compare", *words, "-o", str(tmp_path / name)])
        assert result.exit_code == 2
        assert result.stderr.startswith("ppsim: ")
        assert "Traceback" not in result.stderr


def test_the_words_of_a_crossing_cover_no_curve_and_no_other_words(llama: Comparison, deepseek: Comparison) -> None:
    num_words = 0
    for panel in (*pictures(llama), *pictures(deepseek)):
        taken: list[tuple[float, float]] = []
        low, high = panel.curves[0].gb_per_s[0], panel.curves[0].gb_per_s[-1]
        for mark in (m for m in panel.marks if low <= m.gb_per_s <= high):
            box = free_box(panel, mark, taken)
            assert not covers_curve(panel, box)
            assert not any(overlap(box, other) for other in taken)
            taken.append(box)
        num_words += len(taken)
    assert num_words >= 5
