"""``ppsim replay RUN``: a saved run of either world again, in simulation, fed with what was recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.cli.guard import say
from ppsim.errors import EXIT_NONDETERMINISM, EXIT_PASS, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ppsim.core.outcome import Stand
    from ppsim.core.parts import Change
    from ppsim.recording import Recording, Verdict
    from ppsim.recording.diff import Difference
    from ppsim.scenario import Scenario
    from ppsim.world.replayed import Replayed, Until


@dataclass(frozen=True, slots=True)
class Side:
    """A pipeline: ``name`` is empty where there is only one."""

    name: str
    recorded: Recording
    replayed: Replayed
    found: Difference | None

    @property
    def verdict(self) -> Verdict:
        """Of the replay, with the side that it is about."""
        verdict = self.replayed.verdict
        if verdict.kind == "pass" or not self.name:
            return verdict
        return verdict._replace(message=f"{self.name} side: {verdict.message}")


def is_run(name: str) -> bool:
    """Whether a name is that of a run rather than of a reproduction: a folder, a recording, a name below runs/."""
    from ppsim.recording.folder import LATEST, RUNS

    path = Path(name)
    if path.is_file() and path.name != LATEST:
        return path.name.endswith((".jsonl", ".jsonl.gz"))
    return path.is_dir() or path.suffix != ".json" or (RUNS / name).is_dir()


def replay_run(run: str, plugin: str | None, until_text: str | None, *, as_json: bool, invariants: bool = False) -> int:
    """Replay, judge and compare; the exit code is that of what came out, 4 if a record or the broken rule differs.

    ``invariants``: judge by all rules, whatever the run was judged by.
    """
    from ppsim.recording.agreement import disagreement, same_verdict, why_not
    from ppsim.recording.folder import open_run, read_verdict
    from ppsim.world.replayed import replay

    recorded, verdict = open_run(run), read_verdict(run)
    scenario = scenario_beside(run, recorded)
    if invariants:
        scenario = scenario.model_copy(update={"run": scenario.run.model_copy(update={"invariants": True})})
    change = change_of(recorded, scenario, plugin)
    until = until_of(until_text, recorded)
    tell_of_version(recorded)
    is_whole = verdict.kind == "pass"
    sides = [
        Side(name, mine, out, None if out.is_reached else disagreement(mine, out.recording, is_whole=is_whole))
        for name, mine, out in replay(recorded, scenario, change, until)
    ]
    if until is not None:
        return show_place(sides[0], until)
    differs = [side for side in sides if side.found is not None]
    if as_json:
        print(json.dumps(as_dict(sides, verdict), allow_nan=False))
    else:
        for line in report(run, sides, verdict):
            print(line)
    again = verdict_of(sides, verdict)
    missed = verdict.invariant is not None and not same_verdict(verdict, again) and not why_not(verdict)
    return EXIT_NONDETERMINISM if differs or missed else again.exit_code


def verdict_of(sides: Sequence[Side], recorded: Verdict) -> Verdict:
    """The verdict of the replay: of two pipelines that which the recorded one is about, else the first that fails."""
    from ppsim.recording import PASS

    wrong = [side for side in sides if side.replayed.verdict.kind != "pass"]
    about = [side for side in wrong if side.name and recorded.message.startswith(f"{side.name} side: ")]
    return next((side.verdict for side in (*about, *wrong)), PASS)


# --- what it needs -------------------------------------------------------------------------------------------------


def scenario_beside(run: str, recorded: Recording) -> Scenario:
    """The scenario of a saved run. Raises UsageError where it is missing, or is another one's."""
    from ppsim.recording.folder import CONFIG, find_recording
    from ppsim.scenario import load_scenario
    from ppsim.scenario.check import decode_stages

    config = find_recording(run).with_name(CONFIG)
    if not config.is_file():
        raise UsageError(f"{config} is missing: a replay needs the scenario of the run")
    scenario = load_scenario(str(config), [])
    cluster = scenario.cluster
    stages = decode_stages(scenario) if recorded.peer is not None else cluster.pp_size
    there = (scenario.name, scenario.seed, stages, cluster.tp_replicas)
    came = (recorded.name, recorded.seed, recorded.pp_size, recorded.tp_replicas)
    if there != came:
        names = ("name", "seed", "pp_size", "tp_replicas")
        wrong = [
            f"{name} {mine!r}, recorded {other!r}" for name, mine, other in zip(names, there, came) if mine != other
        ]
        raise UsageError(f"{config} is not the scenario of this recording: {'; '.join(wrong)}")
    return scenario


