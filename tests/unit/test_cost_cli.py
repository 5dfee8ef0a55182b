"""``ppsim volumes`` and ``ppsim chunks``: one JSON value on stdout, one message for bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.cost.coefficients import Coefficients

DEEPSEEK = ["chunks", "--model", "deepseek-v3.1"]


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def test_volumes_print_the_three_formulas_and_their_ratio() -> None:
    code, out, _ = run("volumes", "--model", "deepseek-v3.1", "--tokens", "131072", "--pp", "4")
    assert code == 0
    assert "TP over PP: 4 L / (P-1) = 81.3" in out
    assert f"{4 * 131072 * 7168 * 61 / 1e9:.2f}" in out
    code, out, _ = run("volumes", "--model", "qwen3-8b", "--pp", "1", "--json")
    assert code == 0
    assert json.loads(out)["tp_over_pp"] is None  # no seam, no ratio; never Infinity


@pytest.mark.parametrize("planner", ["fixed", "sglang", "equal_time", "optimal"])
def test_the_plan_of_every_planner_covers_the_prompt_in_order(planner: str) -> None:
    code, out, err = run(*DEEPSEEK, "--tokens", "50000", "--cached", "1024", "--planner", planner, "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)
    at = 1024
    for row in rows:
        assert set(row) == {"prefix", "size", "predicted_s"}
        assert row["prefix"] == at
        assert row["predicted_s"] > 0
        at += row["size"]
    assert at == 51024


def test_the_table_tells_who_loses_and_by_how_much() -> None:
    code, out, _ = run(*DEEPSEEK, "--chunk", "12288", "--smooth", "0.65")
    assert code == 0
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert "loses" in lines["fixed"]
    assert " 0.00%" in lines["optimal"]
    assert "loses" not in lines["optimal"]


def test_a_cost_fitted_to_measurements_replaces_the_roofline(tmp_path: Path) -> None:
    truth = Coefficients(c_ms=5.0, gamma_ms=1e-4, b_ms=0.05, a_ms=1e-6)
    pairs = [(p, x) for p in range(0, 60_000, 9_000) for x in (512, 3000, 8192)]
    lines = [f"{p},{x},{truth.chunk_ms(p, x)}" for p, x in pairs]
    path = tmp_path / "m.csv"
    path.write_text("prefix,new_tokens,time_ms\n" + "\n".join(lines))
    code, out, _ = run(
        *DEEPSEEK, "--pp", "1", "--measured", str(path), "--tokens", "8192", "--planner", "fixed", "--json"
    )
    assert code == 0
    assert json.loads(out)[0]["predicted_s"] == pytest.approx(truth.chunk_ms(0, 8192) / 1e3, rel=1e-6)
    path.write_text("prefix,new_tokens,time_ms\n0,64,1\n")
    code, out, err = run(*DEEPSEEK, "--measured", str(path))
    assert (code, out) == (2, "")
    assert "cost fit: refused: 1 distinct chunk," in err


def test_a_guessed_efficiency_is_said_on_stderr() -> None:
    _, _, err = run("chunks", "--model", "llama-3.1-8b", "--gpu", "h100", "--tp", "1", "--tokens", "4096", "--json")
    assert err == "ppsim: efficiency 0.57 is assumed for h100; nothing measured is known for it\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tp", "7"], "7 does not divide the 128 attention heads"),
        (["--pp", "99"], "99 stages cannot be cut from 61 layers"),
        (["--planner", "best"], "unknown planner 'best' (one of fixed, sglang, equal_time, optimal)"),
        (["--gpu", "h21"], "unknown GPU 'h21' (nearest: h20"),
        (["--chunk", "0"], "chunks.chunk: must be at least 1, got 0"),
        (["--chunk", "100", "--page-size", "256"], "100 is smaller than the page_size 256"),
        (["--partition", "1,2"], "1,2 has 2 entries for 4 stages"),
        (["--tokens", "0"], "chunks.num_tokens: must be at least 1, got 0"),
        (["--cached", "-1"], "chunks.cached_tokens: must be at least 0, got -1"),
        (["--tp", "16"], "16 leaves the node of 8; h20 has no known NIC bandwidth"),
        (["--max-chunk", "10"], "10 is below the smallest chunk 64"),
        (["--efficiency", "0"], "cost.efficiency: must be positive, got 0.0"),
        (["--host-ms", "nan"], "pipeline.host_ms: must be a finite number >= 0, got nan"),
        (["--tp-gb-per-s", "-3"], "cost.tp_gb_per_s: must be positive, got -3.0"),
        (["--smooth", "2"], "chunks.smooth_factor: must be between 0 and 1, got 2.0"),
        (["--measured", "none.csv"], "none.csv: cannot be read"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    code, out, err = run(*DEEPSEEK, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_a_limit_below_the_usual_minimum_is_kept() -> None:
    code, out, _ = run(*DEEPSEEK, "--tokens", "4096", "--max-chunk", "200", "--planner", "equal_time", "--json")
    assert code == 0
    assert max(row["size"] for row in json.loads(out)) <= 200
