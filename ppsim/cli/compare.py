"""``ppsim compare``: pipeline, tensor and context parallelism with the same GPUs, and the link at which they swap."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.compare_decode import NAMES, decode_dict, decode_text, link_title, nodes_dict
from ppsim.cli.guard import EXIT_INTERRUPTED, guarded, place, say
from ppsim.cli.options import FastOption, GpuOption, JsonOption, KvCacheOption, tell_notes

if TYPE_CHECKING:
    from ppsim.plan.compare import Comparison, Standing
    from ppsim.plan.compare_question import Decode
    from ppsim.report.crossover import Picture


@guarded
def compare(
    model: Annotated[str, typer.Option("--model", help="A known model, a config.json, or a folder with one.")],
    gpu: GpuOption,
    gpus: Annotated[int, typer.Option("--gpus", help="GPUs of each way.")],
    prompt: Annotated[int, typer.Option("--prompt", help="Tokens of a prompt.")] = 131072,
    tp: Annotated[
        int | None, typer.Option("--tp", help="GPUs of a group. Default: a node of 8, or 1 inside a node.")
    ] = None,
    link: Annotated[
        list[float] | None,
        typer.Option("--link-gb-per-s", help="One link between the groups, one direction. Repeatable."),
    ] = None,
    nics: Annotated[
        int | None,
        typer.Option(
            "--nics-per-node", help="NICs of a node, used together. Default: one a GPU, if the table knows it."
        ),
    ] = None,
    nic: Annotated[
        list[float] | None,
        typer.Option("--nic-gb-per-s", help="Bandwidth of one NIC, GB/s in one direction. Repeatable."),
    ] = None,
    node: Annotated[int, typer.Option("--gpus-per-node", help="GPUs of a node, joined by the GPUs' own link.")] = 8,
    layer_us: Annotated[
        float | None,
        typer.Option("--layer-overhead-us", help="Of a layer in every forward pass: kernel starts. Published: 35."),
    ] = None,
    reduce_us: Annotated[
        float | None, typer.Option("--all-reduce-us", help="To start an all-reduce, microseconds. Published: 6.8.")
    ] = None,
    link_us: Annotated[
        float | None,
        typer.Option("--link-latency-us", help="Of a step of an all-reduce inside a node. Published: 0.6."),
    ] = None,
    nic_us: Annotated[
        float | None, typer.Option("--nic-latency-us", help="Of a step between nodes. Published: 5.0.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", help="Compare decode, too: so many requests generate at once.")
    ] = None,
    output_tokens: Annotated[
        int | None, typer.Option("--output-tokens", help="Tokens that each of them generates. Default: 128.")
    ] = None,
    serve: Annotated[
        int | None,
        typer.Option(
            "--serve", help="Simulate a benchmark of so many requests at that concurrency, prefill and decode."
        ),
    ] = None,
    efficiency: Annotated[float | None, typer.Option("--efficiency", help="Reached share of the peak.")] = None,
    chunk: Annotated[
        int | None, typer.Option("--chunk", help="Fixed chunk of every way. Default: each its best.")
    ] = None,
    requests: Annotated[int, typer.Option("--requests", help="Prompts in a row, for the throughput.")] = 16,
    speedup: Annotated[
        float | None, typer.Option("--speedup", help="Print the link at which TP has this speed-up over the base.")
    ] = None,
    kv_cache_dtype: KvCacheOption = "auto",
    fast: FastOption = None,
    as_json: JsonOption = False,
    output: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE.png", callback=place, help="Draw the picture here.")
    ] = None,
) -> int:
    """PP against TP against CP at equal GPUs: TTFT, throughput, efficiency, crossover bandwidths; decode, too."""
    from ppsim.cli.progress import ProgressBar
    from ppsim.errors import UsageError
    from ppsim.plan.compare import Question
    from ppsim.plan.compare import compare as run
    from ppsim.plan.compare_links import Overheads

    if output is not None:
        from ppsim.report.canvas import checked_path

        checked_path(Path(output))  # before anything is computed
    if fast is not None and not serve:
        raise UsageError(f"{'--fast' if fast else '--no-fast'}: nothing is simulated without --serve")
    asked = Question(
        model=model,
        gpu=gpu,
        num_gpus=gpus,
        prompt=prompt,
        tp_size=tp,
        link_gb_per_s=tuple(link or ()),
        efficiency=efficiency,
        chunk=chunk,
        num_requests=requests,
        speedup=speedup,
        nic_gb_per_s=tuple(nic or ()),
        nics_per_node=nics,
        gpus_per_node=node,
        overheads=Overheads(layer_us, reduce_us, link_us, nic_us),
        decode=decode_of(concurrency, output_tokens, serve),
        kv_cache_dtype=kv_cache_dtype,
    )
    with ProgressBar(f"comparing on {gpus} x {gpu}", "ways of decode" if serve else "") as progress:
        found = run(asked, progress, fast)
    tell_notes(asked.shape())
    if output is not None:
        from ppsim.report.crossover import plot_crossovers

        title = f"{model} on {gpus} x {gpu}: the same GPUs, three ways; prompts of {prompt} tokens"
        plot_crossovers(pictures(found), title, Path(output))
    print(json.dumps(as_dict(found, output), allow_nan=False) if as_json else text_of(found, output))
    if found.is_cut:
        say("interrupted: what is not simulated any more is named above; a comparison begins anew")
        return EXIT_INTERRUPTED
    return 0


def decode_of(concurrency: int | None, output_tokens: int | None, serve: int | None) -> Decode | None:
    """What is asked of decode. Raises UsageError for a flag that means nothing without a concurrency."""
    from ppsim.errors import UsageError
    from ppsim.plan.compare_question import Decode

    if concurrency is None:
        for flag, value in (("--output-tokens", output_tokens), ("--serve", serve)):
            if value is not None:
                raise UsageError(f"{flag} {value}: nothing decodes without --concurrency")
        return None
    if serve == 0:
        raise UsageError("--serve 0: expected 1 or more requests")
    return Decode(concurrency, 128 if output_tokens is None else output_tokens, serve or 0)


# --- JSON --------------------------------------------------------------------------------------------------------


def as_dict(found: Comparison, output: str | None) -> dict[str, Any]:
    """Standings at the bandwidths that were asked for, and the crossovers."""
    return {
        "model": found.question.model,
        "gpu": found.question.gpu,
        "num_gpus": found.question.num_gpus,
        "prompt": found.question.prompt,
        "base": standing_dict(found, found.base),
        "ways": [standing_dict(found, s) for s in found.standings],
        "cannot_run": found.cannot_run,
        "crossovers": [
            {"way": c.way, "rival": c.rival, "by": c.by, "link_gb_per_s": c.gb_per_s, "ahead": c.ahead or None}
            for c in found.crossovers
        ],
        "speedup": None
        if found.question.speedup is None
        else {"tp_over_base": found.question.speedup, "link_gb_per_s": found.speedup_gb_per_s},
        "notes": found.notes,
        "file": output,
        **nodes_dict(found),
        **decode_dict(found),
    }


def standing_dict(found: Comparison, s: Standing) -> dict[str, Any]:
    return {
        "way": s.way,
        "config": {"pp_size": s.split.pp_size, "tp_size": s.split.tp_size, "cp_size": s.split.cp_size},
        "link_gb_per_s": s.link_gb_per_s,
        "ttft_s": s.ttft_s,
        "input_tokens_per_s": s.input_tokens_per_s,
        "gpu_multiple": s.gpu_multiple,
        "speedup": s.speedup,
        "efficiency": s.efficiency,
        "ttft_speedup": s.ttft_speedup,
        "ttft_efficiency": s.ttft_efficiency,
        "chunk": s.chunk,
        "ttft_chunk": s.ttft_chunk,
        "fits": s.way not in found.does_not_fit,
        "why_not": found.does_not_fit.get(s.way),
    }


# --- text and picture --------------------------------------------------------------------------------------------


def text_of(found: Comparison, output: str | None) -> str:
    """Standings, crossovers, and what they rest on."""
    q = found.question
    lines = [
        f"{q.model} on {q.num_gpus} x {q.gpu}, prompts of {q.prompt} tokens; throughput of {q.num_requests} in a row",
        "",
        f"{link_title(found):>9} {'way':<22} {'TTFT s':>8} {'speed-up':>8} {'effic.':>7} {'tokens/s':>10} "
        f"{'speed-up':>8} {'effic.':>7}  chunks",
        row_text("", f"base: {found.base.split}", found.base),
    ]
    previous = None
    for s in found.standings:
        gb_per_s = f"{s.link_gb_per_s:g}" if s.link_gb_per_s != previous else ""
        previous = s.link_gb_per_s
        lines.append(row_text(gb_per_s, f"{NAMES[s.way]}: {s.split}", s))
    lines += [
        "",
        *crossover_text(found),
        *decode_text(found),
        "",
        *fit_text(found),
        *(f"note: {note}" for note in found.notes),
    ]
    if output is not None:
        lines += ["", output]
    return "\n".join(lines)


def row_text(gb_per_s: str, name: str, s: Standing) -> str:
    chunks = s.chunk if s.chunk == s.ttft_chunk else f"{s.ttft_chunk} | {s.chunk}"
    return (
        f"{gb_per_s:>9} {name:<22} {s.ttft_s:>#8.4g} {s.ttft_speedup:>7.2f}x {100 * s.ttft_efficiency:>5.1f} %"
        f" {s.input_tokens_per_s:>10,.0f} {s.speedup:>7.2f}x {100 * s.efficiency:>5.1f} %  {chunks}"
    )


def crossover_text(found: Comparison) -> list[str]:
    lines = []
    for c in found.crossovers:
        way, rival = NAMES[c.way], NAMES[c.rival]
        by = "TTFT" if c.by == "ttft" else c.by
        if c.gb_per_s is not None:
            lines.append(f"{way} overtakes {rival} in {by} at {c.gb_per_s:.4g} GB/s")
        else:
            lines.append(f"{NAMES[c.ahead]} is ahead of {way if c.ahead == c.rival else rival} in {by} at any link")
    if found.question.speedup is not None:
        wanted, at = found.question.speedup, found.speedup_gb_per_s
        told = "at no link" if at is None else f"at {at:.4g} GB/s"
        lines.append(f"TP is {wanted:g}x the base in throughput {told}: what a measured {wanted:g}x says of the link")
    lines += [f"{NAMES[way]} cannot run: {reason}" for way, reason in found.cannot_run.items()]
    return lines


def fit_text(found: Comparison) -> list[str]:
    names = {"base": "the base", **NAMES}
    return [f"{names[way]} does not fit: {reason}" for way, reason in found.does_not_fit.items()]


def pictures(found: Comparison) -> list[Picture]:
    """Throughput on the left, TTFT on the right."""
    return [panel(found, "throughput"), panel(found, "ttft")]


def panel(found: Comparison, by: str) -> Picture:
    from ppsim.report.crossover import Curve, Mark, Picture

    def height(s: Standing) -> float:
        return s.ttft_speedup if by == "ttft" else s.speedup

    curves = []
    for way in dict.fromkeys(s.way for s in found.curves):
        mine = [s for s in found.curves if s.way == way]
        links = tuple(s.link_gb_per_s or 0.0 for s in mine)
        label = f"{NAMES[way]}: {mine[0].split}"
        curves.append(Curve(way, label, links, tuple(map(height, mine)), way not in found.does_not_fit))
    marks = []
    for c in found.crossovers:
        if c.by == by and c.gb_per_s is not None:
            curve = next(curve for curve in curves if curve.way == c.way)
            marks.append(Mark(f"{NAMES[c.way]} = {NAMES[c.rival]}", c.gb_per_s, between(curve, c.gb_per_s)))
    title = "time to the first token of one prompt" if by == "ttft" else "throughput of prompts in a row"
    base = f"one group of GPUs ({found.base.split})"
    given = found.question.link_gb_per_s
    fits = "base" not in found.does_not_fit
    return Picture(title, tuple(curves), tuple(marks), found.gpu_multiple, given, base, fits)


def between(curve: Any, gb_per_s: float) -> float:
    """Height of a curve at a bandwidth, straight between its points on the logarithmic axis."""
    from itertools import pairwise
    from math import log

    points = list(zip(curve.gb_per_s, curve.speedups))
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= gb_per_s <= x1:
            return float(y0 + (y1 - y0) * log(gb_per_s / x0) / log(x1 / x0))
    return float(points[0][1] if gb_per_s < points[0][0] else points[-1][1])
