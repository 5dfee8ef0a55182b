"""Traces of conversations and of benchmarks. The writer below makes the files from a truth of its own, and shares no
code with the reader: what is read must be that truth, and what the file does not say must be told."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.core.tokens import count
from ppsim.errors import EXIT_USAGE, ScenarioError, TraceError
from ppsim.scenario.load import validate
from ppsim.workload import Workload, build_workload
from ppsim.workload.trace import Reading, read_trace

Session = list[tuple[int, int]]  # new prompt tokens and output tokens (0: not said) of its turns
TOKENIZER = Path(__file__).parent.parent / "data" / "inputs" / "words_tokenizer.json"


def build(path: Path, **keys: object) -> Workload:
    return build_workload(validate({"workload": {"source": "trace", "trace": str(path), **keys}}))


def sessions_read(w: Workload) -> list[Session]:
    """The sessions of a workload by the ids of their requests."""
    found: dict[int, Session] = {}
    for a in sorted(w.arrivals, key=lambda a: [int(part) for part in a.request.rid[1:].split(".")]):
        found.setdefault(int(a.request.rid[1:].split(".")[0]), []).append((count(a.request.prompt), a.output_length))
    return list(found.values())


# -- the writer ----------------------------------------------------------------------------------------------------


def text(rng: random.Random, num_tokens: int) -> str:
    """A text that four bytes a token, rounded up, makes ``num_tokens``; with letters of one to four bytes."""
    size = 4 * num_tokens - rng.randrange(4)
    out = ""
    while size:
        letter = rng.choice([c for c in "a 1é漢🙂\n" if len(c.encode()) <= size])
        out, size = out + letter, size - len(letter.encode())
    return out


def truth_of(rng: random.Random, *, most_turns: int = 4) -> list[Session]:
    return [
        [(rng.randint(1, 300), rng.randint(1, 99)) for _ in range(rng.randint(1, most_turns))]
        for _ in range(rng.randint(1, 12))
    ]


def sharegpt(rng: random.Random, truth: list[Session]) -> list[Any]:
    names = rng.choice([("from", "value", "human", "gpt"), ("role", "content", "user", "assistant")])
    by, what, asks, answers = names
    key = rng.choice(["conversations", "conversation"])
    return [
        {
            "id": str(n),
            key: [m for p, o in session for m in ({by: asks, what: text(rng, p)}, {by: answers, what: text(rng, o)})],
        }
        for n, session in enumerate(truth)
    ]


def custom(rng: random.Random, truth: list[Session]) -> list[Any]:
    if rng.random() < 0.5:
        return [{"prompt": text(rng, p), "output_tokens": o} for ((p, o),) in truth]
    return [{"messages": [{"role": "user", "content": text(rng, p)}], "max_tokens": o} for ((p, o),) in truth]


def aiperf_inputs(rng: random.Random, truth: list[Session]) -> dict[str, Any]:
    with_history = rng.random() < 0.5
    data = []
    for n, session in enumerate(truth):
        said: list[Any] = []
        payloads = []
        for p, o in session:
            ask = {"role": "user", "content": text(rng, p)}
            said = [*said, ask] if with_history else [ask]
            payloads.append({"messages": list(said), "model": "m", "max_completion_tokens": o})
            if with_history:
                said = [*said, {"role": "assistant", "content": text(rng, o)}]
        data.append({"session_id": f"s{n}", "payloads": payloads})
    return {"data": data}


def packed(rng: random.Random, content: bytes) -> bytes:
    how = rng.choice(["plain", "gzip", "zstd"])
    if how == "zstd":
        zstandard = pytest.importorskip("zstandard")
        return bytes(zstandard.ZstdCompressor().compress(content))
    return gzip.compress(content) if how == "gzip" else content


def written(rng: random.Random, records: Any) -> bytes:
    """As an array, as lines, or as one object over many lines."""
    if isinstance(records, dict):
        return json.dumps(records, indent=rng.choice([None, 2]), ensure_ascii=rng.random() < 0.5).encode()
    if rng.random() < 0.5:
        return json.dumps(records, indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5).encode()
    return "\n".join(json.dumps(r, ensure_ascii=rng.random() < 0.5) for r in records).encode()


WRITERS = {"sharegpt": sharegpt, "custom": custom, "aiperf_inputs": aiperf_inputs}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_hundred_generated_data_sets_of_each_kind_are_read_as_they_were_meant(tmp_path: Path, kind: str) -> None:
    for seed in range(100):
        rng = random.Random(f"{kind}{seed}")
        truth = truth_of(rng, most_turns=1 if kind == "custom" else 4)
        path = tmp_path / str(seed)
        path.write_bytes(packed(rng, written(rng, WRITERS[kind](rng, truth))))  # type: ignore[operator]
        w = build(path)
        assert sessions_read(w) == truth, seed
        assert any("no tokenizer is named" in told for told in w.warnings)
        assert any("it has no times" in told for told in w.warnings)
        for a in w.arrivals:
            rid, _, turn = a.request.rid.partition(".")
            assert a.follows == (f"{rid}.{int(turn) - 1}" if turn != "1" else "")


def result_records(rng: random.Random, rows: list[tuple[int, int, int]], timed: bool) -> bytes:
    """``rows``: start in ns, prompt, output. vLLM's file, or SGLang's with one run a line."""
    runs = [rows] if rng.random() < 0.5 else [rows[: len(rows) // 2 + 1], rows[len(rows) // 2 + 1 :]]
    out = []
    for run in filter(None, runs):
        record: dict[str, Any] = {"backend": "vllm", "max_concurrency": 8, "mean_ttft_ms": 1.5}
        record |= {"input_lens": [p for _, p, _ in run], "output_lens": [o for _, _, o in run]}
        record |= {"ttfts": [0.5] * len(run), "errors": ["" if o else "broke" for _, _, o in run]}
        line = json.dumps(record)
        if timed:  # digits as they are, which no float keeps
            starts = ", ".join(f"{at // 10**9}.{at % 10**9:09d}" for at, _, _ in run)
            line = line[:-1] + f', "start_times": [{starts}]}}'
        out.append(line)
    return "\n".join(out).encode()


def timed_rows(rng: random.Random) -> list[tuple[int, int, int]]:
    at = 1_700_000_000 * 10**9 + rng.randrange(10**9)
    rows = []
    for _ in range(rng.randint(2, 30)):
        rows.append((at, rng.randint(1, 5000), rng.choice([0, 1, rng.randint(2, 400)])))
        at += rng.randrange(3 * 10**9)
    return rows


@pytest.mark.parametrize("timed", [True, False])
def test_fifty_results_of_a_benchmark_are_the_requests_that_it_sent(tmp_path: Path, timed: bool) -> None:
    for seed in range(50):
        rng = random.Random(f"bench{seed}{timed}")
        rows = timed_rows(rng)
        (tmp_path / "r").write_bytes(packed(rng, result_records(rng, rows, timed)))
        trace = read_trace(str(tmp_path / "r"))
        assert trace.timed == timed
        start = rows[0][0] if timed else 0
        assert [(r.at_ns, r.input_length, 0 if r.no_output else r.output_length) for r in trace.rows] == [
            (at - start if timed else 0, p, o) for at, p, o in rows
        ], seed
        told = " ".join(trace.warnings)
        assert "max_concurrency 8" in told
        without = sum(o == 0 for _, _, o in rows)
        assert (f"{without} requests failed" in told) == (without > 0)


def test_fifty_exports_of_aiperf(tmp_path: Path) -> None:
    for seed in range(50):
        rng = random.Random(f"aiperf{seed}")
        rows = timed_rows(rng)
        out = [
            {
                "metadata": {"session_num": n, "turn_index": 0, "request_start_ns": at, "benchmark_phase": "profiling"},
                "metrics": {
                    "input_sequence_length": {"value": p, "unit": "tokens"},
                    "output_sequence_length": {"value": o, "unit": "tokens"},
                }
                if o
                else {"error_isl": {"value": p, "unit": "tokens"}},
                "error": None if o else {"code": 499},
            }
            for n, (at, p, o) in enumerate(rows)
        ]
        warm = {**out[0], "metadata": {**out[0]["metadata"], "benchmark_phase": "warmup", "request_start_ns": 5}}  # type: ignore[dict-item]
        (tmp_path / "r").write_bytes(packed(rng, "\n".join(map(json.dumps, [warm, *out])).encode()))
        trace = read_trace(str(tmp_path / "r"))
        assert [(r.at_ns, r.input_length, 0 if r.no_output else r.output_length) for r in trace.rows] == [
            (at - rows[0][0], p, o) for at, p, o in rows
        ], seed
        assert any("1 requests of the warm-up are left out" in told for told in trace.warnings)


# -- Mooncake's family ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [16, 64, 256, 512, 1024])
@pytest.mark.parametrize("bailian", [True, False])
def test_a_trace_of_the_family_says_its_block_size_by_its_rows(tmp_path: Path, block: int, bailian: bool) -> None:
    rng = random.Random(block)
    rows, fresh = [], 0
    for n in range(30):
        length = rng.randint(1, 9000)
        num = -(-length // block)
        record: dict[str, Any] = {"timestamp": 0, "input_length": length, "hash_ids": list(range(fresh, fresh + num))}
        if bailian:
            record |= {"chat_id": n, "parent_chat_id": -1, "turn": 1, "type": "text"}
        fresh += num
        rows.append(json.dumps(record).replace('"timestamp": 0', f'"timestamp": {3 * n}.{"5" if bailian else "0"}'))
    (tmp_path / "t").write_text("\n".join(rows))
    trace = read_trace(str(tmp_path / "t"), 512, Reading(time_unit=None if bailian else "s"))
    assert trace.block_tokens == block
    told = " ".join(trace.warnings)
    assert (f"for {block} tokens" in told) == (block != 512)
    assert ("Bailian" in told) == bailian
    assert "30 of 30 requests have no output" in told
    start = 500_000_000 if bailian else 0
    assert [row.at_ns for row in trace.rows] == [3 * n * 10**9 + start for n in range(30)]
    w = build(tmp_path / "t", time_unit=None if bailian else "s")
    assert len({a.request.prompt[:8] for a in w.arrivals}) == 30


def test_rows_without_ids_share_nothing_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "t").write_text(
        "\n".join(f'{{"timestamp": {n * 1000}, "input_length": 9, "output_length": 0}}' for n in range(4))
    )
    trace = read_trace(str(tmp_path / "t"))
    assert [row.hash_ids for row in trace.rows] == [None] * 4
    assert "no hash_ids" in trace.warnings[0]
    assert "4 of 4 requests have no output" in trace.warnings[1]


# -- what is told, asked for or refused ----------------------------------------------------------------------------


def test_a_named_tokenizer_counts_and_nothing_is_estimated(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    talk = [{"from": "human", "value": "one two three"}, {"from": "gpt", "value": "four five"}]
    (tmp_path / "t").write_text(json.dumps([{"conversations": talk}]))
    w = build(tmp_path / "t", tokenizer=str(TOKENIZER))
    assert sessions_read(w) == [[(3, 2)]]
    assert not any("estimated" in told for told in w.warnings)
    with pytest.raises(ScenarioError, match=r"workload\.tokenizer.*no tokenizer"):
        build(tmp_path / "t", tokenizer=str(tmp_path / "t"))


def test_turns_conversations_and_thinking_are_the_users_choice(tmp_path: Path) -> None:
    rng = random.Random(1)
    truth = [[(5, 2), (6, 3), (7, 4)], [(8, 1)], [(9, 2), (1, 1)]]
    (tmp_path / "t").write_bytes(written(rng, sharegpt(rng, truth)))
    assert sessions_read(build(tmp_path / "t", num_turns=2)) == [truth[0][:2], truth[1], truth[2]]
    assert sessions_read(build(tmp_path / "t", num_requests=2)) == truth[:2]
    w = build(tmp_path / "t", think_time_ms=20.0, concurrency=2)
    assert {a.at_ns for a in w.arrivals if a.follows} == {20_000_000}
    assert len(w.opening) == 2
    with pytest.raises(ScenarioError, match="first token only"):
        build_workload(
            validate(
                {"workload": {"source": "trace", "trace": str(tmp_path / "t")}, "disaggregation": {"role": "prefill"}}
            )
        )


def test_what_is_no_plain_text_is_told(tmp_path: Path) -> None:
    picture = {"role": "user", "content": [{"type": "text", "text": "abcd"}, {"type": "image_url"}]}
    talk = [{"role": "assistant", "content": "hello"}, picture, {"role": "assistant", "content": ""}]
    (tmp_path / "t").write_text(json.dumps({"conversations": talk}))
    w = build(tmp_path / "t")
    assert sessions_read(w) == [[(2 + 1, 1)]]
    told = " ".join(w.warnings)
    assert all(words in told for words in ("1 answers stand before", "1 parts of messages", "1 messages without text"))


BAD = [
    ('{"conversations": [{"from": "alien", "value": "x"}]}', 1, "conversations"),
    ('{"conversations": [{"value": "x"}]}', 1, "conversations"),
    ('{"conversations": 3}', 1, "conversations"),
    ('{"prompt": 5}', 1, "prompt"),
    ('{"prompt": "a", "output_tokens": "9"}', 1, "output_tokens"),
    ('{"prompt": "a", "output_tokens": 0}', 1, "output_tokens"),
    ('{"prompt": "a"}\n{"conversations": []}', 2, "format"),
    ('{"input_lens": [1, 2], "output_lens": [1]}', 1, "output_lens"),
    ('{"input_lens": [1, "x"], "output_lens": [1, 1]}', 1, "input_lens"),
    ('{"input_lens": [1], "output_lens": [-1]}', 1, "output_lens"),
    ('{"input_lens": [1], "output_lens": [1], "start_times": [true]}', 1, "start_times"),
    ('{"metadata": {}, "metrics": {}}', 1, "metrics.input_sequence_length"),
    ('{"metadata": {}, "metrics": {"input_sequence_length": 4}}', 1, "metrics.output_sequence_length"),
    ('{"data": [{"payloads": []}]}', 1, "payloads"),
    ('{"data": [7]}', 1, "data"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "line", "field"), BAD)
def test_a_malformed_record_names_line_and_field(tmp_path: Path, content: str, line: int, field: str) -> None:
    (tmp_path / "t").write_text(content)
    with pytest.raises(TraceError) as refused:
        build(tmp_path / "t")
    assert (refused.value.line, refused.value.field) == (line, field)


def test_damaged_files_of_every_kind_give_rows_or_an_error(tmp_path: Path) -> None:
    """A hundred files of each kind with some bytes changed, dropped or doubled: no traceback."""
    rng = random.Random(9)
    for seed in range(300):
        kind = ("sharegpt", "custom", "aiperf_inputs")[seed % 3]
        truth = truth_of(rng, most_turns=1 if kind == "custom" else 3)
        content = bytearray(packed(rng, written(rng, WRITERS[kind](rng, truth))))  # type: ignore[operator]
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(content))
            content[place : place + rng.randint(0, 3)] = rng.choice([b"", b"{", b"0", b'"', b"\xff", b"]"])
        (tmp_path / "t").write_bytes(content)
        for skip in (False, True):
            try:
                build(tmp_path / "t", skip_bad_lines=skip)
            except (TraceError, ScenarioError):
                continue


def test_zstd_without_a_library_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"\x28\xb5\x2f\xfd\x04\x00")
    code = (
        "import sys; sys.modules['zstandard'] = None; sys.modules['compression.zstd'] = None\n"
        "from ppsim.workload.trace import read_trace\n"
        f"read_trace({str(tmp_path / 't')!r})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install zstandard" in done.stderr


@pytest.mark.parametrize("cut", [1, 10, 100_000, 200_000])
def test_a_zstd_file_that_breaks_off_is_refused(tmp_path: Path, cut: int) -> None:
    zstandard = pytest.importorskip("zstandard")
    rng = random.Random(3)
    rows = "\n".join(f'{{"prompt": "{rng.getrandbits(400):x}"}}' for _ in range(6000))
    content = zstandard.ZstdCompressor().compress(rows.encode())
    assert len(content) > 250_000
    (tmp_path / "t").write_bytes(content[:-cut])
    with pytest.raises(TraceError, match="zstd"):
        read_trace(str(tmp_path / "t"))


# -- where a trace belongs -----------------------------------------------------------------------------------------


def azure() -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows([["TIMESTAMP", "ContextTokens", "GeneratedTokens"], ["2023-11-16 18:17:03", 1, 1]])
    return out.getvalue().encode()


PASTED = {
    "Mooncake": b'{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n',
    "Azure": azure(),
    "ShareGPT": b'[\n {"id": "x",\n "conversations": [{"from": "human", "value": "hi"}]}\n]',
    "bench_serving": b'{"backend": "vllm", "input_lens": [1], "output_lens": [1]}',
    "AIPerf": b'{"metadata": {"request_start_ns": 5}, "metrics": {"input_sequence_length": {"value": 1}}}',
    "AIPerf inputs": b'{\n  "data": [\n {"session_id": "s", "payloads": [{"prompt": "a"}]}]}',
    "requests of texts": b'{"prompt": "a"}\n{"prompt": "b"}\n',
}


@pytest.mark.parametrize("kind", PASTED)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_import_says_what_a_trace_is_and_where_it_belongs(tmp_path: Path, kind: str, pack: Any) -> None:
    (tmp_path / "t").write_bytes(pack(PASTED[kind]))
    result = CliRunner().invoke(app, ["import", str(tmp_path / "t")])
    assert result.exit_code == EXIT_USAGE
    assert f"request trace ({kind})" in result.stderr
    assert "ppsim run SCENARIO --trace FILE" in result.stderr


def test_columns_go_with_a_trace_through_import(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at_s,in,out\n0,5,2\n1,6,3\n")
    trace = ["--trace", str(tmp_path / "t.csv"), "--column", "time=at_s", "--column", "prompt=in", "--concurrency", "2"]
    result = CliRunner().invoke(app, ["import", *trace, "vllm serve meta-llama/Llama-3.1-8B-Instruct"])
    assert result.exit_code == 0, result.stderr
    assert 'prompt = "in"' in result.stdout
    assert "concurrency = 2" in result.stdout
    result = CliRunner().invoke(app, ["import", "--column", "time=x", "vllm serve meta-llama/Llama-3.1-8B-Instruct"])
    assert result.exit_code == EXIT_USAGE
    assert "--trace" in result.stderr


def test_ten_bad_lines_of_many_are_all_named_in_a_data_set_too(tmp_path: Path) -> None:
    lines = ['{"prompt": "abcd", "output_tokens": 3}'] * 3000
    bad = sorted(random.Random(2).sample(range(3000), 10))
    for place, text_of_it in zip(bad, ["x", "{", "[]", "{}", '{"prompt": 1}'] * 2):
        lines[place] = text_of_it
    (tmp_path / "t").write_text("\n".join(lines))
    trace = read_trace(str(tmp_path / "t"), 512, Reading(skip_bad_lines=True))
    assert len(trace.rows) == 2990
    named = [told for told in trace.warnings if told.startswith("skipped: ")]
    assert [int(told.split(":")[2]) for told in named] == [place + 1 for place in bad]
