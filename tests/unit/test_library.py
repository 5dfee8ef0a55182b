"""Law: ``import ppsim`` is a small interface: lazy, quiet, typed and explained, and its runs are independent."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ppsim
from ppsim.api.keys import all_keys, full_key
from ppsim.core.schedule.request import Request
from ppsim.scenario.tree import Scenario
from tests.unit.test_cli_process import imported

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")

NAMES = [
    "Campaign",
    "ChunkPlan",
    "Compared",
    "Drawing",
    "Found",
    "PluginError",
    "Policy",
    "PpsimError",
    "RecordingError",
    "Run",
    "Scenario",
    "ScenarioError",
    "Swept",
    "TraceError",
    "Tuned",
    "UsageError",
    "__version__",
    "chunk_plan",
    "compare",
    "diff",
    "experiments",
    "explore",
    "fuzz",
    "load",
    "planted",
    "read_launch",
    "read_log",
    "read_run",
    "simulate",
    "sweep",
    "tune",
]
FUNCTIONS = [name for name in NAMES if name.islower() and name != "__version__"]
HEAVY = {"torch", "transformers", "triton", "pandas", "matplotlib", "hypothesis", "scipy"}


# --- the names -----------------------------------------------------------------------------------------------------


def test_these_are_the_public_names_and_each_is_there() -> None:
    assert ppsim.__all__ == NAMES
    assert set(NAMES) <= set(dir(ppsim))
    for name in NAMES:
        assert getattr(ppsim, name) is not None
    for name in FUNCTIONS:
        assert callable(getattr(ppsim, name)), name
    with pytest.raises(AttributeError, match="no attribute 'simulat'"):
        ppsim.simulat  # noqa: B018


def test_every_name_stands_in_the_page_and_every_function_has_a_text() -> None:
    for name in NAMES:
        assert re.search(rf"`@?(ppsim\.)?{name}\b", PAGE), f"docs/library.md does not name {name}"
    from ppsim.api import campaign, plans, run, simulation, sweeps

    for module in (campaign, plans, run, simulation, sweeps):
        for name, value in vars(module).items():
            if inspect.isfunction(value) and value.__module__ == module.__name__ and name in NAMES:
                assert value.__doc__, name


def test_what_type_checkers_see_is_what_there_is() -> None:
    """The imports under TYPE_CHECKING name the same objects as the lazy table."""
    tree = ast.parse((ROOT / "ppsim" / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {}
    for node in block.body:
        if isinstance(node, ast.ImportFrom):
            seen |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
    assert sorted({*seen, "__version__"}) == NAMES
    for name, (module, original) in seen.items():
        there = getattr(sys.modules.get(module) or __import__(module, fromlist=[original]), original)
        mine = getattr(ppsim, name)
        if inspect.ismodule(mine):  # fuzz: a package that is called like the function
            assert (mine.__name__, callable(mine)) == (f"ppsim.{name}", True)
        else:
            assert mine is there, name
    assert (ROOT / "ppsim" / "py.typed").is_file()


def test_two_packages_are_called_like_the_functions_of_their_names_whoever_imports_them_first() -> None:
    for first in ("import ppsim.fuzz.profiles, ppsim.plugin.loader", "import ppsim"):
        code = f"{first}\nimport ppsim\nfrom ppsim import fuzz, planted\n" + (
            "assert ppsim.fuzz is fuzz and ppsim.planted is planted\n"
            "mark = ppsim.planted('x', breaks='INV-26', profile='plain', source='here')\n"
            "assert mark(type('X', (ppsim.Policy,), {})).__planted__.name == 'x'\n"
            "import ppsim.fuzz.profiles\n"
            "assert ppsim.fuzz.profiles.PROFILES and ppsim.fuzz(num_examples=1, profile='plain').num_examples == 1"
        )
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# --- lazy and quiet ------------------------------------------------------------------------------------------------


def test_import_loads_nothing_and_a_run_nothing_heavy(tmp_path: Path) -> None:
    assert not imported("import ppsim", tmp_path) & {*HEAVY, "numpy", "simpy", "pydantic", "typer"}
    run = 'import ppsim; run = ppsim.simulate("unit"); run.summary; run.save("here"); run.diff("here")'
    loaded = imported(run, tmp_path)
    assert "simpy" in loaded
    assert not loaded & {*HEAVY, "typer"}
    tables = imported(f"{run}; run.requests()", tmp_path)
    assert tables & HEAVY == {"pandas"}
    assert imported(f"{run}; run.plot()", tmp_path) & HEAVY == {"matplotlib"}


def test_nothing_is_printed_whatever_comes_of_it(tmp_path: Path) -> None:
    """A run that fails, one with warnings, a folder that is replaced, an error: stdout and stderr stay empty."""
    code = """
