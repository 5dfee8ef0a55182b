"""Editing an iteration: small changes to the list of phases, for planted bugs that are more than one hook.

A phase is named by its function (``harvest``, ``first_pass_release``). Where a role's list has no phase of that name,
the list stays as it is: the bug has no place there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ppsim.core.effects import Effect, Effects
from ppsim.core.loop import Phase, Plan
from ppsim.core.rank import Rank

Edit: TypeAlias = Callable[[Rank, Effect], Effect]


def instead(steps: Plan, name: str, *new: Phase) -> Plan:
    """The list with the phase ``name`` replaced."""
    places = [place for place, phase in enumerate(steps) if phase.__name__ == name]
    if not places:
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


def replaced(owner: object, method: str, new: Callable[..., Any]) -> None:
    """Give one object another method: ``new`` is called with the old one and its arguments."""
    old = getattr(owner, method)
    owner.__dict__[method] = lambda *args, **kwargs: new(old, *args, **kwargs)
