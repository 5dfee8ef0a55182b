"""Who is to blame for a simulated run that failed: it is run once more, with a twin beside every rank.

Rule: a simulated run is deterministic, so nothing has to be kept while ranks run. The second run has the same scenario,
the same choices and fresh plug-ins, and is believed only where it ends in the same verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ppsim.check.blame import BuildRank, Departure, Twin
from ppsim.check.observers import phase_of_error
from ppsim.check.owed import Wait
from ppsim.check.verdicts import judged
from ppsim.core.effects import Launch, Recv
from ppsim.core.outcome import Verdict
from ppsim.core.parts import Change
from ppsim.plugin.right import right_ranks
from ppsim.scenario.rank import rank_config
from ppsim.scenario.tree import Scenario
from ppsim.workload.refusals import Refusals
from ppsim.world.choices import Choices, same_again
from ppsim.world.run_setting import Setting, SimulatedSeat

Hang: TypeAlias = Callable[[Setting], None]
"""Hangs something on all ranks of a setting, ahead of the judge."""
Again: TypeAlias = Callable[[Choices, Hang], Verdict]
"""Runs the same once more; the reply is how that ended."""

SIDE_NAMES = ("prefill side: ", "decode side: ")


def with_blame(verdict: Verdict, scenario: Scenario, choices: Choices, change: Change, again: Again) -> Verdict:
    """The verdict of a failed run, with the guilty rank named. Unchanged where nobody has parted from a right rank."""
    if verdict.kind != "fail" or not (scenario.run.check or scenario.run.invariants):
        return verdict
    for build in right_ranks(change):
        repeated = same_again(choices)
        if repeated is None:
            return verdict
        twins = Twins(build)
        if again(repeated, twins.hang) != verdict:
            return verdict  # a plug-in that does not do the same twice
        sides = twins.sides()
        side = next((name for name in SIDE_NAMES if verdict.message.startswith(name)), "")
        found = verdict
        for about in dict.fromkeys((side, *sides)):  # the side that the verdict is about comes first
            if found == verdict and about in sides:
                inner = verdict._replace(message=verdict.message.removeprefix(side))
                told = judged(inner, sides[about], waits(twins.settings[about][0]))
                found = verdict if told == inner else told._replace(message=f"{about}{told.message}")
        if found != verdict or any(sides.values()):
            return found
    return verdict


class Twins:
    """A twin for every rank of a run, and who has parted from it, by the name of its side."""

    def __init__(self, build: BuildRank) -> None:
        self.build = build
        self.settings: dict[str, tuple[Setting, list[Twin]]] = {}

    def hang(self, setting: Setting) -> None:
        """Call before anybody else looks at the ranks."""
        role = setting.scenario.disaggregation.role
        twins = [self._twin(setting, r) for r in setting.ranks]
        side = f"{role} side: " if f"{role} side: " in SIDE_NAMES and is_pair(setting) else ""
        self.settings[side] = setting, twins

    def _twin(self, setting: Setting, r: SimulatedSeat) -> Twin:
        config = r.rank.config
        right = self.build(rank_config(setting.scenario, config.pp_rank, config.tp_rank))
        refusals = Refusals(setting.failing)
        right.policy.wall_clock_ns, right.refusals = r.wall_clock_ns, refusals.left
        twin = Twin(r, right)
        twin.watch()
        r.observers.after(lambda effect, _: refusals.launched(effect.batch), Launch)
        return twin

    def sides(self) -> dict[str, list[Departure]]:
        """Call once, when the run is over."""
        return {name: departures(*mine) for name, mine in self.settings.items()}


def waits(setting: Setting) -> list[Wait]:
    """What the ranks wait for that nobody has sent yet: what is on its way is not owed."""
    found: list[Wait] = []
    for r in setting.ranks:
        effect = r.effect
        if not isinstance(effect, Recv) or r.done or effect.kind is None or r.waits_for is None:
            continue
        if setting.network.head(effect.src, r.rank_id, effect.lane) is not None:
            continue
        src = setting.ranks[effect.src]
        if effect.iteration is not None and effect.slot is not None and not src.done:
            where = (effect.src, effect.lane, effect.kind, effect.iteration, effect.slot)
            found.append(Wait(r.rank_id, r.phase(), *where, src.rank.config, src.rank.iteration))
    return found


def is_pair(setting: Setting) -> bool:
    """Whether these ranks are one of two pipelines."""
    return hasattr(setting.ranks[0], "transfers")


def departures(setting: Setting, twins: Sequence[Twin]) -> list[Departure]:
    """Of all ranks of a pipeline once its run is over."""
    found: list[Departure] = []
    for r, twin in zip(setting.ranks, twins, strict=True):
        error = setting.raised if setting.running is r else None
        departed = twin.ends(error, phase_of_error(error) if error is not None else "")
        if departed is not None:
            found.append(departed)
    return found
