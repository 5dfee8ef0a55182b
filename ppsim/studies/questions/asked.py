"""A question that users asked in public, what they reported, and how a run of ours is held against it.

Rule: what was reported, its sign and the tolerance stand in the table before anything is run; the verdict follows from
them by arithmetic. A figure that served to set a constant says which one, and counts neither for sign nor for size.

    sign and size     every predicted figure has the sign that was reported, and at least one reported size is met and
                      none is missed
    sign only         every sign is right; a size is missed, or none was stated. ``why`` says which and why
    not reproduced    a sign is wrong. ``why`` says why
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ppsim.studies.questions.outcome import Outcome

Answers: TypeAlias = Mapping[str, Outcome]
"""What each variant of a question gave, by its label."""

USUAL = 0.10
"""Relative tolerance of a predicted size."""

ROUGH = 0.30
"""Of one that was seen in traffic, or that hangs on an instant nobody wrote down."""

VerdictOf: TypeAlias = Literal["sign and size", "sign only", "not reproduced"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One run: the question's scenario, or another one, with overrides as ``--set`` takes them."""

    label: str
    overrides: tuple[str, ...] = ()
    scenario: str | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number. ``sign`` is the claim about it; ``tolerance`` is relative and stated before the run.

    ``reported`` None: only the sign was claimed. ``fitted``: the constant that was set so that this number comes out.
    """

    name: str
    ours: Callable[[Answers], float]
    reported: float | None = None
    sign: tuple[Literal["<", ">", "="], float] | None = None
    tolerance: float | None = None
    unit: str = ""
    fitted: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """``scenario`` is a name in scenarios/. ``findings`` answers what was asked beyond the reported figures."""

    key: str
    asked: str
    source: str
    scenario: str
    variants: tuple[Variant, ...]
    figures: tuple[Figure, ...]
    assumed: str
    fitted: str = ""
    findings: Callable[[Answers], tuple[str, ...]] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure beside ours. None: nothing was claimed or reported to compare with."""

    figure: Figure
    ours: float
    sign_ok: bool | None
    size_ok: bool | None

    @property
    def error(self) -> float | None:
        """Relative to what was reported."""
        reported = self.figure.reported
        return None if not reported else self.ours / reported - 1.0


@dataclass(frozen=True, slots=True)
class Answered:
    """A question with its verdict."""

    question: Question
    figures: tuple[Compared, ...]
    findings: tuple[str, ...]
    verdict: VerdictOf


def compare(figure: Figure, ours: float) -> Compared:
    """Hold a number against its claim. A fitted one is not held against anything."""
    if figure.fitted:
        return Compared(figure, ours, None, None)
    sign_ok = None if figure.sign is None else holds(ours, *figure.sign)
    size_ok = None
    if figure.reported is not None and figure.tolerance is not None:
        size_ok = abs(ours - figure.reported) <= figure.tolerance * abs(figure.reported)
    return Compared(figure, ours, sign_ok, size_ok)


def holds(ours: float, relation: str, than: float) -> bool:
    """Whether a claim is true; equality is up to rounding of the arithmetic."""
    if relation == "=":
        return abs(ours - than) <= 1e-9 * max(1.0, abs(than))
    return ours < than if relation == "<" else ours > than


def verdict_of(figures: tuple[Compared, ...]) -> VerdictOf:
    """The rule at the top of this file."""
    if any(f.sign_ok is False for f in figures):
        return "not reproduced"
    sizes = [f.size_ok for f in figures if f.size_ok is not None]
    return "sign and size" if sizes and all(sizes) else "sign only"


def answer(question: Question, answers: Answers) -> Answered:
    """Compute every figure of a question from its runs."""
    figures = tuple(compare(f, f.ours(answers)) for f in question.figures)
    findings = question.findings(answers) if question.findings is not None else ()
    return Answered(question, figures, findings, verdict_of(figures))
