"""A change is watched while it runs: how often each of its methods was asked, and whether it answers what it must.

A planted bug that is never asked proves nothing by passing, so a run says "fired 0 times". And a method that forgets
its ``return`` would otherwise fail far away, as a comparison with None in the scheduler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from functools import cache, wraps
from inspect import unwrap
from pathlib import Path
from types import FunctionType
from typing import Any, cast

from ppsim.core.effects import Effects
from ppsim.core.loop import Loop
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.errors import UsageError

KINDS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "str": (str,),
    "list": (list,),
    "tuple": (tuple,),
    "Plan": (tuple,),
    "Rids": (tuple,),
    "Effects": (Generator,),
}
"""The head of an annotation, and what an answer must be. Of other annotations only None is refused."""

SPOKEN: dict[type, str] = {Generator: "effects (a generator: it needs a yield)"}
"""What is called otherwise than its type."""


class Misspelt(UsageError):
    """What a change names wrong, told with file, line and method."""


def watched(cls: type, name: str, fired: Counter[str]) -> type:
    """A subclass whose own overridden methods are counted under ``name`` and held to the type that they must answer."""
    own: dict[str, Any] = {}
    for base in reversed([base for base in cls.__mro__ if is_foreign(base)]):
        for key, value in vars(base).items():
            original = next((vars(b)[key] for b in cls.__mro__ if not is_foreign(b) and key in vars(b)), None)
            if original is None or key.startswith("__"):
                continue
            if isinstance(value, FunctionType):
                own[key] = counted(value, key, original, cls, name, fired)
            elif isinstance(value, property) and value.fget is not None:
                own[key] = property(counted(value.fget, key, getattr(original, "fget", None), cls, name, fired))
            elif isinstance(value, type) and isinstance(original, type):  # a class that it puts in place of another one
                own[key] = watched(value, name, fired)
            elif isinstance(value, bool) and isinstance(original, bool):
                own[key] = property(counted_flag(value, name, fired))
    made = type(cls.__name__, (cls,), own)
    made.__module__ = cls.__module__
    return made


def is_foreign(base: type) -> bool:
    """A class of a change, and none of the core's own."""
    return not base.__module__.startswith("ppsim.core.") and base is not object


def counted(
    method: Callable[..., Any], key: str, original: object, cls: type, name: str, fired: Counter[str]
) -> Callable[..., Any]:
    """The method, counted and held to its answer. A list of phases counts where it differs, and when they run."""
    text = getattr(original, "__annotations__", {}).get("return", "None")
    who = f"{place_of_code(method)}: {cls.__name__}.{key}"

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_plan = key == "plan" and isinstance(self, Loop)
        if not is_plan:
            fired[name] += 1  # ahead of the call, which may end the run
        try:
            answer = method(self, *args, **kwargs)
        except UsageError as error:  # a phase that no loop has
            raise error if isinstance(error, Misspelt) else Misspelt(f"{who}: {error}") from None
        check_answer(who, answer, text)
        if is_plan:
            return counted_plan(self, cast(Plan, answer), name, fired, who)
        return held(who, answer, text) if isinstance(answer, Generator) else answer

    return call


def counted_flag(value: bool, name: str, fired: Counter[str]) -> Callable[[Any], bool]:
    """A flag of a class (``Role.prefills``), counted when it is asked."""

    def ask(self: Any) -> bool:
        fired[name] += 1
        return value

    return ask


def held(who: str, steps: Generator[Any, Any, Any], text: object) -> Generator[Any, Any, Any]:
    """A method that asks effects, as it is; what it answers at its end is held to what stands in ``Effects[...]``."""
    answer = yield from steps
    if isinstance(text, str) and text.startswith("Effects["):
        check_answer(who, answer, text.removeprefix("Effects[").removesuffix("]"))
    return answer


def check_answer(who: str, answer: object, text: object) -> None:
    """Raise TypeError for an answer that the annotation ``text`` does not allow."""
    kinds, may_be_none = kinds_of(text)
    if (answer is None and not may_be_none) or (answer is not None and not isinstance(answer, kinds)):
        wanted = " or ".join(SPOKEN.get(kind, f"{kind.__name__}") for kind in kinds if kind is not object) or "a value"
        came = "nothing" if answer is None else f"{answer!r} of type {type(answer).__name__}"
        raise TypeError(f"{who} must return {wanted}, it returned {came}")


def counted_plan(loop: Loop, plan: Plan, name: str, fired: Counter[str], who: str) -> Plan:
    """The phases of a changed list: one that is not the core's counts when it runs, another order counts at once."""
    for phase in plan:
        if not callable(phase) or not hasattr(phase, "__name__"):
            raise TypeError(f"{who} must return a tuple of phases, which are functions; one of them is {phase!r}")
    right = Loop(loop.config, loop.exchange, loop.voting, loop.chain).plan()
    names = [phase.__name__ for phase in plan]
    mine = [phase for phase in plan if not phase.__module__.startswith("ppsim.core.")]
    if not mine and names != [phase.__name__ for phase in right]:
        fired[name] += 1

    def watch(phase: Phase) -> Phase:
        if phase not in mine:
            return phase

        @wraps(phase)
        def run(rank: Rank) -> Effects[None]:
            fired[name] += 1
            steps = phase(rank)
            check_answer(f"{place_of_phase(phase)}: phase {phase.__name__}", steps, "Effects[None]")
            yield from steps

        return run

    return tuple(watch(phase) for phase in plan)


@cache
def kinds_of(text: object) -> tuple[tuple[type, ...], bool]:
    """What an answer must be by the annotation of the method that is overridden, and whether it may be None."""
    if not isinstance(text, str):
        return (object,), True
    return KINDS.get(text.split("[")[0], (object,)), text.split("[")[0] == "None" or text.endswith("| None")


def place_of_code(method: Callable[..., Any]) -> str:
    """File and line of a method; the same words wherever the file lies, so that reports can be repeated."""
    code = method.__code__
    return f"{Path(code.co_filename).name}, line {code.co_firstlineno}"


def place_of_phase(phase: Phase) -> str:
    """File and line of a phase; a module where there is no more to say."""
    function = unwrap(getattr(phase, "__func__", phase))
    return place_of_code(function) if isinstance(function, FunctionType) else str(getattr(phase, "__module__", ""))
