"""``ppsim fit``: coefficients of the cost model from measurements, with residuals; a bad fit is refused, with why."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption
from ppsim.errors import EXIT_PASS, EXIT_USAGE

if TYPE_CHECKING:
    from ppsim.cli.measured import Measured
    from ppsim.cost.fit import Fit

FileArg = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="CSV or JSON lines of chunks, a server log, a recorded run, or - for standard input."
    ),
]
TermsOption = Annotated[
    str | None,
    typer.Option("--terms", help="Terms to fit, of c, gamma, b, a. Default: all that the samples can tell apart."),
]
FloorOption = Annotated[bool, typer.Option("--floor", help="Search for a floor: the time of the smallest chunks.")]


@guarded
def fit(file: FileArg, terms: TermsOption = None, floor: FloorOption = False, as_json: JsonOption = False) -> int:
    """Fit max(floor, c + gamma L + b x + a (2 L x + x^2)) to measured prefill chunks."""
    from ppsim.cli.measured import read_measured
    from ppsim.cost.fit import fit_samples

    measured = read_measured(file)
    chosen = terms.replace(",", " ").split() if terms else default_terms(measured)
    found = fit_samples(measured.samples, chosen, with_floor=floor, source=f"samples of a {measured.kind}")
    if not measured.samples:
        found = replace(found, reason=measured.missing)
    for remark in measured.remarks:
        say(f"ppsim: {remark}")
    if as_json:
        print(json.dumps(finite(described(found, measured)), allow_nan=False))
    else:
        print(text_of(found, measured))
    return EXIT_PASS if found.accepted else EXIT_USAGE


def default_terms(measured: Measured) -> list[str]:
    """All four, without gamma where every prompt starts at 0 (as in SGLang's own profile, protocol.md 5.2)."""
    return ["c", "b", "a"] if all(sample.prefix_len == 0 for sample in measured.samples) else ["c", "gamma", "b", "a"]


def described(found: Fit, measured: Measured) -> dict[str, Any]:
    return {
        **found.to_dict(),
        "kind": measured.kind,
        "measures": measured.what,
        **measured.about,
        "remarks": measured.remarks,
        "scenario": scenario_keys(found) if found.accepted else None,
    }


def scenario_keys(found: Fit) -> dict[str, float]:
    """The coefficients under the keys of the scenario's cost section."""
    c = found.coefficients
    return {
        "cost.prefill_floor_ms": c.floor_ms,
        "cost.prefill_c_ms": c.c_ms,
        "cost.prefill_gamma_ms_per_token": c.gamma_ms,
        "cost.prefill_b_ms_per_token": c.b_ms,
        "cost.prefill_a_ms_per_token2": c.a_ms,
    }


def finite(value: Any) -> Any:
    """NaN has no place in JSON: null instead."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_of(found: Fit, measured: Measured) -> str:
    """The result for people; a refused fit shows what was found all the same."""
    lines = [f"{found.num_samples} samples from a {measured.kind}, times of {measured.what}"]
    if not found.accepted:
        lines.append(f"refused: {found.reason}")
    if not math.isnan(found.rms_ms):
        lines += [f"  {key} = {value:.6g}" for key, value in scenario_keys(found).items()]
        lines.append(f"  alpha = {found.coefficients.alpha_ms:.6g} ms/token^2 (per query: 2 a)")
        lines.append(f"  residuals: rms {found.rms_ms:.4g} ms, relative {found.relative_rms:.2%}")
        worst = found.worst_sample
        if worst is not None:
            lines.append(
                f"  worst: {found.worst_ms:+.4g} ms at prefix {worst.prefix_len}, {worst.new_tokens} new tokens"
            )
    if found.dropped:
        lines.append(f"  dropped because negative: {', '.join(found.dropped)}")
    return "\n".join(lines)
