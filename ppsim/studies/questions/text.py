"""Answers as JSON, as text for a terminal, and as the page docs/results/questions.md.

Rule: a fitted figure says what was set by it wherever it is shown, and a verdict never stands without the reason why
it is not a better one. Numbers have three digits, so that the page does not change with the last bit of a sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ppsim.studies.questions.asked import Answered, Compared

HEAD = """# Questions that users asked, answered by runs

What people asked in public about pipeline-parallel serving, what they reported, and what a run of a scenario of ours
gives. P01 to P31 are the numbers of the questions in bugs.md, which left some out. `ppsim questions P08` makes the runs
of one of them again; this page is what `ppsim questions --markdown` prints, and a test holds it in step.

A **sign** is the direction that was reported or claimed. A **size** counts as met within the tolerance beside it, 10 %
unless said otherwise. A figure marked *fit* was used to set the constant named there, and proves nothing. Every
scenario says in its comments what is abstracted, assumed and fitted.
"""


def verdict_text(a: Answered) -> str:
    """The verdict; what is not "sign and size" has a reason."""
    return a.verdict if a.verdict == "sign and size" else f"{a.verdict}: {a.question.why}"


def number(value: float) -> str:
    """Three digits, without exponents in the range that occurs here."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    digits = 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}" if value != int(value) else f"{value:,.0f}"


def claim(c: Compared) -> str:
    """What was claimed of a figure."""
    return "" if c.figure.sign is None else f"{c.figure.sign[0]} {number(c.figure.sign[1])}"


def judged(c: Compared) -> str:
    """How a figure fares, in words."""
    if c.figure.fitted:
        return f"fit: {c.figure.fitted}"
    parts = []
    if c.sign_ok is not None:
        parts.append("sign" if c.sign_ok else "wrong sign")
    if c.size_ok is not None:
        parts.append(("size" if c.size_ok else "size missed") + f" ({100 * (c.figure.tolerance or 0):.3g} %)")
    return ", ".join(parts)


def to_dict(a: Answered) -> dict[str, Any]:
    """For JSON."""
    q = a.question
    return {
        "question": q.key,
        "asked": q.asked,
        "source": q.source,
        "scenario": q.scenario,
        "variants": [
            {"label": v.label, "scenario": v.scenario or q.scenario, "set": list(v.overrides)} for v in q.variants
        ],
        "figures": [
            {
                "name": c.figure.name,
                "unit": c.figure.unit,
                "reported": c.figure.reported,
                "ours": c.ours,
                "error": c.error,
                "claim": claim(c) or None,
                "sign": c.sign_ok,
                "size": c.size_ok,
                "tolerance": c.figure.tolerance,
                "used_to_fit": c.figure.fitted or None,
            }
            for c in a.figures
        ],
        "findings": list(a.findings),
        "assumed": q.assumed,
        "fitted": q.fitted or None,
        "verdict": a.verdict,
        "why": q.why if a.verdict != "sign and size" else None,
    }


def rows(a: Answered) -> list[tuple[str, str, str, str, str]]:
    """Figure, reported, ours, error, judgement."""
    return [
        (
            c.figure.name,
            claim(c) if c.figure.reported is None else number(c.figure.reported),
            f"{number(c.ours)} {c.figure.unit}".rstrip(),
            "" if c.error is None else f"{100 * c.error:+.1f} %",
            judged(c),
        )
        for c in a.figures
    ]


def terminal(a: Answered) -> str:
    """One question for a terminal."""
    q = a.question
    table = [("", "reported", "ours", "error", ""), *rows(a)]
    widths = [max(len(row[i]) for row in table) for i in range(4)]
    lines = [f"{q.key}  {q.asked}", f"     {q.source}; scenario {q.scenario}"]
    for name, *cells, how in table:
        aligned = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:]))
        lines.append(f"     {name:<{widths[0]}}  {aligned}  {how}".rstrip())
    lines += [f"     - {finding}" for finding in a.findings]
    lines.append(f"     verdict: {verdict_text(a)}")
    return "\n".join(lines)


def markdown(answers: Iterable[Answered]) -> str:
    """The page."""
    answered = list(answers)
    parts = [HEAD, "| question | verdict |", "| --- | --- |"]
    parts += [f"| [{a.question.key}](#{anchor(a)}) {a.question.asked} | {a.verdict} |" for a in answered]
    for a in answered:
        parts += ["", section(a)]
    return "\n".join(parts) + "\n"


def anchor(a: Answered) -> str:
    """The link target that renderers make of a section's title."""
    title = f"{a.question.key} {a.question.asked}".lower()
    return "".join(c for c in title if c.isalnum() or c in " -_").replace(" ", "-")


def section(a: Answered) -> str:
    q = a.question
    lines = [f"## {q.key} {q.asked}", "", f"Source: {q.source}. Scenario: `{q.scenario}`.", ""]
    lines += ["| figure | reported | ours | error | |", "| --- | --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows(a)]
    lines += ["", *(f"- {finding}" for finding in a.findings)]
    lines += [
        "",
        f"Assumed: {q.assumed}." + (f" Fitted: {q.fitted}." if q.fitted else ""),
        "",
        f"**{verdict_text(a)}**",
    ]
    return "\n".join(lines)
