"""Server logs as people have them. The oracle is the ``expect`` column of the tables."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from ppsim.sglang.logs import LogReport, read_log
from tests.unit._sglang_index import MISSING, SHARED, Row, rows, rows_of

ROWS = rows("logs")
BATCHES = re.compile(
    r"^(?P<kind>prefill|decode)=(?P<count>\d+)(?P<short> short(?:ened)?)?(?: after joining)?"
    r"(?P<rateless>(?: without|, no) rate)?(?: \(.*\))?$"
)
NUMBER = r"(\d+(?:\.\d+)?)"
STEP = re.compile(rf"{NUMBER}/{NUMBER} s = {NUMBER} ms")
BENCH = {
    rf"{NUMBER} requests": "successful_requests",
    rf"{NUMBER} s": "benchmark_duration_s",
    rf"input {NUMBER}": "total_input_tokens",
    rf"output {NUMBER}": "total_generated_tokens",
    rf"mean TTFT {NUMBER} ms": "mean_ttft_ms",
    rf"mean TPOT {NUMBER} ms": "mean_tpot_ms",
    rf"mean E2E {NUMBER} ms": "mean_e2e_latency_ms",
    rf"concurrency {NUMBER}": "concurrency",
}
SERVER = {
    "max_total_num_tokens": "max_total_num_tokens",
    "chunk": "chunked_prefill_size",
    "max_prefill_tokens": "max_prefill_tokens",
    "max_running_requests": "max_running_requests",
    "context_len": "context_len",
    "pp_size": "pp_size",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "world_size": "world_size",
}
HAS_CUT_WORD = re.compile(r"\bcut\b")


def finding(report: LogReport, kind: str) -> dict[str, object]:
    found = [one for one in report.findings if one.kind == kind]
    assert found, f"no finding of kind {kind}: {report.findings}"
    return {"text": found[-1].text, "ranks": found[-1].ranks, **found[-1].details}


# -- clauses spelt out by hand -------------------------------------------------------------------------------------


def equal_chunks(report: LogReport) -> None:
    prefixes = [sample.prefix for sample in report.samples]
    assert prefixes == [2048 * i for i in range(5)]
    assert not any(sample.prefix_known for sample in report.samples)
    assert all(44.4 <= sample.duration_s <= 45.05 for sample in report.samples)


def cached_falls(report: LogReport) -> None:
    lines = report.of("prefill")
    assert [line.count("#new-token") for line in lines] == [2048] * 7
    assert [line.count("#cached-token") for line in lines] == list(range(888, 785, -17))


def waits_for_proxy(report: LogReport) -> None:
    path = finding(report, "stack")["path"]
    assert isinstance(path, list)
    assert path[:3] == ["event_loop_pp", "_pp_recv_proxy_tensors", "recv_tensor_dict"]


def watchdog_of_eight(report: LogReport) -> None:
    found = finding(report, "watchdog")
    assert found["watchdog_timeout"] == 300
    assert sorted(str(rank) for rank in found["ranks"]) == [f"TP{i}" for i in range(8)]  # type: ignore[attr-defined]


def three_retractions(report: LogReport) -> None:
    assert report.num_retract == 3
    assert [broken.kind for broken in report.cut] == ["retract"]


def one_batch_two_stages(report: LogReport) -> None:
    assert report.num_prefill_batches == 1
    assert report.pp_ranks == [0, 1]


def one_batch_bench(report: LogReport) -> None:
    sixteen, one = report.tables
    assert (sixteen.values["batch_size"], sixteen.values["latency_s"]) == (16, 2.50)
    assert (one.values["batch_size"], one.values["latency_s"]) == (1, 0.17)
    assert one.values["output_throughput_tok_s"] == 95.08


def profile_lists(report: LogReport) -> None:
    (profile,) = report.profiles
    assert profile.seq_lens == tuple(range(7680, 59, -60))
    assert len(profile.seq_lens) == profile.declared == 128
    assert (len(profile.latencies_ms), profile.num_cut) == (7, 1)


def profile_samples(report: LogReport) -> None:
    assert [sample.new_tokens for sample in report.samples] == list(range(7620, 7319, -60))
    assert [round(report.samples[i].duration_s * 1e3, 1) for i in (0, -1)] == [220.7, 210.0]
    assert round(report.profiles[0].latencies_ms[0]) == 7234
    assert all(sample.duration_s < 1 for sample in report.samples)


def profile_prefix(report: LogReport) -> None:
    assert all(sample.prefix == 0 and sample.prefix_known for sample in report.samples)


def profile_chunk(report: LogReport) -> None:
    assert report.profiles[0].chunk_size == 6144 == 7680 / 1.25


def rank_lines(report: LogReport) -> None:
    lines = report.of("prefill_rank")
    assert len(lines) == 4
    assert sum("gpu-ms" in line.fields for line in lines) == 3


def gpu_samples(report: LogReport) -> None:
    found = {(s.new_tokens, s.prefix, round(s.duration_s * 1e3, 1), s.rank) for s in report.samples}
    assert found == {(16384, 0, 3255.5, "PP0"), (16384, 0, 2730.0, "PP1"), (25, 0, 568.2, "TP0")}


def bubbles(report: LogReport) -> None:
    lines = report.of("prefill_rank")
    assert [line.fields["bubble-ms"] for line in lines if "bubble-ms" in line.fields] == [16.5, 621.4]


def killed_65_s_later(report: LogReport) -> None:
    assert finding(report, "exception")["ranks"] == ["PP0"]
    assert finding(report, "kill")["after_exception_s"] == 65


def second_chunk(report: LogReport) -> None:
    (sample,) = report.samples
    assert (sample.prefix, sample.new_tokens, round(sample.duration_s, 3)) == (8192, 8192, 0.6)
    assert sample.prefix_known


def idle_first_chunk(report: LogReport) -> None:
    line = next(line for line in report.of("prefill") if line.get("input throughput") == 824.28)
    assert line.line not in [sample.line for sample in report.samples]
    assert 9.5 < line.count("#new-token") / 824.28 < 10.5


def prompt_of_chain(report: LogReport) -> None:
    assert report.prompt_tokens == 165896 == 157704 + 8192


def has_fields(*names: str) -> Callable[[LogReport], None]:
    def check(report: LogReport) -> None:
        for name in names:
            assert any(name in line.fields for line in report.batches if line.state == "complete"), name

    return check


def window_prompts(report: LogReport) -> None:
    tokens = [window.prompt_tokens for window in report.windows]
    assert [round(tokens[i] or 0) for i in (2, 3)] == [120688, 180325]


def running(*values: int) -> Callable[[LogReport], None]:
    def check(report: LogReport) -> None:
        seen = [window.num_running for window in report.windows]
        assert (min(seen), max(seen)) == (min(values), max(values))

    return check


def generation(value: float) -> Callable[[LogReport], None]:
    def check(report: LogReport) -> None:
        assert {window.generation_per_s for window in report.windows} == {value}

    return check


def first_prompt_rate(report: LogReport) -> None:
    assert report.windows[0].prompt_per_s == 6501.4


def long_windows(report: LogReport) -> None:
    lengths = [window.length_s for window in report.windows]
    assert lengths == [None, 170, 140, 250]
    assert report.windows[1].prompt_tokens == 4.0 * 170


def ttft_unusable(report: LogReport) -> None:
    assert not report.tables[0].ttft_usable


def vision_tokens(report: LogReport) -> None:
    values = report.tables[0].values
    assert values["total_input_tokens"] == values["total_input_text_tokens"] + values["total_input_vision_tokens"]
    assert (values["total_input_text_tokens"], values["total_input_vision_tokens"]) == (15373, 769536)
    assert values["successful_requests"] == 768
    assert values["benchmark_duration_s"] == 80.33


def no_tpot(report: LogReport) -> None:
    assert not any("tpot" in name for name in report.tables[0].values)


def fitted(report: LogReport) -> None:
    (fit,) = report.fits
    assert (fit.a_ms, fit.b_ms, fit.c_ms, fit.target_ms, fit.chunk_size) == (1.11e-06, 4.59e-02, 36.7, 98.68, 2048)
    assert fit.a_ms * 2048**2 + fit.b_ms * 2048 == pytest.approx(98.68, abs=0.15)


def oldest_form(report: LogReport) -> None:
    (line,) = report.of("prefill")
    names = ("#new-token", "#cached-token", "#new-seq", "#queue-req", "#running-req")
    assert [line.count(name) for name in names] == [2172, 330, 1, 57, 9]
    assert line.time_s is None


def nearly_all_cached(report: LogReport) -> None:
    found = [(line.count("#new-token"), line.count("#cached-token")) for line in report.of("prefill")]
    assert found == [(2, 8027), (4, 16030), (5, 20050)]


def stall_is_no_step(report: LogReport) -> None:
    assert report.of("decode")[0].get("gen throughput") == 0.44
    assert all(sample.step_s < 0.1 for sample in report.decode_samples)


def forty_steps(num_reqs: int, tokens: int) -> Callable[[LogReport], None]:
    def check(report: LogReport) -> None:
        lines = report.of("decode")
        grown = {b.count("#token") - a.count("#token") for a, b in pairwise(lines)}
        assert grown == {tokens}
        assert tokens == 40 * num_reqs

    return check


def batch_size(num_reqs: int) -> Callable[[LogReport], None]:
    def check(report: LogReport) -> None:
        assert {sample.num_reqs for sample in report.decode_samples} == {num_reqs}

    return check


def new_at_usage(report: LogReport) -> None:
    (line,) = report.of("prefill")
    assert (line.count("#new-token"), line.get("token usage")) == (2624, 0.25)


def ranks_of_node(report: LogReport) -> None:
    assert report.rank_table == {i: (("PP", 0), ("TP", i)) for i in range(4)}


def chunk_table(report: LogReport) -> None:
    assert {sample.new_tokens for sample in report.samples} == {1024}
    assert (report.samples[0].prefix, report.samples[-1].prefix) == (0, 97280)
    assert [round(report.samples[i].duration_s * 1e3, 1) for i in (0, -1)] == [128.4, 237.9]


def chunk_progress(report: LogReport) -> None:
    found = [(s.rank, s.new_tokens, s.prefix, round(s.duration_s * 1e3)) for s in report.samples]
    assert found == [("seq 20", 8192, 8192, 648), ("seq 21", 8192, 8192, 866), ("seq 22", 8192, 8192, 644)]


def prompt(tokens: int) -> Callable[[LogReport], None]:
    def check(report: LogReport) -> None:
        assert report.prompt_tokens == tokens

    return check


def pp_rank_zero(report: LogReport) -> None:
    assert report.pp_ranks == [0]


def exception_in_loop(report: LogReport) -> None:
    found = finding(report, "exception")
    assert "DP2" in str(found["ranks"])
    assert "event_loop_pp" in str(found["text"])


def leak_at_idle(report: LogReport) -> None:
    found = finding(report, "exception")
    assert "PP1" in str(found["ranks"])
    assert "idle check" in str(found["text"])
    assert "leak of the pool" in str(found["text"])


def nothing_runs(report: LogReport) -> None:
    finding(report, "no_request_running")


def all_zero(report: LogReport) -> None:
    (window,) = report.windows
    assert (window.num_running, window.num_waiting, window.prompt_per_s, window.generation_per_s) == (0, 0, 0.0, 0.0)


def retraction_fails(report: LogReport) -> None:
    found = finding(report, "exception")
    assert found["ranks"] == ["DP28"]
    assert found["token_usage"] == 1.0
    assert "retraction fails" in str(found["text"])


def watchdog_and_pool(report: LogReport) -> None:
    assert finding(report, "watchdog")["watchdog_timeout"] == 300
    assert finding(report, "watchdog")["ranks"] == ["DP4 TP4"]
    assert finding(report, "pool")["available_size"] == 798917


def watchdog_of_two(report: LogReport) -> None:
    assert finding(report, "watchdog")["watchdog_timeout"] == 300
    assert finding(report, "watchdog")["ranks"] == ["TP0", "TP1"]


def two_ranks(report: LogReport) -> None:
    assert report.pp_ranks == [0, 1]


def five_equal_chunks(report: LogReport) -> None:
    assert [(s.new_tokens, s.prefix) for s in report.samples] == [(4096, 4096 * i) for i in range(4)]
    assert all(sample.duration_s == pytest.approx(2.0) for sample in report.samples)


def one_retraction(report: LogReport) -> None:
    assert report.num_retract == 1


def pending(report: LogReport) -> None:
    assert report.of("prefill")[0].count("#pending-token") == 14906


def own_or_prev(report: LogReport) -> None:
    assert report.tput in ("own", "prev")


BY_HAND: dict[tuple[str, str], Callable[[LogReport], None]] = {
    ("002", "tput=own or prev"): own_or_prev,
    ("002", "prefix=relative"): equal_chunks,
    ("002", "44.5-45.0 s a chunk"): equal_chunks,
    ("005", "#new-token=2048 each"): cached_falls,
    ("006", "diagnosis"): waits_for_proxy,
    ("008", "diagnosis"): watchdog_of_eight,
    ("009", "retract=3"): three_retractions,
    ("011", "prefill=2 (one batch"): one_batch_two_stages,
    ("011", "bench"): one_batch_bench,
    ("012", "profile pairs"): profile_lists,
    ("012", "7 complete latencies"): profile_lists,
    ("012", "samples=6"): profile_samples,
    ("012", "prefix=0"): profile_prefix,
    ("012", "chunk 6144"): profile_chunk,
    ("013", "rank lines=4"): rank_lines,
    ("013", "samples=3"): gpu_samples,
    ("013", "bubble"): bubbles,
    ("014", "diagnosis"): killed_65_s_later,
    ("016", "samples=1"): second_chunk,
    ("016", "first chunk 824.28"): idle_first_chunk,
    ("016", "prompt"): prompt_of_chain,
    ("018", "#prealloc-req"): has_fields("#prealloc-req", "#inflight-req"),
    ("020", "prompt tokens of window"): window_prompts,
    ("020", "Running"): running(18, 21),
    ("021", "Running"): running(2),
    ("021", "0.4 token/s"): generation(0.4),
    ("023", "prompt 6501.4"): first_prompt_rate,
    ("026", "do not assume"): long_windows,
    ("027", "TTFT unusable"): ttft_unusable,
    ("032", "bench"): vision_tokens,
    ("032", "no TPOT"): no_tpot,
    ("037", "fit"): fitted,
    ("038", '"new fill batch"'): oldest_form,
    ("042", "new/cached"): nearly_all_cached,
    ("044", "first decode line"): stall_is_no_step,
    ("046", "bs 8"): batch_size(8),
    ("046", "320 tokens"): forty_steps(8, 320),
    ("051", "2624 new"): new_at_usage,
    ("052", "ranks seen"): ranks_of_node,
    ("054", "samples=9"): chunk_table,
    ("057", "samples=3"): chunk_progress,
    ("057", "prompt"): prompt(40019),
    ("059", "pp_ranks"): pp_rank_zero,
    ("059", "diagnosis"): exception_in_loop,
    ("060", "diagnosis"): leak_at_idle,
    ("065", "windows=1, all zero"): all_zero,
    ("065", "diagnosis"): nothing_runs,
    ("068", "bs 6"): batch_size(6),
    ("068", "240 tokens"): forty_steps(6, 240),
    ("072", "diagnosis"): retraction_fails,
    ("074", "pre-allocated usage"): has_fields(
        "pre-allocated usage", "#prealloc-req", "#transfer-req", "#retracted-req"
    ),
    ("075", "diagnosis"): watchdog_and_pool,
    ("078", "pending"): pending,
    ("own_waits_for_proxy", "diagnosis"): waits_for_proxy,
    ("own_watchdog", "diagnosis"): watchdog_of_two,
    ("own_two_stages", "prefill=2 (one batch"): one_batch_two_stages,
    ("own_two_stages", "pp_ranks"): two_ranks,
    ("own_vllm_windows", "Running"): running(4),
    ("own_chain", "chunks of two seconds"): five_equal_chunks,
    ("own_retraction", "retract=1"): one_retraction,
    ("own_pd_prefill", "#bootstrap-req"): has_fields("#bootstrap-req", "#inflight-req"),
}


def is_of(row: Row, name: str) -> bool:
    """Whether a check is of this row: posted ones go by their number, ours by their whole name."""
    return name in (row.name, row.name[:3])


# -- clauses with a grammar ----------------------------------------------------------------------------------------


def check_batches(report: LogReport, clause: str) -> bool:
    found = BATCHES.match(clause)
    if not found:
        return False
    complete, short = len(report.of(found["kind"])), len(report.of(found["kind"], "short"))
    expected = int(found["count"])
    assert (complete, short) == ((0, expected) if found["short"] else (expected, 0))
    if found["rateless"]:
        rate = "gen throughput" if found["kind"] == "decode" else "input throughput"
        assert not any(rate in line.fields for line in report.of(found["kind"]))
    return True


def check_counts(report: LogReport, clause: str) -> bool:
    found = re.match(r"^(samples|cut|windows)=(\d+)(?:, [a-z ]+| \(.*\))?$", clause)
    if not found:
        return False
    seen = {"samples": len(report.samples), "cut": len(report.cut), "windows": len(report.windows)}
    assert seen[found[1]] == int(found[2])
    return True


def check_meaning(report: LogReport, clause: str) -> bool:
    found = re.match(r"^tput=(own|prev|none|undecided)$", clause)
    if found:
        assert report.tput == found[1]
    return bool(found)


def check_step(report: LogReport, clause: str) -> bool:
    """Requests over rate is the step; of the lines that count, one has this rate."""
    found = STEP.search(clause)
    if not found:
        return False
    reqs, rate, milliseconds = (float(part) for part in found.groups())
    steps = [sample.step_s * 1e3 for sample in report.decode_samples if sample.num_reqs == reqs]
    assert any(step == pytest.approx(1e3 * reqs / rate, rel=0.002) for step in steps), steps
    assert 1e3 * reqs / rate == pytest.approx(milliseconds, rel=0.012)
    return True


def check_bench(report: LogReport, clause: str) -> bool:
    found = re.match(r"^(?:bench: )?(.*)$", clause)
    parts = found[1].split(", ") if found else []
    for part in parts:
        for pattern, name in BENCH.items():
            match = re.fullmatch(pattern, part)
            if match:
                assert report.tables[0].values[name] == float(match[1])
                break
        else:
            return False
    return True


def check_server(report: LogReport, clause: str) -> bool:
    found = re.match(r"^([a-z_]+)=(\d+)$", clause)
    if not found or found[1] not in SERVER:
        return False
    assert report.server[SERVER[found[1]]] == int(found[2])
    return True


GRAMMAR = (check_batches, check_counts, check_meaning, check_step, check_bench, check_server)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_log_gives_what_the_table_says(row: Row) -> None:
    report = read_log(row.text)
    for clause in row.clauses:
        hands = [check for (name, start), check in BY_HAND.items() if is_of(row, name) and clause.startswith(start)]
        for check in hands:
            check(report)
        by_rule = [check(report, clause) for check in GRAMMAR]
        assert hands or any(by_rule), f"no check covers the clause {clause!r}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_log_gives_nothing_that_the_table_does_not_say(row: Row) -> None:
    """Batch lines that no clause counts are not there; nothing is damaged; only a cut text has a cut line."""
    report = read_log(row.text)
    counted = {found["kind"] for clause in row.clauses if (found := BATCHES.match(clause))}
    counted |= {"prefill"} if "new fill batch" in row.expect else set()
    for kind in ("prefill", "decode"):
        if kind not in counted:
            assert not [line for line in report.batches if line.kind == kind]
    assert not report.damaged
    if not HAS_CUT_WORD.search(row.special + row.expect):
        assert not report.cut
    if "samples=" not in row.expect:
        assert not report.samples


@pytest.mark.skipif(not rows_of(SHARED, "logs"), reason=MISSING)
def test_all_forty_five_posted_logs_are_there() -> None:
    assert len(rows_of(SHARED, "logs")) == 45


def test_our_logs_are_there_and_no_hand_check_is_idle() -> None:
    assert len([row for row in ROWS if row.name.startswith("own_")]) == 13
    for name, start in BY_HAND:
        row = next((row for row in ROWS if is_of(row, name)), None)
        if row is None:  # a posted one, in a clone without them
            assert not rows_of(SHARED, "logs")
            continue
        assert any(clause.startswith(start) for clause in row.clauses), (name, start)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_summary_always_tells_what_was_cut_and_damaged(row: Row) -> None:
    report = read_log(row.text)
    assert f"{len(report.cut)} cut, {len(report.damaged)} damaged" in report.summary()
    assert report.to_dict()["counts"]["cut"] == len(report.cut)


def test_the_arguments_that_a_server_logs_are_read() -> None:
    text = (
        "[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', tp_size=8, pp_size=4, chunked_prefill_size=4096)"
    )
    server = read_log(text).server
    assert (server["tp_size"], server["pp_size"], server["chunked_prefill_size"]) == (8, 4, 4096)
