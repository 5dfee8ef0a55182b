"""kill -9 at random moments: of a random rank or of the command itself, half of them after start-up.

    python -m tests.executor.random_kills 50 [--seed 0] [--log FILE]

Each runs ``python -m ppsim exec`` on a random scenario that does not end, as anybody would, kills one process of it,
and looks at what is left:

    a rank        exit code 3; the rank is named, and what it was doing: what its cells said when it died
    the command   the ranks end by themselves; their files say where each of them ended
    either        soon no process is left, no port, no shared memory, no temporary file; what is on file can be shown,
                  and the simulator makes every record of it again

``named_s``: until the command has said it and ended; ``gone_s``: until the last process has. With a log, what is in it
already is not run again.
"""

from __future__ import annotations

import argparse
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.plugin import load
from ppsim.recording import Recording
from ppsim.recording.agreement import disagreement
from ppsim.recording.folder import CONFIG, incomplete, open_run, read_verdict, write_config
from ppsim.recording.rank_file import has_ranks
from ppsim.recording.standing import STANDING, read_standing
from ppsim.scenario.load import read_scenario, validate
from ppsim.world.replayed import replay
from tests.executor.campaign_log import Log, children, cpu_seconds
from tests.executor.random_runs import scenario_of

ROOT = Path(__file__).resolve().parents[2]
MARK = "PPSIM_RANDOM_KILL"  # in the environment of every process of a run, whoever is its parent by now
START_S = 8.0
LIMIT_S = 10.0
NEVER_MS = 3_600_000.0
PARENT = -1
CACHE = "torchinductor_"  # a folder that torch makes once for each user, however a run ends


@dataclass(frozen=True, slots=True)
class Plan:
    """One kill. ``victim``: a rank, or PARENT. ``iteration``: kill after it was begun; None: ``delay_s`` after the
    command was started, whatever goes on then."""

    number: int
    victim: int
    delay_s: float
    iteration: int | None


def plan_of(seed: int, number: int, pp_size: int) -> Plan:
    random = Random(f"{seed} {number}")
    victim = PARENT if random.random() < 0.25 else random.randrange(pp_size)
    if number % 2:
        return Plan(number, victim, random.uniform(0, 0.02), random.randint(0, 50))
    return Plan(number, victim, random.uniform(0, START_S), None)


def endless_scenario(number: int) -> dict[str, Any]:
    """A random scenario, and another request in an hour."""
    raw = scenario_of(number).model_dump(mode="json")
    raw["workload"]["requests"].append({"rid": "in-an-hour", "at_ms": NEVER_MS, "prompt": 4, "output": 1})
    return raw


# --- looking at processes from outside -------------------------------------------------------------------------


class Run:
    """A command under way, in a folder of its own, and all of its processes."""

    def __init__(self, place: Path, raw: dict[str, Any]) -> None:
        self.folder, self.temporary, self.place = place / "run", place / "tmp", place
        self.temporary.mkdir()
        (place / "scenario").mkdir()
        write_config(place / "scenario", validate(raw).model_dump(mode="json"))
        self.mark = f"{MARK}={os.getpid()}-{time.monotonic_ns()}"
        name, _, value = self.mark.partition("=")
        command = [sys.executable, "-m", "ppsim", "exec", str(place / "scenario" / CONFIG), "--out", str(self.folder)]
        with (place / "stderr").open("wb") as err:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, name: value, "TMPDIR": str(self.temporary)},
                stdout=subprocess.DEVNULL,
                stderr=err,
            )
        self.began = time.monotonic()
        self.cells: memoryview | None = None
        self.known: set[int] = set()

    @property
    def stderr(self) -> str:
        return (self.place / "stderr").read_text(errors="replace")

    def ranks(self) -> list[int]:
        """Processes of the ranks, in the order in which they were started."""
        found = [pid for pid in children(self.process.pid) if b"--multiprocessing-fork" in read(f"/proc/{pid}/cmdline")]
        return sorted(found, key=started)

    def living(self) -> list[int]:
        """Every process that has our mark and has not ended."""
        mark = self.mark.encode()
        pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in pids if mark in read(f"/proc/{pid}/environ").split(b"\0") and state(pid) not in "ZX"]

    def map_cells(self) -> memoryview | None:
        """The memory in which ranks say what they do; it stays when the file is removed."""
        if self.cells is None and is_written(self.folder / STANDING):
            with (self.folder / STANDING).open("rb") as file:
                self.cells = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        return self.cells

    def stood(self) -> list[Any]:
        """Where each rank stands by that memory."""
        cells = self.map_cells()
        if cells is None:
            return []
        copy = self.place / "copy"
        (copy / STANDING).parent.mkdir(parents=True, exist_ok=True)
        (copy / STANDING).write_bytes(cells.tobytes())
        return read_standing(copy)


