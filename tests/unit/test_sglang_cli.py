"""``ppsim import`` and ``ppsim fit`` through the command line: stdout is the result, the rest is told on stderr."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.cost.config_json import known_models
from ppsim.cost.gpu import known_gpus, load_gpu
from ppsim.cost.stage import NS_PER_MS
from ppsim.scenario.load import load_scenario, validate
from ppsim.sglang.launch import read_launch, to_scenario
from tests.unit._sglang_index import rows
from tests.unit.handmade import decision
from tests.unit.test_sglang_samples import simulate

LAUNCHES, LOGS = rows("launch"), rows("logs")
NIC = ("--set", "gpu.nic_gb_per_s=50")
FOLDER = Path(__file__).resolve().parents[2] / "scenarios"
SCENARIOS = sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in FOLDER.glob("**/*.toml"))
LINE = "python3 -m sglang.launch_server --model-path m --tp-size 8 --pp-size 2 --chunked-prefill-size 4096"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


def fitted(name: str, *options: str, code: int = 0) -> dict[str, Any]:
    result = ppsim("fit", name, "--json", *options)
    assert result.exit_code == code, result.stderr
    assert result.stdout.count("\n") == 1
    return dict(json.loads(result.stdout))


# -- import --------------------------------------------------------------------------------------------------------


def test_a_key_of_the_scenario_can_be_set_and_what_is_set_is_not_left_open() -> None:
    Path("line.txt").write_text(LINE)
    sets = ["cost.prefill_b_ms_per_token=0.5", 'workload.requests=[{rid = "a", prompt = 7}]', "cluster.pp_size=4"]
    result = ppsim("import", "line.txt", *(word for one in sets for word in ("--set", one)))
    assert result.exit_code == 0, result.stderr
    tree = tomllib.loads(result.stdout)
    assert tree["cluster"]["pp_size"] == 4
    assert tree["cost"]["prefill_b_ms_per_token"] == 0.5
    assert tree["workload"]["requests"] == [{"rid": "a", "prompt": 7}]
    assert "left open: stage times" not in result.stderr
    assert "left open: workload" not in result.stderr
    plain = ppsim("import", "line.txt")
    assert "left open: stage times" in plain.stderr
    assert "left open: workload" in plain.stderr
    assert ppsim("import", LINE, "--set", "cluster.pp_size=4", "--json").stdout.count('"cluster.pp_size": 4') == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["line.txt", "--set", "cluster.pp_sise=4"], "cluster.pp_sise"),
        (["line.txt", "--set", "cluster.pp_size=many"], "cluster.pp_size"),
        (["line.txt", "--set", "cluster.pp_size"], "expected key=value"),
        (["line.txt", "--out", "x.toml"], "--out x.toml: stands behind the file line.txt, which is the whole launch"),
        (["line.txt", "-o", "x.toml"], "-o x.toml: stands behind the file line.txt"),
        (["line.txt", "--seed", "3"], "--seed 3: stands behind the file line.txt"),
        (["line.txt", "line.txt"], "line.txt: stands behind the file line.txt"),
        (["-", "--seed", "3"], "--seed 3: stands behind -,"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_import_does_not_take_is_refused_in_one_sentence(words: list[str], told: str) -> None:
    Path("line.txt").write_text(LINE)
    result = ppsim("import", *words, stdin=LINE)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""
    assert result.stderr.count("\n") <= 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "source",
    [(LINE,), (LINE + " --port 30000" * 30,), tuple(LINE.split()), ("-",), ("line.txt",)],
    ids=["quoted", "longer than a file name", "word by word", "stdin", "file"],
)
def test_a_line_comes_from_a_file_from_stdin_or_as_it_is(source: tuple[str, ...]) -> None:
    Path("line.txt").write_text(LINE)
    result = ppsim("import", *source, stdin=LINE)
    assert result.exit_code == 0, result.stderr
    tree = tomllib.loads(result.stdout)
    assert tree["cluster"]["pp_size"] == 2
    assert tree["cluster"]["tp_size"] == 8
    assert tree["scheduler"]["chunked_prefill_size"] == 4096


def test_the_printed_scenario_can_be_loaded_and_run() -> None:
    result = ppsim("import", "sglang serve --tp-size 2 --pp-size 2 --page-size 4 --chunked-prefill-size 64")
    Path("mine.toml").write_text(result.stdout + '\n[workload]\nsource = "chunks"\nnum_chunks = 3\n')
    assert load_scenario("mine.toml").scheduler.chunked_prefill_size == 64
    run = ppsim("run", "mine.toml", "--json")
    assert run.exit_code == 0, run.stderr
    assert json.loads(run.stdout)["verdict"] == "pass"


def test_json_has_what_was_read_what_was_not_and_the_line_printed_back() -> None:
    text = "sglang serve --model-path m --pp-size 2 --nnodes $N --frobnicate 3 --attention-backend fa3"
    result = ppsim("import", text, "--json")
    assert result.exit_code == 0
    (found,) = json.loads(result.stdout)
    assert found["values"]["pp_size"] == 2
    assert found["unknown_flags"] == [{"flag": "--frobnicate", "values": ["3"], "line": 1, "nearest": None}]
    assert [hole["variables"] for hole in found["unresolved"]] == [["N"]]
    assert found["scenario"]["not_modelled"] == {"attention_backend": "fa3"}
    assert "--pp-size 2" in found["launch_line"]


def test_what_was_not_understood_is_told_on_stderr() -> None:
    result = ppsim("import", "sglang serve --model-path m --pp-sice 2 --nnodes $N")
    assert "unknown: line 1, --pp-sice 2; did you mean --pp-size?" in result.stderr
    assert "unresolved: line 1, nnodes: $N" in result.stderr
    assert "left open: scheduler.chunked_prefill_size" in result.stderr
    tomllib.loads(result.stdout)


def test_a_value_that_cannot_be_read_exits_with_two_and_its_place() -> None:
    result = ppsim("import", "sglang serve --model-path m --pp-size x")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: line 1, --pp-size: expected a whole number, got 'x'" in result.stderr
    as_json = ppsim("import", "sglang serve --model-path m --pp-size x", "--json")
    assert as_json.exit_code == 2
    assert json.loads(as_json.stdout)[0]["scenario"] is None


@pytest.mark.parametrize("source", ["missing.txt", "", "-"])
def test_nothing_to_read_is_one_message(source: str) -> None:
    result = ppsim("import", source, stdin=b"\xff\xfe\x00")
    assert result.exit_code == 2
    assert result.stderr.startswith("ppsim: ")
    assert result.stderr.count("\n") == 1


def test_one_of_several_roles_is_chosen() -> None:
    text = (
        "sglang serve --disaggregation-mode prefill --pp-size 4\nsglang serve --disaggregation-mode decode --tp-size 8"
    )
    both = ppsim("import", text)
    assert "2 servers; choose one with --role" in both.stderr
    one = ppsim("import", text, "--role", "prefill")
    assert tomllib.loads(one.stdout)["cluster"]["pp_size"] == 4
    none = ppsim("import", text, "--role", "router")
    assert none.exit_code == 2


@pytest.mark.parametrize("row", LAUNCHES, ids=lambda row: row.name)
def test_every_launch_line_of_the_tables_imports(row: Any) -> None:
    result = ppsim("import", str(row.path))
    assert result.exit_code == 0, result.stderr
    for part in result.stdout.split("# ")[1:]:
        validate(tomllib.loads("# " + part))


def test_a_gpu_gives_the_line_stage_times_of_a_known_model() -> None:
    text = "sglang serve --model-path deepseek-ai/DeepSeek-V3.1 --tp-size 8 --pp-size 4"
    plain, result = ppsim("import", text), ppsim("import", text, "--gpu", "h20")
    assert "left open: stage times" in plain.stderr
    assert "left open: stage times" not in result.stderr
    tree = tomllib.loads(result.stdout)
    model = {
        "path": "deepseek-ai/DeepSeek-V3.1",
        "key": "deepseek-v3.1",
        "kv_cache_dtype": "auto",
        "num_hidden_layers": 61,
    }
    assert tree["model"] == model
    assert (tree["gpu"]["key"], tree["cost"]["source"]) == ("h20", "roofline")
    assert tree["cost"]["efficiency"] == load_gpu("h20").efficiency
    Path("mine.toml").write_text(result.stdout)
    run = ppsim("run", "mine.toml", "--json", "--set", "workload.num_requests=2")
    assert run.exit_code == 0, run.stderr


@pytest.mark.parametrize(
    ("text", "gpu", "told"),
    [
        ("sglang serve --model-path deepseek-ai/DeepSeek-V3.1", "h21", "unknown GPU 'h21' (nearest: h20"),
        ("sglang serve --model-path foo/qwen3-9b", "h20", "(nearest: qwen3-8b)"),
        ("sglang serve --pp-size 2", "h20", "the launch line names no model"),
    ],
)
def test_a_gpu_or_model_that_nobody_knows_is_one_message(text: str, gpu: str, told: str) -> None:
    result = ppsim("import", text, "--gpu", gpu)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr.splitlines()[-1]


# -- export --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_prints_as_a_line_that_reads_back(name: str) -> None:
    """Through the printed text and the importer: what a line can say of the scenario comes back as it was."""
    result = ppsim("export", name)
    assert result.exit_code == 0, result.stderr
    s, lines = load_scenario(name), read_launch(result.stdout)
    assert not any(line.errors or line.unknown_flags for line in lines)
    assert len(lines) == (2 if s.disaggregation.role == "pd" else 1)
    found = to_scenario(lines[0])["overrides"]
    assert found["cluster.pp_size"] == s.cluster.pp_size
    assert found["cluster.tp_size"] == s.cluster.tp_size
    assert found.get("cluster.cp_size", 1) == s.cluster.cp_size
    assert found["cluster.pp_async_batch_depth"] == s.cluster.pp_async_batch_depth
    assert found["scheduler.chunked_prefill_size"] == s.scheduler.chunked_prefill_size
    assert found["scheduler.enable_dynamic_chunking"] == s.scheduler.enable_dynamic_chunking
    assert found["scheduler.page_size"] == s.scheduler.page_size
    assert found.get("model.layer_partition") == (s.model.layer_partition and list(s.model.layer_partition))
    assert found.get("model.key") == s.model.key


def test_an_export_says_what_no_flag_says() -> None:
    sets = ("--set", "scheduler.chunk_planner=optimal", "--set", "cost.source=quadratic")
    result = ppsim("export", "paper/deepseek_v31_h20_pp4", *sets, "--json")
    found = json.loads(result.stdout)
    assert set(found) == {"name", "sglang", "not_in_line"}
    assert "--model-path deepseek-ai/DeepSeek-V3.1" in found["sglang"]
    assert found["not_in_line"] == ["scheduler.chunk_planner = 'optimal': a planner of ppsim's own"]
    plain = ppsim("export", "unit")
    assert "<MODEL_PATH>" in plain.stdout
    assert "not in the line: model.path is not set" in plain.stderr


def test_context_parallel_ranks_are_counted_among_the_tensor_parallel_ones_by_sglang() -> None:
    result = ppsim("export", "tiny", "--set", "cluster.cp_size=2", "--set", "cluster.tp_size=2", *NIC)
    assert "--tp-size 4" in result.stdout
    assert "--attn-cp-size 2" in result.stdout
    again = ppsim("import", result.stdout.strip())
    tree = tomllib.loads(again.stdout)
    assert (tree["cluster"]["tp_size"], tree["cluster"]["cp_size"]) == (2, 2)
    assert "left open: gpu.nic_gb_per_s" in again.stderr


# -- lists ---------------------------------------------------------------------------------------------------------


def test_models_and_gpus_can_be_listed() -> None:
    models = json.loads(ppsim("list", "models", "--json").stdout)
    assert {"name", "checkpoint", "num_hidden_layers"} == set(models[0])
    assert {m["name"] for m in models} == set(known_models())
    gpus = json.loads(ppsim("list", "gpus", "--json").stdout)
    assert {g["key"] for g in gpus} == set(known_gpus())
    assert all(g["source"] for g in gpus)
    assert "deepseek-v3.1" in ppsim("list", "models").stdout
    assert "unknown" in ppsim("list", "gpus").stdout  # a network that nobody published


# -- fit -----------------------------------------------------------------------------------------------------------


def write_rows(kind: str, count: int = 40) -> str:
    """Exact times of c = 3, gamma = 0.0005, b = 0.02, a = 1e-6."""
    chunks = [(1000 * (i % 7), 256 * (1 + i % 5)) for i in range(count)]
    made = [(p, x, 3 + 5e-4 * p + 0.02 * x + 1e-6 * (2 * p * x + x * x)) for p, x in chunks]
    if kind == "csv":
        text = "prefix,new_tokens,time_ms\n" + "".join(f"{p},{x},{t}\n" for p, x, t in made)
    else:
        text = "".join(json.dumps({"prefix": p, "new_tokens": x, "time_s": t / 1e3}) + "\n" for p, x, t in made)
    Path(f"rows.{kind}").write_text(text)
    return f"rows.{kind}"


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_fit_of_rows_recovers_the_coefficients(kind: str) -> None:
    found = fitted(write_rows(kind))
    assert found["accepted"]
    wanted = {"c_ms": 3.0, "gamma_ms": 5e-4, "b_ms": 0.02, "a_ms": 1e-6, "alpha_ms": 2e-6}
    for name, value in wanted.items():
        assert found["coefficients"][name] == pytest.approx(value, rel=1e-6)
    assert found["scenario"]["cost.prefill_a_ms_per_token2"] == found["coefficients"]["a_ms"]
    assert found["residuals"]["rms_ms"] < 1e-6
    assert found["measures"] == "model"


def test_fit_of_a_log_recovers_the_engine_that_wrote_it() -> None:
    engine, _ = simulate("own", ("",), 3, 0.0)
    Path("server.log").write_text("\n".join(engine.lines))
    found = fitted("server.log")
    assert found["accepted"]
    assert found["kind"] == "log"
    assert found["coefficients"]["b_ms"] == pytest.approx(2e-2, rel=0.05)
    assert found["coefficients"]["a_ms"] == pytest.approx(1e-6, rel=0.1)


def test_fit_of_a_recorded_run_gives_the_models_cost_back() -> None:
    """Stages of an iteration add up: the fit returns the scenario's own coefficients."""
    wanted = {"c_ms": 1.0, "b_ms": 0.05, "a_ms": 1e-4}
    sets = [
        "workload.requests=[]",
        "workload.source='generated'",
        "workload.num_requests=40",
        "workload.rate_per_s=1000.0",
    ]
    sets += ["workload.input_length.kind='uniform'", "workload.input_length.min=1", "workload.input_length.max=90"]
    sets += ["workload.output_length.value=2", "scheduler.prefill_max_requests=1"]
    run = ppsim("run", "tiny", "--out", "here", "--json", *[part for one in sets for part in ("--set", one)])
    assert run.exit_code == 0, run.stderr
    found = fitted("here", "--terms", "c,b,a")
    assert found["accepted"], found["reason"]
    assert (found["kind"], found["num_stages"], found["world"]) == ("recording", 2, "sim")
    for name, value in wanted.items():
        assert found["coefficients"][name] == pytest.approx(value, rel=1e-3)
    assert fitted("here/recording.jsonl", "--terms", "c,b,a")["coefficients"] == found["coefficients"]


