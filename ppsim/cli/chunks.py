"""``ppsim chunks``: how each planner cuts a prompt, and how far its plan is from the best."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import GpuOption, JsonOption, KvCacheOption, tell_notes

if TYPE_CHECKING:
    from ppsim.cost.chunk_report import ChunkReport


@guarded
def chunks(
    model: Annotated[str, typer.Option("--model", help="A known model, a config.json, or a folder with one.")],
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens to compute.")] = 131072,
    planner: Annotated[
        str, typer.Option("--planner", help="Whose plan to print: fixed, sglang, equal_time or optimal.")
    ] = "sglang",
    gpu: GpuOption = "h20",
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks of a stage.")] = 8,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages.")] = 4,
    partition: Annotated[str, typer.Option("--partition", help="Layers of each stage, e.g. 15,15,15,16.")] = "",
    chunk: Annotated[int, typer.Option("--chunk", help="chunked_prefill_size: the first and the fixed size.")] = 8192,
    smooth: Annotated[float, typer.Option("--smooth", help="Smooth factor of SGLang's rule; 0 is off.")] = 0.75,
    page_size: Annotated[int, typer.Option("--page-size", help="Tokens of a KV page.")] = 1,
    max_chunk: Annotated[int, typer.Option("--max-chunk", help="Largest chunk of our planners; 0: any.")] = 0,
    min_tail: Annotated[int, typer.Option("--min-tail", help="Merge or spread a shorter last chunk; 0: keep it.")] = 0,
    cached: Annotated[
        int, typer.Option("--cached", help="Tokens of the prompt before them that are cached already.")
    ] = 0,
    host_ms: Annotated[float, typer.Option("--host-ms", help="Milliseconds a chunk costs besides on a stage.")] = 0.0,
    depth: Annotated[int, typer.Option("--depth", help="pp_async_batch_depth: slots beyond the stages.")] = 0,
    efficiency: Annotated[
        float | None, typer.Option("--efficiency", help="Reached share of the peak rate. Default: the GPU's, if known.")
    ] = None,
    tp_gb_per_s: Annotated[
        float | None, typer.Option("--tp-gb-per-s", help="All-reduce bandwidth. Default: the GPU's link or NIC.")
    ] = None,
    measured: Annotated[
        str, typer.Option("--measured", metavar="FILE", help="Fit the cost to measured chunks, CSV or JSON lines.")
    ] = "",
    kv_cache_dtype: KvCacheOption = "auto",
    as_json: JsonOption = False,
) -> int:
    """Cut one prompt into chunks by SGLang's rule and by three others."""
    from ppsim.cost.chunk_report import PLANNERS, ChunkQuestion, chunk_report
    from ppsim.errors import ScenarioError

    if planner not in PLANNERS:
        raise ScenarioError("--planner", f"unknown planner {planner!r}", f"one of {', '.join(PLANNERS)}")
    question = ChunkQuestion(
        model=model,
        num_tokens=tokens,
        gpu=gpu,
        tp_size=tp,
        pp_size=pp,
        partition=partition,
        efficiency=efficiency,
        measured=measured,
        chunk=chunk,
        smooth_factor=smooth,
        page_size=page_size,
        max_chunk=max_chunk,
        min_tail=min_tail,
        cached_tokens=cached,
        host_ms=host_ms,
        depth=depth,
        tp_gb_per_s=tp_gb_per_s,
        kv_cache_dtype=kv_cache_dtype,
    )
    report = chunk_report(question)
    tell_notes(question.shape())
    if question.assumed:
        say(f"ppsim: {question.assumed}")
    print(json.dumps(report.rows(planner), allow_nan=False) if as_json else text_of(report, planner))
    return 0


def text_of(report: ChunkReport, planner: str) -> str:
    """The planners beside each other, then the plan of one."""
    cost = report.cost
    first = f"{cost.first_ms:.4g} [L = 0] + " if cost.first_ms else ""
    lines = [
        f"cost: {cost.source}",
        f"  max({cost.floor_ms:.4g}, {cost.c_ms:.4g} + {first}{cost.gamma_ms:.4g} L + {cost.b_ms:.4g} x + "
        f"{cost.a_ms:.4g} (2 L x + x^2)) ms",
        f"{'planner':<11} {'chunks':>6} {'first':>7} {'last':>7} {'TTFT s':>9} {'over best':>9}  remark",
    ]
    for name, judged in report.judged.items():
        sizes = judged.plan.sizes
        lines.append(
            f"{name:<11} {len(sizes):>6} {sizes[0]:>7} {sizes[-1]:>7} {judged.ttft_ms / 1e3:>9.3f} "
            f"{judged.over_optimum:>9.2%}  {judged.remark}".rstrip()
        )
    lines.append(
        f"plan of {planner}, digest {report.judged[planner].plan.digest}: prefix, size, seconds on the slowest stage"
    )
    lines += [f"  {r['prefix']:>9} {r['size']:>7} {r['predicted_s']:>9.4f}" for r in report.rows(planner)]
    return "\n".join(lines)
