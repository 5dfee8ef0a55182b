"""``ppsim replay FILE --in exec``: what failed in simulation, again on real processes, with the same logical times.

The saved experiment runs in simulation first, which must give the saved failure. What that run was answered (inputs by
iteration, observations by rank and iteration, tokens by iteration and slot, refused memory) then answers real ranks.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from ppsim.errors import EXIT_LIVENESS, EXIT_NONDETERMINISM, UsageError

if TYPE_CHECKING:
    from executor.fed import Fed
    from ppsim.fuzz.experiment import Outcome, Terms
    from ppsim.fuzz.repro import Repro
    from ppsim.recording import Recording, Verdict
    from ppsim.scenario.tree import Links
    from ppsim.world.choices import RecordingChoices

STALL_S = 5.0  # all ranks wait for one another, and nobody has completed anything
WATCHDOG_MS = 20_000.0  # one of them has completed nothing


NOT_HERE = {
    "INV-07": "it compares where two ranks are at one moment, which nobody knows of real processes",
    "INV-08": "it compares where two ranks are at one moment, which nobody knows of real processes",
    "INV-39": "it is about the static buffer of a graph, and real ranks make a new tensor in each forward pass",
}
"""Rules that are not checked on real processes, and why."""


class Ends(NamedTuple):
    """How it ended there and here. ``unlike``: in what the simulated links were unlike those between processes."""

    simulated: Verdict
    real: Verdict
    cycles: tuple[tuple[int, ...], tuple[int, ...]]
    unlike: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        """The same rule, or the same kind of end where none has a number, and where ranks wait the same circle."""
        ours, theirs = self.real, self.simulated
        alike = (ours.kind, ours.exit_code, ours.invariant) == (theirs.kind, theirs.exit_code, theirs.invariant)
        return alike and self.cycles[0] == self.cycles[1]


def replay_on_processes(file: str, repro: Repro, terms: Terms, *, as_json: bool) -> int:
    """Exit code of the failure where it comes back on processes, else 4. Raises UsageError for what they lack."""
    for package in ("torch", "transformers"):
        if find_spec(package) is None:
            raise UsageError(f"--in exec needs {package}, which is not installed: pip install 'ppsim[executor]'")
    ends = both_ends(file, repro, terms)
    if as_json:
        print(json.dumps(as_dict(ends)))
    else:
        print(ends.real.message or "the run passes: nothing is broken")
        print(f"in simulation: {told(ends.simulated)}; on real processes: {told(ends.real)}")
        print("the same failure on real processes" if ends.same else "NOT the same failure on real processes")
        for sentence in () if ends.same else ends.unlike:
            print(f"  {sentence}")
    return ends.real.exit_code if ends.same else EXIT_NONDETERMINISM


def both_ends(file: str, repro: Repro, terms: Terms, start_method: str = "spawn") -> Ends:
    """Run it in simulation, then on real processes."""
    from executor.fed import fit_to_feed
    from executor.launch import execute
    from executor.prepare import check_worlds, prepared
    from ppsim.fuzz.experiment import run_experiment
    from ppsim.scenario.load import validate
    from ppsim.world.choices import RecordingChoices, TapeChoices

    word = repro.signature.invariant
    if word in ("nondeterminism", "no-end") or word.startswith(("crash-", "report-")):
        raise UsageError(f"{file}: a failure of kind {word!r} leaves no run that real processes could be fed with")
    loaded = repro.loaded()
    check_worlds(loaded.change.surroundings, loaded.names)
    if word in NOT_HERE:
        raise UsageError(f"{file}: {word} is not checked on real processes: {NOT_HERE[word]}")
    scenario = fit_to_feed(validate(repro.experiment.raw), WATCHDOG_MS, word)
    scenario = prepared(scenario, None, "cpu")
    asked = RecordingChoices(TapeChoices(repro.experiment.tape))
    outcome = run_experiment(repro.experiment, loaded.change, asked, terms)
    if not repro.again(outcome):
        raise UsageError(f"{file}: in simulation it is not the saved failure any more ({word}, {repro.digest})")
    if outcome.verdict.exit_code == EXIT_LIVENESS and scenario.links.send == "rendezvous":
        raise UsageError(
            f"{file}: links.send 'rendezvous': ranks lock where a send waits for its receiver, and a send between real "
            "processes does not (gloo buffers it)"
        )
    fed = what_it_was_answered(outcome, asked)
    result = execute(
        scenario, changes=repro.bugs, plugin=repro.plugin, fed=fed, stall_s=STALL_S, start_method=start_method
    )
    cycles = cycle_of(outcome.verdict), cycle_of(result.verdict)
    return Ends(outcome.verdict, result.verdict, cycles, unlike_gloo(scenario.links))


def unlike_gloo(links: Links) -> tuple[str, ...]:
    """Keys of simulated links that decide who waits for whom, where they differ from links between processes."""
    real = type(links)()
    keys = ("send", "commit", "commit_over", "payload", "rendezvous_hold")
    return tuple(
        f"links.{key} was {getattr(links, key)!r}; between processes it is {getattr(real, key)!r}"
        for key in keys
        if getattr(links, key) != getattr(real, key)
    )


def what_it_was_answered(outcome: Outcome, asked: RecordingChoices) -> Fed:
    """All that steered the decisions of a run in simulation."""
    from executor.fed import Fed

    assert outcome.result is not None
    recording: Recording = outcome.result.recording
    draws: dict[str, list[int]] = {}
    for (stream, _), answer in zip(asked.asked, asked.tape, strict=True):
        if stream.startswith("delay "):
            draws.setdefault(stream, []).append(answer)
    return Fed(
        {ingested.iteration: ingested.live for ingested in recording.ingestions},
        recording.observations,
        {(sample.iteration, sample.slot): sample.token_ids for sample in recording.samples},
        outcome.result.setting.failing,
        {stream: tuple(answers) for stream, answers in draws.items()},
        {(stored.iteration, stored.rid): stored.statuses for stored in recording.stores},
        len(recording.decisions[0]),
    )


CYCLE = "wait-for cycle: "


def cycle_of(verdict: Verdict) -> tuple[int, ...]:
    """The ranks that wait for each other in a circle, as the report names them; empty where there is none."""
    line = next((line for line in verdict.message.splitlines() if CYCLE in line), "")
    return tuple(int(rank) for rank in line.partition(CYCLE)[2].split(" -> ")) if line else ()


def told(verdict: Verdict) -> str:
    """A verdict in a few words."""
    what = verdict.invariant or verdict.kind
    where = [
        f"{name} {at}" for name, at in (("rank", verdict.rank), ("iteration", verdict.iteration)) if at is not None
    ]
    return f"{what} at {', '.join(where)}" if where else what


def as_dict(ends: Ends) -> dict[str, Any]:
    worlds = zip(("simulated", "real"), (ends.simulated, ends.real), ends.cycles, strict=True)
    return {
        "same": ends.same,
        "unlike": list(ends.unlike),
        **{world: end_json(verdict, cycle) for world, verdict, cycle in worlds},
    }


def end_json(verdict: Verdict, cycle: tuple[int, ...]) -> dict[str, Any]:
    return {
        "verdict": verdict.kind,
        "invariant": verdict.invariant,
        "rank": verdict.rank,
        "iteration": verdict.iteration,
        "cycle": list(cycle),
        "message": verdict.message,
    }
