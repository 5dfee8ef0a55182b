"""Bad input ends in one sentence and exit code 2: which key, what is wrong, what came, what to do. Never a traceback.

Everything goes through ``ppsim run``, as a user would meet it; nothing may be left on stdout, and no run folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim_run(name: str, *sets: str) -> Result:
    return CliRunner().invoke(app, ["run", name, "--json", *(f"--set={text}" for text in sets)])


def refusal(name: str, *sets: str) -> str:
    """The one message of a run that is refused."""
    result = ppsim_run(name, *sets)
    assert result.exit_code == 2, (result.exit_code, result.stdout, result.stderr)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not list(Path().glob("runs/*"))
    return result.stderr.removeprefix("ppsim: ").strip()


class Bad(NamedTuple):
    """``sets``: what is asked of scenario ``name``. The message begins with the key and has all of ``says``."""

    sets: str
    key: str
    says: tuple[str, ...]
    name: str = "unit"


CASES = [
    # unknown keys, with the nearest name
    Bad("cluster.pp_sizes=2", "cluster.pp_sizes", ("unknown key", "did you mean 'pp_size'?")),
    Bad("schduler.page_size=2", "schduler", ("unknown key", "did you mean 'scheduler'?")),
    Bad("scheduler.chunk_prefill_size=64", "scheduler.chunk_prefill_size", ("did you mean 'chunked_prefill_size'?",)),
    Bad("links.zzz=1", "links.zzz", ("unknown key", "known here: bandwidth_gb_per_s, commit")),
    Bad(
        'workload.requests=[{rid="a",promt=3}]',
        "workload.requests.0.promt",
        ("unknown key", "did you mean 'prompt'?"),
    ),
    Bad('cluster="big"', "cluster", ("got 'big'",)),
    Bad("cluster.pp_size.deep=1", "cluster.pp_size", ("is a value, not a section",)),
    # wrong types: nothing is coerced
    Bad('cluster.pp_size="4"', "cluster.pp_size", ("whole number", "got '4'")),
    Bad("cluster.pp_size=2.0", "cluster.pp_size", ("whole number", "got 2.0")),
    Bad("cluster.pp_size=true", "cluster.pp_size", ("whole number", "got True")),
    Bad("cluster.comm_overlap=1", "cluster.comm_overlap", ("true or false", "got 1")),
    Bad('cost.unit_ms="fast"', "cost.unit_ms", ("must be a number", "got 'fast'")),
    Bad("name=3", "name", ("a text in quotes", "got 3")),
    Bad("workload.requests=3", "workload.requests", ("got 3",)),
    Bad('scheduler.schedule_policy="lifo"', "scheduler.schedule_policy", ("'fcfs' or 'lpm'", "got 'lifo'")),
    Bad("seed=-1", "seed", ("at least 0", "got -1")),
    # negative and zero sizes
    Bad("cluster.pp_size=0", "cluster.pp_size", ("more than 0", "got 0")),
    Bad("cluster.pp_size=-3", "cluster.pp_size", ("more than 0", "got -3")),
    Bad("cluster.pp_async_batch_depth=-1", "cluster.pp_async_batch_depth", ("got -1",)),
    Bad("cluster.tp_size=0", "cluster.tp_size", ("got 0",)),
    Bad("scheduler.page_size=0", "scheduler.page_size", ("got 0",)),
    Bad("scheduler.max_running_requests=0", "scheduler.max_running_requests", ("got 0",)),
    Bad("scheduler.max_total_tokens=0", "scheduler.max_total_tokens", ("got 0",)),
    Bad("scheduler.max_total_tokens=[8192,0,1,1]", "scheduler.max_total_tokens.1", ("got 0",)),
    Bad("scheduler.chunked_prefill_size=0", "scheduler.chunked_prefill_size", ("-1 for no chunking", "got 0")),
    Bad("scheduler.chunked_prefill_size=-64", "scheduler.chunked_prefill_size", ("got -64",)),
    Bad("model.hidden_size=0", "model.hidden_size", ("got 0",)),
    Bad("gpu.memory_gb=0.0", "gpu.memory_gb", ("at least 1e-09", "got 0")),
    Bad("gpu.mem_fraction_static=1.5", "gpu.mem_fraction_static", ("at most 1", "got 1.5")),
    Bad("links.latency_us=-1.0", "links.latency_us", ("got -1",)),
    Bad("links.latency_us=nan", "links.latency_us", ("finite number",)),
    Bad("links.bandwidth_gb_per_s=inf", "links.bandwidth_gb_per_s", ("finite number",)),
    Bad("host.process_us=-0.1", "host.process_us", ("got -0.1",)),
    Bad("host.stage_jitter_percent=101.0", "host.stage_jitter_percent", ("got 101",)),
    Bad("workload.num_chunks=0", "workload.num_chunks", ("got 0",)),
    Bad('workload.requests=[{rid="a",prompt=0}]', "workload.requests.0.prompt", ("got 0",)),
    Bad('workload.requests=[{rid="a",prompt=1,output=0}]', "workload.requests.0.output", ("got 0",)),
    Bad('workload.requests=[{rid="",prompt=1}]', "workload.requests.0.rid", ("at least 1 character",)),
    # sizes that contradict each other
    Bad("cluster.pp_size=5", "cluster.pp_size", ("5 stages", "only 4 layers"), "tiny"),
    Bad("cluster.tp_replicas=2", "cluster.tp_replicas", ("2 is more than cluster.tp_size 1",)),
    Bad("cluster.tp_size=5", "cluster.tp_size", ("5 does not divide the 32 attention heads",)),
    Bad(
        "scheduler.page_size=48",
        "scheduler.chunked_prefill_size",
        ("64 is not a multiple of scheduler.page_size 48", "nearest multiple: 48"),
    ),
    Bad("scheduler.max_total_tokens=[1024,1024]", "scheduler.max_total_tokens", ("2 entries for 4 ranks",)),
    Bad(
        'scheduler.exchange_order="paired"', "scheduler.exchange_order", ("needs cluster.pp_size 2, got 4", "'parity'")
    ),
    Bad("model.layer_partition=[1,2]", "model.layer_partition", ("2 entries for 4 stages",)),
    Bad("model.layer_partition=[8,8,8,9]", "model.layer_partition", ("sums to 33", "32 layers")),
    Bad("model.num_key_value_heads=5", "model.num_key_value_heads", ("5 does not divide",)),
    Bad("model.vocab_size=4294967296", "model.vocab_size", ("below 2**32",)),
    Bad("workload.num_chunks=10000000", "workload.num_chunks", ("10000000 chunks of 64 tokens",)),
    Bad("scheduler.chunked_prefill_size=-1", "workload.source", ("'chunks' needs scheduler.chunked_prefill_size",)),
    Bad('workload.source="requests"', "workload.requests", ("is empty",)),
    Bad(
        'workload.requests=[{rid="a",prompt=1},{rid="a",prompt=2}]',
        "workload.requests.1.rid",
        ("'a' is already the id of request 0", "later at_iteration or at_ms"),
    ),
    Bad(
        'workload.requests=[{rid="a",prompt=1,at_iteration=4},{rid="b",prompt=1},{rid="a",prompt=2,at_iteration=4}]',
        "workload.requests.2.rid",
        ("'a' is already the id of request 0", "later at_iteration or at_ms"),
    ),
    Bad(
        'workload.requests=[{rid="a",prompt=1,at_ms=4.0},{rid="a",prompt=2,at_iteration=9}]',
        "workload.requests.1.rid",
        ("'a' is already the id of request 0",),
    ),
    Bad(
        'workload.requests=[{rid="a",prompt=1,stop_after=1},{rid="a",prompt=2,at_iteration=9}]',
        "workload.requests.1.stop_after",
        ("is 0, but request 0 of the same id 'a' has 1",),
    ),
    Bad(
        'observations.listed=[{what="grammar",rid="a",at=[1,2,3,4]},{what="grammar",rid="b",at=[1,2,3,4]},'
        '{what="grammar",rid="a",at=[4,4,4,4],failed=true}]',
        "observations.listed.2",
        ("'grammar' of 'a' is listed in entry 0 already", "contradict each other"),
    ),
    Bad(
        'observations.listed=[{what="grammar",rid="a",at=[1,2,3,4],failed=[true,false]}]',
        "observations.listed.0.failed",
        ("has 2 entries for 4 ranks", "one value for all ranks, or one for each"),
    ),
    Bad(
        "hicache={enabled=true,host_tokens=512,storage=true,"
        'storage_hits=[{rid="a",tokens=[1,1,1,1]},{rid="a",tokens=[2,2,2,2]}]}',
        "hicache.storage_hits.1.rid",
        ("'a' is listed in entry 0 already",),
    ),
    Bad(
        'workload.requests=[{rid="a",prompt=1,at_ms=1.0,at_iteration=2}]',
        "workload.requests.0",
        ("both at_iteration and at_ms",),
    ),
    Bad(
        "timeouts.waiting_ms=999",
        "timeouts.waiting_ms",
        ("999 ms is below one iteration", "1000 ms of a one-token pass"),
    ),
    Bad("timeouts.running_ms=1", "timeouts.running_ms", ("1 ms", "0 switches it off")),
    Bad("disaggregation.bootstrap_timeout_ms=0.5", "disaggregation.bootstrap_timeout_ms", ("0.5 ms",), "pd_mooncake"),
    Bad('disaggregation.variant="fresh"', "disaggregation.variant", ("'forwards_applied'", "got 'fresh'")),
    Bad('disaggregation.bootstrap="ring"', "disaggregation.bootstrap", ("'store' or 'vote'", "got 'ring'")),
    Bad('observations.listed=[{what="retract",rid="a",at=[1]}]', "observations.listed.0.what", ("got 'retract'",)),
    Bad("workload.input_length.min=9000000", "workload.input_length.min", ("is more than max 131072",)),
    Bad("workload.num_prefixes=2", "workload.prefix_tokens", ("2 shared prefixes are empty",)),
    # what could never make progress
    Bad("scheduler.max_total_tokens=63", "scheduler.max_total_tokens", ("63 tokens is smaller than one chunk",)),
    Bad(
        "gpu.memory_gb=1.0",
        "gpu.memory_gb",
        ("stage 0 lacks 3.82 GB", "need 4.54 GB of weights", "0.85 GB are usable", "more stages"),
        "mooncake",
    ),
    Bad("scheduler.context_length=100", "workload.num_chunks", ("R1 could never run", "context length of 100")),
    Bad("scheduler.max_total_tokens=128", "workload.num_chunks", ("R1 could never run", "KV pool of 128 tokens")),
    Bad("scheduler.context_length=50", "workload.requests", ("request R3 could never run", "50 prompt + 4"), "tiny"),
    Bad("scheduler.max_total_tokens=40", "workload.requests", ("request R1 could never run", "40 prompt + 6"), "tiny"),
]


@pytest.mark.parametrize("bad", CASES, ids=lambda bad: bad.sets)
def test_a_bad_value_is_named_with_its_key_and_what_came(bad: Bad) -> None:
    message = refusal(bad.name, bad.sets)
    assert message.startswith(bad.key + ":"), message
    assert all(text in message for text in bad.says), message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("name", "sets", "says"),
    [
        ("unti", (), "unknown scenario 'unti' (did you mean 'unit'?)"),
        ("nowhere.toml", (), "scenario file nowhere.toml does not exist"),
        ("unit", ("cluster.pp_size",), "--set 'cluster.pp_size': expected key=value"),
        ("unit", ("=3",), "--set '=3': expected key=value"),
        ("unit", ('workload.source="trace"', 'workload.trace="no.jsonl"'), "no.jsonl: the trace file does not exist"),
    ],
)
def test_what_cannot_be_found_or_read_is_named(name: str, sets: tuple[str, ...], says: str) -> None:
    assert says in refusal(name, *sets)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"[cluster\npp_size = 2", "bad.toml: not valid TOML: "),
        (b"pp_size = 2", "pp_size: unknown key"),
        (b"\xff\x00", "bad.toml: is no text: line 1: byte 0xff is not UTF-8"),
        (b"[cluster]\npp_size = 2\npp_size = 3", "bad.toml: not valid TOML: "),
        (b'[workload]\nsource = "requests"\nrequests = [{rid = "a"}]', "workload.requests.0.prompt: is missing"),
    ],
)
def test_a_scenario_file_that_is_broken_is_named(text: bytes, says: str) -> None:
    Path("bad.toml").write_bytes(text)
    assert says in refusal("bad.toml")


def test_a_folder_is_no_scenario() -> None:
    Path("folder.toml").mkdir()
    assert "folder.toml" in refusal("folder.toml")


def test_generated_requests_that_never_fit_blame_the_lengths() -> None:
    generated = ('workload.source="generated"', "workload.input_length.value=70000")
    message = refusal("unit", *generated)
    assert message.startswith("workload.input_length: request R1 could never run: 70000 prompt + 64 new tokens")
    assert "larger scheduler.max_total_tokens" in message


# --- requests that a trace brings --------------------------------------------------------------------------------


def trace(*sizes: tuple[int, int]) -> str:
    rows = [
        {
            "timestamp": 10 * n,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": list(range(-(-prompt // 512))),
        }
        for n, (prompt, output) in enumerate(sizes)
    ]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return 'workload.trace="t.jsonl"'


def test_a_request_of_a_trace_that_never_fits_is_answered_counted_and_told_and_the_rest_runs() -> None:
    sizes = trace((300, 3), (5000, 2), (100, 900), (400, 2))
    result = ppsim_run(
        "mooncake", sizes, "scheduler.max_total_tokens=8192", "scheduler.context_length=1000", "scheduler.page_size=1"
    )
    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["num_requests"], summary["num_finished"], summary["num_refused"]) == (4, 3, 1)
    assert summary["warnings"] == [
        "gpu.memory_gb has no effect: scheduler.max_total_tokens gives the pool",
        "1 of 4 requests were refused; first R2: 5000 prompt + 2 new tokens exceed the context length of 1000",
    ]
    replies = Path("runs/latest/recording.jsonl").read_text().splitlines()
    assert sum('"refused"' in line and '"R2"' in line for line in replies) == 1


@given(prompt=st.integers(1, 200), output=st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_what_a_trace_gets_refused_is_what_a_script_is_refused_for(prompt: int, output: int) -> None:
    """One rule in two places: bad input where it was written, a reply where it came from outside."""
    limits = ("scheduler.max_total_tokens=128", "scheduler.context_length=150", "scheduler.max_running_requests=4")
    common = (*limits, "scheduler.chunked_prefill_size=64", "scheduler.max_prefill_tokens=64", "scheduler.page_size=16")
    served = ppsim_run("mooncake", trace((prompt, output)), *common)
    written = ppsim_run(
        "mooncake",
        'workload.source="requests"',
        f'workload.requests=[{{rid="R1",prompt={prompt},output={output}}}]',
        *common,
    )
    assert served.exit_code == 0, served.stderr
    refused = json.loads(served.stdout)["num_refused"]
    assert written.exit_code == (2 if refused else 0), written.stderr
    total = prompt + output
    assert refused == (total > 150 or total + 16 >= 128)
