"""What happened in a run, in sentences and in the few numbers that are looked at first.

Rule: a number here is that of ``summary.json``, rounded (``report/table.py``); nothing is computed a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ppsim.recording.schema import Verdict
from ppsim.report.lanes import Part, left_out
from ppsim.report.notes import notes
from ppsim.report.page.words import items, text
from ppsim.report.table import percent, seconds
from ppsim.report.waits import first_line

MARKS = {"pass": "✓", "fail": "✕", "unknown": "?"}
PASSED = "the run ended by itself, and every rule that is checked held"


class Tile(NamedTuple):
    """A number to look at first."""

    name: str
    value: str
    says: str


def verdict_html(verdict: Verdict) -> str:
    """The verdict as a badge with a sign and a word, and its first sentence."""
    kind = verdict.kind if verdict.kind in MARKS else "unknown"
    where = f"exit code {verdict.exit_code}" + (f", rule {verdict.invariant}" if verdict.invariant else "")
    badge = f'<span class="badge is-{kind}"><span aria-hidden="true">{MARKS[kind]}</span> {text(verdict.kind)}</span>'
    says = PASSED if kind == "pass" else f"{what_broke(verdict)} ({where})"
    return f'<p class="verdict">{badge} <span>{text(says)}</span></p>'


def what_broke(verdict: Verdict) -> str:
    """What broke, in a line that begins like a sentence."""
    line = first_line(verdict) or "nothing is known of how this run ended"
    return line[:1].upper() + line[1:]


def story_html(parts: Sequence[Part], summary: Mapping[str, Any], verdict: Verdict) -> str:
    """The section "What happened"."""
    found = items(sentences(parts, summary))
    lines = str(verdict.message).strip()
    if verdict.kind != "pass" and "\n" in lines:
        found += f"<details><summary>the verdict in full</summary><pre>{text(lines)}</pre></details>"
    return found


def sentences(parts: Sequence[Part], s: Mapping[str, Any]) -> list[str]:
    """How the requests ended, how busy the stages were, and what else a reader should hear."""
    told = [requests_sentence(s)]
    sides = [("", s)] if "prefill" not in s else [("prefill ", s["prefill"]), ("decode ", s)]
    told += [stages_sentence(name, side) for name, side in sides]
    if s["num_retracted"]:
        times = "once" if s["num_retracted"] == 1 else f"{s['num_retracted']:,} times"
        told.append(f"The KV pool was too small {times}: a running request was retracted and computed again later.")
    told += [sentence[:1].upper() + sentence[1:] for part in parts for sentence in notes(part.recording)]
    told += [f"Warning: {warning}" for part in parts for warning in part.recording.warnings]
    return [sentence if sentence.endswith(".") else f"{sentence}." for sentence in [*told, *left_out(parts)]]


def requests_sentence(s: Mapping[str, Any]) -> str:
    num = s["num_requests"]
    num_open = num - s["num_finished"] - s["num_aborted"] - s["num_refused"]
    ways = [
        (s["num_finished"], "finished"),
        (s["num_aborted"], "aborted"),
        (s["num_refused"], "refused"),
        (num_open, "still open when the run ended"),
    ]
    some = [f"{count:,} {word}" for count, word in ways if count]
    if not num:
        return "No request came."
    came = "1 request came" if num == 1 else f"{num:,} requests came"
    if len(some) > 1:
        return f"{came}, in {seconds(s['makespan_s'])} in all: {', '.join(some)}."
    who, way = "it" if num == 1 else "all of them", some[0].split(" ", 1)[1]
    if way == "finished":
        return f"{came}; {who} finished, in {seconds(s['makespan_s'])} in all."
    return f"{came}; {who} {'was' if num == 1 else 'were'} {way}, after {seconds(s['makespan_s'])}."


def stages_sentence(name: str, s: Mapping[str, Any]) -> str:
    num = len(s["stages"])
    stages = f"The {name}stage" if num == 1 else f"The {num} {name}stages"
    if not any(stage["busy_s"] for stage in s["stages"]):
        return f"{stages} computed nothing."
    busy = percent(1 - s["bubble_ratio"])
    return f"{stages} computed for {busy} of the time between the first and the last forward pass; the rest is bubble."


def tiles(s: Mapping[str, Any]) -> list[Tile]:
    """The numbers at the top, most important first."""
    found = [
        Tile("requests finished", f"{s['num_finished']:,} of {s['num_requests']:,}", ""),
        Tile("time", seconds(s["makespan_s"]), "first arrival to last reply"),
        Tile("bubble", percent(s["bubble_ratio"]), bubble_says(s)),
        two("TTFT", s["ttft_s"], "time to first token"),
        two("TPOT", s["tpot_s"], "time per further token"),
        Tile("input", f"{s['input_tokens_per_s']:,.0f}", "tokens/s"),
        Tile("output", f"{s['output_tokens_per_s']:,.0f}", "tokens/s"),
    ]
    if s["cached_tokens"]:
        found.append(Tile("cache hits", percent(s["cache_hit_rate"]), "of the prompt tokens"))
    return found


def bubble_says(s: Mapping[str, Any]) -> str:
    """Of two pipelines the figure is that of decode: the other one's stands beside it."""
    says = "time in which a stage waits"
    return f"{says}: decode; prefill {percent(s['prefill']['bubble_ratio'])}" if "prefill" in s else says


def two(name: str, values: Mapping[str, float | None], says: str) -> Tile:
    """The median, with the 99th percentile below it."""
    if values["p50"] is None:
        return Tile(f"{name}, median", "–", f"{says}: no request has one")
    return Tile(f"{name}, median", seconds(values["p50"]), f"p99 {seconds(values['p99'])}; {says}")


def tiles_html(s: Mapping[str, Any]) -> str:
    def tile(one: Tile) -> str:
        says = f"<small>{text(one.says)}</small>" if one.says else ""
        return f"<div class=tile><span>{text(one.name)}</span><b>{text(one.value)}</b>{says}</div>"

    return "<div class=tiles>" + "".join(map(tile, tiles(s))) + "</div>"