import ppsim
stuck = ppsim.simulate("unit", send="rendezvous", num_chunks=8)
assert stuck.verdict.kind == "fail" and "wait-for cycle" in stuck.verdict.message
stuck.save("out"), stuck.save("out"), stuck.requests(), stuck.batches(), stuck.spans(), stuck.plot(kind="gantt")
assert ppsim.simulate("tiny", bugs=["free_at_abort"]).scenario.bugs == ("free_at_abort",)
campaign = ppsim.fuzz(num_examples=3, profile="plain")
ppsim.chunk_plan("llama-3.1-8b", 16384).table()
try:
    ppsim.simulate("unit", pp_sise=3)
except ppsim.ScenarioError:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_pandas_a_table_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    run = ppsim.simulate("unit")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        ppsim.UsageError, match=re.escape("tables need pandas, which is not installed: pip install 'ppsim[data]'")
    ):
        run.requests()
    assert run.passed  # all else needs none


# --- keys ----------------------------------------------------------------------------------------------------------


def test_every_key_has_a_short_name_or_is_told_to_be_ambiguous() -> None:
    """Counted by hand over the tree: a short name means the one key that ends so."""
    by_leaf: dict[str, list[str]] = {}
    for key in all_keys():
        by_leaf.setdefault(key.rpartition(".")[2], []).append(key)
    assert {"seed", "cluster.pp_size", "workload.input_length.kind", "scheduler.page_size"} <= set(all_keys())
    for leaf, keys in by_leaf.items():
        if leaf in keys or len(keys) == 1:
            assert full_key(leaf) == (leaf if leaf in keys else keys[0])
            continue
        with pytest.raises(ppsim.ScenarioError) as told:
            full_key(leaf)
        assert all(key in str(told.value) for key in keys), leaf
    assert len(by_leaf["source"]) == 2
    assert full_key("input_length.kind") == "workload.input_length.kind"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"source": "unit"}, ("source: is ambiguous", "cost.source", "workload.source")),
        ({"pp_sise": 4}, ("pp_sise: unknown key", "cluster.pp_size")),
        ({"cluster.pp_sise": 4}, ("cluster.pp_sise: unknown key", "cluster.pp_size")),
        ({"nothing_like_it": 1}, ("nothing_like_it: unknown key", "cluster", "scheduler")),
        ({"pp_size": 4, "cluster.pp_size": 4}, ("cluster.pp_size: is given twice",)),
        ({"pp_size": "4"}, ("cluster.pp_size:", "whole number", "without quotes")),
        ({"pp_size": 0}, ("cluster.pp_size:",)),
        ({"pp_size": None}, ("cluster.pp_size:",)),
        ({"rate_per_s": float("nan")}, ("workload.rate_per_s:",)),
        ({"pp_size": {1}}, ("cluster.pp_size:", "expected a number")),
        ({"links": 3}, ("links:",)),
        ({"links": {"latency": 3}}, ("links.latency: unknown key", "latency_us")),
    ],
)
def test_a_key_that_cannot_be_is_a_scenario_error_with_the_candidates(
    keys: dict[str, Any], told: tuple[str, ...]
) -> None:
    with pytest.raises(ppsim.ScenarioError) as error:
        ppsim.simulate("unit", **keys)
    for words in told:
        assert words in str(error.value)


