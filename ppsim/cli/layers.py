"""``ppsim layers``: ways to cut a model into stages; the tokens that each holds, what limits them, the first token."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ppsim.cli.guard import guarded
from ppsim.cli.options import GpuOption, JsonOption, KvCacheOption, tell_notes

if TYPE_CHECKING:
    from ppsim.cost.layer_report import KindRow, LayerQuestion, LayerRow
    from ppsim.cost.model import ModelShape

GB = 1e9


@guarded
def layers(
    model: Annotated[str, typer.Option("--model", help="A known model, a config.json, or a folder with one.")],
    gpu: GpuOption = "h20",
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
    kv_cache_dtype: KvCacheOption = "auto",
    as_json: JsonOption = False,
) -> int:
    """Cut the layers into stages evenly, by time, by memory or by hand: KV tokens, limiting stage, TTFT."""
    from ppsim.cost.layer_report import LayerQuestion, layer_kinds, layer_report

    q = LayerQuestion(
        model, gpu, pp, tp, partition, prompt, chunk, mem_fraction, efficiency, tp_gb_per_s, kv_cache_dtype
    )
    rows, kinds = layer_report(q), layer_kinds(q)
    tell_notes(q.shape())
    if as_json:
        model_of = {"model": model_json(q.shape(), kinds)}
        print(json.dumps([row.to_dict() | model_of for row in rows], allow_nan=False))
    else:
        print("\n".join([*kind_lines(q.shape(), kinds), "", text_of(q, rows)]))
    return 0


def model_json(shape: ModelShape, kinds: list[KindRow]) -> dict[str, object]:
    """The model as a whole and by kind of layer."""
    return {
        "params": shape.total_params(),
        "active_params": shape.active_params(),
        "kv_bytes_per_token": shape.kv_bytes_per_token,
        "state_bytes": shape.state_bytes,
        "kinds": [asdict(row) for row in kinds],
    }


def kind_lines(shape: ModelShape, kinds: list[KindRow]) -> list[str]:
    """What one layer of each kind is, and the whole."""
    width = max(len(row.kind) for row in kinds)
    lines = [
        f"{shape.total_params() / 1e9:.1f} B parameters, {shape.active_params() / 1e9:.1f} B active in the layers; "
        f"{shape.kv_bytes_per_token:,.0f} bytes of KV a token"
        + (f", {shape.state_bytes:,.0f} bytes of state a request" if shape.state_bytes else ""),
        f"{'mixer | feed-forward':<{width}} {'layers':>6} {'params M':>9} {'active M':>9} {'KV B/token':>10} "
        f"{'state B':>10} {'chunk ms':>9} {'decode ms':>9}",
    ]
    for row in kinds:
        lines.append(
            f"{row.kind:<{width}} {row.num_layers:>6} {row.params / 1e6:>9.1f} {row.active_params / 1e6:>9.1f} "
            f"{row.kv_bytes_per_token:>10,.0f} {row.state_bytes:>10,.0f} {row.prefill_ms:>9.3f} {row.decode_ms:>9.4f}"
        )
    lines.append("decode ms is a lower bound: no kernel costs anything to start (ppsim compare --concurrency has that)")
    return lines


def text_of(q: LayerQuestion, rows: list[LayerRow]) -> str:
    """A line a way, then the stages of each different way, then the variable that sets it."""
    width = max(len(split_text(row)) for row in rows)
    lines = [
        f"{q.model} on {q.pp_size} x {q.tp_size} {q.gpu}: {100 * q.mem_fraction:g} % of the memory for weights and "
        f"cache, a prompt of {q.prompt} tokens in chunks of {q.chunk}",
        f"{'way':<7} {'layers':<{width}} {'KV tokens':>11} {'limited by':>10} {'TTFT s':>8}",
    ]
    for row in rows:
        tokens, stage = tokens_text(row.capacity.num_tokens), f"stage {row.capacity.limiting.stage}"
        lines.append(f"{row.how:<7} {split_text(row):<{width}} {tokens:>11} {stage:>10} {row.ttft_s:>#8.4g}")
    lines += [f"{row.how} does not fit: {row.why_not}" for row in rows if row.why_not]
    for row in {row.layers: row for row in reversed(rows)}.values():
        lines += ["", *stage_lines(row)]
    return "\n".join(lines)


def tokens_text(num_tokens: int) -> str:
    """A stage without a cache has no limit."""
    from ppsim.cost.memory import NO_LIMIT

    return f"{num_tokens:,}" if num_tokens < NO_LIMIT else "no limit"


def split_text(row: LayerRow) -> str:
    return ",".join(map(str, row.layers))


def stage_lines(row: LayerRow) -> list[str]:
    lines = [f"SGLANG_PP_LAYER_PARTITION={split_text(row)}"]
    has_states = any(s.num_slots is not None for s in row.capacity.stages)
    states = f" {'states':>7}" if has_states else ""
    lines.append(
        f"{'stage':>5} {'layers':>6} {'weights GB':>10} {'left GB':>8} {'KV tokens':>11} {'chunk ms':>9}{states}"
    )
    for s, seconds in zip(row.capacity.stages, row.chunk_s):
        figures = f"{s.weight_bytes / GB:>10.2f} {s.free_bytes / GB:>8.2f} {tokens_text(s.num_tokens):>11} "
        slots = f" {'-' if s.num_slots is None else s.num_slots:>7}" if has_states else ""
        lines.append(f"{s.stage:>5} {s.num_layers:>6} {figures}{1e3 * seconds:>9.1f}{slots}")
    return lines
