"""Law: results go to stdout, everything else to stderr, and the exit code says how it ended; bad input is told once."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.recording import Recording, Verdict
from ppsim.recording.writer import write_recording
from tests.unit.handmade import decision, pipeline

ROOT = Path(__file__).resolve().parents[2]
PERCENTILES = {"mean", "p50", "p90", "p99"}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ppsim(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def summary_of(*arguments: str) -> dict[str, Any]:
    """The one JSON object of a run that passes."""
    result = ppsim("run", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.count("\n") == 1
    return dict(json.loads(result.stdout))


def schedule_of(run: str, rank: int = 0) -> list[dict[str, Any]]:
    result = ppsim("show", run, "--schedule", "--json", "--rank", str(rank))
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


# --- run -------------------------------------------------------------------------------------------------------


def test_run_prints_the_object_that_scripts_build_on() -> None:
    summary = summary_of("unit")
    assert summary["verdict"] == "pass"
    assert {"seed", "digest", "num_requests", "num_finished", "num_iterations", "makespan_s"} <= set(summary)
    assert {"bubble_ratio", "input_tokens_per_s", "output_tokens_per_s"} <= set(summary)
    assert set(summary["ttft_s"]) == set(summary["tpot_s"]) == PERCENTILES
    assert [stage["pp_rank"] for stage in summary["stages"]] == [0, 1, 2, 3]
    assert all({"busy_s", "idle_s", "bubble_ratio"} <= set(stage) for stage in summary["stages"])


@pytest.mark.parametrize(("pp_size", "chunks"), [(1, 1), (2, 5), (4, 12), (8, 3)])
def test_run_unit_has_the_textbook_bubble_through_the_whole_command(pp_size: int, chunks: int) -> None:
    summary = summary_of("unit", "--set", f"cluster.pp_size={pp_size}", "--set", f"workload.num_chunks={chunks}")
    assert summary["bubble_ratio"] == (pp_size - 1) / (pp_size - 1 + chunks)
    assert summary["ttft_s"]["p99"] == pp_size - 1 + chunks


def test_run_for_people_is_a_table_on_stdout_and_the_folder_on_stderr() -> None:
    result = ppsim("run", "unit")
    assert result.exit_code == 0
    assert result.stderr == "saved runs/unit-0-1\nas expected: verdict pass, 7 figures\n"
    assert "bubble 42.9 %" in result.stdout
    assert result.stdout == ppsim("show", "latest").stdout == ppsim("show").stdout


def test_the_saved_summary_is_the_printed_one_and_show_computes_it_again() -> None:
    printed = summary_of("tiny", "--out", "here")
    assert json.loads(Path("here/summary.json").read_text()) == printed
    assert json.loads(ppsim("show", "here", "--json").stdout) == printed


def test_a_saved_config_is_the_same_run_again() -> None:
    printed = summary_of("tiny", "--seed", "5", "--set", "cluster.pp_async_batch_depth=1", "--out", "one")
    assert summary_of("one/config.toml", "--out", "two") == printed
    assert Path("one/recording.jsonl").read_bytes() == Path("two/recording.jsonl").read_bytes()
    assert ppsim("diff", "one", "two", "--times").exit_code == 0


def test_a_trace_comes_from_the_file_and_set_has_the_last_word() -> None:
    lines = [{"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [1, 2]} for _ in range(3)]
    Path("t.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert summary_of("mooncake", "--trace", "t.jsonl")["num_requests"] == 3
    assert summary_of("mooncake", "--trace", "t.jsonl", "--set", "workload.num_requests=2")["num_requests"] == 2
    Path("one.jsonl").write_text(json.dumps(lines[0]) + "\n")
    assert summary_of("mooncake", "--trace", "t.jsonl", "--set", "workload.trace=one.jsonl")["num_requests"] == 1
    assert summary_of("mooncake", "--trace", "t.jsonl")["num_requests"] == 3
    config = tomllib.loads(Path("runs/latest/config.toml").read_text())
    assert config["workload"]["source"] == "trace"
    assert config["workload"]["trace"] == "t.jsonl"


def test_running_into_the_same_folder_replaces_the_run_and_says_so() -> None:
    assert "replaced" not in ppsim("run", "unit", "--out", "here").stderr
    result = ppsim("run", "tiny", "--out", "here")
    assert result.stderr == "replaced the earlier run in here\nsaved here\nas expected: verdict pass, 5 figures\n"
    assert json.loads(Path("here/summary.json").read_text())["name"] == "tiny"


# --- how it ends -----------------------------------------------------------------------------------------------


class Ended:
    """A result as a world returns it."""

    def __init__(self, verdict: Verdict) -> None:
        self.recording: Recording = pipeline(2, 2)
        self.verdict = verdict


@pytest.mark.parametrize(("kind", "code"), [("fail", 1), ("fail", 3), ("fail", 4), ("unknown", 5)])
def test_a_verdict_decides_the_exit_code_and_its_text_goes_to_stderr(
    kind: Any, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = Verdict(kind, code, "rank 1 waits for rank 0\nand so on", rank=1)
    monkeypatch.setattr("ppsim.world.simulate", lambda *_, **__: Ended(verdict))
    result = ppsim("run", "unit", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)["verdict"] == kind
    assert result.stderr.startswith("rank 1 waits for rank 0\nand so on\n")
    assert json.loads(Path("runs/latest/verdict.json").read_text())["exit_code"] == code
    shown = ppsim("show")
    assert shown.exit_code == 0
    assert shown.stdout.endswith("rank 1 waits for rank 0\nand so on\n")


def test_a_bug_of_ours_is_not_taken_for_a_safety_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("ppsim.world.simulate", broken)
    result = ppsim("run", "unit", "--json")
    assert result.exit_code == 5
    assert "ZeroDivisionError: oops" in result.stderr
    assert "this is a bug in ppsim" in result.stderr
    assert result.stdout == ""
    assert not any(Path("runs").iterdir())


def test_ctrl_c_ends_in_130_without_a_traceback_and_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ppsim.world.simulate", interrupted)
    result = ppsim("run", "unit")
    assert (result.exit_code, result.stdout, result.stderr) == (
        130,
        "",
        "ppsim: interrupted before the run began; nothing is saved\n",
    )
    assert not any(Path("runs").iterdir())


BAD_INPUT = [
    (["run", "unitt"], "unknown scenario 'unitt' (did you mean 'unit'?)"),
    (["run", "nothing.toml"], "scenario file nothing.toml does not exist"),
    (["run", "unit", "--set", "cluster"], "--set 'cluster': expected key=value"),
    (["run", "unit", "--set", "cluster.pp_sice=4"], "cluster.pp_sice: unknown key (did you mean 'pp_size'?)"),
    (["run", "unit", "--set", "cluster.pp_size=four"], "cluster.pp_size"),
    (["run", "unit", "--set", "cluster.pp_size=0"], "cluster.pp_size"),
    (["run", "unit", "--seed", "-1"], "--seed"),
    (["run", "unit", "--trace", "missing.jsonl"], "missing.jsonl"),
    (["run", "unit", "--out", "scenario.toml"], "scenario.toml: a file is in the way"),
    (["run", "unit", "--out", "/proc/none/x"], "cannot be made"),
    (["run", "scenario.toml"], "scenario.toml: not valid TOML"),
    (["run", "."], "unknown scenario '.'"),
    (["run"], "Missing argument 'SCENARIO'"),
    (["run", "unit", "--sett", "a=1"], "--sett"),
    (["walk"], "walk"),
    (["show", "nothing"], "run 'nothing' does not exist"),
    (["show", "."], ". is not a run folder"),
    (["show", "scenario.toml"], "scenario.toml:1: is not a recording"),
    (["diff", "nothing", "nothing"], "run 'nothing' does not exist"),
    (["diff", "nothing"], "Missing argument 'B'"),
    (["diff", "a", "b", "--times", "--decisions"], "--times and --decisions exclude each other"),
    (["plot", "nothing"], "run 'nothing' does not exist"),
    (["list", "everything"], "everything"),
    (["exec", "nosuch"], "unknown scenario"),
    (["exec", "unit", "--device", "tpu"], "tpu"),
    (["exec", "unit", "--port", "99999"], "65535"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_INPUT, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_bad_input_is_one_clear_message_and_exit_code_2(arguments: list[str], message: str) -> None:
    Path("scenario.toml").write_text("cluster = [\n")
    result = ppsim(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("runs").exists() or not any(Path("runs").iterdir())


def test_exec_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.cli.execute.find_spec", lambda name: None)
    result = ppsim("exec", "tiny")
    assert result.exit_code == 2
    assert result.stderr == ("ppsim: ppsim exec needs torch, which is not installed: pip install 'ppsim[executor]'\n")


# --- list, show, diff, plot ------------------------------------------------------------------------------------


def test_list_scenarios_has_folders_with_a_name_and_a_sentence_on_every_line() -> None:
    result = ppsim("list", "scenarios")
    assert (result.exit_code, result.stderr) == (0, "")
    listed: dict[str, str] = {}
    for group in result.stdout.split("\n\n"):
        head, *lines = group.splitlines()
        folder, _, about = head.partition(": ")
        assert about.endswith("."), head
        mine = dict(line.split(maxsplit=1) for line in lines)
        assert {name.rpartition("/")[0] or "scenarios" for name in mine} == {folder}
        listed |= mine
    assert {"unit", "mooncake", "tiny"} <= set(listed)
    rows = json.loads(ppsim("list", "scenarios", "--json").stdout)
    assert {row["name"]: row["description"] for row in rows} == {n: " ".join(t.split()) for n, t in listed.items()}
    assert {row["folder"] for row in rows} == {"", "bugs", "bugs_b94_b118", "paper", "questions"}
    shipped = {p.relative_to(ROOT / "scenarios").with_suffix("").as_posix() for p in ROOT.glob("scenarios/**/*.toml")}
    assert set(listed) == shipped
    assert all(sentence.endswith(".") for sentence in listed.values())
    Path("scenarios").mkdir()
    Path("scenarios/mine.toml").write_text('description = "Mine, not yours."\n')
    Path("scenarios/broken.toml").write_text("description = \n")
    more = ppsim("list", "scenarios")
    assert "mine" in more.stdout
    assert "broken.toml" in more.stderr
    assert more.exit_code == 0


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("chunks", [1, 3])
def test_the_schedule_shows_chunks_going_down_and_the_token_coming_back(depth: int, chunks: int) -> None:
    """K chunks launched from iteration 0 deliver the first token in iteration K + L - 2, on every rank."""
    sets = [f"cluster.pp_async_batch_depth={depth}", f"workload.num_chunks={chunks}", "cluster.pp_size=3"]
    summary_of("unit", *[word for s in sets for word in ("--set", s)], "--out", "here")
    num_slots = 3 + depth
    ranks = [schedule_of("here", rank) for rank in range(3)]
    assert ranks[0] == ranks[1] == ranks[2]
    entries = ranks[0]
    assert [e["iteration"] for e in entries] == list(range(len(entries)))
    assert [e["slot"] for e in entries] == [i % num_slots for i in range(len(entries))]
    rid = entries[0]["pieces"][0][0]
    assert [e["pieces"] for e in entries[:chunks]] == [[[rid, 64 * k, 64]] for k in range(chunks)]
    assert {e["mode"] for e in entries[:chunks]} == {"extend"}
    assert {e["mode"] for e in entries[chunks:]} == {"empty"}
    delivered = {e["iteration"]: e for e in entries if e["delivered"]}
    assert list(delivered) == [chunks + num_slots - 2]
    (entry,) = delivered.values()
    assert (entry["delivered"], entry["finished"]) == ([[rid, 1]], [rid])
    assert entry["harvested"] == entry["iteration"] - (num_slots - 1)


def test_the_schedule_for_people_and_a_rank_that_is_not_there() -> None:
    ppsim("run", "unit")
    assert ppsim("show", "--schedule").stdout.startswith("iteration slot mode")
    result = ppsim("show", "--schedule", "--json", "--rank", "4")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "ppsim: --rank 4: this run has ranks 0 to 3\n"


def test_diff_names_the_first_record_in_which_two_runs_differ() -> None:
    for name, chunks in (("a", 3), ("b", 3), ("c", 4)):
        ppsim("run", "unit", "--set", f"workload.num_chunks={chunks}", "--out", name)
    same = ppsim("diff", "a", "b/recording.jsonl")
    assert same.exit_code == 0
    assert same.stdout.startswith("equal: decisions, tokens and replies of 4 ranks")
    assert json.loads(ppsim("diff", "a", "b", "--json").stdout) == {"equal": True}
    assert ppsim("diff", "a", "b", "--decisions").stdout.startswith("equal: 28 decisions of 4 ranks")
    other = ppsim("diff", "a", "c")
    assert other.exit_code == 1
    assert other.stdout.startswith("different: first in the ingested record of rank 0, iteration 0")
    assert "Traceback" not in other.output
    told = json.loads(ppsim("diff", "a", "c", "--json").stdout)
    assert (told["equal"], told["rank"], told["iteration"]) == (False, 0, 0)


def test_diff_finds_a_policy_that_changes_one_decision() -> None:
    """Slots of one request each, against slots that take two: the first batch with two pieces is where they part."""
    ppsim("run", "tiny", "--out", "a")
    ppsim("run", "tiny", "--set", "scheduler.pp_max_micro_batch_size=1", "--out", "b")
    told = json.loads(ppsim("diff", "a", "b", "--json").stdout)
    a, b = schedule_of("a"), schedule_of("b")
    first = next(i for i, (x, y) in enumerate(zip(a, b)) if x["digest"] != y["digest"])
    assert (told["kind"], told["rank"], told["iteration"], told["slot"]) == ("decision", 0, first, a[first]["slot"])
    seen = next(i for i, (x, y) in enumerate(zip(a, b)) if x["pieces"] != y["pieces"])
    assert (told["shows"] or told)["iteration"] == seen


def test_diff_of_inner_state_also_tells_where_it_shows() -> None:
    for name, state, tokens in (("a", "s", 1), ("b", "t", 1), ("c", "t", 2)):
        recording = Recording(1)
        recording.decision(0, decision(0, 0, ("r", 0, 1), state=state))
        recording.decision(0, decision(1, 1, ("r", 1, tokens), state=state))
        write_recording(recording, Path(name))
    hidden = ppsim("diff", "a", "b").stdout.splitlines()
    assert hidden[0] == "different: first in the decision record of rank 0, iteration 0, slot 0: field state_digest"
    assert hidden[-1] == "it never shows in a batch"
    shown = ppsim("diff", "a", "c").stdout.splitlines()
    assert shown[0] == hidden[0]
    assert shown[3:] == [
        "it shows in the decision record of rank 0, iteration 1, slot 1: field pieces[0]",
        '  a  ["r", 1, 1]',
        '  c  ["r", 1, 2]',
    ]
    assert json.loads(ppsim("diff", "a", "b", "--json").stdout)["shows"] is None
    assert json.loads(ppsim("diff", "a", "c", "--json").stdout)["shows"]["field"] == "pieces[0]"


def test_diff_of_a_damaged_recording_names_file_and_line() -> None:
    ppsim("run", "unit", "--out", "a")
    lines = Path("a/recording.jsonl").read_text().splitlines(keepends=True)
    Path("cut.jsonl").write_text("".join(lines[:-1]))
    result = ppsim("diff", "a", "cut.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"ppsim: cut.jsonl:{len(lines) - 1}: the end record is missing: the recording is not complete\n"
    )


def test_plot_writes_beside_the_run_or_where_it_is_told() -> None:
    ppsim("run", "unit")
    assert ppsim("plot").stdout == "runs/latest/gantt.png\n"
    assert Path("runs/unit-0-1/gantt.png").read_bytes().startswith(b"\x89PNG")
    assert ppsim("plot", "unit-0-1", "-o", "x.svg", "--from", "1", "--to", "2").exit_code == 0
    assert "<svg" in Path("x.svg").read_text()
    nothing = ppsim("plot", "--from", "99")
    assert nothing.exit_code == 2
    assert "shows nothing" in nothing.stderr
    cut = ppsim("plot", "--from", "1", "--to", "1e300")
    assert (cut.exit_code, cut.stdout) == (0, "runs/latest/gantt-2.png\n")
    assert cut.stderr == "ppsim: --to 1e+300: the run ends at 7.0 s, drawn up to there\n"


def test_a_second_picture_does_not_replace_the_first_unless_it_has_its_name() -> None:
    ppsim("run", "unit")
    assert ppsim("plot").stdout == "runs/latest/gantt.png\n"
    first = Path("runs/latest/gantt.png").read_bytes()
    assert ppsim("plot").stdout == "runs/latest/gantt.png\n"  # the same picture
    assert ppsim("plot", "--from", "1").stdout == "runs/latest/gantt-2.png\n"
    assert ppsim("plot", "--from", "2").stdout == "runs/latest/gantt-3.png\n"
    assert ppsim("plot", "--from", "1").stdout == "runs/latest/gantt-2.png\n"
    assert Path("runs/latest/gantt.png").read_bytes() == first
    assert ppsim("plot", "-o", "x.png").stderr == ""
    assert ppsim("plot", "-o", "x.png").stderr == ""
    told = ppsim("plot", "-o", "x.png", "--from", "1")
    assert (told.exit_code, told.stdout, told.stderr) == (0, "x.png\n", "ppsim: replaced x.png\n")
    assert Path("x.png").read_bytes() != first


def test_pictures_of_two_pipelines_and_of_one_of_them_lie_beside_each_other() -> None:
    ppsim("run", "pd_chunked_transfer", "--out", "pd")
    assert ppsim("plot", "pd").stdout == "pd/gantt.png\n"
    assert ppsim("plot", "pd", "--side", "prefill").stdout == "pd/gantt-prefill.png\n"
    assert ppsim("plot", "pd", "--side", "decode").stdout == "pd/gantt-decode.png\n"


PLOT_REFUSALS = [
    (["--from", "nan"], "--from nan: expected a number of seconds"),
    (["--to", "nan"], "--to nan: expected a number of seconds"),
    (["--from=-inf"], "--from -inf: expected a number of seconds"),
    (["--to", "inf"], "--to inf: expected a number of seconds"),
    (["--from", "1e300"], "--from 1e+300 s: shows nothing, the run computes from 0.0 s to 7.0 s"),
    (["--to=-1e300"], "--to -1e+300 s: shows nothing, the run computes from 0.0 s to 7.0 s"),
    (["--from=-2", "--to=-1"], "--to -1.0 s: shows nothing"),
    (["--from", "2", "--to", "2"], "--from 2.0 s is not before --to 2.0 s"),
    (["--from", "3", "--to", "1"], "--from 3.0 s is not before --to 1.0 s"),
    (["-o", "x.jpg"], "-o x.jpg: the format .jpg is not supported; a picture is one of .png, .svg, .pdf"),
    (["-o", "picture"], "-o picture: the name has no ending"),
    (["-o", "missing/x.png"], "-o missing/x.png: cannot be written: No such file or directory"),
    (["-o", "runs"], "-o runs: the name has no ending"),
]


@pytest.mark.parametrize(
    ("options", "message"), PLOT_REFUSALS, ids=lambda v: " ".join(v) if isinstance(v, list) else ""
)
def test_a_picture_that_cannot_be_is_refused_in_a_sentence(options: list[str], message: str) -> None:
    ppsim("run", "unit")
    result = ppsim("plot", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
