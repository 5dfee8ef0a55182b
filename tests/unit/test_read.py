"""``ppsim read``: 300 logs of a writer that knows what it wrote, and one file of each kind.

The writer shares no code with the readers. What it wrote must be in what is read, with line and value, and every line
that it made up to mean nothing must be among those that were not understood: no difference is silent.
"""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.cli.recognise import recognise
from tests.unit._sglang_index import rows

NUM_LOGS = 300
NOISE = (
    "[2026-05-01 10:00:00] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16",
    "100%|##########| 128/128 [00:38<00:00,  3.30it/s]",
    "INFO:     Application startup complete.",
    "some words of a person about prefill batches and decoding",
    "WARNING: the cache is cold",
    "{not json",
    "| a | b |",
)


@dataclass
class Log:
    """Lines and what they say. ``told``: pieces of sentences, of which each must stand in one that is read."""

    lines: list[str] = field(default_factory=list)
    noise: list[int] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    told: list[tuple[str, ...]] = field(default_factory=list)
    new_tokens: int = 0
    retracted: int = 0
    samples: int = 0
    cut: bool = False
    new_form: bool = False
    kinds: set[str] = field(default_factory=set)

    def add(self, kind: str, text: str) -> int:
        self.lines.append(text)
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return len(self.lines)


def stamp(second: int, tag: str = "") -> str:
    return f"[2026-05-01 {10 + second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{tag}]"


def sglang_batch(draw: random.Random, log: Log, at: int) -> None:
    tag = draw.choice(["", " TP0", " PP0 TP0"])
    log.kinds.add("SGLang server log")
    if draw.random() < 0.5:
        new, cached, waiting = draw.randint(1, 9000), draw.choice([0, 64]), draw.randint(0, 9)
        log.new_tokens += new
        form = ", cuda graph: False, input throughput (token/s): 812.50" if log.new_form else ""
        pending = f", #pending-token: {draw.randint(0, 99)}" if form else ""
        log.add(
            "prefill",
            f"{stamp(at, tag)} Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: "
            f"0.{draw.randint(10, 99)}, #running-req: 0, #queue-req: {waiting}{pending}{form}",
        )
    else:
        log.add(
            "decode",
            f"{stamp(at, tag)} Decode batch, #running-req: {draw.randint(1, 64)}, #token: {draw.randint(1, 10**6)}, "
            f"token usage: 0.{draw.randint(10, 99)}, gen throughput (token/s): "
            f"{draw.randint(100, 9999)}.25, #queue-req: 0",
        )


def vllm_window(draw: random.Random, log: Log, at: int) -> None:
    log.kinds.add("vLLM server log")
    prompt, out, running, waiting = (draw.randint(0, 5000) for _ in range(4))
    usage = draw.randint(0, 999) / 10
    line = log.add(
        "windows",
        f"INFO 05-01 {stamp(at)[12:20]} [loggers.py:1] Engine 000: Avg prompt throughput: {prompt}.0 tokens/s, Avg "
        f"generation throughput: {out}.0 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, GPU KV "
        f"cache usage: {usage}%, Prefix cache hit rate: 0.0%",
    )
    log.told.append(
        (f"line {line}: window", f"{prompt} prompt and {out} output", f"{running} running, {waiting} waiting")
    )


def retraction(draw: random.Random, log: Log, at: int) -> None:
    log.kinds.add("SGLang server log")
    count = draw.randint(1, 40)
    log.retracted += count
    log.add(
        "retract",
        f"{stamp(at, ' TP0')} Decode out of memory happened. #retracted_reqs: {count}, #new_token_ratio: 0.5 -> 0.9",
    )


def nccl(draw: random.Random, log: Log, at: int) -> None:
    rank, seq, ms = draw.randint(0, 31), draw.randint(1, 9999), draw.randint(1, 9) * 100_500
    op = draw.choice(["ALLREDUCE", "BROADCAST", "ALLGATHER"])
    line = log.add(
        "",
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for {ms} milliseconds "
        "before timing out.",
    )
    log.told.append((f"line {line}: nccl_watchdog", f"{op} {seq} on rank {rank}", f"after {ms / 1000:g} s"))


def assignment(draw: random.Random, log: Log, at: int) -> None:
    rank = draw.randint(0, 7)
    line = log.add(
        "",
        f"INFO 05-01 10:00:00 [parallel_state.py:1] rank {rank} in world size 8 is assigned as "
        "DP rank 0, PP rank 1, TP rank 3",
    )
    log.told.append((f"line {line}: rank", f"rank {rank} of 8 is DP rank 0, PP rank 1, TP rank 3"))