def change_of(recorded: Recording, scenario: Scenario, plugin: str | None) -> Change:
    """Bugs, classes and plug-in of the run. Raises UsageError for a plug-in that is another one, or is missing."""
    from ppsim.cli.options import plugin_of
    from ppsim.plugin import load
    from ppsim.recording.origin import digest_of_file

    origin = recorded.origin
    if plugin is not None and origin.plugin is None:
        raise UsageError(f"--plugin {plugin}: the run was recorded without a plug-in")
    path = plugin or origin.plugin
    if path is not None:
        if not Path(path).is_file():
            raise UsageError(f"the run was recorded with the plug-in {path}, which is not there: name it with --plugin")
        if digest_of_file(path) != origin.plugin_digest:
            raise UsageError(
                f"{path} is not the plug-in that the run was recorded with: its text has digest "
                f"{digest_of_file(path)}, recorded {origin.plugin_digest}"
            )
    return load((*origin.changes, *scenario.bugs), plugin_of(path)).change


def tell_of_version(recorded: Recording) -> None:
    from ppsim.recording.origin import ppsim_version

    version = recorded.origin.version
    if version and version != ppsim_version():
        say(f"ppsim: recorded by ppsim {version}, this is {ppsim_version()}: a difference may be theirs")


def until_of(text: str | None, recorded: Recording) -> Until | None:
    """``rank=2,iteration=118``. Raises UsageError."""
    from ppsim.world.replayed import Until

    if text is None:
        return None
    fields = dict(part.partition("=")[::2] for part in text.split(","))
    if set(fields) != {"rank", "iteration"} or not all(value.isdecimal() for value in fields.values()):
        raise UsageError(f"--until {text}: expected rank=N,iteration=N, numbers from 0 on")
    rank, iteration = int(fields["rank"]), int(fields["iteration"])
    num_ranks = (recorded if recorded.peer is None else recorded.peer).num_ranks
    if rank >= num_ranks:
        raise UsageError(f"--until {text}: the run has ranks 0 to {num_ranks - 1}")
    return Until(rank, iteration)


# --- what is told --------------------------------------------------------------------------------------------------


def report(run: str, sides: Sequence[Side], verdict: Verdict) -> list[str]:
    """What was fed, how far every rank came, whether the records agree, and how both runs ended."""
    from ppsim.cli.diff import difference_text

    world = sides[0].recorded.world
    lines = [f"replay of {run} ({world}, recorded verdict: {verdict.kind}) in simulation"]
    for side in sides:
        lines += [f"  {line}" for line in rank_lines(side)]
        lines += [f"  note: {cut}" for cut in side.recorded.cuts]
    differs = [side for side in sides if side.found is not None]
    for side in differs:
        assert side.found is not None
        lead = f"different{f' on the {side.name} side' if side.name else ''}: first"
        lines.append(difference_text(lead, side.found, "recorded", "replayed"))
    if not differs:
        beyond = "" if verdict.kind == "pass" else ", as far as it goes"
        lines.append(f"equal: every record of every rank{beyond}")
    for side in sides:
        lines += cycles_of(side, verdict)
    return [*lines, *verdict_lines(verdict, verdict_of(sides, verdict))]


def verdict_lines(recorded: Verdict, again: Verdict) -> list[str]:
    """What the rules say of the replay, and where that is not what was recorded."""
    from ppsim.recording.agreement import same_verdict, why_not

    lines = [f"the replay ends so: {again.message}"] if again.kind != "pass" else []
    if not same_verdict(recorded, again):
        why = why_not(recorded) if again.invariant is None else ""
        return [*lines, f"the verdicts differ: recorded {told(recorded)}, replayed {told(again)}{why and f' ({why})'}"]
    alike = recorded.kind == again.kind != "unknown"
    return [*lines, f"verdict: {told(again)}, {'as recorded' if alike else 'as far as it goes'}"]


def told(verdict: Verdict) -> str:
    """A verdict in a few words."""
    where = [
        f"{name} {at}" for name, at in (("rank", verdict.rank), ("iteration", verdict.iteration)) if at is not None
    ]
    what = verdict.invariant or verdict.kind
    return f"{what} at {', '.join(where)}" if where and verdict.kind != "pass" else what


def rank_lines(side: Side) -> list[str]:
    """One line a rank: how many of its records the replay has made, and the digest of those decisions in both."""
    from ppsim.recording.agreement import bare
    from ppsim.recording.digest import digests_of

    recorded, replayed = side.recorded, side.replayed.recording
    pairs = zip(digests_of(recorded).decisions, digests_of(bare(replayed, recorded)).decisions)
    lines = []
    for rank, (mine, other) in enumerate(pairs):
        made = f"{min(len(replayed.decisions[rank]), len(recorded.decisions[rank]))} of {len(recorded.decisions[rank])}"
        same = f"digest {mine} in both" if mine == other else f"digest {mine} recorded, {other} replayed"
        who = f"{side.name} rank {rank}" if side.name else f"rank {rank}"
        lines.append(f"{who}: {made} decisions, {len(recorded.observations[rank])} observations, {same}")
    return lines


