"""``ppsim fit``: coefficients of the cost model from measurements, with how sure they are; a bad fit is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption
from ppsim.errors import EXIT_PASS, EXIT_USAGE, UsageError

if TYPE_CHECKING:
    from ppsim.cli.measured import Measured
    from ppsim.cost.decode_fit import DecodeFit
    from ppsim.cost.fit import Fit

FileArg = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="CSV or JSON lines of chunks or decode steps, a server log, a recorded run, or - for standard input.",
    ),
]
TermsOption = Annotated[
    str | None,
    typer.Option(
        "--terms",
        help="Terms to fit, of c, first, gamma, b, a. Default: those that the samples can tell apart and whose 95 % "
        "interval is above 0, the set of least BIC; of few samples the fewest terms that are within 2 %.",
    ),
]
FloorOption = Annotated[bool, typer.Option("--floor", help="Search for a floor: the time of the smallest chunks.")]
UNITS = {"c": "ms", "first": "ms", "gamma": "ms_per_token", "b": "ms_per_token", "a": "ms_per_token2"}
DECODE_KEYS = {"c": "cost.decode_c_ms", "row": "cost.decode_row_ms", "kv": "cost.decode_kv_ms_per_token"}


@guarded
def fit(file: FileArg, terms: TermsOption = None, floor: FloorOption = False, as_json: JsonOption = False) -> int:
    """Fit costs to measurements, and say how sure they are.

    Prefill chunks of x tokens after L: max(floor, c + first [L = 0] + gamma L + b x + a (2 L x + x^2)). Decode steps of
    n rows over K tokens of KV: c + r n + k K.
    """
    from ppsim.cli.measured import read_measured
    from ppsim.cost.decode_fit import fit_decode
    from ppsim.cost.fit import fit_samples

    try:
        measured = read_measured(file)
    except UsageError as error:
        raise UsageError(f"{error}{what_it_is(file)}") from error
    chosen = terms.replace(",", " ").split() if terms is not None else None
    found = fit_samples(measured.samples, chosen, with_floor=floor, source=f"samples of a {measured.kind}")
    decode = fit_decode(measured.decode) if measured.decode else None
    if not measured.samples:
        found = replace(found, reason=measured.missing + ("" if measured.decode else what_it_is(file)))
    for remark in measured.remarks:
        say(f"ppsim: {remark}")
    if as_json:
        print(json.dumps(finite(described(found, decode, measured)), allow_nan=False))
    else:
        print("\n".join([*text_of(found, measured), *decode_text(decode)]))
    usable = found.accepted or (not measured.samples and decode is not None and decode.accepted)
    return EXIT_PASS if usable else EXIT_USAGE


def what_it_is(file: str) -> str:
    """Of a file without a sample what it is, and who takes it; empty where that is not known, or for standard input."""
    from ppsim.cli.measured import is_file
    from ppsim.cli.recognise import recognise

    told = recognise(file) if is_file(file) else None
    if told is None or not told.kind or told.kind.startswith("measured") or "ppsim fit" in " ".join(told.give_to):
        return ""
    return f". It is: {told.kind}; it belongs to: {'; '.join(told.give_to) or 'no command'}"


def described(found: Fit, decode: DecodeFit | None, measured: Measured) -> dict[str, Any]:
    keys = (scenario_keys(found) if found.accepted else {}) | decode_keys(decode)
    return {
        **found.to_dict(),
        "kind": measured.kind,
        "measures": measured.what,
        **measured.about,
        "remarks": measured.remarks,
        "decode": decode.to_dict() if decode else None,
        "scenario": keys or None,
    }


def key_of(term: str) -> str:
    """The key of the scenario for a term of a prefill chunk."""
    return f"cost.prefill_{term}_{UNITS[term]}"


def scenario_keys(found: Fit) -> dict[str, float]:
    """The coefficients under the keys of the scenario's cost section."""
    c = found.coefficients
    terms = {key_of(term): getattr(c, f"{term}_ms") for term in UNITS}
    return {"cost.prefill_floor_ms": c.floor_ms, **terms}


def decode_keys(decode: DecodeFit | None) -> dict[str, float]:
    """The same for decode; nothing where there is no fit to use."""
    if decode is None or not decode.accepted:
        return {}
    return {key: getattr(decode, f"{term}_ms") for term, key in DECODE_KEYS.items()}


def finite(value: Any) -> Any:
    """NaN has no place in JSON: null instead."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_of(found: Fit, measured: Measured) -> list[str]:
    """The prefill fit for people; a refused one shows what was found all the same."""
    lines = [f"prefill: {found.num_samples} samples from a {measured.kind}, times of {measured.what}"]
    if not measured.samples and measured.decode:
        return [f"prefill: {found.reason}; cost.prefill_* stay what they are in the scenario"]
    if not found.accepted:
        lines.append(f"refused: {found.reason}")
    if not math.isnan(found.rms_ms):
        lines.append(f"  cost.prefill_floor_ms = {found.coefficients.floor_ms:.6g}")
        for term in UNITS:
            value = getattr(found.coefficients, f"{term}_ms")
            lines.append(f"  {key_of(term)} = {value:.6g}{sureness(term, found)}")
        lines.append(f"  alpha = {found.coefficients.alpha_ms:.6g} ms/token^2 (per query: 2 a)")
        lines.append(f"  residuals: rms {found.rms_ms:.4g} ms, relative {found.relative_rms:.2%}")
        worst = found.worst_sample
        if worst is not None:
            lines.append(
                f"  worst: {found.worst_ms:+.4g} ms at prefix {worst.prefix_len}, {worst.new_tokens} new tokens"
            )
    if found.dropped:
        lines.append(f"  dropped because negative: {', '.join(found.dropped)}")
    return lines + [f"  note: {note}" for note in found.notes]


def decode_text(decode: DecodeFit | None) -> list[str]:
    """The decode fit for people."""
    if decode is None:
        return ["decode: no step in these samples; cost.decode_* stay what they are in the scenario"]
    lines = [f"decode: {decode.num_samples} steps"]
    if not decode.accepted:
        lines.append(f"refused: {decode.reason}")
    if not math.isnan(decode.rms_ms):
        for term, key in DECODE_KEYS.items():
            lines.append(f"  {key} = {getattr(decode, f'{term}_ms'):.6g}{sureness(term, decode)}")
        lines.append(f"  residuals: rms {decode.rms_ms:.4g} ms, relative {decode.relative_rms:.2%}")
    return lines + [f"  note: {note}" for note in decode.notes]


def sureness(term: str, found: Fit | DecodeFit) -> str:
    """How far a coefficient is to be trusted, or why it is 0."""
    errors, left_out = found.errors or {}, found.left_out or {}
    if term not in errors:
        return f"  (left out: {left_out[term]})" if term in left_out else "  (not asked for)"
    if math.isnan(errors[term]):
        return f"  (uncertainty cannot be told: {found.num_samples} samples for {len(found.terms)} terms)"
    low, high = (found.intervals or {})[term]
    return f"  +- {errors[term]:.2g} (95 %: {low:.5g} to {high:.5g})"