def watchdog(draw: random.Random, log: Log, at: int) -> None:
    limit = draw.randint(100, 900) + draw.random() / 8
    log.add("", f"{stamp(at, ' PP1 TP0')} Watchdog timeout (self.watchdog_timeout={limit})")
    log.told.append(("watchdog", f"{limit:g} s passed on", "PP1 TP0"))


def started(draw: random.Random, log: Log, at: int) -> None:
    if "start" in log.counts:
        return
    pool, chunk = draw.randint(10**4, 10**6), draw.choice([2048, 4096, 8192])
    log.add(
        "start",
        f"{stamp(at)} max_total_num_tokens={pool}, chunked_prefill_size={chunk}, "
        "max_running_requests=64, context_len=8192, available_gpu_mem=7.50 GB",
    )
    log.told.append((f"max_total_num_tokens {pool}", f"chunked_prefill_size {chunk}", "available_gpu_mem 7.5"))


def benchmark(draw: random.Random, log: Log, at: int) -> None:
    log.kinds.add("printed benchmark result")
    done, ttft = draw.randint(1, 999), draw.randint(100, 99999) / 100
    title = len(log.lines) + 1
    log.lines += [
        "============ Serving Benchmark Result ============",
        "Backend:                                 sglang    ",
        f"Successful requests:                     {done}       ",
        "---------------Time to First Token----------------",
        f"Mean TTFT (ms):                          {ttft:.2f}   ",
        "==================================================",
    ]
    log.told.append(
        (
            f"line {title}: Serving Benchmark Result",
            f"successful_requests {done}",
            f"mean_ttft_ms {ttft:g}",
            "backend sglang",
        )
    )


def chunk_table(draw: random.Random, log: Log, at: int) -> None:
    log.kinds.add("table of chunk times")
    log.lines += ["", "| prefix | new tokens | time |", "|---|---|---|"]  # a table right behind another is its part
    for _ in range(draw.randint(1, 4)):
        log.lines.append(f"| {draw.randint(0, 64)}K | {draw.randint(1, 8)}K | {draw.randint(10, 900)} ms |")
        log.samples += 1
    log.lines.append("")


def noise(draw: random.Random, log: Log, at: int) -> None:
    log.lines.append(draw.choice(NOISE))
    log.noise.append(len(log.lines))


PARTS = (
    sglang_batch,
    sglang_batch,
    sglang_batch,
    vllm_window,
    retraction,
    nccl,
    assignment,
    watchdog,
    started,
    benchmark,
    chunk_table,
    noise,
    noise,
)


def written(seed: int) -> tuple[Log, str]:
    draw = random.Random(seed)
    log = Log(new_form=draw.random() < 0.5)  # a server prints one form
    wanted = draw.sample(range(len(PARTS)), draw.randint(1, len(PARTS)))
    for step in range(draw.randint(2, 30)):
        PARTS[draw.choice(wanted)](draw, log, 7 * step)
    if draw.random() < 0.3:
        log.cut = True
        log.kinds.add("SGLang server log")
        log.lines.append(f"{stamp(500)} Prefill batch, #new-seq: 1, #new-tok")
        return log, "\n".join(log.lines)
    return log, "\n".join(log.lines) + draw.choice(["", "\n", "\n\n"])


@pytest.mark.parametrize("first", range(0, NUM_LOGS, 50))
def test_nothing_that_a_log_says_is_lost_in_silence(first: int) -> None:
    for seed in range(first, first + 50):
        log, text = written(seed)
        told = recognise("server.log", text.encode())
        about = (seed, text, told.to_dict()["read"])
        if not log.kinds:
            assert told.unread or told.kind, about
        else:
            assert log.kinds <= set(told.kind.split(", ")), about
        for pieces in log.told:
            assert any(all(piece in sentence for piece in pieces) for sentence in told.read), (pieces, *about)
        if not told.kind:
            assert [line for line, _ in told.unread] == [n for n, row in enumerate(text.split("\n"), 1) if row.strip()]
            continue
        counts = told.data["log"]["counts"]
        for kind in ("prefill", "decode", "retract", "windows"):
            assert counts[kind] == log.counts.get(kind, 0), (kind, *about)
        assert counts["cut"] == log.cut, about
        assert counts["damaged"] == 0, about
        assert [line for line, _ in told.unread] == log.noise, about
        assert told.num_lines == len([line for line in log.lines if line.strip()])
        assert sum(sample["source"] == "table" for sample in told.data["log"]["samples"]) == log.samples, about
        if log.counts.get("prefill"):
            assert any(f"prefill lines: {log.new_tokens} new tokens" in sentence for sentence in told.read), about
        if log.retracted:
            assert any(f"retractions: {log.retracted} requests" in sentence for sentence in told.read), about
        assert ("ppsim fit server.log" in told.give_to) == bool(
            told.data["log"]["samples"] or told.data["log"]["decode_samples"]
        )


