"""Law: a sweep is a table of its points. What it says of a point is what the run of that point alone says; its bytes do
not depend on processes, on what failed beside it, or on how often it was interrupted."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import ppsim
from ppsim.cli.entry import app
from ppsim.errors import UsageError
from ppsim.report.keys import KEYS, axis_words, figure_words, key_words
from ppsim.report.sweep import chart_of
from ppsim.scenario.expect import FIGURES
from ppsim.scenario.tree import Scenario
from ppsim.sweeps.folder import POINTS, TABLE
from ppsim.sweeps.points import parse_grid, points_of, read_points
from ppsim.sweeps.table import typed
from ppsim.sweeps.version import code_version

BUBBLE = ("--set", "cluster.pp_size=2,4", "--set", "workload.num_chunks=1,8")


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def swept(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *arguments])


def rows_of(folder: str) -> list[dict[str, str]]:
    with (Path(folder) / TABLE).open(newline="") as file:
        return list(csv.DictReader(file))


def bytes_of(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


# --- the points ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=1,2,3", [1, 2, 3]),
        ("k=0.5", [0.5]),
        ("k=[1, 2],[3]", [[1, 2], [3]]),
        ("k='a,b',c", ["a,b", "c"]),
        ('k=true,"true"', [True, "true"]),
        ("k={ a = 1, b = 2 },{}", [{"a": 1, "b": 2}, {}]),
        ("k=qwen3-8b,llama-3.1-8b", ["qwen3-8b", "llama-3.1-8b"]),
    ],
)
def test_commas_part_values_but_not_inside_brackets_and_quotes(text: str, values: list[Any]) -> None:
    assert parse_grid([text]) == {"k": values}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["unit", "--set", "cluster.pp_size"], "expected key=value or key=a,b,c"),
        (["unit", "--set", "cluster.pp_size=1,,2"], "a value between commas is empty"),
        (["unit", "--set", "seed=1", "--set", "seed=2"], "seed: is given twice"),
        (["unit", "--set", "seed=1,2,1"], "is point 0 again"),
        (["unit", "--set", "cluster.pp_sise=1,2"], "did you mean 'pp_size'"),
        (["unit", "--set", "expect.verdict=pass,fail"], "judges no [expect]"),
        (["nosuch", *BUBBLE], "unknown scenario"),
        ([*BUBBLE], "no scenario: name one"),
        (["unit", *BUBBLE, "--x", "seed"], "--x seed: no key of this sweep"),
        (["unit", *BUBBLE, "--y", "bubble"], "did you mean 'bubble_ratio'"),
        (["unit", *BUBBLE, "--y", "ttft_p50_ms"], "the table has it in seconds: ttft_p50_s"),
        (["unit", *BUBBLE, "--jobs", "2", "--ray", "local"], "exclude each other"),
        (["unit", *BUBBLE, "--max-seconds", "nan"], "--max-seconds"),
        (["unit", *BUBBLE, "--out", ""], "is empty"),
        (["unit", *BUBBLE, "--points", "none.csv"], "none.csv: cannot be read"),
        (["unit", *BUBBLE, "--bug", "nosuch"], "unknown planted bug"),
    ],
)
def test_what_no_sweep_can_be_of_is_refused_before_anything_runs(arguments: list[str], told: str) -> None:
    result = swept(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert not list(Path().glob("runs/*"))


def test_the_order_is_that_of_the_command_the_last_key_fastest() -> None:
    points = points_of(["b", "a"], {"y": [2, 1], "x": [3, 4]})
    assert [(p.number, p.scenario, dict(p.keys)) for p in points] == [
        (i, name, {"y": y, "x": x})
        for i, (name, y, x) in enumerate((n, y, x) for n in ("b", "a") for y in (2, 1) for x in (3, 4))
    ]


def test_a_list_of_points_comes_from_csv_or_toml() -> None:
    Path("p.csv").write_text('\ufeffscenario,cluster.pp_size,model.layer_partition\nunit,2,\ntiny,,"[2, 2]"\n')
    Path("p.toml").write_text('[[points]]\nscenario = "unit"\ncluster = { pp_size = 2 }\n[[points]]\nseed = 3\n')
    assert read_points("p.csv") == [
        {"scenario": "unit", "cluster.pp_size": 2},
        {"scenario": "tiny", "model.layer_partition": [2, 2]},
    ]
    assert read_points("p.toml") == [{"scenario": "unit", "cluster.pp_size": 2}, {"seed": 3}]
    for text in ("a,a\n1,2\n", "a,\n1,2\n", "a,b\n1\n", "", "a\n"):
        Path("bad.csv").write_text(text)
        with pytest.raises(UsageError, match=r"--points bad\.csv"):
            read_points("bad.csv")


# --- the table -------------------------------------------------------------------------------------------------------


def test_a_row_says_what_the_run_of_its_point_says_and_the_bubble_is_the_textbooks() -> None:
    result = swept("unit", *BUBBLE, "--out", "s", "--jobs", "2")
    assert result.exit_code == 0, result.stderr
    rows = rows_of("s")
    assert [row["point"] for row in rows] == ["0", "1", "2", "3"]
    for row in rows:
        p, m = int(row["cluster.pp_size"]), int(row["workload.num_chunks"])
        assert float(row["bubble_ratio"]) == (p - 1) / (m + p - 1)
        alone = ppsim.simulate("unit", pp_size=p, num_chunks=m)
        assert row["digest"] == alone.digest
        assert float(row["ttft_p99_s"]) == alone.summary["ttft_s"]["p99"] == m + p - 1
        assert (row["outcome"], row["exit_code"], row["message"]) == ("pass", "0", "")
    assert sorted(bytes_of("s")) == ["plot.png", "points.jsonl", "table.csv"]


def test_the_bytes_do_not_depend_on_the_processes() -> None:
    for jobs in ("1", "2", "4"):
        assert swept("unit", "tiny", *BUBBLE, "--out", f"j{jobs}", "--jobs", jobs).exit_code in (0, 2)
    assert bytes_of("j1") == bytes_of("j2") == bytes_of("j4")


def test_a_point_that_fails_stops_none_and_is_told_in_table_and_exit_code() -> None:
    sets = ("--set", "links.send=eager,rendezvous", "--set", "workload.num_chunks=8", "--set", "cluster.pp_size=2,0,4")
    result = swept("unit", *sets, "--out", "s")
    rows = rows_of("s")
    assert [row["outcome"] for row in rows] == ["pass", "refused", "pass", "fail", "refused", "fail"]
    assert [row["exit_code"] for row in rows] == ["0", "2", "0", "3", "2", "3"]
    assert result.exit_code == 2  # of the first that did not pass
    assert rows[3]["rule"] == rows[5]["rule"] == "INV-40"
    assert "deadlock" in rows[5]["message"]
    assert rows[5]["bubble_ratio"] == ""
    assert "cluster.pp_size: must be more than 0, got 0" in rows[1]["message"]
    assert "2 pass, 2 refused, 2 fail of 6 points" in result.stdout
    only = swept("unit", "--set", "links.send=eager,rendezvous", "--set", "workload.num_chunks=8")
    assert only.exit_code == 3


RAISES = """import os
import ppsim


