"""How many bytes a stored weight has, from ``quantization_config``, and at which width it is multiplied.

    bits of the weight, and what every group of weights has beside them:
        mxfp4   a scale of 8 bits for 32 weights (OCP Microscaling)         4.25 bits
        nvfp4   a scale of 8 bits for 16 weights (NVIDIA)                   4.5 bits
        awq, gptq, compressed-tensors with a group_size: a scale of 16 bits for a group; awq and gptq a zero as well
        fp8     by tensor, channel or block of 128 x 128: under 0.03 bits, left out

Only the layers' matrices are quantised; router, embedding and head are not (published.md C). Lists of modules that are
left out are read for the two parts that matter, attention and what is outside the experts. A method that is not in the
table is refused by name, for its size would be a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ppsim.cost.fields import Fields
from ppsim.cost.model import ModelShape
from ppsim.errors import ScenarioError

BYTE = 8


@dataclass(frozen=True, slots=True)
class Method:
    """``bits`` of a weight by default; ``per_group`` bits for ``group`` weights. ``is_stored_only``: widened before it
    is multiplied."""

    bits: float
    group: int = 0
    per_group: int = 0
    is_stored_only: bool = False


METHODS: dict[str, Method] = {
    "fp8": Method(8),
    "fbgemm_fp8": Method(8),
    "w8a8_fp8": Method(8),
    "modelopt": Method(8),
    "modelopt_fp8": Method(8),
    "modelopt_fp4": Method(4, 16, 8),
    "nvfp4": Method(4, 16, 8),
    "mxfp4": Method(4, 32, 8),
    "mxfp8": Method(8, 32, 8),
    "w8a8_int8": Method(8),
    "compressed-tensors": Method(8),
    "quark": Method(8),
    "awq": Method(4, 128, 16 + 4, is_stored_only=True),
    "gptq": Method(4, 128, 16 + 4, is_stored_only=True),
    "auto-round": Method(4, 128, 16 + 4, is_stored_only=True),
    "bitsandbytes": Method(8, is_stored_only=True),
    "eetq": Method(8, is_stored_only=True),
    "experts_int8": Method(8, is_stored_only=True),
    "hqq": Method(4, 64, 32, is_stored_only=True),
    "bitnet": Method(2, is_stored_only=True),
}
ALIASES = {  # names of a launch line for kernels of the same weights
    "awq_marlin": "awq",
    "gptq_marlin": "gptq",
    "marlin": "gptq",
    "moe_wna16": "gptq",
    "petit_nvfp4": "nvfp4",
    "mxfp4_marlin": "mxfp4",
    "compressed_tensors": "compressed-tensors",
    "auto_round": "auto-round",
}
FP4_ALGORITHMS = ("fp4", "w4a4")
ATTENTION = re.compile(r"(self_attn|self_attention|\battn\b|\.attention\b|linear_attn)")
SHARED = re.compile(r"shared_expert")
NUMBER = re.compile(r"layers\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of a weight: of the experts and whatever is not told apart, of the mixers, of dense blocks and shared
    experts, and of an operand where that is wider than what is stored."""

    weight: float
    operand: float | None = None
    mixer: float | None = None
    dense: float | None = None
    notes: tuple[str, ...] = ()


def widths_of(f: Fields, plain: float, num_layers: int) -> Widths:
    """Widths of a config whose own type has ``plain`` bytes. Raises ScenarioError for an unknown method."""
    quantization = f.get("quantization_config") or f.get("compression_config")
    if not isinstance(quantization, Mapping):
        return Widths(plain)
    name = f"{f.name}: quantization_config"
    q = Fields(quantization, name)
    entry, is_4bit = method_of(q, quantization)
    told = q
    group = first_group(quantization)
    weights = group.get("weights") if group else None
    if isinstance(weights, Mapping):
        told = Fields(weights, name)
    bits = bits_of(told, entry, is_group=told is not q)
    size = told.get("group_size", entry.group)
    size = size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else 0
    extra = (entry.per_group or 16) / size if size and (entry.group or told is not q) else 0.0
    activations = group.get("input_activations") if group else None
    stored_only = entry.is_stored_only or (told is not q and not activations)
    stored = (bits + extra) / BYTE
    mixer, dense, notes = left_out(q, plain, num_layers)
    if is_4bit:
        stored = (4 + 0.5) / BYTE  # NF4 with a float32 scale for 64 weights
    notes += mixed(quantization)
    return Widths(stored, plain if stored_only else operand_of(bits), mixer, dense, notes)


