"""Whatever comes into a rank from outside is on file and is fed, from processes to simulation and back: what the store
held, a policy's clock, refused memory; and a saved command does on processes what it says."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.fed import Fed
from executor.launch import ExecutionResult, execute
from ppsim.core.policy import Policy
from ppsim.core.schedule.request import Request
from ppsim.plugin import load
from ppsim.recording import Recording
from ppsim.recording.agreement import disagreement
from ppsim.recording.folder import CONFIG, open_run
from ppsim.recording.rank_file import LAUNCH, RANKS
from ppsim.recording.schema import WALL_CLOCK
from ppsim.scenario import Scenario, load_scenario
from ppsim.workload.refusals import Refusal
from ppsim.world import simulate
from ppsim.world.replayed import replay
from tests.executor.folders import write_model
from tests.executor.small import small_scenario
from tests.executor.test_replay_exec import TIGHT, ends_of

ROOT = Path(__file__).resolve().parents[2]


def run(scenario: Scenario, folder: Path, *changes: str, fed: Fed | None = None) -> tuple[Recording, ExecutionResult]:
    """On processes; the recording is what is on file."""
    result = execute(scenario, start_method="forkserver", folder=folder, changes=changes, fed=fed)
    return open_run(str(folder)), result


def differs(recorded: Recording, scenario: Scenario, *changes: str) -> Any:
    ((_, mine, out),) = replay(recorded, scenario, load(changes).change)
    return disagreement(mine, out.recording, is_whole=True)


def fed_by(recording: Recording, **more: Any) -> Fed:
    return Fed(
        {read.iteration: read.live for read in recording.ingestions},
        recording.observations,
        {(s.iteration, s.slot): s.token_ids for s in recording.samples},
        more.get("refusals", {}),
        {},
        {(s.iteration, s.rid): s.statuses for s in recording.stores},
    )


def store_scenario(**run: Any) -> Scenario:
    requests = [{"rid": f"R{n}", "at_iteration": n, "prompt": 9 + n, "output": 3} for n in range(4)]
    return small_scenario(
        disaggregation={"role": "prefill", "bootstrap": "store", "store_lag_us": 2500.0},
        cost={"source": "unit", "unit_ms": 1.0},
        scheduler={"chunked_prefill_size": 8, "max_running_requests": 4},
        host={"schedule_us": 200.0},
        observations={"max_delay": 3},
        workload={"source": "requests", "requests": requests},
        run={"invariants": True, **run},
    )


def test_what_the_store_held_on_processes_is_on_file_and_fed(tmp_path: Path) -> None:
    scenario = store_scenario()
    recorded, result = run(scenario, tmp_path)
    assert result.verdict.kind == "pass", result.verdict.message
    looks = [o for o in recorded.observations[0] if o.what == "bootstrap_store"]
    assert [(s.iteration, s.rid) for s in recorded.stores] == [(o.iteration, rid) for o in looks for rid in o.keys]
    assert any(None in s.statuses for s in recorded.stores)  # some had not arrived: a fact of this run alone
    ((_, mine, out),) = replay(recorded, scenario, load().change)
    assert disagreement(mine, out.recording, is_whole=True) is None
    assert out.verdict.kind == "pass", out.verdict.message
    at = recorded.observations[0].index(looks[-1])  # fed, so another answer makes another run
    recorded.observations[0][at] = looks[-1]._replace(values=tuple(0 for _ in looks[-1].values))
    assert differs(recorded, scenario) is not None


def test_what_the_store_held_in_simulation_is_what_the_ranks_on_processes_are_told(tmp_path: Path) -> None:
    scenario = store_scenario()
    done = simulate(scenario)
    simulated = done.recording
    assert done.verdict.kind == "pass"
    assert any(None in s.statuses for s in simulated.stores)
    recorded, result = run(scenario, tmp_path, fed=fed_by(simulated))
    assert result.verdict.kind == "pass", result.verdict.message
    assert recorded.stores == simulated.stores
    assert recorded.decisions == simulated.decisions


def test_a_bug_of_the_store_is_found_by_its_rule_on_processes(tmp_path: Path) -> None:
    work = {"source": "requests", "requests": [{"rid": f"R{n}", "prompt": 9, "output": 3} for n in range(3)]}
    disaggregation = {"role": "prefill", "bootstrap": "store", "store_lag_us": 3000}
    raw = {**TIGHT, "chance": {}, "workload": work, "disaggregation": disaggregation}
    ends = ends_of(tmp_path, "missing_is_ready", raw)
    assert (ends.simulated.invariant, ends.same) == ("INV-55", True), ends.real.message


class LooksAtTheClock(Policy):
    """The size of a chunk hangs on the microsecond."""

    def chunk_size(self, prefix_len: int, planned: int) -> int:
        return max(1, planned - self.wall_clock_ns() // 1000 % 5)

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return waiting[::-1] if self.wall_clock_ns() // 1000 % 2 else waiting


CLOCK = f"{__name__}:LooksAtTheClock"


def clock_scenario(pp_size: int = 1) -> Scenario:
    requests = [{"rid": f"R{n}", "at_iteration": 0, "prompt": 60 + n, "output": 3} for n in range(4)]
    run = {"invariants": True}
    return small_scenario(cluster={"pp_size": pp_size}, workload={"source": "requests", "requests": requests}, run=run)


def test_what_a_policy_read_from_its_clock_on_processes_is_fed_to_the_replay(tmp_path: Path) -> None:
    scenario = clock_scenario()
    recorded, result = run(scenario, tmp_path, CLOCK)
    assert result.verdict.kind == "pass", result.verdict.message
    looks = [o for o in recorded.observations[0] if o.what == WALL_CLOCK]
    assert len(looks) > 20
    assert differs(recorded, scenario, CLOCK) is None
    for look in looks:  # every value another microsecond: it hangs on them
        at = recorded.observations[0].index(look)
        recorded.observations[0][at] = look._replace(values=(look.values[0] + 1000,))
    assert differs(recorded, scenario, CLOCK) is not None


def test_what_a_policy_read_from_its_clock_in_simulation_is_fed_to_replay_and_processes(tmp_path: Path) -> None:
    scenario = clock_scenario()
    scenario = scenario.model_copy(update={"host": scenario.host.model_copy(update={"schedule_us": 7.0})})
    simulated = simulate(scenario, change=load((CLOCK,)).change).recording
    assert len({o.values[0] // 1000 % 5 for o in simulated.observations[0] if o.what == WALL_CLOCK}) > 2
    assert differs(simulated, scenario, CLOCK) is None
    recorded, result = run(scenario, tmp_path, CLOCK, fed=fed_by(simulated))
    assert result.verdict.kind == "pass", result.verdict.message
    assert recorded.decisions == simulated.decisions
    assert recorded.observations == simulated.observations


def test_a_policy_that_looks_at_its_clock_is_to_blame_only_for_what_it_does(tmp_path: Path) -> None:
    """On two ranks it breaks lockstep, in the run as in the replay; the rank beside which its twin reads the same clock
    has not parted from it."""
    scenario = clock_scenario(2)
    result = execute(scenario, start_method="forkserver", folder=tmp_path, changes=(CLOCK,))
    assert result.verdict.kind == "fail"
    assert result.verdict.invariant is not None
    recorded = open_run(str(tmp_path))
    ((_, mine, out),) = replay(recorded, scenario, load((CLOCK,)).change)
    assert disagreement(mine, out.recording, is_whole=False) is None
    assert "where a right rank with the same replies" not in result.verdict.message
    assert out.verdict.invariant == result.verdict.invariant, out.verdict.message


def test_memory_that_is_refused_on_processes_is_known_to_the_files_of_the_run(tmp_path: Path) -> None:
    """It is of all ranks and known before one starts, so it stands in launch.jsonl."""
    requests = [{"rid": f"R{n}", "at_iteration": 0, "prompt": 40, "output": 3} for n in range(4)]
    scenario = small_scenario(workload={"source": "requests", "requests": requests})
    chance = type(scenario.chance)(max_failed_allocations=2, max_good_allocations=2)
    for seed in range(20):
        simulated = simulate(scenario.model_copy(update={"chance": chance, "seed": seed})).recording
        if simulated.refusals:
            break
    scenario = scenario.model_copy(update={"seed": seed})
    refusals = {r.rid: Refusal(r.num_failing, r.behind) for r in simulated.refusals}
    recorded, result = run(scenario, tmp_path, fed=fed_by(simulated, refusals=refusals))
    assert result.verdict.kind == "pass", result.verdict.message
    lines = (tmp_path / RANKS / LAUNCH).read_text().splitlines()
    assert (
        [f'["refusal","{r.rid}",{r.num_failing},{r.behind}]' for r in simulated.refusals]
        == [line for line in lines if line.startswith('["refusal"')]
        != []
    )
    assert recorded.decisions == simulated.decisions
    assert differs(recorded, scenario) is None
    recorded.refusals = []
    assert differs(recorded, scenario) is not None


PPSIM = "import sys; from ppsim.cli.entry import main; sys.exit(main())"
TURNED = """import ppsim
from ppsim.plugin import planted


