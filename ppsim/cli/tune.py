"""``ppsim tune``: which split, chunk, smooth factor, depth and layers; what they give, and the flags to copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import EXIT_INTERRUPTED, Interrupted, guarded, place, say
from ppsim.cli.options import (
    ColumnOption,
    FastOption,
    JsonOption,
    ScenarioArg,
    SetOption,
    SkipOption,
    TraceOption,
    scenario_of,
    tell_unjudged,
)

if TYPE_CHECKING:
    from ppsim.plan.tune import TuningCut
    from ppsim.plan.tuning import Contest, Row, Tuning
    from ppsim.scenario import Scenario

NUM_SHOWN = 10
JSON_FILE, PICTURE, WINNER = "tune.json", "heatmap.png", "best.toml"


def on_gpu(gpu: str | None) -> list[str]:
    """What ``--gpu`` sets: the GPU, its times, and the share of its peak that is known of it."""
    from ppsim.cost.gpu import load_gpu

    if gpu is None:
        return []
    efficiency = load_gpu(gpu).efficiency
    known = [f"cost.efficiency={efficiency}"] if efficiency is not None else []
    return [f"gpu.key={json.dumps(gpu)}", 'cost.source="roofline"', *known]


def of_type(kv_cache_dtype: str | None) -> list[str]:
    return [] if kv_cache_dtype is None else [f"model.kv_cache_dtype={json.dumps(kv_cache_dtype)}"]


@guarded
def tune(
    scenario: ScenarioArg,
    gpus: Annotated[int | None, typer.Option("--gpus", help="Split so many GPUs. Default: the scenario's.")] = None,
    objective: Annotated[
        str | None,
        typer.Option("--objective", metavar="WHAT", help="ttft (default), throughput, or ttft_at_rate."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Requests a second, for ttft_at_rate.")] = None,
    prompt: Annotated[int | None, typer.Option("--prompt", help="Tokens; replaces the workload's lengths.")] = None,
    requests: Annotated[int, typer.Option("--requests", help="Prompts of throughput and ttft_at_rate.")] = 16,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="KEY|FILE", help="Times from first principles on this GPU.")
    ] = None,
    kv_cache_dtype: Annotated[
        str | None, typer.Option("--kv-cache-dtype", metavar="TYPE", help="Of the KV cache.")
    ] = None,
    max_cp: Annotated[int, typer.Option("--max-cp", help="At most so many context-parallel ranks; 0: any.")] = 0,
    trace: TraceOption = None,
    columns: ColumnOption = None,
    skip_bad_lines: SkipOption = False,
    overrides: SetOption = None,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", callback=place, help="Default: runs/tune-NAME-N, N the next free."),
    ] = None,
    fast: FastOption = None,
    as_json: JsonOption = False,
) -> int:
    """Search splits and chunks, re-run the best in the event simulation, print what they are worth."""
    from ppsim.cli.progress import ProgressBar
    from ppsim.errors import UsageError
    from ppsim.plan.tune import TuningCut, Wish
    from ppsim.plan.tune import tune as search
    from ppsim.scenario.expect_judged import without_expect

    if rate is not None and objective not in (None, "ttft_at_rate"):
        raise UsageError(f"--rate: belongs to --objective ttft_at_rate, not to {objective!r}")
    if max_cp < 0:
        raise UsageError(f"--max-cp {max_cp}: expected 0 (any) or more")
    aim = objective or ("ttft" if rate is None else "ttft_at_rate")
    given = [*on_gpu(gpu), *of_type(kv_cache_dtype), *(overrides or [])]
    expecting = scenario_of(scenario, None, trace, given, None, columns, skip_bad_lines)
    loaded = without_expect(expecting)
    with ProgressBar(f"tuning {loaded.name}", "configurations") as progress:
        try:
            found = search(loaded, Wish(aim, gpus, rate, prompt, requests, max_cp, fast), progress)
        except TuningCut as cut:
            return interrupted(loaded, cut, aim, out, as_json)
    tell_unjudged(expecting, "tune")
    folder = save(loaded, found, out)
    print(json.dumps(as_dict(found, folder), allow_nan=False) if as_json else text_of(loaded, found, folder))
    return 0


def interrupted(s: Scenario, cut: TuningCut, aim: str, out: str | None, as_json: bool) -> int:
    """Keep and print what a search had found when it was interrupted: a table, and no recommendation."""
    from ppsim.recording.folder import RUNS, json_text, make, next_free, put_text

    if not cut.rows:
        raise Interrupted("tune: interrupted before any configuration was evaluated")
    folder = Path(out) if out is not None else next_free(RUNS, f"tune-{s.name.replace('/', '-')}")
    make(folder)
    found = {"interrupted": True, "objective": aim, "table": [row.to_dict() for row in cut.rows]}
    put_text(folder / JSON_FILE, json_text(found))
    if as_json:
        print(json.dumps(found, allow_nan=False))
    else:
        print("\n".join([f"best of {len(cut.rows)} configurations so far", HEAD, *map(row_text, cut.rows[:NUM_SHOWN])]))
    say(f"tune: interrupted after {len(cut.rows)} configurations; nothing was simulated, and nothing is recommended")
    say(f"saved {folder / JSON_FILE}; a search begins anew")
    return EXIT_INTERRUPTED


def save(s: Scenario, found: Tuning, out: str | None) -> Path:
    """The whole answer, the pictures, and the winner as a scenario."""
    import tomli_w

    from ppsim.plan.tune import tuned_scenario
    from ppsim.recording.folder import RUNS, json_text, make, next_free, put_text, without_none
    from ppsim.report.heatmap import plot_heat_maps

    folder = Path(out) if out is not None else next_free(RUNS, f"tune-{s.name.replace('/', '-')}")
    make(folder)
    winner = found.best.candidate
    assert winner is not None
    put_text(folder / JSON_FILE, json_text(as_dict(found, folder)))
    config = tuned_scenario(s, winner).model_dump(mode="json", exclude_unset=True)
    put_text(folder / WINNER, tomli_w.dumps(without_none(config)))
    plot_heat_maps(found.maps, f"{s.name}: {found.probe.describe()}", folder / PICTURE)
    return folder


# --- JSON --------------------------------------------------------------------------------------------------------


def as_dict(found: Tuning, folder: Path) -> dict[str, Any]:
    """``best``, ``sglang``, ``table`` and ``configs_per_s`` are an interface; the rest explains them."""
    from dataclasses import asdict

    return {
        "best": {**found.best.to_dict(), "simulated": asdict(found.judged[0].simulated)},
        "sglang": None if found.assumed else found.judged[0].launch_line,
        "assumed": found.assumed or None,
        "changes": found.judged[0].changes,
        "table": [row.to_dict() for row in found.table],
        "configs_per_s": found.configs_per_s,
        "objective": found.probe.objective,
        "probe": asdict(found.probe),
        "num_gpus": found.num_gpus,
        "given": found.given.to_dict(),
        "judged": [
            {
                "name": j.name,
                **j.row.to_dict(),
                "simulated": asdict(j.simulated),
                "sglang": None if found.assumed else j.launch_line,
            }
            for j in found.judged
        ],
        "path": [
            {"step": s.name, "config": s.candidate.config(), **asdict(s.figures), "tried": s.num_tried, "gain": s.gain}
            for s in found.path
        ],
        "sensitivity": [
            {
                "knob": c.knob,
                "config": None if c.candidate is None else c.candidate.config(),
                "cost": c.cost,
                "why_not": c.why_not or None,
            }
            for c in found.changes
        ],
        "dynamic_against_fixed": [asdict(contest) for contest in found.contests],
        "notes": found.notes,
        "files": [str(folder / name) for name in (JSON_FILE, PICTURE, WINNER)],
    }


# --- text --------------------------------------------------------------------------------------------------------


def text_of(s: Scenario, found: Tuning, folder: Path) -> str:
    """Everything for people, the answer last but for the files."""
    parts = [
        [f"{s.name}: {found.num_gpus} GPUs, objective {found.probe.objective}: {found.probe.describe()}"]
        + ([f"assumed: {found.assumed}"] if found.assumed else []),
        path_text(found),
        table_text(found),
        splits_text(found),
        changes_text(found),
        contests_text(found),
        simulated_text(found),
        ["what this rests on", *(f"  {note}" for note in found.notes)],
        launch_text(found),
        [f"{found.num_evaluated} configurations, {found.configs_per_s:,.0f} a second on one core"]
        + [str(folder / name) for name in (PICTURE, WINNER, JSON_FILE)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


HEAD = f"{'split':<20} {'depth':>5} {'chunks':<20} {'layers':<24} {'TTFT s':>9} {'tokens/s':>10} {'bubble':>7}"


def row_text(row: Row) -> str:
    """A line of a table, below HEAD."""
    c, f = row.candidate, row.figures
    if c is None or f is None:
        return f"{row.split!s:<20} cannot run: {row.why_not}"
    chunk = f"dynamic {c.chunked_prefill_size} x {c.smooth_factor:g}" if c.is_dynamic else f"{c.chunked_prefill_size}"
    figures = f"{f.ttft_s:>#9.4g} {f.input_tokens_per_s:>10,.0f} {100 * f.bubble_ratio:>5.1f} %"
    return f"{row.split!s:<20} {c.pp_async_batch_depth:>5} {chunk:<20} {layers_text(c.layer_partition):<24} {figures}"


def layers_text(partition: tuple[int, ...]) -> str:
    """15,15,15,16; runs of equal sizes of long pipelines shortened: 11x2,12x6."""
    full = ",".join(map(str, partition))
    if len(full) <= 24:
        return full
    runs: list[list[int]] = []
    for n in partition:
        if runs and runs[-1][0] == n:
            runs[-1][1] += 1
        else:
            runs.append([n, 1])
    return ",".join(f"{n}x{times}" if times > 1 else f"{n}" for n, times in runs)


def path_text(found: Tuning) -> list[str]:
    """The recommended path, a line a step."""
    if not found.path:
        return []
    from ppsim.plan.tuning import Row

    named = [("as given", found.given, "")]
    for step in found.path:
        gain = "" if step is found.path[0] else f"  {100 * step.gain:+.1f} %"
        name = f"{step.name} ({step.num_tried} tried)"
        named.append((name, Row(step.candidate.split, step.candidate, step.figures), gain))
    width = max(len(name) for name, _, _ in named)
    lines = [f"tuning path on {found.path[0].candidate.split}, one knob at a time", f"{'':<{width}} {HEAD}  gain"]
    return lines + [f"{name:<{width}} {row_text(row)}{gain}" for name, row, gain in named]


def table_text(found: Tuning) -> list[str]:
    """The best rows; what has the very figures of a simpler one, or needs more depth for next to them, is left out."""
    from ppsim.plan.tuning import shallowest

    num = sum(row.figures is not None for row in found.table)
    rows = [row for row in shallowest(found.probe.objective, found.table) if row is found.best or found.is_other(row)]
    shown = list({row.figures: row for row in reversed(rows)}.values())[::-1]
    shown.sort(key=rows.index)
    return [f"best of {num} configurations", HEAD, *map(row_text, shown[:NUM_SHOWN])]


def splits_text(found: Tuning) -> list[str]:
    """Each split once."""
    seen, lines = set(), []
    for row in found.table:
        if row.split not in seen:
            seen.add(row.split)
            lines.append(row_text(row))
    return ["each split at its best", HEAD, *lines]


def changes_text(found: Tuning) -> list[str]:
    lines = ["one step of each knob away from the best"]
    for change in found.changes:
        cost = f"{100 * change.cost:+.1f} %" if change.cost is not None else f"cannot run: {change.why_not}"
        lines.append(f"  {change.knob:<36} {cost}")
    return lines


def contests_text(found: Tuning) -> list[str]:
    if not found.contests:
        return []
    lines = [
        f"dynamic chunks against the best fixed size, on {found.best.split}",
        f"{'prompt':>9} {'at once':>7} {'fixed':>7}  {'tuned':<16} {'gain':>8}  {'3 x fixed, 0.75':<16} {'gain':>8}",
    ]
    for c in found.contests:
        tuned = f"{c.dynamic_chunk} x {c.smooth_factor:g}"
        lines.append(
            f"{c.prompt:>9} {c.concurrency:>7} {c.fixed_chunk:>7}  {tuned:<16} {100 * c.gain:>+6.1f} %"
            f"  {f'{c.rule_chunk} x 0.75':<16} {100 * c.rule_gain:>+6.1f} %"
        )
    tuned_loses = [c for c in found.contests if c.gain < 0]
    rule_loses = [c for c in found.contests if c.rule_gain < 0]
    lines.append(f"tuned, dynamic chunking loses {where(tuned_loses)}; untuned it loses {where(rule_loses)}")
    return lines


def where(contests: list[Contest]) -> str:
    if not contests:
        return "nowhere here"
    shown = ", ".join(f"{c.prompt}" + (f" ({c.concurrency} at once)" if c.concurrency > 1 else "") for c in contests)
    return f"at {shown}"


def simulated_text(found: Tuning) -> list[str]:
    """What the event simulation says of the best rows."""
    from ppsim.plan.tuning import Row

    lines = ["in the event simulation, with the real scheduler", f"{'':<15} {HEAD}  fast path"]
    for judged in found.judged:
        fast, row = judged.row.figures, judged.row
        assert fast is not None
        off = fast.ttft_s / judged.simulated.ttft_s - 1.0
        line = row_text(Row(row.split, row.candidate, judged.simulated))
        lines.append(f"{judged.name:<15} {line}   {100 * off:+.2f} %")
    return lines


def launch_text(found: Tuning) -> list[str]:
    """The command of the winner; beside it that of the best one that rests on no estimate."""
    if found.assumed:
        return [f"no line is recommended: {found.assumed}"]
    first = found.judged[0]
    lines = [first.launch_line, *(f"  {change}" for change in first.changes)]
    if found.best.split.cp_size > 1:
        plain = next((j for j in found.judged if j.row.split.cp_size == 1), None)
        if plain is not None:
            lines += ["", f"without context parallelism, {plain.row.split}:", plain.launch_line]
    return lines