def test_values_are_taken_as_notebooks_have_them() -> None:
    loaded = ppsim.load(
        "unit", pp_size=np.int64(2), unit_ms=np.float32(0.5), layer_partition=np.array([16, 16]), seed=3
    )
    assert (loaded.cluster.pp_size, loaded.cost.unit_ms, loaded.model.layer_partition) == (2, 0.5, (16, 16))
    assert loaded.seed == 3
    again = ppsim.load(loaded, num_chunks=7)
    assert (again.cluster.pp_size, again.workload.num_chunks) == (2, 7)
    assert ppsim.load({"workload": {"requests": [{"rid": "A", "prompt": 5}]}}).workload.requests[0].prompt == 5
    assert ppsim.load(str(ROOT / "scenarios" / "unit.toml")) == ppsim.load(ROOT / "scenarios" / "unit.toml")
    assert ppsim.load("unit", requests=[{"rid": "A", "prompt": 5}]).workload.source == "requests"
    with pytest.raises(ppsim.UsageError, match="scenario: expected a name"):
        ppsim.load(5)  # type: ignore[arg-type]
    with pytest.raises(ppsim.UsageError, match="did you mean 'mooncake'"):
        ppsim.load("moncake")


def test_no_argument_of_a_function_hides_a_key_of_the_scenario() -> None:
    """A keyword that is both would silently mean the argument."""
    leaves = {key.rpartition(".")[2] for key in all_keys()}
    for function in (ppsim.load, ppsim.simulate, ppsim.tune, ppsim.explore):
        own = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
        assert not leaves & set(own), function


def test_the_command_line_and_the_library_make_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from ppsim.cli.entry import app

    monkeypatch.chdir(tmp_path)
    words = ["run", "mooncake", "--seed", "5", "--set", "workload.num_requests=9", "--out", "a"]
    assert CliRunner().invoke(app, words).exit_code == 0
    run = ppsim.simulate("mooncake", seed=5, num_requests=9)
    assert run.save("b") == Path("b")
    for file in ("config.toml", "recording.jsonl", "summary.json", "verdict.json"):
        assert Path("a", file).read_bytes() == Path("b", file).read_bytes(), file


def test_a_launch_line_is_a_scenario() -> None:
    (line,) = ppsim.read_launch(
        "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --pp-size 4"
    )
    loaded = ppsim.load(line, **{"gpu.key": "h20"}, num_requests=3)
    assert (loaded.cluster.pp_size, loaded.cost.source, loaded.model.num_hidden_layers) == (4, "roofline", 32)
    assert ppsim.load(line).cost.source == "quadratic"
    assert ppsim.simulate(loaded).passed


# --- runs ----------------------------------------------------------------------------------------------------------


def test_the_tables_say_what_the_unit_pipeline_does() -> None:
    """K chunks on L stages of one second: chunk k is on stage r in [k + r, k + r + 1), the token leaves at K+L-1."""
    num_chunks, num_stages = 3, 4
    run = ppsim.simulate("unit", pp_size=num_stages, num_chunks=num_chunks)
    (request,) = run.requests().to_dict("records")
    assert (request["rid"], request["status"], request["num_prompt_tokens"]) == ("R1", "finished", 64 * num_chunks)
    assert request["ttft_s"] == request["e2e_s"] == num_chunks + num_stages - 1
    assert request["first_token_ns"] == (num_chunks + num_stages - 1) * 10**9
    spans = run.spans()
    assert len(spans) == num_chunks * num_stages
    expected = {(r, k): ((k + r) * 10**9, (k + r + 1) * 10**9) for r in range(num_stages) for k in range(num_chunks)}
    assert {(s.rank, s.iteration): (s.start_ns, s.end_ns) for s in spans.itertuples()} == expected
    assert set(spans["duration_ms"]) == {1000.0}
    for rank in range(num_stages):
        batches = run.batches(rank)
        assert list(batches["num_tokens"]) == [64] * num_chunks
        assert list(batches["num_context_tokens"]) == [0, 64, 128]
        assert list(batches["slot"]) == [0, 1, 2]
        assert list(batches["start_ns"]) == [expected[rank, k][0] for k in range(num_chunks)]
    with pytest.raises(ppsim.UsageError, match="rank 4: this run has ranks 0 to 3"):
        run.batches(4)


