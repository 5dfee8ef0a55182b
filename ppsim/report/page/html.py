"""The page itself: pieces of text put together.

Rule: the page asks nobody for anything. Its policy (Content-Security-Policy) forbids every connection and every script
but the ones that are in it, each by its digest; so even words that got past ``words.text`` could do nothing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from ppsim.recording.diff import first_difference
from ppsim.recording.record import Recording
from ppsim.recording.schema import Verdict
from ppsim.recording.summary import summarize
from ppsim.report.lanes import Part, parts_of
from ppsim.report.page.data import run_data
from ppsim.report.page.library import library
from ppsim.report.page.ring import waits_html
from ppsim.report.page.story import story_html, tiles_html, verdict_html
from ppsim.report.page.tables import comparison_html, metrics_html
from ppsim.report.page.words import items, json_text, text

SCRIPTS = (
    "decode.js",
    "words.js",
    "spans.js",
    "figures.js",
    "timeline.js",
    "hover.js",
    "requests.js",
    "compare.js",
    "page.js",
)
POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data: blob:; style-src 'unsafe-inline'; "
    "script-src "
)
NOTHING = '<p class="soft">Nothing was computed in this run.</p>'


class Run(NamedTuple):
    """A run for the page. ``name``: under which it is compared with others."""

    name: str
    recording: Recording
    verdict: Verdict


def page(runs: Sequence[Run]) -> bytes:
    """The page of one run, or of several with their comparison. Raises UsageError where bokeh is missing."""
    charts = library()
    scripts = [*charts.scripts, '"use strict";\n(() => {\n' + "".join(map(asset, SCRIPTS)) + "})();\n"]
    made = [Shown.of(run) for run in runs]
    names = labels(runs)
    title = ", ".join(dict.fromkeys(run.recording.name for run in runs))
    found = Template(asset("page.html")).substitute(
        policy=POLICY + " ".join(f"'sha256-{digest(script)}'" for script in scripts),
        title=text(f"{title}: a run of ppsim" if len(runs) == 1 else f"{title}: runs of ppsim"),
        style=asset("page.css"),
        body=comparison(runs, made, names) + "".join(run_html(one, names[i], i) for i, one in enumerate(made)),
        footer=footer(charts.version),
        data=json_text({"names": names, "runs": [one.data for one in made]}),
        scripts="\n".join(f"<script>{script}</script>" for script in scripts),
    )
    return found.encode("utf-8", "xmlcharrefreplace")  # a half of a pair of surrogates has no bytes of its own


class Shown(NamedTuple):
    """A run with all that is made of it once."""

    run: Run
    parts: list[Part]
    summary: dict[str, Any]
    data: dict[str, Any]

    @classmethod
    def of(cls, run: Run) -> Shown:
        parts = parts_of(run.recording)
        return cls(run, parts, summarize(run.recording, run.verdict), run_data(parts, run.verdict))


def labels(runs: Sequence[Run]) -> list[str]:
    """The runs' names, with a letter where there are several."""
    if len(runs) == 1:
        return [runs[0].recording.name]
    return [f"{letter(i)}: {run.name}" for i, run in enumerate(runs)]


def letter(i: int) -> str:
    """A, B, ... Z, then numbers from 27 on."""
    return chr(ord("A") + i) if i < 26 else str(i + 1)


def comparison(runs: Sequence[Run], made: Sequence[Shown], names: Sequence[str]) -> str:
    """The runs side by side and a tab for each of them; nothing where there is only one."""
    if len(runs) == 1:
        return ""
    told = [partings(runs[0].recording, run.recording, letter(i)) for i, run in enumerate(runs) if i]
    tabs = "".join(
        f'<button type="button" role="tab" aria-selected="{"true" if i == 0 else "false"}">{text(name)}</button>'
        for i, name in enumerate(names)
    )
    return (
        f'<section class="compared-part"><h1>{len(runs)} runs side by side</h1>'
        '<p class="soft">Better and worse are against A, where both runs passed.</p>'
        f"{comparison_html(names, [one.summary for one in made])}{items(told)}"
        f'<div class="compared-charts halves"></div></section><div class="tabs" role="tablist">{tabs}</div>'
    )


def partings(first: Recording, other: Recording, name: str) -> str:
    """Where the decisions of two runs part, in a sentence."""
    found = first_difference(first, other, decisions_only=True)
    if found is None:
        return f"{name} schedules like A in every iteration."
    if found.kind == "header":
        return f"{name} and A are pipelines of other sizes, whose decisions cannot be held against each other."
    what = f"field {found.field} of the {found.kind}" if found.field else f"the {found.kind}, which one of them lacks"
    return f"{name} schedules differently from A, first in {what} ({found.place() or 'the run as a whole'})."


def run_html(shown: Shown, name: str, nth: int = 0) -> str:
    """The part of the page that is about one run; hidden until its tab is chosen, but for the first."""
    verdict = shown.run.verdict
    waits = waits_html(verdict, shown.parts)
    return Template(asset("run.html")).substitute(
        hidden=" hidden" if nth else "",
        name=text(name),
        about=text(about(shown)),
        verdict=verdict_html(verdict),
        tiles=tiles_html(shown.summary),
        story=story_html(shown.parts, shown.summary, verdict),
        waits=f"<section><h2>Who waits for whom</h2>{waits}</section>" if waits else "",
        nothing="" if any(lane["start"] for lane in shown.data["lanes"]) else NOTHING,
        metrics=metrics_html(shown.summary),
    )


def about(shown: Shown) -> str:
    """World, size, seed and digest."""
    recording = shown.run.recording
    world = "simulated" if recording.world == "sim" else "run on real processes"
    sizes = [f"{part.name} pp_size {part.recording.pp_size}".strip() for part in shown.parts]
    replicas = f", {recording.tp_replicas} tensor-parallel ranks a stage" if recording.tp_replicas > 1 else ""
    size = ", ".join(sizes) + replicas
    digests = f"seed {recording.seed}, digest {shown.summary['digest']}"
    return f"Scenario {recording.name}, {world}, {size}, {digests}"


def footer(version: str) -> str:
    return text(
        "Times are of the run's own clock. A bubble is time in which a stage has nothing to compute; a slot is one of "
        "the batches that go round the pipeline in turn; an iteration is one visit of a rank to a slot. "
        f"Made by ppsim report; charts by Bokeh {version}. This page needs no network."
    )


def asset(name: str) -> str:
    """A file of assets/, as it is."""
    return files("ppsim.report.page").joinpath("assets", name).read_text(encoding="utf-8")


def digest(script: str) -> str:
    """As a browser computes it for the policy."""
    return b64encode(sha256(script.encode()).digest()).decode()