class Policy(ppsim.Policy):
    def admission_order(self, waiting):
        if len(waiting) == {num}:
            {does}
        return waiting
"""


STUBBORN = """while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass"""


@pytest.mark.parametrize(
    ("does", "outcome", "told"),
    [
        ("raise KeyError('nobody')", "crash", "KeyError"),
        ("os._exit(7)", "died", "exit code 7"),
        ("os.kill(os.getpid(), 9)", "died", "SIGKILL"),
        ("while True: pass", "stopped", "it was stopped after 15 s"),
        (STUBBORN, "died", "exit code 5"),
    ],
)
def test_what_a_policy_does_ends_its_point_alone(does: str, outcome: str, told: str) -> None:
    Path("p.py").write_text(RAISES.format(num=3, does=does))
    requests = [{"rid": f"R{i}", "prompt": 8} for i in range(3)]
    two, three = json.dumps(requests[:2]), json.dumps(requests)
    tomls = [text.replace('": ', '" = ').replace('"rid"', "rid").replace('"prompt"', "prompt") for text in (two, three)]
    given = ("unit", "--set", f"workload.requests={tomls[0]},{tomls[1]}", "--set", "seed=0,1", "--plugin", "p.py")
    seconds = "15" if "while" in does else "200"
    result = swept(*given, "--max-seconds", seconds, "--out", "s", "--jobs", "2")
    rows = rows_of("s")
    assert [row["outcome"] for row in rows] == ["pass", "pass", outcome, outcome], result.stderr
    assert all(told in row["message"] for row in rows[2:])
    assert result.exit_code == int(rows[2]["exit_code"]) != 0


def test_parquet_has_the_rows_of_the_csv_and_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    assert swept("unit", *BUBBLE, "--set", "links.send=eager,rendezvous", "--parquet", "--out", "s").exit_code == 3
    table = parquet.read_table("s/table.parquet").to_pydict()
    rows = rows_of("s")
    assert list(table) == list(rows[0])
    for name, values in table.items():
        assert ["" if v is None else str(v) for v in values] == [row[name] for row in rows], name
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    refused = swept("unit", *BUBBLE, "--parquet", "--out", "t")
    assert refused.exit_code == 2
    assert "--parquet needs the package pyarrow, which is not installed: pip install 'ppsim[parquet]'" in refused.stderr
    assert not Path("t").exists()


def test_a_column_of_several_kinds_is_text() -> None:
    arrow = pytest.importorskip("pyarrow", reason="the extra 'parquet' is not installed")
    for values, kind in (([1, None], "int64"), ([1, 2.5], "double"), ([True], "bool"), ([1, "a"], "string")):
        assert str(typed("k", values, arrow)[1]) == kind
    assert typed("k", [[1, 2], "a", None], arrow)[0] == ["[1, 2]", "a", None]


# --- going on --------------------------------------------------------------------------------------------------------


def test_what_is_finished_is_not_run_again_and_a_grid_may_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert swept("unit", *BUBBLE, "--out", "s").exit_code == 0
    before = bytes_of("s")
    with monkeypatch.context() as patch:
        patch.setattr("ppsim.sweeps.sweep.in_processes", lambda run, tasks, *_: iter([_fail(t) for t in tasks]))
        again = swept("unit", *BUBBLE, "--out", "s")
    assert again.exit_code == 0
    assert "4 points were finished before and are not run again" in again.stderr
    assert bytes_of("s") == before
    more = swept("unit", "--set", "cluster.pp_size=8,4", "--set", "workload.num_chunks=1,8", "--out", "s")
    assert "2 points were finished before" in more.stderr
    assert "2 finished points in s are none of this sweep's" in more.stderr
    assert (
        swept("unit", "--set", "cluster.pp_size=8,4", "--set", "workload.num_chunks=1,8", "--out", "t").exit_code == 0
    )
    assert bytes_of("s")[TABLE] == bytes_of("t")[TABLE]


def _fail(task: object) -> Any:
    raise AssertionError(f"{task} is run again")


def test_a_scenario_that_changed_meanwhile_is_told_and_run_again() -> None:
    Path("mine.toml").write_text('[cost]\nsource = "unit"\n[workload]\nsource = "chunks"\nnum_chunks = 2\n')
    sets = ("--set", "cluster.pp_size=2,4")
    assert swept("mine.toml", *sets, "--out", "s").exit_code == 0
    Path("mine.toml").write_text('[cost]\nsource = "unit"\n[workload]\nsource = "chunks"\nnum_chunks = 4\n')
    again = swept("mine.toml", *sets, "--out", "s")
    assert again.stderr.count("its scenario has changed since it was finished (workload.num_chunks)") == 2
    assert [float(row["bubble_ratio"]) for row in rows_of("s")] == [1 / 5, 3 / 7]


def test_another_ppsim_is_told_and_its_points_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = ("--set", "cluster.pp_size=2,4", "--out", "s")
    assert swept("unit", *sets).exit_code == 0
    before = bytes_of("s")
    lines = Path("s/points.jsonl").read_text()
    assert {json.loads(line)["ppsim"] for line in lines.splitlines()} == {code_version()}
    with monkeypatch.context() as patch:
        patch.setattr("ppsim.sweeps.folder.code_version", lambda: "9.9, code 00")
        again = swept("unit", *sets)
        assert again.stderr.count(f"ppsim has changed since it was finished (then {code_version()}; now 9.9, code") == 2
        assert "were finished before" not in again.stderr
        assert "2 points were finished before" in swept("unit", *sets).stderr
    assert swept("unit", *sets).exit_code == 0
    assert bytes_of("s") == before
    old = [{k: v for k, v in json.loads(line).items() if k != "ppsim"} for line in lines.splitlines()]
    Path("s/points.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in old))
    assert swept("unit", *sets).stderr.count("ppsim has changed since it was finished (then not told; now") == 2


def test_the_version_is_that_of_the_code_that_a_run_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ppsim"
    shutil.copytree(Path(ppsim.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr("ppsim.sweeps.version.files", lambda name: package)
    fresh = code_version.__wrapped__
    assert fresh() == code_version()
    (package / "core" / "__pycache__").mkdir()
    (package / "core" / "__pycache__" / "loop.py").write_text("left behind")
    (package / "report" / "kv.py").write_text("# another picture")
    assert fresh() == code_version()
    for name in ("core/loop.py", "world/network.py", "cost/model.py", "data/models.toml"):
        (package / name).write_text((package / name).read_text() + "\n# changed\n")
        assert fresh() != code_version()
        (package / name).write_text((package / name).read_text().removesuffix("\n# changed\n"))
        assert fresh() == code_version()


def test_a_trace_that_changed_meanwhile_is_told() -> None:
    line = {"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [1, 2]}
    Path("t.jsonl").write_text(json.dumps(line) + "\n")
    given = ("mooncake", "--trace", "t.jsonl", "--set", "seed=1,2", "--out", "s")
    assert swept(*given).exit_code == 0
    assert "2 points were finished before" in swept(*given).stderr
    Path("t.jsonl").write_text((json.dumps(line) + "\n") * 3)
    assert swept(*given).stderr.count("the file that workload.trace names has changed") == 2
    assert [row["num_requests"] for row in rows_of("s")] == ["3", "3"]


def test_half_a_line_counts_as_not_there_and_somebodys_files_are_left_alone() -> None:
    assert swept("unit", *BUBBLE, "--out", "s").exit_code == 0
    whole = bytes_of("s")
    text = (Path("s") / POINTS).read_text()
    (Path("s") / POINTS).write_text(text[: len(text) - 30])
    assert "3 points were finished before" in swept("unit", *BUBBLE, "--out", "s").stderr
    assert bytes_of("s") == whole
    Path("mine").mkdir()
    Path("mine/diary.txt").write_text("dear")
    assert "holds files, and no points.jsonl" in swept("unit", *BUBBLE, "--out", "mine").stderr
    (Path("s") / POINTS).write_text("{}\n" + text)
    assert "points.jsonl:1: is no line of a sweep" in swept("unit", *BUBBLE, "--out", "s").stderr


def test_ctrl_c_keeps_what_is_finished_and_the_rest_goes_on() -> None:
    Path("slow.py").write_text(
        "import time\nimport ppsim\n\n\nclass Policy(ppsim.Policy):\n    def admission_order(self, waiting):\n"
        "        time.sleep(0.4 * (self.pp_rank == 0 and len(waiting) > 0))\n        return waiting\n"
    )
    given = ["unit", "--set", "seed=0,1,2,3,4,5,6,7", "--plugin", "slow.py", "--out", "s", "--jobs", "1"]
    running = subprocess.Popen(
        [sys.executable, "-m", "ppsim", "sweep", *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 100
    while not ((Path("s") / POINTS).exists() and (Path("s") / POINTS).read_text().count("\n") >= 2):
        assert time.monotonic() < deadline
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    busy = swept(*given)
    assert (busy.exit_code, "another sweep is going on in it" in busy.stderr) == (2, True)
    os.kill(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    rows = rows_of("s")
    num = sum(row["outcome"] == "pass" for row in rows)
    assert 2 <= num < 8
    assert [row["outcome"] for row in rows] == ["pass"] * num + ["pending"] * (8 - num)
    assert f"interrupted after {num} of 8 points; what is finished is kept" in err
    assert f"go on with  ppsim sweep {' '.join(given)}" in err
    rest = swept(*given)
    assert f"{num} points were finished before" in rest.stderr
    assert [row["outcome"] for row in rows_of("s")] == ["pass"] * 8


# --- the picture -----------------------------------------------------------------------------------------------------


def test_the_picture_has_a_dot_a_point_at_its_value() -> None:
    found = ppsim.sweep("unit", {"pp_size": [2, 4], "num_chunks": [1, 8, 4]}, num_jobs=0)
    columns, keys = found.columns, found.sweep.order.keys
    chart = chart_of(columns, keys)
    assert chart.x == "workload.num_chunks"  # three values, the others have two
    assert [line.label for line in chart.lines] == ["pipeline stages 2", "pipeline stages 4"]
    from matplotlib.figure import Figure

    from ppsim.report.sweep import draw_panel

    axes = Figure().subplots()
    draw_panel(axes, columns, chart, "bubble_ratio")
    for line, p in zip(axes.lines, (2, 4)):
        dots = [(float(x), float(y)) for x, y in zip(*line.get_data())]
        assert dots == [(m, (p - 1) / (m + p - 1)) for m in (1, 4, 8)]
    assert found.plot().content == found.plot().content
    assert found.plot(x="pp_size", y="ttft_p50_s", format="svg").content.startswith(b"<?xml")


def test_axes_and_titles_are_words_with_a_unit_and_the_key_stands_behind_them() -> None:
    from matplotlib.figure import Figure

    from ppsim.report.sweep import draw_panel, title_of

    found = ppsim.sweep("unit", {"latency_us": [0, 200, 1000], "num_chunks": [1, 8, 4, 2]}, num_jobs=0)
    keys = found.sweep.order.keys
    chart = chart_of(found.columns, keys, "links.latency_us")
    axes = Figure().subplots()
    draw_panel(axes, found.columns, chart, "ttft_p50_s")
    assert axes.get_xlabel() == "latency of a link, us (links.latency_us)"
    assert axes.get_title(loc="left") == "time to first token (median), s"
    two = replace(chart, figures=("ttft_p50_s", "makespan_s"))
    words = "how time to first token and makespan move with latency of a link"
    assert title_of(["unit"], 12, two) == f"unit: {words}; 12 runs, a dot each"
    told = replace(chart, figures=("bubble_ratio", "prefill_ttft_p99_s"))
    assert "how bubble and prefill side: time to first token move with" in title_of(["unit"], 12, told)
    one = replace(chart, figures=("ttft_p50_s",))
    assert title_of(["unit", "tiny"], 4, one).startswith("2 scenarios: how time to first token moves with latency of ")
    chart = chart_of(found.columns, keys, "workload.num_chunks")
    axes = Figure().subplots()
    draw_panel(axes, found.columns, chart, "makespan_s")
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "chunks of the prompt (workload.num_chunks), logarithmic scale"
    assert [line.label for line in chart.lines] == [f"latency of a link {us} us" for us in (0, 200, 1000)]


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("ttft", "ttft_p50_s"), ("bubble", "bubble_ratio"), ("bubbel_ratio", "bubble_ratio"), ("makespan", "makespan_s")],
)
def test_a_figure_that_is_not_there_names_the_one_that_was_meant(wrong: str, meant: str) -> None:
    found = ppsim.sweep("unit", {"pp_size": [2, 4]}, num_jobs=0)
    with pytest.raises(UsageError, match=f"--y {wrong}: no point has this figure; did you mean {meant}?"):
        found.plot(y=wrong)
    with pytest.raises(UsageError, match="the columns of the table are the names"):
        found.plot(y="qqqqqqqq")


def test_every_figure_and_every_key_has_words() -> None:
    """None of the code's names; a unit where the name ends in one. A key's own name stands behind its words."""
    for name in FIGURES:
        if "stages_N" in name:
            continue  # no column of a sweep's table
        for figure in (name, f"prefill_{name}"):
            words = figure_words(figure)
            assert "_" not in words
            assert words.endswith("s") or not name.endswith("_s")
    for key in keys_of(Scenario):
        assert "_" not in str(key_words(key))
        assert key_words(key).name
        assert axis_words(key) == key or axis_words(key).endswith(f"({key})")
    assert str(key_words("host.schedule_us")) == "schedule, us"
    assert set(KEYS) - {"scenario"} <= set(keys_of(Scenario))


def keys_of(model: Any, before: str = "") -> list[str]:
    """Dotted keys of a section and of those below it."""
    found: list[str] = []
    for name, field in model.model_fields.items():
        below = field.annotation
        is_section = isinstance(below, type) and hasattr(below, "model_fields")
        found += keys_of(below, f"{before}{name}.") if is_section else [before + name]
    return found


def test_lines_that_lie_on_each_other_are_one_and_a_lost_point_is_a_cross() -> None:
    sets = {"num_chunks": [2, 4], "pp_async_batch_depth": [0, 1], "pp_size": [3, 0]}
    found = ppsim.sweep("unit", sets, num_jobs=0)
    chart = chart_of(found.columns, found.sweep.order.keys, "cluster.pp_size")
    assert [line.name for line in chart.lines] == [
        f"chunks of the prompt {m}, depth 0\n= chunks of the prompt {m}, depth 1" for m in (2, 4)
    ]
    from matplotlib.figure import Figure

    from ppsim.report.sweep import draw_panel, missing_words

    axes = Figure().subplots()
    draw_panel(axes, found.columns, chart, "bubble_ratio")
    cross = axes.lines[-1]
    assert cross.get_marker() == "x"
    assert [float(x) for x in cross.get_xdata()] == [0.0] * 4
    assert missing_words(found.columns, chart) == "red crosses: 4 of 8 points lack a figure (4 refused)"


# --- the library -----------------------------------------------------------------------------------------------------


def test_the_library_gives_the_same_table() -> None:
    frame = ppsim.sweep("unit", {"pp_size": [2, 4], "num_chunks": [1, 8]}, out="lib", num_jobs=1).table()
    assert swept("unit", *BUBBLE, "--out", "cli").exit_code == 0
    assert list(frame["bubble_ratio"]) == [float(row["bubble_ratio"]) for row in rows_of("cli")]
    assert list(frame.columns) == list(rows_of("cli")[0])
    assert (Path("lib") / POINTS).read_bytes() == (Path("cli") / POINTS).read_bytes()
    again = ppsim.sweep(["unit"], points=[{"pp_size": 2, "num_chunks": 8}], out="lib")
    assert again.passed
    assert again.table().loc[0, "bubble_ratio"] == 1 / 9


class Backwards(ppsim.Policy):
    """Serves the last first."""

    def admission_order(self, waiting: list[Any]) -> list[Any]:
        return waiting[::-1]


def test_the_library_takes_policies_scenarios_and_says_what_cannot_be() -> None:
    mine = ppsim.load("unit", num_chunks=2)
    found = ppsim.sweep(mine, {"seed": [0, 1]}, policy=Backwards, num_jobs=2)
    assert repr(found) == "<Swept 2 pass>"
    for arguments, told in (
        ({"num_jobs": -1}, "num_jobs -1"),
        ({"max_s": 0.0}, "max_s 0"),
        ({"out": ""}, "is empty"),
        ({"policy": Backwards, "out": "s"}, "cannot be kept beside out"),
        ({"points": [{"seed": 3}]}, "given by the list of points, and as a key of all"),
    ):
        with pytest.raises(UsageError, match=told):
            ppsim.sweep("unit", {"seed": [0, 1]}, **arguments)  # type: ignore[arg-type]
    with pytest.raises(ppsim.ScenarioError, match="pp_sise: unknown key"):
        ppsim.sweep("unit", {"pp_sise": [1]})


def test_points_on_a_cluster_give_the_same_table() -> None:
    ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
    line = {"timestamp": 0, "input_length": 700, "output_length": 2, "hash_ids": [1, 2]}
    Path("t.jsonl").write_text(json.dumps(line) + "\n")
    given = ("mooncake", "--trace", "t.jsonl", "--set", "cluster.pp_size=0,1,2")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        assert swept(*given, "--ray", "local", "--out", "there").exit_code == 2
    finally:
        ray.shutdown()
    assert swept(*given, "--out", "here").exit_code == 2
    assert bytes_of("there") == bytes_of("here")