def test_the_tables_agree_with_the_summary_on_a_real_load() -> None:
    """Two ways to the same figures: the summary's integers, and means and sums over the columns."""
    run = ppsim.simulate("mooncake", num_requests=40)
    requests, batches, s = run.requests(), run.batches(), run.summary
    assert (len(requests), int((requests["status"] == "finished").sum())) == (s["num_requests"], s["num_finished"])
    for column in ("ttft_s", "tpot_s", "e2e_s"):
        assert requests[column].mean() == pytest.approx(s[column]["mean"], rel=1e-12)
        assert requests[column].quantile(0.9) == pytest.approx(s[column]["p90"], rel=1e-12)
    assert requests["num_output_tokens"].sum() == s["output_tokens"]
    assert requests["num_cached_tokens"].sum() == s["cached_tokens"] > 0
    prefilled = requests["num_prompt_tokens"].sum() - requests["num_cached_tokens"].sum()
    decoded = requests["num_output_tokens"].sum() - len(requests)  # the first token comes with the prompt's last chunk
    assert batches["num_tokens"].sum() == prefilled + decoded
    busy = run.spans().groupby("pp_rank")["duration_ms"].sum() / 1e3
    assert list(busy) == pytest.approx([stage["busy_s"] for stage in s["stages"]])
    assert not set(batches["mode"]) - {"extend", "decode", "mixed"}


def test_a_table_of_nothing_has_its_columns_and_units_are_in_the_names() -> None:
    run = ppsim.simulate("mooncake", num_requests=1)
    empty = ppsim.Run(type(run.recording)(2), run.verdict)
    for table, full in (
        (empty.requests(), run.requests()),
        (empty.batches(), run.batches()),
        (empty.spans(), run.spans()),
    ):
        assert len(table) == 0
        assert list(table.columns) == list(full.columns)
        assert list(table.dtypes) == list(full.dtypes)
        for name, kind in full.dtypes.items():
            is_time = str(kind).lower().startswith("float") or str(name).endswith("_ns")
            assert not is_time or re.search(r"_(ns|ms|s)$", str(name)), name


def test_two_pipelines_have_two_sides() -> None:
    run = ppsim.simulate("pd_mooncake", num_requests=4)
    prefill, decode = run.spans("prefill"), run.spans("decode")
    assert "kv" in set(prefill["stream"])
    assert run.spans().equals(decode)
    assert set(run.batches(side="prefill")["mode"]) == {"extend"}
    assert set(run.batches()["mode"]) <= {"decode", "extend"}
    assert run.requests()["num_cached_tokens"].notna().all()
    with pytest.raises(ppsim.UsageError, match="expected prefill or decode"):
        run.spans("left")
    with pytest.raises(ppsim.UsageError, match="this run has one pipeline"):
        ppsim.simulate("unit").spans("prefill")


def test_a_saved_run_comes_back_the_same(tmp_path: Path) -> None:
    run = ppsim.simulate("tiny")
    folder = run.save(tmp_path / "tiny")
    back = ppsim.read_run(folder)
    assert run.diff(back, times=True) is None
    assert ppsim.diff(folder, run, times=True) is None
    assert (back.summary, back.verdict, back.scenario) == (run.summary, run.verdict, run.scenario)
    assert back.requests().equals(run.requests())
    assert (
        back.save(tmp_path / "again").joinpath("recording.jsonl").read_bytes()
        == (folder / "recording.jsonl").read_bytes()
    )
    other = ppsim.simulate("tiny", seed=8)
    found = run.diff(other)
    assert found is not None
    assert found.left != found.right
    (folder / "config.toml").unlink()
    alone = ppsim.read_run(folder / "recording.jsonl")
    with pytest.raises(ppsim.UsageError, match=r"no config\.toml"):
        alone.save(tmp_path / "third")
    assert not (tmp_path / "third").exists()
    (folder / "recording.jsonl").write_text("{}\n")
    with pytest.raises(ppsim.RecordingError, match="not a recording"):
        ppsim.read_run(folder)
    with pytest.raises(ppsim.UsageError, match="does not exist"):
        ppsim.read_run(tmp_path / "nothing")
    with pytest.raises(ppsim.UsageError, match="exclude each other"):
        run.diff(other, times=True, decisions=True)