def mixed(quantization: Mapping[str, Any]) -> tuple[str, ...]:
    """What is not the same for all weights, or is said of the cache, as sentences."""
    found = []
    groups = quantization.get("config_groups")
    weights = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    widths = [w.get("num_bits") for w in weights if isinstance(w, Mapping)]
    if any(width != widths[0] for width in widths):
        found.append(f"quantization_config has groups of {', '.join(map(str, widths))} bits: all count as the first")
    of_layers = [n for n in ("dynamic", "layer_quant_config", "quantized_layers") if quantization.get(n)]
    if of_layers:
        found.append(f"quantization_config.{of_layers[0]} gives some modules a type of their own: not read")
    cache = next((n for n in ("kv_cache_scheme", "kv_cache_quant_algo") if quantization.get(n)), None)
    if cache is not None:
        found.append(
            f"quantization_config has {cache}: a server may keep an fp8 cache for it; here the cache has the model's "
            "type unless kv_cache_dtype says another"
        )
    return tuple(found)


def method_of(q: Fields, quantization: Mapping[str, Any]) -> tuple[Method, bool]:
    """Row of the method, and whether it is the one whose four bits have a flag; ModelOpt names its algorithm in a field
    of its own."""
    method = str(quantization.get("quant_method", "fp8")).lower()
    algorithm = str(quantization.get("quant_algo", "")).lower()
    if "mixed" in algorithm:
        raise ScenarioError(f"{q.name}.quant_algo", f"{algorithm!r} gives each layer a type of its own: it is not read")
    if any(word in algorithm for word in FP4_ALGORITHMS):
        method = "nvfp4"
    elif "w4a" in algorithm:
        method = "awq"
    return method_named(f"{q.name}.quant_method", method), method == "bitsandbytes" and "load_in_4bit" in q


def method_named(field: str, name: str) -> Method:
    """Row of a method by its name in a config or on a launch line. Raises ScenarioError for an unknown one."""
    method = METHODS.get(ALIASES.get(name, name))
    if method is None:
        raise ScenarioError(field, f"unknown method {name!r}", f"known: {', '.join(sorted({*METHODS, *ALIASES}))}")
    return method


def quantised(shape: ModelShape, name: str) -> ModelShape:
    """A model whose weights are quantised while they are loaded; one that is quantised already stays as it is."""
    method = method_named("model.quantization", name)
    if shape.math_bytes is not None:
        return shape
    stored = (method.bits + (method.per_group / method.group if method.group else 0.0)) / BYTE
    return replace(
        shape, weight_bytes=stored, math_bytes=shape.weight_bytes if method.is_stored_only else method.bits / BYTE
    )


def first_group(quantization: Mapping[str, Any]) -> Mapping[str, Any]:
    """compressed-tensors says it in groups; the first stands for all."""
    groups = quantization.get("config_groups")
    group = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    return group if isinstance(group, Mapping) else {}


def bits_of(told: Fields, entry: Method, is_group: bool) -> float:
    for field in ("num_bits", "bits", "w_bit", "nbits"):
        if told.get(field):
            return float(told.positive(field))
    return entry.bits if not is_group else 8.0


def operand_of(bits: float) -> float | None:
    """Bytes of an operand of so many bits."""
    return bits / BYTE


def left_out(q: Fields, plain: float, num_layers: int) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Widths of the mixers and of what is outside the experts, where lists of modules leave them as they are."""
    entries: list[str] = []
    for field in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"):
        value = q.get(field)
        entries += [e for e in value if isinstance(e, str)] if isinstance(value, list) else []
    attention = [e for e in entries if ATTENTION.search(e) and "norm" not in e]
    shared = [e for e in entries if SHARED.search(e) and "gate_proj" not in e.split("shared_expert")[-1][:6]]
    mixer = plain if covers(attention, num_layers) else None
    dense = plain if covers(shared, num_layers) else None
    notes = []
    if attention and mixer is None:
        notes.append(f"quantization_config leaves out attention of some layers: counted as quantised: {attention[0]}")
    return mixer, dense, tuple(notes)


def covers(entries: list[str], num_layers: int) -> bool:
    """Whether these modules are those of all layers, or of most: a name without a number is."""
    numbers = {match[1] for entry in entries if (match := NUMBER.search(entry))}
    return any(NUMBER.search(entry) is None for entry in entries) or 2 * len(numbers) > num_layers
