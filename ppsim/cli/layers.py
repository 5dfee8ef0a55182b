"""``ppsim layers``: ways to cut a model into stages; the tokens that each holds, what limits them, the first token."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from ppsim.cli.guard import guarded
from ppsim.cli.options import JsonOption

if TYPE_CHECKING:
    from ppsim.cost.layer_report import LayerQuestion, LayerRow

GB = 1e9


@guarded
def layers(
    model: Annotated[str, typer.Option("--model", help="A known model, a config.json, or a folder with one.")],
    gpu: Annotated[str, typer.Option("--gpu", help="A known GPU.")] = "h20",
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages.")] = 4,
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks of a stage.")] = 8,
    partition: Annotated[str, typer.Option("--partition", help="One more way, by hand, e.g. 16,15,15,15.")] = "",
    prompt: Annotated[int, typer.Option("--prompt", help="Tokens of the prompt that must fit, and is timed.")] = 131072,
    chunk: Annotated[int, typer.Option("--chunk", help="Fixed chunk of that prompt.")] = 4096,
    mem_fraction: Annotated[
        float, typer.Option("--mem-fraction", help="Share of the memory for weights and cache.")
    ] = 0.85,
    efficiency: Annotated[
        float | None, typer.Option("--efficiency", help="Reached share of the peak rate. Default: the GPU's, if known.")
    ] = None,
    tp_gb_per_s: Annotated[
        float | None, typer.Option("--tp-gb-per-s", help="All-reduce bandwidth. Default: the GPU's link or NIC.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Cut the layers into stages evenly, by time, by memory or by hand: KV tokens, limiting stage, TTFT."""
    from ppsim.cost.layer_report import LayerQuestion, layer_report

    q = LayerQuestion(model, gpu, pp, tp, partition, prompt, chunk, mem_fraction, efficiency, tp_gb_per_s)
    rows = layer_report(q)
    print(json.dumps([row.to_dict() for row in rows], allow_nan=False) if as_json else text_of(q, rows))
    return 0


def text_of(q: LayerQuestion, rows: list[LayerRow]) -> str:
    """A line a way, then the stages of each different way, then the variable that sets it."""
    width = max(len(split_text(row)) for row in rows)
    lines = [
        f"{q.model} on {q.pp_size} x {q.tp_size} {q.gpu}: {100 * q.mem_fraction:g} % of the memory for weights and "
        f"cache, a prompt of {q.prompt} tokens in chunks of {q.chunk}",
        f"{'way':<7} {'layers':<{width}} {'KV tokens':>11} {'limited by':>10} {'TTFT s':>8}",
    ]
    for row in rows:
        tokens, stage = f"{row.capacity.num_tokens:,}", f"stage {row.capacity.limiting.stage}"
        lines.append(f"{row.how:<7} {split_text(row):<{width}} {tokens:>11} {stage:>10} {row.ttft_s:>#8.4g}")
    lines += [f"{row.how} does not fit: {row.why_not}" for row in rows if row.why_not]
    for row in {row.layers: row for row in reversed(rows)}.values():
        lines += ["", *stage_lines(row)]
    return "\n".join(lines)


def split_text(row: LayerRow) -> str:
    return ",".join(map(str, row.layers))


def stage_lines(row: LayerRow) -> list[str]:
    lines = [f"SGLANG_PP_LAYER_PARTITION={split_text(row)}"]
    lines.append(f"{'stage':>5} {'layers':>6} {'weights GB':>10} {'left GB':>8} {'KV tokens':>11} {'chunk ms':>9}")
    for s, seconds in zip(row.capacity.stages, row.chunk_s):
        figures = f"{s.weight_bytes / GB:>10.2f} {s.free_bytes / GB:>8.2f} {s.num_tokens:>11,} {1e3 * seconds:>9.1f}"
        lines.append(f"{s.stage:>5} {s.num_layers:>6} {figures}")
    return lines
