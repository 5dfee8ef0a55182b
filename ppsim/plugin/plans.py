"""Editing an iteration: small changes to the list of phases, for a bug or a change that is more than one method.

    class HiddenBeforeRelay(Loop):
        def plan(self) -> Plan:
            return moved_behind(super().plan(), "send_hidden_late", "launch_batch")

A phase is named by its function (``harvest``, ``first_pass_release``). Where a role's list has no phase of that name,
the list stays as it is: the change has no place there. A name that no list has is misspelt, and is told.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import cache
from typing import TypeAlias

from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.effects import Effect, Effects
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.core.votes import Voting
from ppsim.errors import UsageError

Edit: TypeAlias = Callable[[Rank, Effect], Effect]


def instead(steps: Plan, name: str, *new: Phase) -> Plan:
    """The list with the phase ``name`` replaced."""
    places = [place for place, phase in enumerate(steps) if phase.__name__ == name]
    if not places:
        check_phase(name)
        return steps
    return (*steps[: places[0]], *new, *steps[places[0] + 1 :])


def before(steps: Plan, name: str, *new: Phase) -> Plan:
    """The list with new phases right before ``name``."""
    return instead(steps, name, *new, *named(steps, name))


def behind(steps: Plan, name: str, *new: Phase) -> Plan:
    """The list with new phases right behind ``name``."""
    return instead(steps, name, *named(steps, name), *new)


def named(steps: Plan, name: str) -> Plan:
    """The phase of that name, if the list has it."""
    return tuple(phase for phase in steps if phase.__name__ == name)


def moved_behind(steps: Plan, name: str, anchor: str) -> Plan:
    """The list with one phase right behind another."""
    return behind(instead(steps, name), anchor, *named(steps, name))


def does(change: Callable[[Rank], None]) -> Phase:
    """A phase that changes the rank and asks nothing of the world."""

    def phase(rank: Rank) -> Effects[None]:
        change(rank)
        yield from ()

    phase.__name__ = change.__name__
    return phase


def edited(phase: Phase, edit: Edit) -> Phase:
    """The phase with its effects changed on their way to the world."""

    def run(rank: Rank) -> Effects[None]:
        steps, answer = phase(rank), None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                return
            answer = yield edit(rank, effect)

    run.__name__ = phase.__name__
    return run


def right_plan(role: str, bootstrap: str = "store") -> Plan:
    """The list of phases of a role, as it should be; ``bootstrap``: bootstrap_consensus of a prefill server."""
    return Loop(RankConfig(0, 2, role=role, bootstrap_consensus=bootstrap), Exchange(), Voting(), Chain()).plan()


@cache
def phase_names() -> tuple[str, ...]:
    """The phases of all roles, in the order in which they are first met."""
    lists = (right_plan("plain"), right_plan("prefill"), right_plan("prefill", "vote"), right_plan("decode"))
    return tuple(dict.fromkeys(phase.__name__ for steps in lists for phase in steps))


def check_phase(name: str) -> None:
    """Raise UsageError for a name that no role's list has."""
    if name not in phase_names():
        near = get_close_matches(name, phase_names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"there is no phase {name!r} in any loop ({hint}see: docs/plugins.md)")