def cycles_of(side: Side, verdict: Verdict) -> list[str]:
    """Who waited for whom in a circle, and whether the ranks do so again. ``verdict``: the recorded one.

    Nothing where the run was cut at any moment, no rule said that it hung, and the replay goes on: two ranks that
    exchange messages wait for each other now and then, for as long as a message takes."""
    from ppsim.check.progress import cycle_lines, wait_cycle

    out, lines = side.replayed, list[str]()
    cycles = [cycle_of(side.recorded.stands, wait_cycle), cycle_of(out.recording.stands, wait_cycle)]
    if cycles[0] and (cycles[1] or verdict.invariant is not None):
        here = "the same in the replay" if cycles[0] == cycles[1] else f"in the replay: {cycles[1] or 'none'}"
        lines.append(f"recorded{cycle_lines(cycles[0])[0].replace('  ', ' ')}; {here}")
    return lines


def cycle_of(stands: Sequence[Stand], wait_cycle: Any) -> tuple[int, ...]:
    found: tuple[int, ...] = wait_cycle({stand.rank: stand.waits_for for stand in stands})
    return found


def as_dict(sides: Sequence[Side], verdict: Verdict) -> dict[str, Any]:
    from ppsim.check.progress import wait_cycle
    from ppsim.cli.diff import difference_json
    from ppsim.recording.agreement import same_verdict
    from ppsim.recording.digest import digests_of

    again = verdict_of(sides, verdict)
    return {
        "world": sides[0].recorded.world,
        "recorded_verdict": verdict.kind,
        "recorded_invariant": verdict.invariant,
        "verdict": again.kind,
        "invariant": again.invariant,
        "same_verdict": same_verdict(verdict, again),
        "sides": [
            {
                "side": side.name or None,
                **difference_json(side.found, None, of_two_worlds=False),
                "num_decisions": [len(mine) for mine in side.recorded.decisions],
                "decision_digests": list(digests_of(side.recorded).decisions),
                "verdict": side.replayed.verdict.kind,
                "invariant": side.replayed.verdict.invariant,
                "message": side.replayed.verdict.message,
                "recorded_cycle": list(cycle_of(side.recorded.stands, wait_cycle)),
                "cycle": list(cycle_of(side.replayed.recording.stands, wait_cycle)),
            }
            for side in sides
        ],
    }


def show_place(side: Side, until: Until) -> int:
    """Queues, slots, pool and inbox of every rank at the place where the replay has stopped."""
    from ppsim.check.progress import state_lines

    out = side.replayed
    first = out.setting.ranks[until.rank]
    if not out.is_reached:
        raise UsageError(
            f"--until rank={until.rank},iteration={until.iteration}: in the replay rank {until.rank} comes to "
            f"iteration {first.rank.iteration} and no further"
        )
    where = f"{side.name} rank {until.rank}" if side.name else f"rank {until.rank}"
    print(f"stopped where {where} begins iteration {until.iteration}; others stand where they had come to by then")
    for r, stand in zip(out.setting.ranks, out.recording.stands):
        peer = f" for rank {stand.waits_for}" if stand.waits_for is not None else ""
        print(f"rank {r.rank_id}: iteration {stand.iteration}, slot {stand.slot}, {stand.doing}{peer}")
        for line in (*state_lines(r.rank, out.recording.decisions[r.rank_id]), *inbox_lines(out, r.rank_id)):
            print(f"  {line}")
    return EXIT_PASS


def inbox_lines(out: Replayed, rank: int) -> list[str]:
    """Messages on their way to a rank, by sender and lane, in order; and those that it has put aside."""
    from ppsim.core.channels import put_aside

    lines = []
    queues = out.setting.network.queues
    for src, dst, lane in sorted(queues, key=lambda address: (address[0], address[1], address[2].value)):
        parcels = queues[src, dst, lane]
        if dst == rank and parcels:
            texts = [f"{p.message.kind.value} of iteration {p.message.iteration}" for p in parcels]
            lines.append(f"inbox from rank {src}, lane {lane.value}: {', '.join(texts)}")
    for src, kind, iterations in put_aside(out.setting.ranks[rank].rank.link):
        told = ", ".join(map(str, iterations))
        lines.append(f"put aside from rank {src}: {kind} of iteration {told}")
    return lines or ["inbox: empty"]