def is_written(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def stat(pid: int) -> list[str]:
    return read(f"/proc/{pid}/stat").decode(errors="replace").rpartition(")")[2].split()


def state(pid: int) -> str:
    return (stat(pid) or ["X"])[0]


def started(pid: int) -> int:
    fields = stat(pid)
    return int(fields[19]) if fields else 0


def targets(pid: int) -> Iterator[str]:
    """What the open files of a process are."""
    for link in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            yield os.readlink(link)
        except OSError:
            continue


def listening() -> dict[str, int]:
    """Ports in the state LISTEN, by the inode of their socket."""
    rows = [line.split() for kind in ("tcp", "tcp6") for line in read(f"/proc/net/{kind}").decode().splitlines()[1:]]
    return {row[9]: int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def ports_of(pids: list[int]) -> set[int]:
    every = listening()
    inodes = {target[8:-1] for pid in pids for target in targets(pid) if target.startswith("socket:[")}
    return {port for inode, port in every.items() if inode in inodes}


def shared_memory_of(pids: list[int]) -> set[str]:
    """Files of shared memory with a name that these processes have open or mapped, or that are named after them."""
    found = {target for pid in pids for target in targets(pid) if target.startswith("/dev/shm/")}
    for pid in pids:
        rows = (line.split(maxsplit=5) for line in read(f"/proc/{pid}/maps").decode(errors="replace").splitlines())
        found |= {row[5] for row in rows if len(row) > 5 and row[5].startswith("/dev/shm/")}
    return {name for name in found if not name.endswith("(deleted)")}


# --- one kill --------------------------------------------------------------------------------------------------


def wait_for(plan: Plan, run: Run, pp_size: int) -> int:
    """The process to kill, as soon as its moment has come."""
    until = time.monotonic() + 240
    while time.monotonic() < until:
        assert run.process.poll() is None, f"ended by itself: {run.stderr}"
        stands, ranks = run.stood(), run.ranks()
        if plan.iteration is None:
            is_due = time.monotonic() - run.began >= plan.delay_s
        else:
            place = max(plan.victim, 0)
            has_begun = len(stands) == pp_size and all(stand.iteration >= 0 for stand in stands)
            is_idle = has_begun and stands[0].doing == "waiting for clients" and stands[0].iteration > 0
            is_due = has_begun and (stands[place].iteration >= plan.iteration or is_idle)
        if is_due and plan.victim == PARENT:
            return run.process.pid
        if is_due and plan.victim < len(ranks):
            return ranks[plan.victim]
        time.sleep(0.002)
    raise AssertionError(f"waited too long: {run.stderr}")


def kill_one(seed: int, number: int, place: Path) -> dict[str, Any]:
    """Run, kill, look. Raises AssertionError."""
    raw = endless_scenario(number)
    pp_size = raw["cluster"]["pp_size"]
    plan = plan_of(seed, number, pp_size)
    run = Run(place, raw)
    try:
        pid = wait_for(plan, run, pp_size)
        if plan.iteration is not None:
            time.sleep(plan.delay_s)
        run.map_cells()
        pids = run.living()
        ports, memory = ports_of(pids), shared_memory_of(pids)
        killed_at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        run.process.wait(60)
        named_s = time.monotonic() - killed_at
        while run.living():
            assert time.monotonic() - killed_at < 60, f"processes are left: {run.living()}"
            time.sleep(0.005)
        gone_s = time.monotonic() - killed_at
    finally:
        for left in run.living():
            os.kill(left, signal.SIGKILL)
    assert gone_s < LIMIT_S, f"took {gone_s:.1f} s"
    assert not ports & set(listening().values()), "a port is left"
    assert not {name for name in memory if Path(name).exists()}, "shared memory is left"
    assert not [path for path in Path("/dev/shm").glob("*") if any(str(p) in path.name.split("-") for p in pids)]
    temporary = [path.name for path in run.temporary.iterdir() if not path.name.startswith(CACHE)]
    assert not temporary, f"temporary files are left: {temporary}"
    stands = run.stood()
    if plan.victim == PARENT:
        doing, recorded = look_after_parent(run, pp_size)
    else:
        doing, recorded = look_after_rank(run, plan.victim, pp_size, stands[plan.victim])
    return {
        "victim": "the command" if plan.victim == PARENT else f"rank {plan.victim} of {pp_size}",
        "moment": "start-up" if not stands or any(stand.iteration < 0 for stand in stands) else "run",
        "doing": doing,
        "records": 0 if recorded is None else sum(map(len, recorded.decisions)),
        "named_s": round(named_s, 2) if plan.victim != PARENT else None,
        "gone_s": round(gone_s, 2),
        "ports": len(ports),
        "processes": len(pids),
    }


def look_after_rank(run: Run, victim: int, pp_size: int, stood: Any) -> tuple[str, Recording]:
    """The command has named the rank and saved the rest."""
    assert run.process.returncode == 3, f"exit code {run.process.returncode}: {run.stderr}"
    assert "Traceback" not in run.stderr, run.stderr
    where = f" in iteration {stood.iteration}" if stood.iteration >= 0 else ""
    doing = f"{stood.doing}{where}"
    sentence = f"rank {victim} of {pp_size} was killed by signal 9 (SIGKILL) while it was {doing}"
    assert f"ppsim: {sentence}" in run.stderr.splitlines(), f"not {sentence!r}: {run.stderr}"
    verdict = read_verdict(str(run.folder))
    assert (verdict.kind, verdict.exit_code, verdict.rank) == ("fail", 3, victim), verdict
    assert sentence in verdict.message
    recorded = replays(run.folder)
    assert [stand.rank for stand in recorded.stands] == list(range(pp_size))
    assert (recorded.stands[victim].doing, recorded.stands[victim].iteration) == (stood.doing, stood.iteration)
    agree_with_file(recorded)
    shows(run.folder, [victim])
    return doing, recorded


def look_after_parent(run: Run, pp_size: int) -> tuple[str, Recording | None]:
    """The files of the ranks are there as they were left, if any rank had been started."""
    if not has_ranks(run.folder):
        shown = CliRunner().invoke(app, ["show", str(run.folder)])
        assert (shown.exit_code, "Traceback" in shown.output) == (2, False), shown.output
        assert not run.folder.exists() or incomplete(run.folder)
        return "nothing was there yet", None
    recorded = replays(run.folder)
    agree_with_file(recorded)
    shows(run.folder, [stand.rank for stand in recorded.stands])
    assert [stand.rank for stand in recorded.stands] in ([], list(range(pp_size)))
    return "; ".join(f"{stand.doing} in iteration {stand.iteration}" for stand in recorded.stands), recorded


def agree_with_file(recorded: Recording) -> None:
    """Where a rank says it was is where its file ends: an iteration's decision is among its last acts."""
    for stand in recorded.stands:
        if stand.iteration >= 0:
            assert len(recorded.decisions[stand.rank]) - stand.iteration in (-1, 0, 1), stand


def shows(folder: Path, ranks: list[int]) -> None:
    """``ppsim show`` says where they ended."""
    shown = CliRunner().invoke(app, ["show", str(folder)])
    assert shown.exit_code == 0, shown.output
    for rank in ranks:
        assert f"rank {rank} ended " in shown.output, shown.output


def replays(folder: Path) -> Recording:
    """The simulator makes every record that is on file."""
    recorded = open_run(str(folder))
    scenario = validate(read_scenario(str(folder / CONFIG)))
    ((_, mine, out),) = replay(recorded, scenario, load().change)
    found = disagreement(mine, out.recording, is_whole=False)
    assert found is None, f"replayed otherwise: {found}"
    return recorded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("num", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path)
    asked = parser.parse_args()
    log, way, num_wrong = Log(asked.log), f"kill {asked.seed}", 0
    for number in range(asked.num):
        row = log.find(way, number)
        if row is None:
            began = cpu_seconds()
            with tempfile.TemporaryDirectory() as place:
                try:
                    row = kill_one(asked.seed, number, Path(place))
                except Exception as error:
                    row = {"error": f"{type(error).__name__}: {error}"}
            row = {"way": way, "seed": number, **row, "cpu_s": round(cpu_seconds() - began, 2)}
            log.add(row)
        num_wrong += "error" in row
    print(f"{asked.num - num_wrong} of {asked.num} kills left what they should")
    sys.exit(num_wrong > 0)


if __name__ == "__main__":
    main()
