"""Small inputs that were read wrong once, with their right values, and generated ones of the same kinds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.cli.measured import read_measured
from ppsim.cost.fit import fit_samples
from ppsim.errors import EXIT_USAGE
from ppsim.sglang.logs import read_log

INPUTS = Path(__file__).parent.parent / "data" / "inputs"
C_MS, B_MS, A_MS = 50.0, 0.02, 1e-6  # the curve that rank_lines.log was made with


def curve_ms(prefix: int, new: int) -> float:
    return C_MS + B_MS * new + A_MS * (2 * prefix * new + new * new)


# -- rank lines: one place computes prefixes ---------------------------------------------------------------------


def test_times_of_a_rank_give_the_curve_that_they_were_made_with() -> None:
    measured = read_measured(str(INPUTS / "rank_lines.log"))
    found = fit_samples(measured.samples, ["c", "b", "a"]).coefficients
    # the file has times to 0.1 ms: the curve comes back as far as that allows
    assert found.c_ms == pytest.approx(C_MS, abs=0.1)
    assert found.b_ms == pytest.approx(B_MS, rel=5e-3)
    assert found.a_ms == pytest.approx(A_MS, rel=5e-3)


SAYS = {
    "nothing": lambda cached, reached: 0,
    "the cache": lambda cached, reached: cached,
    "computed so far": lambda cached, reached: reached,
}


@pytest.mark.parametrize("says", sorted(SAYS))
@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_every_rank_line_has_the_prefix_of_its_chunk(says: str, lag: int, seed: int) -> None:
    """``lag``: rank lines come so many batches late, as in a pipeline. Truth: the chunks that the writer cut."""
    rng = random.Random(f"{says}{lag}{seed}")
    batches: list[tuple[int, int, int, int]] = []  # prefix, new, cached as printed, pending
    for i in range(12):
        cached = rng.choice([0, 0, 64, 640]) if i else 0
        length, at = rng.choice([5, 700, 1024, 1500, 2048, 3000, 5121]), cached
        while at < cached + length:
            new = min(1024, cached + length - at)
            first = cached if at == cached else SAYS[says](cached, at)
            batches.append((at, new, first, cached + length - at - new))
            at += new
    rows = [batch_row(batch) for batch in batches]
    late = [[rank_row(batch, stage) for stage in (0, 1)] for batch in batches]
    text = [line for i, row in enumerate(rows) for line in [row, *(late[i - lag] if i >= lag else [])]]
    text += [line for lines in late[len(late) - lag :] for line in lines]
    samples = [sample for sample in read_log("\n".join(text) + "\n").samples if sample.source == "gpu"]
    truth = {round(curve_ms(prefix, new) / 1e3, 7): (prefix, new) for prefix, new, *_ in batches}
    known = [sample for sample in samples if sample.prefix_known]
    for sample in known:
        assert (sample.prefix, sample.new_tokens) == truth[round(sample.duration_s, 7)], sample
    # all but the first prompt, of which a log cannot say whether it began before the log did
    in_first = next(i for i, batch in enumerate(batches) if batch[3] == 0) + 1
    assert len(samples) >= len({batch[:2] for batch in batches})
    assert len(known) >= 2 * (len(batches) - in_first)


def batch_row(batch: tuple[int, int, int, int]) -> str:
    _, new, cached, pending = batch
    return (
        f"[2026-09-27 10:31:00 PP0] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, "
        f"token usage: 0.05, #running-req: 0, #queue-req: 0, #pending-token: {pending}, cuda graph: False, "
        "input throughput (token/s): 1000.00"
    )


def rank_row(batch: tuple[int, int, int, int], stage: int) -> str:
    prefix, new, cached, _ = batch
    return (
        f"[2026-09-27 10:31:00 PP{stage}] Prefill rank batch, #new-token: {new}, #cached-token: {cached}, #chunks: 1, "
        f"gpu-ms: {curve_ms(prefix, new):.4f} (compute 1.0, wait 0.0)"
    )


def test_rank_lines_alone_say_no_prefix_behind_a_full_chunk() -> None:
    sizes = [300, 1024, 1024, 200, 100]
    text = "\n".join(rank_row((0, new, 0, 0), 1) for new in sizes)
    found = [(s.new_tokens, s.prefix, s.prefix_known) for s in read_log(text).samples]
    assert found == [(300, 0, True), (1024, 0, True), (1024, 1024, False), (200, 2048, False), (100, 0, True)]


def test_a_rank_line_of_several_requests_gives_no_sample() -> None:
    rows = [batch_row((0, 500, 0, 0)).replace("#new-seq: 1", "#new-seq: 2"), rank_row((0, 500, 0, 0), 0)]
    report = read_log("\n".join(rows))
    assert (report.samples, report.unused["several requests in one batch"]) == ([], 1)


# -- tables: units are kept --------------------------------------------------------------------------------------


def test_32k_tokens_are_32768() -> None:
    measured = read_measured(str(INPUTS / "prefix_in_k.md"))
    assert [s.prefix_len for s in measured.samples] == [0, 32_768, 131_072, 524_288]
    gamma = fit_samples(measured.samples, ["c", "gamma"]).coefficients.gamma_ms
    assert gamma == pytest.approx(8.2e-4, rel=0.005)


UNITS = [
    # head of the prefix, prefix, head of the size, size, head of the time, time: prefix, new tokens, seconds
    (("prefix", "32k", "new tokens", "8K", "time", "56 ms"), (32_768, 8_192, 0.056)),
    (("prefix (K)", "32", "new tokens", "512", "time (ms)", "56"), (32_768, 512, 0.056)),
    (("prefix", "1M", "new tokens", "8,192", "time", "1.5 s"), (1_048_576, 8_192, 1.5)),
    (("prefix", "1.5 K tokens", "new", "100 tokens", "latency_us", "250"), (1_536, 100, 250e-6)),
    (("history", "4Ki", "size [K]", "2", "time", "9 µs"), (4_096, 2_048, 9e-6)),
    (("prefix", "0", "rate", "2K tok/s", "time", "500 ms"), (0, 1_000, 0.5)),
    (("prefix", "0", "rate", "2,000 tokens/s", "time", "0.5 sec"), (0, 1_000, 0.5)),
]


@pytest.mark.parametrize(("row", "right"), UNITS)
def test_units_of_a_table_are_kept(row: tuple[str, ...], right: tuple[int, int, float]) -> None:
    text = f"| {row[0]} | {row[2]} | {row[4]} |\n|:---|---:|---|\n| {row[1]} | {row[3]} | {row[5]} |\n"
    (sample,) = read_log(text).samples
    assert (sample.prefix, sample.new_tokens) == right[:2]
    assert sample.duration_s == pytest.approx(right[2])


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ("32 GB | 8192 | 56 ms", "unit 'GB' of its prefix"),
        ("32K | 8 pages | 56 ms", "unit 'pages' of its size"),
        ("32K | 8192 | 56 ticks", "unit 'ticks' of its time"),
        ("32K | 8192 | 56", "its time has no unit"),
        ("32K | 8192 | ", "no time"),
        ("all | 8192 | 56 ms", "prefix is 'all'"),
    ],
)
def test_a_row_with_a_unit_that_is_not_known_is_named(cells: str, words: str) -> None:
    report = read_log(f"| prefix | new tokens | time |\n|---|---|---|\n| 0 | 8192 | 50 ms |\n| {cells} |\n")
    assert len(report.samples) == 1
    (remark,) = report.remarks
    assert remark.startswith("line 4")
    assert words in remark


# -- the last line: a missing optional tail is not a cut ---------------------------------------------------------


@pytest.mark.parametrize("ending", ["\n", "", "\r\n"])
def test_a_last_line_without_the_optional_tail_is_whole(ending: str) -> None:
    report = read_log((INPUTS / "whole_last_line.log").read_text("utf-8").rstrip("\n") + ending)
    assert (report.cut, report.damaged) == ([], [])
    assert [(s.new_tokens, s.prefix, s.duration_s) for s in report.samples] == [(12_660, 0, 6.8507), (300, 0, 0.2025)]


def test_a_last_line_that_breaks_off_in_a_number_or_between_needed_fields_is_still_cut() -> None:
    whole = (INPUTS / "whole_last_line.log").read_text("utf-8").rstrip("\n")
    last = whole.rindex("\n") + 1
    for end in range(whole.index("#new-token", last) + 12, len(whole) - 1):
        report = read_log(whole[:end])
        assert len(report.samples) == 1, whole[last:end]
        assert [broken.line for broken in report.cut] == [2], whole[last:end]


def test_fields_that_another_whole_line_lacks_too_are_an_optional_tail() -> None:
    rows = [batch_row((0, new, 0, 0)) for new in (10, 20, 30)]
    rows[1] = rows[1].replace(", input throughput (token/s): 1000.00", "")
    rows[2] = rows[2].replace(", input throughput (token/s): 1000.00", "")
    assert read_log("\n".join(rows) + "\n").num_prefill == 3
    assert [broken.line for broken in read_log("\n".join(rows)).cut] == [3]  # no line feed: more may have followed


# -- what is read reaches the user -------------------------------------------------------------------------------


def test_findings_of_a_log_are_printed_by_fit(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "[rank1]:[E] [PG ID 2 Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=17, "
        "OpType=BROADCAST, NumelIn=4) ran for 600012 milliseconds before timing out.\n"
        "INFO rank 3 in world size 4 is assigned as DP rank 0, PP rank 1, TP rank 1, EP rank 1\n"
        "max_total_num_tokens=1000, chunked_prefill_size=512\n"
    )
    told = read_measured(str(tmp_path / "log")).remarks
    assert "line 1: nccl_watchdog: BROADCAST 17 on rank 1 timed out after 600.012 s" in told
    assert "line 2: rank: rank 3 of 4 is DP rank 0, PP rank 1, TP rank 1, EP rank 1" in told
    assert "start: max_total_num_tokens 1000, chunked_prefill_size 512" in told


@pytest.mark.parametrize("content", [(INPUTS / "seconds.jsonl").read_text("utf-8"), "TIMESTAMP,ContextTokens,G\n"])
def test_import_of_a_trace_says_where_it_belongs(tmp_path: Path, content: str) -> None:
    (tmp_path / "t").write_text(content)
    result = CliRunner().invoke(app, ["import", str(tmp_path / "t")])
    assert result.exit_code == EXIT_USAGE
    assert "ppsim run SCENARIO --trace FILE" in result.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{\n "schemaVersion": 1,\n "traceEvents": []}', "a Chrome or torch trace"),
        ('{"backend": "sglang", "mean_ttft_ms": 3.5, "completed": 4}', "the result of a serving benchmark"),
    ],
)
def test_files_of_known_other_kinds_are_named(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "t").write_text(content)
    result = CliRunner().invoke(app, ["fit", str(tmp_path / "t")])
    assert result.exit_code == EXIT_USAGE
    assert words in result.stderr