def test_fit_of_the_executors_samples_adds_the_stages_and_leaves_decode_out() -> None:
    """The form that the executor writes: one line a stage and iteration."""
    lines = []
    for i in range(30):
        prefix, new = 100 * (i % 6), 64 * (1 + i % 4)
        whole_ms = 2 + 1e-3 * prefix + 0.01 * new + 1e-6 * (2 * prefix * new + new * new)
        for rank, share in ((0, 0.25), (1, 0.75)):
            sample = {"rank": rank, "iteration": i, "mode": "extend", "prefix_len": prefix, "new_tokens": new}
            lines.append({**sample, "num_rows": 1, "duration_ns": round(share * whole_ms * NS_PER_MS)})
    lines.append({**lines[-1], "iteration": 99, "mode": "decode", "duration_ns": 10**12})
    Path("samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = fitted("samples.jsonl")
    assert (found["num_samples"], found["num_stages"]) == (30, 2)
    assert found["coefficients"]["b_ms"] == pytest.approx(0.01, rel=1e-3)
    assert found["coefficients"]["gamma_ms"] == pytest.approx(1e-3, rel=1e-3)


def test_a_refused_fit_says_why_and_exits_with_two() -> None:
    Path("few.csv").write_text("prefix,new_tokens,time_ms\n0,10,1\n0,10,2\n")
    found = fitted("few.csv", code=2)
    assert (found["accepted"], found["scenario"]) == (False, None)
    assert "1 distinct chunk," in found["reason"]
    assert found["residuals"]["rms_ms"] is None
    text = ppsim("fit", "few.csv")
    assert text.exit_code == 2
    assert "refused: 1 distinct chunk," in text.stdout


@pytest.mark.parametrize("row", LOGS, ids=lambda row: row.name)
def test_every_log_of_the_tables_fits_or_says_why_with_the_count_of_cut_and_damaged_lines(row: Any) -> None:
    result = ppsim("fit", str(row.path), "--json")
    assert result.exit_code in (0, 2), result.stderr
    found = json.loads(result.stdout)
    assert found["accepted"] or found["reason"]
    assert f"{found['counts']['cut']} cut, {found['counts']['damaged']} damaged" in result.stderr


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("gone.csv", None),
        ("bad.csv", b"prefix,new_tokens,time_ms\n0,10,nan\n"),
        ("bad.jsonl", b'{"prefix": 0, "new_tokens": -5, "time_ms": 1}\n'),
        ("empty.log", b""),
        ("binary.log", bytes(range(256)) * 20),
        ("cut.jsonl", b'{"mode": "extend", "iteration": 0, "duration_ns": 5}\n'),
        ("half.jsonl", b'{"mode": "extend", "iteration": 0, "duration_ns": 5, "rank": 0}\n{"mode"\n'),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_files_end_in_a_message_and_two(name: str, content: bytes | None) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    result = ppsim("fit", name)
    assert result.exit_code == 2
    assert result.stderr or "refused" in result.stdout
    assert "Traceback" not in result.stderr


def test_a_decision_of_two_pieces_says_nothing_about_one() -> None:
    """The join with the executor's rule: only batches of one piece are measurements."""
    from executor.calibrate import forward_samples
    from ppsim.recording import Recording

    recording = Recording(1)
    recording.decision(0, decision(0, 0, ("a", 0, 4), ("b", 0, 4)))
    recording.decision(0, decision(1, 0, ("a", 4, 4)))
    for i in range(2):
        recording.span(0, "forward", 0, i, i * 100, i * 100 + 50)
    assert [sample.new_tokens for sample in forward_samples(recording, 0)] == [4]


@pytest.mark.parametrize("text", ["", "hello\nworld\n", "\x00\x01\x02", "Prefill batch\n", '{"a":' + "[" * 50_000])
def test_a_log_without_a_usable_line_says_so_and_counts_what_is_cut_and_damaged(text: str) -> None:
    Path("a.log").write_text(text)
    result = ppsim("fit", "a.log")
    assert result.exit_code == 2
    assert "refused: no usable line: none of " in result.stdout
    assert " cut, " in result.stderr
    assert " damaged; " in result.stderr
    found = fitted("a.log", code=2)
    assert not found["accepted"]
    assert found["reason"].startswith("no usable line")
    assert {"lines", "cut", "damaged"} <= set(found["counts"])


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_measurements_come_from_standard_input_too(kind: str) -> None:
    text = Path(write_rows(kind)).read_text()
    result = ppsim("fit", "-", "--json", stdin=text)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["coefficients"] == fitted(write_rows(kind))["coefficients"]
    bad = ppsim("fit", "-", stdin="prefix,new_tokens,time_ms\n0,5,-1\n")
    assert bad.exit_code == 2
    assert bad.stderr == "ppsim: standard input:2: field 'time_ms': must be a finite number >= 0, got '-1'\n"


@pytest.mark.parametrize("value", ["-5", "NaN", "1e400", "null", "[]", '"x"', "{}"])
@pytest.mark.parametrize("field", ["duration_ns", "iteration", "rank", "prefix_len", "new_tokens"])
def test_an_executor_sample_with_an_odd_value_is_one_message(field: str, value: str) -> None:
    row = {"mode": "extend", "iteration": 0, "rank": 0, "prefix_len": 0, "new_tokens": 5, "duration_ns": 7}
    Path("a.jsonl").write_text(json.dumps({**row, field: "HERE"}).replace('"HERE"', value) + "\n")
    result = ppsim("fit", "a.jsonl")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
