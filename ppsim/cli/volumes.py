"""``ppsim volumes``: what crosses the links in one forward pass, for the three ways to cut a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from ppsim.cli.guard import guarded
from ppsim.cli.options import JsonOption, tell_notes

UNITS = (("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1.0))


def unit_of(sizes: list[float]) -> tuple[str, float]:
    """One unit for a table, so large that the smallest size that is not 0 still shows figures."""
    least = min((size for size in sizes if size > 0), default=0.0)
    return next((row for row in UNITS if least >= 0.1 * row[1]), UNITS[-1])


@guarded
def volumes(
    model: Annotated[str, typer.Option("--model", help="A known model, a config.json, or a folder with one.")],
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of a sequence.")] = 131072,
    batch: Annotated[int, typer.Option("--batch", help="Sequences.")] = 1,
    tp: Annotated[int, typer.Option("--tp", help="Tensor-parallel ranks.")] = 8,
    cp: Annotated[int, typer.Option("--cp", help="Context-parallel ranks.")] = 8,
    pp: Annotated[int, typer.Option("--pp", help="Pipeline stages.")] = 4,
    element_bytes: Annotated[
        float,
        typer.Option(
            "--bytes",
            help="Bytes of an element on the wire, activations (TP, PP) and keys and values (CP): 1 is FP8, 2 is BF16.",
        ),
    ] = 1.0,
    as_json: JsonOption = False,
) -> int:
    """Bytes per forward pass for TP, CP and PP, and the ratio 4 L / (P-1)."""
    from ppsim.cost.collectives import volumes as compute
    from ppsim.cost.config_json import load_model

    shape = load_model(model)
    tell_notes(shape)
    found = compute(shape, tokens, batch=batch, tp_size=tp, cp_size=cp, pp_size=pp, element_bytes=element_bytes)
    if as_json:
        finite = found.pp_bytes > 0
        ratios = {
            "tp_over_pp": found.tp_over_pp if finite else None,
            "cp_over_pp": found.cp_over_pp if finite else None,
        }
        print(json.dumps({**asdict(found), **ratios}, allow_nan=False))
        return 0
    print(f"{found.model}: {found.num_layers} layers, {batch} x {tokens} tokens, {element_bytes:g} bytes an element")
    sizes = [size for _, _, saturated, exact in found.rows() for size in (saturated, exact)]
    unit, scale = unit_of(sizes)
    print(f"{'cut':<4} {'ranks':>5} {'formula':<14} {f'saturated {unit}':>13} {f'exact {unit}':>10}")
    for (way, formula, saturated, exact), ranks in zip(found.rows(), (tp, cp, pp)):
        print(f"{way:<4} {ranks:>5} {formula:<14} {saturated / scale:>13.2f} {exact / scale:>10.2f}")
    print(f"TP over PP: 4 L / (P-1) = {found.tp_over_pp:.1f}; CP over PP: {found.cp_over_pp:.1f}")
    return 0