@planted("turned", breaks="INV-14", profile="plain", source="this test")
class Turned(ppsim.Policy):
    def admission_order(self, waiting):
        return waiting[::-1] if self.pp_rank else waiting
"""


def test_the_command_that_a_campaign_prints_does_what_it_says_pasted_and_on_processes(tmp_path: Path) -> None:
    """With a plug-in of one's own, from a folder whose name a shell would take apart."""
    place = tmp_path / "my plug-ins"
    place.mkdir()
    (place / "turned.py").write_text(TURNED)
    options = ["--plugin", "turned.py", "--bug", "turned", "--profile", "plain", "--examples", "40", "--seed", "3"]
    fuzz = [sys.executable, "-c", PPSIM, "fuzz", *options, "--out", str(place / "found by me")]
    found = subprocess.run(fuzz, cwd=place, capture_output=True, text=True, timeout=200, check=False)
    assert found.returncode == 1, found.stdout + found.stderr
    (printed,) = [
        line.removeprefix("replay").strip() for line in found.stdout.splitlines() if line.startswith("replay")
    ]
    shell = f'ppsim() {{ {shlex.quote(sys.executable)} -m ppsim "$@"; }}\n{printed}'
    for tail, said in (("", "reproduced bit for bit"), (" --in exec", "the same failure on real processes")):
        pasted = ["bash", "-c", shell + tail]
        done = subprocess.run(pasted, cwd=place, capture_output=True, text=True, timeout=200, check=False)
        assert (done.returncode, said in done.stdout) == (1, True), done.stdout + done.stderr
        assert "INV-" in done.stdout


def test_the_shape_that_ran_is_saved_and_replayed_not_the_default(tmp_path: Path) -> None:
    """``exec --model``: layers, sizes and vocabulary of the checkpoint."""
    folder = write_model(tmp_path / "checkpoint")
    command = [sys.executable, "-c", PPSIM, "exec", "tiny", "--model", str(folder), "--out", str(tmp_path / "run")]
    command += ["--set", "cluster.pp_size=2", "--set", "scheduler.context_length=256"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    saved = load_scenario(str(tmp_path / "run" / CONFIG), []).model
    said = json.loads((folder / "config.json").read_text())
    fields = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size")
    assert {f: getattr(saved, f) for f in fields} == {f: said[f] for f in fields}
    assert saved.hidden_size == 48 != load_scenario("tiny", []).model.hidden_size
    again = [sys.executable, "-c", PPSIM, "replay", str(tmp_path / "run")]
    replayed = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert replayed.returncode == 0, replayed.stderr
    assert "verdict: pass, as recorded" in replayed.stdout
