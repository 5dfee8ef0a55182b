"""Metrics of a run as tables, and of several runs side by side.

Rule: as in ``report/table.py``, every number is that of the summary, rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ppsim.report.page.words import text
from ppsim.report.table import LATENCIES, PERCENTILES, SHARES, percent, seconds

Summary = Mapping[str, Any]


def metrics_html(s: Summary) -> str:
    """Latencies, stages and, of two pipelines, where the time to the first token goes."""
    rows = [latency(name.upper().replace("READ", "from reading"), s[key], says) for name, key, says in LATENCIES]
    found = table(["latency", *PERCENTILES, "what it is"], rows, "latencies")
    if "ttft_shares_s" in s:
        rows = [latency(name, s["ttft_shares_s"][name], says) for name, says in SHARES]
        found += table(["part of TTFT", *PERCENTILES, "what it is"], rows, "shares")
    sides = [("", s)] if "prefill" not in s else [("prefill ", s["prefill"]), ("decode ", s)]
    rows = [stage(name, one) for name, side in sides for one in side["stages"]]
    return found + table(["stage", "busy", "idle", "bubble"], rows, "stages")


def latency(name: str, values: Mapping[str, float | None], says: str) -> list[str]:
    return [name, *(seconds(values[p]) for p in PERCENTILES), says]


def stage(side: str, one: Mapping[str, Any]) -> list[str]:
    return [f"{side}{one['pp_rank']}", seconds(one["busy_s"]), seconds(one["idle_s"]), percent(one["bubble_ratio"])]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """Plain words in cells; the first cell of a row names it."""
    head = "".join(f"<th scope=col>{text(words)}</th>" for words in heads)
    body = "".join(
        f"<tr><th scope=row>{text(row[0])}</th>" + "".join(f"<td>{text(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table class="numbers {name}">{parts}</table></div>'


# --- several runs ----------------------------------------------------------------------------------------------


class Metric(NamedTuple):
    """A row of the comparison. ``better``: -1 where less is better, 1 where more is, 0 where neither is."""

    name: str
    value: Callable[[Summary], float | None]
    shown: Callable[[Any], str]
    better: int


def of(key: str, p: str) -> Callable[[Summary], float | None]:
    return lambda s: s[key][p]


BUBBLE = Metric("bubble", lambda s: None if "prefill" in s else s["bubble_ratio"], percent, -1)
# Of two pipelines ``bubble_ratio`` is that of decode, and the prefill side has a summary of its own.
BUBBLES = (
    Metric("bubble of prefill", lambda s: s["prefill"]["bubble_ratio"] if "prefill" in s else None, percent, -1),
    Metric("bubble of decode", lambda s: s["bubble_ratio"] if "prefill" in s else None, percent, -1),
)
METRICS = (
    Metric("requests finished", lambda s: s["num_finished"], lambda n: f"{n:,}", 0),
    Metric("time", lambda s: s["makespan_s"], seconds, -1),
    BUBBLE,
    *(Metric(f"TTFT {p}", of("ttft_s", p), seconds, -1) for p in PERCENTILES),
    *(Metric(f"TPOT {p}", of("tpot_s", p), seconds, -1) for p in ("mean", "p99")),
    *(Metric(f"E2E {p}", of("e2e_s", p), seconds, -1) for p in ("mean", "p99")),
    Metric("input tokens/s", lambda s: s["input_tokens_per_s"], lambda n: f"{n:,.1f}", 1),
    Metric("output tokens/s", lambda s: s["output_tokens_per_s"], lambda n: f"{n:,.1f}", 1),
    Metric("retractions", lambda s: s["num_retracted"], lambda n: f"{n:,}", -1),
    Metric("cache hit rate", lambda s: s["cache_hit_rate"], percent, 1),
)


def comparison_html(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """A column for each run; from the second on with its distance from the first, if both passed.

    A run that failed ended early: less time is no merit of it.
    """
    head = "".join(f"<th scope=col>{text(name)}</th>" for name in names)
    verdicts = "".join(f"<td>{text(s['verdict'])}</td>" for s in summaries)
    rows = "".join(row(metric, summaries) for metric in metrics_of(summaries))
    return (
        f'<div class="wide"><table class="numbers compared"><thead><tr><th scope=col></th>{head}</tr></thead><tbody>'
        f"<tr><th scope=row>verdict</th>{verdicts}</tr>{rows}</tbody></table></div>"
    )


def metrics_of(summaries: Sequence[Summary]) -> Iterator[Metric]:
    """The rows. Two pipelines have a bubble each, one has one, and they are not compared with each other."""
    for metric in METRICS:
        if metric is not BUBBLE:
            yield metric
            continue
        if any("prefill" in s for s in summaries):
            yield from BUBBLES
        if not all("prefill" in s for s in summaries):
            yield BUBBLE


def row(metric: Metric, summaries: Sequence[Summary]) -> str:
    first = metric.value(summaries[0])
    cells = [f"<td>{shown(metric, first)}</td>"]
    for s in summaries[1:]:
        value = metric.value(s)
        have_passed = s["verdict"] == summaries[0]["verdict"] == "pass"
        says, kind = distance(first, value, metric.better) if have_passed else ("", "same")
        cells.append(f"<td>{shown(metric, value)} <small class={kind}>{text(says)}</small></td>")
    return f"<tr><th scope=row>{text(metric.name)}</th>{''.join(cells)}</tr>"


def shown(metric: Metric, value: float | None) -> str:
    return text("-" if value is None else metric.shown(value))


def distance(first: float | None, value: float | None, better: int) -> tuple[str, str]:
    """In words, and the class that colours them: "12.3 % better"."""
    if first is None or value is None:
        return "", "same"
    if value == first:
        return "same", "same"
    kind = "same" if not better else ("better" if (value > first) == (better > 0) else "worse")
    word = kind if better else ("more" if value > first else "less")
    return (f"{100 * abs(value - first) / abs(first):.1f} % {word}" if first else word), kind