def test_an_incomplete_run_says_so_and_stays_one(tmp_path: Path) -> None:
    folder = ppsim.simulate("unit").save(tmp_path / "a")
    (folder / "incomplete.txt").write_text("interrupted\n")
    run = ppsim.read_run(folder)
    assert run.incomplete == "interrupted"
    assert ppsim.read_run(run.save(tmp_path / "b")).incomplete == "interrupted"


def test_a_picture_is_the_one_that_the_command_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from ppsim.cli.entry import app

    monkeypatch.chdir(tmp_path)
    run = ppsim.simulate("tiny")
    run.save("tiny")
    for kind in ("gantt", "requests"):
        drawn = run.plot(kind)
        assert CliRunner().invoke(app, ["plot", "tiny", "--kind", kind, "-o", f"{kind}.png"]).exit_code == 0
        assert drawn.save(tmp_path / "mine.png").read_bytes() == Path(f"{kind}.png").read_bytes()
        assert drawn._repr_png_() == drawn.content
    drawn = run.plot(format="svg")
    assert str(drawn._repr_svg_()).startswith("<?xml")
    assert drawn._repr_png_() is None
    with pytest.raises(ppsim.UsageError, match="this picture is svg"):
        drawn.save(tmp_path / "mine.png")
    with pytest.raises(ppsim.UsageError, match="unknown kind 'gant'"):
        run.plot("gant")
    with pytest.raises(ppsim.UsageError, match="not supported"):
        run.plot(format="bmp")


# --- policies ------------------------------------------------------------------------------------------------------


class ShortestFirst(ppsim.Policy):
    """Admission in order of prompt length."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return sorted(waiting, key=lambda request: request.prompt_len)


class Raises(ppsim.Policy):
    """Goes wrong as soon as somebody waits."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        raise KeyError("nobody")


