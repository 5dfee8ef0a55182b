"""The report of a failure: what broke, where, who is to blame, the last lines, how small it is, and what to do next.

A failure ends in commands (design decision 9). All of it is a function of the campaign's order, so it goes to stdout.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ppsim.errors import EXIT_LIVENESS, EXIT_NONDETERMINISM, EXIT_SAFETY

if TYPE_CHECKING:
    from pathlib import Path

    from ppsim.fuzz.campaign import Finding
    from ppsim.recording import Recording
    from ppsim.world import SimulationResult
    from ppsim.world.run_setting import Setting

CLASSES = {EXIT_SAFETY: "safety", EXIT_LIVENESS: "liveness", EXIT_NONDETERMINISM: "nondeterminism"}
LOG_LINES = 8
NOT_SHRUNK = {
    "nondeterminism": "no run of it can be repeated",
    "no-end": "each try would take as long",
}


def print_finding(found: Finding, path: Path, seed: int, max_s: float) -> None:
    """Print the report; ``path`` is the saved reproduction."""
    verdict, before, after = found.outcome.verdict, found.original.size(), found.repro.experiment.size()
    name = found.repro.signature.invariant
    where = f"example {found.example}" if found.example else "an example that has failed before"
    print(f"FAIL  {CLASSES.get(verdict.exit_code, 'unknown')}  {name}{statement(name)}  seed {seed}  {where}")
    for line in verdict.message.splitlines():
        print(f"  {line}")
    if found.outcome.result is not None:
        for line in (*blame(found.outcome.result), *short_log(found.outcome.result)):
            print(line)
    word = shlex.quote(str(path))  # it is pasted into a shell
    if name in NOT_SHRUNK:
        print(f"not shrunk: {NOT_SHRUNK[name]}")
        print(f"saved   {path}")
        limit = f" --max-seconds {max_s:g}" if name == "no-end" else ""
        print(f"replay  ppsim replay {word}{limit}")
        return
    sizes = "  ".join(f"{key} {before[key]}→{after[key]}" for key in after)
    cut = ", interrupted: as it was found" if found.is_cut else ""
    print(f"shrunk  {sizes}  ({found.shrink_runs} runs, same {name}{cut})")
    print(f"saved   {path}")
    print(f"replay  ppsim replay {word}")
    print(f"keep    ppsim replay {word} --emit-test > {shlex.quote(f'tests/regressions/test_{path.stem}.py')}")


def statement(name: str) -> str:
    """The rule behind a number; other names say it themselves."""
    from ppsim.check.invariants import BY_NAME

    return f" {BY_NAME[name].statement}" if name in BY_NAME else ""


def side_of(result: SimulationResult) -> tuple[Setting, str]:
    """The pipeline that the verdict is about."""
    peer = result.setting.peer
    if peer is not None and result.verdict.message.startswith("prefill side"):
        return peer, "prefill side, "
    return result.setting, "decode side, " if peer is not None else ""


def blame(result: SimulationResult) -> list[str]:
    """Rank and stage, the phase it stands in, iteration, slot, request, and its time."""
    verdict, (setting, side) = result.verdict, side_of(result)
    if verdict.rank is None:
        return []
    rank = setting.ranks[verdict.rank]
    config = rank.rank.config
    parts = [f"{side}rank {verdict.rank} (pp_rank {config.pp_rank}, pp_size {config.pp_size})"]
    phase = rank.phase()
    if phase != "ended":  # an error of the loop itself has unwound it
        parts.append(f"phase {phase}")
    for what in ("iteration", "slot", "rid"):
        value = getattr(verdict, what)
        if value not in (None, ""):
            parts.append(f"{'request' if what == 'rid' else what} {value}")
    parts.append(f"t = {rank.now / 1e6:.3f} ms")
    return ["blame: " + ", ".join(parts)]


def short_log(result: SimulationResult) -> list[str]:
    """The last decisions of all ranks, in order of iteration."""
    recording: Recording = side_of(result)[0].recording
    rows = [(d.iteration, rank, d) for rank in range(recording.num_ranks) for d in recording.decisions[rank]]
    rows.sort(key=lambda row: row[:2])
    lines = [f"last {min(LOG_LINES, len(rows))} decisions: iteration, rank, slot, mode, request[from:to]..."]
    for iteration, rank, d in rows[-LOG_LINES:]:
        pieces = " ".join(f"{rid}[{prefix}:{prefix + new}]" for rid, prefix, new in d.pieces)
        lines.append(f"  {iteration:>5} {rank:>3} {d.slot:>3} {d.mode:<7} {pieces}".rstrip())
    return lines if rows else []