def test_a_stall_is_told_with_its_line_and_length() -> None:
    head = (
        "Decode batch, #running-req: 4, #token: 900, token usage: 0.10, gen throughput (token/s): 100.25, #queue-req: 0"
    )
    text = "\n".join(f"{stamp(at, ' PP0')} {head}" for at in (0, 2, 4, 6, 131, 133))
    assert (
        "line 5: stall: nothing was logged on PP0 for 125 s while requests were there"
        in recognise("x", text.encode()).read
    )
    slow = "\n".join(f"{stamp(at)} {head}" for at in range(0, 200, 20))  # its usual pause
    assert not any("stall" in sentence for sentence in recognise("x", slow.encode()).read)
    quiet = "\n".join(f"{stamp(at)} {head.replace('req: 4', 'req: 0')}" for at in (0, 2, 4, 6, 131, 133))
    assert not any("stall" in sentence for sentence in recognise("x", quiet.encode()).read)


# --- other kinds ---------------------------------------------------------------------------------------------------

EVENTS = [
    {"ph": "X", "name": "gemm", "cat": "kernel", "ts": 100.0, "dur": 2000.0, "pid": 0, "tid": 7},
    {"ph": "X", "name": "nccl:send", "cat": "kernel", "ts": 2100, "dur": 500, "pid": 0, "tid": 20},
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
]
BENCH = {"backend": "vllm", "completed": 64, "request_throughput": 3.25, "mean_ttft_ms": 812.5, "ttfts": [0.1, 0.2]}
DECISIONS = {"seed": 1, "config": {}, "requests": [], "steps": []}
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 99,
    "torch_dtype": "float16",
}  # fmt: skip
TAKES_IT = "ppsim run SCENARIO --trace FILE"
TALK = {"id": "a", "conversations": [{"from": "human", "value": "12345678"}, {"from": "gpt", "value": "1234"}]}
AIPERF = {
    "metadata": {"request_start_ns": 1_759_813_207_532_900_363, "benchmark_phase": "profiling"},
    "metrics": {"input_sequence_length": {"value": 55}, "output_sequence_length": {"value": 12}}, "error": None,
}  # fmt: skip
FILES: dict[str, tuple[str, str, str, str]] = {  # text, kind, a piece of what is read, a command (or none)
    "torch": (json.dumps({"schemaVersion": 1, "distributedInfo": {"rank": 3}, "traceEvents": EVENTS}),
              "trace of torch.profiler", "longest by name: gemm 2 ms, nccl:send 0.5 ms", ""),
    "chrome": (json.dumps({"traceEvents": EVENTS, "displayTimeUnit": "ms"}), "Chrome trace",
               "0.0025 s from the first to the last", ""),
    "array": (json.dumps(EVENTS), "Chrome trace", "3 events, 2 of them spans", ""),
    "half": (json.dumps({"traceEvents": EVENTS})[:90], "Chrome or torch trace, cut or damaged", "no whole JSON", ""),
    "bench": (json.dumps(BENCH), "result of a serving benchmark", "mean_ttft_ms 812.5, ttfts (2 entries)", ""),
    "benches": (f"{json.dumps(BENCH)}\n{json.dumps(BENCH)}\n", "result of a serving benchmark",
                "run 2: backend vllm", ""),
    "one batch": (json.dumps({"prefill_latency": 0.5, "overall_throughput": 9, "batch_size": 8}),
                  "result of a one-batch benchmark", "prefill_latency 0.5", ""),
    "model": (json.dumps(LLAMA), "config.json of a model", "2 layers, hidden size 64", "ppsim layers --model FILE"),
    "mooncake": ('{"timestamp": 0, "input_length": 9, "output_length": 2, "hash_ids": [1]}\n'
                 '{"timestamp": 2000, "input_length": 7, "output_length": 1, "hash_ids": [2]}\n',
                 "request trace, Mooncake's form", "2 requests in 2 s, 16 prompt and 3 output tokens",
                 "ppsim run SCENARIO --trace FILE"),
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,10,2\n2023-11-16 18:00:01.5,5,1\n",
              "request trace, Azure's form", "2 requests in 1.5 s, 15 prompt", "ppsim run SCENARIO --trace FILE"),
    "burst": ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
              "5,GPT-4,10,2,12,Conversation log\n",
              "request trace, BurstGPT's form", "1 request in 0 s", "ppsim run SCENARIO --trace FILE"),
    "sharegpt": (json.dumps([TALK]), "request trace, ShareGPT's conversations",
                 "1 request without times, 2 prompt and 1 output tokens", TAKES_IT),
    "sharegpt lines": (f"{json.dumps(TALK)}\n{json.dumps(TALK)}\n", "request trace, ShareGPT's conversations",
                       "2 requests without times", TAKES_IT),
    "sharegpt about servers": (
        json.dumps([{"conversations": [{"from": "human", "value": "python -m sglang.launch_server --model m"}]}]),
        "request trace, ShareGPT's conversations", "1 request without times", TAKES_IT),
    "chat": ('{"messages": [{"role": "user", "content": "12345678"}], "max_tokens": 7}\n' * 2,
             "request trace, requests of texts", "2 requests without times, 4 prompt and 14 output tokens", TAKES_IT),
    "batch": (json.dumps({"custom_id": "a", "body": {"prompt": "12345678", "max_tokens": 7}}) + "\n",
              "request trace, requests of texts", "1 request without times, 2 prompt and 7 output", TAKES_IT),
    "bailian": ('{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 40, "output_length": 2, '
                '"type": "text", "turn": 1, "hash_ids": [1, 2, 3]}\n'
                '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 3.25, "input_length": 17, "output_length": 1, '
                '"type": "text", "turn": 2, "hash_ids": [1, 2]}\n',
                "request trace, Mooncake's form", "2 requests in 2.75 s, 57 prompt and 3 output", TAKES_IT),
    "no outputs": ('{"timestamp": 0, "input_length": 9}\n', "request trace, Mooncake's form",
                   "1 of 1 requests have no output", TAKES_IT),
    "aiperf": (json.dumps(AIPERF) + "\n", "request trace, records of AIPerf",
               "1 request in 0 s, 55 prompt and 12 output tokens", TAKES_IT),
    "aiperf inputs": (json.dumps({"data": [{"session_id": "s", "payloads": [{"prompt": "1234", "max_tokens": 3}]}]},
                                 indent=2), "request trace, inputs of AIPerf", "1 prompt and 3 output", TAKES_IT),
    "aiperf sums": (json.dumps({"request_throughput": {"unit": "requests/sec", "avg": 2.5},
                                "request_latency": {"unit": "ms", "avg": 11.5, "p50": 9}}, indent=1),
                    "result of a serving benchmark", "request_latency (avg 11.5, p50 9, ms)", ""),
    "bench with requests": (json.dumps({**BENCH, "input_lens": [4, 5], "output_lens": [1, 2]}),
                            "result of a serving benchmark; as a request trace the lengths of its requests",
                            "2 requests without times, 9 prompt and 3 output tokens", TAKES_IT),
    "azure, other delimiter": ("TIMESTAMP;ContextTokens;GeneratedTokens\n2024-05-12 00:00:00+00:00;10;2\n",
                               "request trace, Azure's form", "1 request in 0 s, 10 prompt", TAKES_IT),
    "burst, other delimiter": ("Timestamp\tModel\tRequest tokens\tResponse tokens\n5\tGPT-4\t10\t0\n",
                               "request trace, BurstGPT's form", "1 of 1 requests have no output", TAKES_IT),
    "open array": ("[\n" + "".join(f"{json.dumps(event)},\n" for event in EVENTS), "Chrome trace",
                   "longest by name: gemm 2 ms", ""),
    "half array": ("[\n" + json.dumps(EVENTS)[1:-9], "Chrome or torch trace, cut or damaged", "no whole JSON", ""),
    "chunks": ("prefix,new_tokens,time_ms\n0,64,1\n", "measured chunks", "1 prefill sample", "ppsim fit FILE"),
    "steps": ('{"batch_size": 8, "context": 100, "step_ms": 7}\n', "measured chunks",
              "1 decode step", "ppsim fit FILE"),
    "executor": ('{"rank": 0, "iteration": 1, "mode": "extend", "prefix_len": 0, "new_tokens": 9, "num_rows": 1, '
                 '"duration_ns": 5}\n', "measured forwards of ppsim exec", "1 prefill sample", "ppsim fit FILE"),
    "table": ("at;tokens\n1;2\n", "CSV of unknown columns", "columns: at, tokens",
              "ppsim run SCENARIO --trace FILE --column time=.. --column prompt=..  (if a row is a request)"),
    "launch": ("vllm serve m -pp 2", "launch line", "pp_size 2", "ppsim import FILE"),
    "yaml": ("args:\n- sglang\n- serve\n- m\n- --pp-size=4\n", "launch line", "pp_size 4", "ppsim import FILE"),
    "scenario": ('name = "x"\n[cluster]\npp_size = 2\n', "scenario of ppsim", "sections: cluster", "ppsim run FILE"),
    "decisions": (json.dumps(DECISIONS) + "\n" + json.dumps(DECISIONS), "recorded decisions of an engine", "2 runs",
                  "ppsim conform FILE"),
    "plugin": ("class Mine:\n    pass\n", "Python source", "",
               "ppsim run SCENARIO --plugin FILE  (if it holds a Policy or planted bugs)"),
    "empty": ("\n \n", "empty file", "", ""),
}  # fmt: skip


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", FILES)
def test_every_kind_is_named_read_and_sent_where_it_belongs(name: str, packed: bool) -> None:
    text, kind, piece, command = FILES[name]
    told = recognise("FILE", gzip.compress(text.encode()) if packed else text.encode())
    assert told.kind == kind, told
    assert any(piece in sentence for sentence in told.read) or not piece, told.read
    assert (command in told.give_to) if command else not told.give_to, told.give_to


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x00\x01\x02PNG", "it has zero bytes: no text"),
        (b"\x1f\x8bxx", "as gzip it is damaged"),
        (b"\x28\xb5\x2f\xfd", "zstd -d"),  # damaged, or nothing there that reads it
        (b"[1, 2", ""),
        (b'{"a": 1}', "its keys: a"),
        (b"nothing that means anything", ""),
    ],
)
def test_what_nobody_knows_is_called_that_and_exits_with_two(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    result = CliRunner().invoke(app, ["read", str(tmp_path / "x"), "--json"])
    (told,) = json.loads(result.stdout)
    assert said in " ".join(told["read"])
    assert result.exit_code == (2 if not told["kind"] else 0)
    assert not told["give_to"]
    assert told["kind"] in ("", "JSON of an unknown kind")


def test_several_files_are_told_and_a_missing_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prefix,new_tokens,time_ms\n0,64,1\n")
    result = CliRunner().invoke(app, ["read", str(tmp_path / "a.csv"), str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "a.csv: measured chunks, 2 lines" in result.stdout
    assert "none: not recognised" in result.stdout
    assert "cannot be read: No such file or directory" in result.stdout


def test_unknown_flags_and_holes_of_a_launch_line_are_not_understood() -> None:
    told = recognise("x", b"sglang serve m --pp-size $N --frobnicate 3")
    assert told.unread == [(1, "--frobnicate 3"), (1, "pp_size: $N")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{stamp(1)} Decode batch, #running-req: 4, #token: 9, token usage: 0.10\n",
            "this is no launch line but: SGLang server log",
        ),
        ("a,b\n1,2\n", "but: CSV of unknown columns. It belongs to: ppsim run SCENARIO --trace"),
        (
            "| prefix | new | time |\n|--|--|--|\n| 0 | 64 | 3 ms |\n",
            "but: table of chunk times. It belongs to: ppsim fit",
        ),
        (json.dumps({"traceEvents": EVENTS}), "but: Chrome trace. It belongs to: no command takes it"),
    ],
)
def test_import_of_anything_else_points_to_the_right_command(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(text)
    result = CliRunner().invoke(app, ["import", str(tmp_path / "x")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_every_log_and_launch_line_is_recognised() -> None:
    for row in [*rows("logs"), *rows("launch")]:
        told: Any = recognise(str(row.path))
        assert told.kind, row.path
        assert told.text()
        json.dumps(told.to_dict(), default=str)
        assert ("launch line" in told.kind) == (row.kind == "launch"), row.path


@pytest.mark.parametrize("name", ["sharegpt", "aiperf", "aiperf sums", "mooncake", "azure", "array", "open array"])
def test_fit_says_what_a_file_without_samples_is(name: str, tmp_path: Path) -> None:
    text, kind, _, command = FILES[name]
    (tmp_path / "x").write_text(text)
    result = CliRunner().invoke(app, ["fit", str(tmp_path / "x")])
    assert result.exit_code == 2
    takes = command.replace("FILE", str(tmp_path / "x")) or "no command"
    assert f"It is: {kind}; it belongs to: {takes}" in result.output