class Ends(ppsim.Policy):
    """Wants to end the process."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        sys.exit(3)


class Misspelt(ppsim.Policy):
    """No such hook."""

    def admision_order(self, waiting: list[Request]) -> list[Request]:
        return waiting


def test_a_policy_of_ones_own_decides(tmp_path: Path) -> None:
    """A long prompt and a short one arrive together, and only one fits into a batch: the policy says which is first."""
    requests = [{"rid": "long", "prompt": 600}, {"rid": "short", "prompt": 10}]
    keys: dict[str, Any] = {"requests": requests, "chunked_prefill_size": -1, "max_prefill_tokens": 600, "pp_size": 2}
    base = ppsim.load("unit", **keys)
    assert list(ppsim.simulate(base).requests().sort_values("first_token_ns")["rid"]) == ["long", "short"]
    first = ppsim.simulate(base, policy=ShortestFirst)
    assert list(first.requests().sort_values("first_token_ns")["rid"]) == ["short", "long"]
    file = ROOT / "docs" / "examples" / "shortest_first.py"
    assert ppsim.simulate(base, policy=file).diff(first, times=True) is None
    assert ppsim.simulate(base, policy=[ShortestFirst, ppsim.Policy]).diff(first, times=True) is None


def test_a_policy_that_cannot_be_used_is_told() -> None:
    with pytest.raises(ppsim.PluginError, match=r"crash: KeyError: 'nobody' \(test_library\.py, line \d+") as told:
        ppsim.simulate("tiny", policy=Raises)
    assert isinstance(told.value.__cause__, Exception)
    with pytest.raises(ppsim.PluginError, match="SystemExit"):
        ppsim.simulate("tiny", policy=Ends)
    with pytest.raises(ppsim.UsageError, match="did you mean 'admission_order'"):
        ppsim.simulate("tiny", policy=Misspelt)
    for wrong in (ShortestFirst(), 5, dict):
        with pytest.raises(ppsim.UsageError, match="expected a subclass"):
            ppsim.simulate("tiny", policy=wrong)  # type: ignore[arg-type]
    with pytest.raises(ppsim.UsageError, match="no such file"):
        ppsim.simulate("tiny", policy="nowhere.py")


# --- independence --------------------------------------------------------------------------------------------------

PLAN: list[tuple[str, dict[str, Any]]] = [
    ("mooncake", {"num_requests": 12, "seed": 1}),
    ("mooncake", {"num_requests": 12, "seed": 2}),
    ("tiny", {"policy": ShortestFirst}),
    ("bugs/b75_abort_storm", {"bugs": ["free_at_abort"]}),
    ("pd_mooncake", {"num_requests": 4}),
]


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_runs_in_one_process_and_in_threads_are_independent(tmp_path: Path) -> None:
    """Alone, after each other and at once in threads that take turns every few bytecodes: the same bytes."""
    alone = [bytes_of(ppsim.simulate(name, **keys).save(tmp_path / f"alone{i}")) for i, (name, keys) in enumerate(PLAN)]
    together: dict[int, dict[str, bytes]] = {}

    def go(i: int) -> None:
        name, keys = PLAN[i]
        run = ppsim.simulate(name, **keys)
        together[i] = bytes_of(run.save(tmp_path / f"thread{i}"))
        run.plot("requests")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=go, args=(i,)) for i in range(len(PLAN))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert [together.get(i) for i in range(len(PLAN))] == alone


def test_pictures_are_drawn_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture sets matplotlib's settings and puts them back: two at once would put back each other's."""
    run, inside, most = ppsim.simulate("tiny"), [0], [0]

    def slow(*args: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.02)
        inside[0] -= 1
        return ppsim.Drawing(b"")

    monkeypatch.setattr("ppsim.report.kinds.picture", slow)
    threads = [threading.Thread(target=run.plot) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


# --- plans ---------------------------------------------------------------------------------------------------------


def test_plans_have_tables() -> None:
    plan = ppsim.chunk_plan("llama-3.1-8b", 65536, planner="fixed", chunk=4096)
    table = plan.table()
    assert list(table["size"]) == [4096] * 16 == list(plan.sizes)
    assert list(table["prefix"]) == [4096 * i for i in range(16)]
    planners = plan.planners().set_index("planner")
    assert planners.loc["optimal", "over_best"] == 0
    assert planners.loc["fixed", "ttft_s"] == plan.ttft_s
    with pytest.raises(ppsim.ScenarioError, match="unknown planner 'fix'"):
        ppsim.chunk_plan("llama-3.1-8b", planner="fix")
    with pytest.raises(ppsim.ScenarioError, match="chunks: unknown field"):
        ppsim.chunk_plan("llama-3.1-8b", chunks=4)
    ways = ppsim.compare("llama-3.1-8b", "h20", 8, prompt=16384, link_gb_per_s=100)
    assert set(ways.table()["way"]) >= {"base", "pp"}
    assert (ways.table()["efficiency"].dropna() <= 1.0 + 1e-9).all()
    assert list(ways.crossovers().columns) == ["way", "rival", "by", "link_gb_per_s", "ahead"]


@pytest.mark.slow
def test_tune_gives_its_table_and_a_scenario_that_is_the_best() -> None:
    tuned = ppsim.tune("paper/deepseek_v31_h20_pp4", prompt_tokens=16384, num_gpus=16)
    table = tuned.table()
    assert table["ttft_s"].iloc[0] == tuned.best["ttft_s"]
    fastest = table.loc[table["ttft_s"].idxmin()]  # may be a larger depth that gains a tenth of a per cent at most
    gain = tuned.best["ttft_s"] / fastest["ttft_s"] - 1
    assert 0 <= gain <= 0.001
    assert gain == 0 or fastest["pp_async_batch_depth"] > table["pp_async_batch_depth"].iloc[0]
    assert table["feasible"].iloc[0]
    assert tuned.best_scenario().cluster.pp_size == table["pp_size"].iloc[0]
    with pytest.raises(ppsim.UsageError, match="at_rate_per_s"):
        ppsim.tune("tiny", objective="ttft", at_rate_per_s=1.0)


def test_the_classes_are_those_of_the_house() -> None:
    assert ppsim.Scenario is Scenario
    assert issubclass(ppsim.ScenarioError, ppsim.UsageError)
    assert issubclass(ppsim.RecordingError, ppsim.PpsimError)
