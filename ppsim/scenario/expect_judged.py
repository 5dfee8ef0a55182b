"""What came out of a run, held against ``[expect]`` of its scenario.

Rule: an expectation is met, unmet, or not judged with the reason; none is passed over. A figure is compared in the unit
of its name, |came - expected| <= tolerance; a billionth is forgiven, for a decimal number is no binary one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from ppsim.core.outcome import Verdict
from ppsim.scenario.expect import (
    DECISION_COUNTS,
    PEER,
    REQUEST_COUNTS,
    Expect,
    ExpectedFigure,
    Outcome,
    in_seconds,
)
from ppsim.scenario.tree import Scenario

SAME = 1e-9
EXACT, PERCENTILE = "exact", re.compile(r"_p[0-9]+(_|$)")
NO_FIGURES = ("seed", "pp_rank", "digest")
OWN_TIME = "is of simulated time, and this run was on real processes"
NO_LOGICAL_TIME = "may depend on when things arrive, and this run was on real processes"


@dataclass(frozen=True, slots=True)
class Expectation:
    """One thing that was expected. ``key``: where the scenario says so. ``not_judged``: why not, or empty."""

    key: str
    expected: str
    came: str
    is_met: bool
    not_judged: str = ""

    def __str__(self) -> str:
        if self.not_judged:
            return f"{self.key}: expected {self.expected}, not judged: {self.not_judged}"
        return f"{self.key}: expected {self.expected}, came {self.came}"


@dataclass(frozen=True, slots=True)
class Expectations:
    """Everything that a scenario expects of a run. ``not_judged``: why nothing of it was judged, or empty. ``notes``:
    what is written and can never be judged."""

    all: tuple[Expectation, ...]
    not_judged: str = ""
    notes: tuple[str, ...] = ()

    @property
    def met(self) -> bool | None:
        """Whether all that was judged is as expected; None where nothing was."""
        judged = self.judged
        return all(e.is_met for e in judged) if judged else None

    @property
    def judged(self) -> tuple[Expectation, ...]:
        return () if self.not_judged else tuple(e for e in self.all if not e.not_judged)

    @property
    def unmet(self) -> tuple[Expectation, ...]:
        return tuple(e for e in self.judged if not e.is_met)

    def lines(self) -> list[str]:
        """For people: "as expected" with what came, or each unmet expectation; then what was not judged."""
        if self.not_judged:
            return [f"the expectations of the scenario are not judged: {self.not_judged}", *self.notes]
        lines = [f"as expected: {self.told()}"] if self.met else []
        if self.unmet:
            lines = [f"not as expected: {len(self.unmet)} of {len(self.judged)} expectations are not met"]
            lines += [f"  {e}" for e in self.unmet]
        reasons: dict[str, list[str]] = {}
        for e in self.all:
            if e.not_judged:
                reasons.setdefault(e.not_judged, []).append(e.key)
        lines += [f"not judged: {', '.join(keys)}: {why}" for why, keys in reasons.items()]
        return [*lines, *self.notes]

    def told(self) -> str:
        """What was judged, in short."""
        figures = [e for e in self.judged if ".figures." in e.key]
        named = [f"{e.key.removeprefix('expect.')} {e.came}" for e in self.judged if e not in figures]
        if figures:
            named.append("1 figure" if len(figures) == 1 else f"{len(figures)} figures")
        return ", ".join(named)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for programs."""
        rows = [
            {"key": e.key, "expected": e.expected, "came": e.came, "met": None if e.not_judged else e.is_met}
            | ({"not_judged": e.not_judged} if e.not_judged else {})
            for e in self.all
        ]
        return {"met": self.met, "not_judged": self.not_judged or None, "expectations": rows}


def expectations(
    s: Scenario,
    summary: Mapping[str, Any],
    verdict: Verdict,
    *,
    stopped: str = "",
    known_bugs: Collection[str] | None = None,
) -> Expectations | None:
    """None where the scenario expects nothing. ``stopped``: why the run did not end by itself, or empty.

    ``known_bugs``: the planted bugs that there are; None: not known here.
    """
    expect = s.expect
    if expect is None:
        return None
    if expect.changed:
        return Expectations((), f"changed: {', '.join(expect.changed)}")
    found = tuple(each(expect, summary, verdict, is_in_logical_time(s)))
    if s.run.keep != "all" and summary["world"] == "sim":
        found = tuple(of_what_was_kept(e, s.run.keep, summary, verdict) for e in found)
    why = f"the run was ended from outside: {stopped}" if stopped else ""
    return Expectations(found, why, () if known_bugs is None else tuple(unknown_bugs(expect, known_bugs)))


def unknown_bugs(expect: Expect, known: Collection[str]) -> Iterator[str]:
    """A sentence for each planted bug under ``expect.bugs`` that nobody has."""
    for name in expect.bugs:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "see: ppsim list bugs"
            yield f"expect.bugs.{name}: there is no planted bug of this name; is it a plug-in's? ({hint})"


def with_change(s: Scenario, what: str) -> Scenario:
    """The scenario, run with a change that no key of it names: what it expects is not judged."""
    if s.expect is None:
        return s
    return s.model_copy(update={"expect": Expect(changed=(*s.expect.changed, what))})


def without_expect(s: Scenario) -> Scenario:
    """The scenario as a starting point for others, of which nothing is expected."""
    if s.expect is None:
        return s
    return type(s).model_validate({name: getattr(s, name) for name in s.model_fields_set if name != "expect"})


def each(expect: Outcome, summary: Mapping[str, Any], verdict: Verdict, is_logical: bool) -> Iterator[Expectation]:
    is_real = summary["world"] != "sim"
    yield Expectation("expect.verdict", expect.verdict, verdict.kind, expect.verdict == verdict.kind)
    named = {"rule": verdict.invariant, "rank": verdict.rank, "iteration": verdict.iteration, "rid": verdict.rid}
    for key, said in named.items():
        expected = getattr(expect, key)
        if expected is not None:
            why = NO_LOGICAL_TIME if key == "iteration" and is_real and not is_logical else ""
            yield Expectation(f"expect.{key}", shown(expected), shown(said), expected == said, why)
    figures = figures_of(summary)
    for name, figure in expect.figures.items():
        place, unit = in_seconds(name)
        came = figures.get(place)
        scaled = None if came is None else came * unit
        why = not_judged_there(name, is_logical) if is_real else ""
        yield Expectation(f"expect.figures.{name}", figure_text(figure), shown(scaled), is_within(figure, scaled), why)


def of_what_was_kept(e: Expectation, keep: str, summary: Mapping[str, Any], verdict: Verdict) -> Expectation:
    """The same of a run that did not keep its records (``run.keep``): it was not made again by all ranks where it does
    not pass, and percentiles of many values are not exact."""
    name, near = e.key.removeprefix("expect.figures."), summary["percentiles"]
    if verdict.kind != "pass":
        why = f"run.keep {keep!r}: one rank alone ran, and all of them tell more of a failure (run.keep 'all')"
    elif near != EXACT and PERCENTILE.search(in_seconds(name)[0]):
        why = f"run.keep {keep!r}: percentiles of so many values are {near} of the exact ones (run.keep 'all')"
    else:
        return e
    return replace(e, not_judged=why)


def is_within(figure: ExpectedFigure, came: float | None) -> bool:
    """Whether a figure came out as expected; what has no value did not."""
    if came is None:
        return False
    return abs(came - figure.value) <= figure.tolerance + SAME * max(abs(came), abs(figure.value))


def figure_text(figure: ExpectedFigure) -> str:
    return shown(figure.value) + (f" within {shown(figure.tolerance)}" if figure.tolerance else "")


def shown(value: object) -> str:
    """None is "nothing"; a number has as many digits as tell it from its neighbours here."""
    if value is None:
        return "nothing"
    return f"{value:.10g}" if isinstance(value, int | float) else str(value)


def not_judged_there(name: str, is_logical: bool) -> str:
    """Why a figure of a run on real processes is not judged; empty if it is."""
    name = name.removeprefix(PEER)
    if name in REQUEST_COUNTS:
        return ""
    if name in DECISION_COUNTS:
        return "" if is_logical else NO_LOGICAL_TIME
    return OWN_TIME


def is_in_logical_time(s: Scenario) -> bool:
    """Whether every input names the iteration that reads it: then both worlds decide alike, iteration by iteration."""
    w = s.workload
    return (
        s.disaggregation.role == "plain"
        and not s.hicache.enabled
        and not w.concurrency
        and not (s.timeouts.waiting_ms or s.timeouts.running_ms)
        and w.source in ("chunks", "requests")
        and all(request.at_ms is None for request in w.requests)
        and all(abort.at_ms is None for abort in w.aborts)
    )


def figures_of(summary: Mapping[str, Any], before: str = "", unit: str = "") -> dict[str, float | None]:
    """Every number of a summary by the name that a scenario may expect it under (``expect.py``)."""
    found: dict[str, float | None] = {}
    for key, value in summary.items():
        if isinstance(value, Mapping):
            inner = (key.removesuffix("_s"), "_s") if key.endswith("_s") else (key, unit)
            found |= figures_of(value, f"{before}{inner[0]}_", inner[1])
        elif key == "stages":
            for stage in value:
                found |= figures_of(stage, f"{before}stages_{stage['pp_rank']}_")
        elif (
            key not in NO_FIGURES and (value is None or isinstance(value, int | float)) and not isinstance(value, bool)
        ):
            found[f"{before}{key}{unit}"] = value
    return found
