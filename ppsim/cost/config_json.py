"""From a config.json, a folder that holds one, or a known key to a ModelShape.

Words as the public configs use them (``fields``), layer by layer (``read_layers``). Weight type from
``quantization_config`` (``quantization``), else from ``torch_dtype``. Nothing is guessed: a missing field is an error
that names it, a family that cannot be read is refused by name, and what was assumed or not read is among the notes.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ppsim.cost.families import UNKNOWN, Family, class_defaults, evaluate, families
from ppsim.cost.fields import Fields
from ppsim.cost.harmless import HARMLESS
from ppsim.cost.mixers import number
from ppsim.cost.model import ModelShape
from ppsim.cost.positions import positions
from ppsim.cost.quantization import quantised, widths_of
from ppsim.cost.read_layers import flag_of, layers_of, model_names
from ppsim.errors import ScenarioError
from ppsim.parsing import decoded, parse_json

TYPE_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "fp4": 0.5,
    "fp4_e2m1": 0.5,
}
MAX_LAYERS = 4096
OF_TRAINING = re.compile(r"router|loss|dropout|_bias$|init|_eps|norm|jitter|token_id|capacity")
OF_LAYERS = re.compile(  # in fields of an unknown type: its layers are not those of the other fields
    r"mamba|ssm|linear_attn|recurren|rwkv|conv_|_conv|d_conv|d_state|state_size|hybrid|lora_rank|expert|moe|_per_layer"
    r"|share_q|cla_|use_cla|kv_reuse|residual_m|_pattern$|block_configs|layer_types|_layer_types|global_attn|loop"
)
LISTED = ("layer_types", "layers_block_type", "attention_layers")
SAID_BY: dict[str, tuple[str, ...]] = {  # what the layers are is said by another field
    "sliding_window_pattern": LISTED,
    "global_attn_every_n_layers": LISTED,
    "layer_group_size": LISTED,
    "attention_types": LISTED,
    "full_attention_interval": LISTED,
    "first_k_dense_replace": ("mlp_layer_types", "moe_layers"),
    "interleave_moe_layer_step": ("mlp_layer_types", "moe_layers"),
    "decoder_sparse_step": ("mlp_layer_types",),
    "intermediate_size": ("num_experts", "layers_block_type", "hybrid_override_pattern"),
    "intermediate_size_mlp": ("num_experts",),
    "dense_intermediate_size": ("num_experts",),
    "sliding_window": ("layer_types", "num_hidden_layers"),
    "local_attention": ("sliding_window",),
    "num_key_value_heads": ("kv_lora_rank", "multi_query"),
    "num_kv_heads": ("multi_query", "new_decoder_architecture"),
    "head_dim": ("kv_lora_rank", "num_hidden_layers"),
    "num_attention_heads": ("num_hidden_layers",),
    "mamba_d_ssm": ("mamba_d_head",),
    "short_conv_kernel_size": ("linear_conv_kernel_dim",),
    "time_step_rank": ("num_heads",),
    "indexer_types": ("index_topk",),
    "index_topk_freq": ("indexer_types",),
}
NESTED = ("text_config", "language_config", "llm_config", "thinker_config", "language_model_config")
OUTER = ("torch_dtype", "dtype", "quantization_config", "architectures", "tie_word_embeddings", "model_type")


@cache
def known_models() -> dict[str, dict[str, Any]]:
    """The shipped configs by key, ``like`` resolved."""
    table: dict[str, dict[str, Any]] = tomllib.loads((files("ppsim") / "data" / "models.toml").read_text("utf-8"))
    return {key: ({**table[entry["like"]], **entry} if "like" in entry else entry) for key, entry in table.items()}


def known_key(name_or_path: str) -> str | None:
    """Key of a known model under one of its names: the key itself, its checkpoint, either behind folders."""
    name = name_or_path.rstrip("/").rsplit("/", 1)[-1].lower()
    if name in known_models():
        return name
    names = {str(entry["checkpoint"]).rsplit("/", 1)[-1].lower(): key for key, entry in known_models().items()}
    return names.get(name)


def checkpoint_of(key: str) -> str | None:
    """Under which name the weights of a known model are published."""
    known = known_key(key)
    return None if known is None else str(known_models()[known]["checkpoint"])


def load_model(
    name_or_path: str, kv_dtype: str | None = None, weight_dtype: str | None = None, quantization: str | None = None
) -> ModelShape:
    """Shape of a known model, of a config.json or of a folder with one; types override those of the config.

    Raises ScenarioError with the nearest known key, or with the field that is missing.
    """
    table, key = known_models(), known_key(name_or_path)
    path = Path(name_or_path)
    if key is not None and not (path / "config.json").is_file():  # a folder's own config tells more than its name
        shape = from_config(table[key], key)
    elif path.is_dir() or path.suffix == ".json":
        shape = from_config(config_of(path), str(path))
    else:
        near = get_close_matches(name_or_path.rsplit("/", 1)[-1].lower(), table, n=1, cutoff=0.3)
        raise ScenarioError(
            "model",
            f"no known model and no config.json: {name_or_path!r}",
            f"nearest: {near[0]}" if near else f"known: {', '.join(sorted(table))}",
        )
    if kv_dtype is not None:
        shape = replace(shape, kv_bytes=kv_type_bytes(kv_dtype, shape))
    if weight_dtype is not None:
        width = type_bytes("weight_dtype", weight_dtype)
        shape = replace(shape, weight_bytes=width, math_bytes=None, mixer_bytes=None, dense_bytes=None)
    return shape if quantization is None else quantised(shape, quantization)


def config_of(path: Path) -> Mapping[str, Any]:
    """A config.json, or that of a folder, where ModelOpt may write the types of the weights into a file beside it."""
    config = dict(read_config(path / "config.json" if path.is_dir() else path))
    beside = path / "hf_quant_config.json"
    if path.is_dir() and beside.is_file() and not any(config.get(n) for n in ("quantization_config", "text_config")):
        told = read_config(beside).get("quantization")
        if isinstance(told, Mapping):
            config["quantization_config"] = {"quant_method": "modelopt", **told}
    return config


def read_config(path: Path) -> Mapping[str, Any]:
    """Raises ScenarioError if the file is missing, unreadable or not a JSON object."""
    try:
        data = parse_json(decoded(path.read_bytes()))
    except OSError as error:
        raise ScenarioError(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ScenarioError(str(path), f"is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ScenarioError(str(path), f"must hold one JSON object, got {type(data).__name__}")
    return data


def type_bytes(field: str, name: str) -> float:
    """Bytes of an element of a named type. Raises ScenarioError for an unknown name."""
    if name not in TYPE_BYTES:
        near = get_close_matches(name, TYPE_BYTES, n=1, cutoff=0.0)
        raise ScenarioError(field, f"unknown type {name!r}", f"nearest: {near[0]}" if near else "")
    return TYPE_BYTES[name]


def kv_type_bytes(name: str, shape: ModelShape) -> float:
    """Bytes of an element of the cache; "auto" is the model's own type."""
    return shape.activation_bytes if name == "auto" else type_bytes("model.kv_cache_dtype", name)


def text_model(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The language model of a config, and under which names it was found. Of what is around it only types, the name of
    the family and tied embeddings are its own; the towers for pictures and sound are no part of a stage."""
    found, place = dict(config), ""
    for _ in range(4):  # thinker_config has a text_config of its own
        inner_name = next((name for name in NESTED if isinstance(found.get(name), Mapping)), None)
        if inner_name is None:
            break
        inner = dict(found[inner_name])
        around = {field: found[field] for field in OUTER if found.get(field) is not None}
        found = {**around, **inner}
        if isinstance(around.get("tie_word_embeddings"), bool):
            found["tie_word_embeddings"] = around["tie_word_embeddings"]  # the outer model ties
        place = f"{place}.{inner_name}" if place else inner_name
    return found, place


def family_of(config: Mapping[str, Any]) -> tuple[str, Family]:
    """Row of the table by ``model_type``, else by the name of the architecture; an unknown one has none."""
    model_type = config.get("model_type")
    table = families()
    names = config.get("architectures")
    for key, row in table.items():
        if isinstance(names, list) and any(name in row.architectures for name in names):
            return key, row
    if isinstance(model_type, str) and model_type in table:
        return model_type, table[model_type]
    for name in names if isinstance(names, list) else ():
        plain = str(name).removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration").lower()
        found = next((key for key in table if key.replace("_", "") == plain), None)
        if found is not None and not isinstance(model_type, str):
            return found, table[found]
    return str(model_type or ""), UNKNOWN


def from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Shape from the fields of a config.json. ``name`` is used in messages. Raises ScenarioError."""
    text, place = text_model(config)
    model_type, family = family_of(text)
    for whole_type, whole in (family_of(config), (model_type, family)):
        if whole.refuse:
            raise ScenarioError(f"{name}: model_type", f"{whole_type!r} cannot be read: {whole.refuse}")
    if not family.known and is_encoder(text):
        raise ScenarioError(
            f"{name}: model_type", f"{model_type!r} is an encoder: a server of text keeps no cache for it"
        )
    if text.get("is_encoder_decoder") is True or text.get("add_cross_attention"):
        raise ScenarioError(
            f"{name}: model_type", f"{model_type!r} cannot be read: it attends to an encoder's output as well"
        )
    for table in family.lifts:
        inner = text.get(table)
        if isinstance(inner, Mapping):
            text = {**inner, **{field: value for field, value in text.items() if field != table}}
    names = {ours: theirs for ours, theirs in family.names.items() if theirs in text}
    renamed = {**text, **{ours: text[theirs] for ours, theirs in names.items()}}
    usual = class_defaults().get(model_type, {}) if place else {}
    if "kv_lora_rank" in text:
        usual = {name: value for name, value in usual.items() if name != "head_dim"}  # MLA has widths of its own
    usual |= {ours: usual[theirs] for ours, theirs in family.names.items() if theirs in usual}
    f = Fields(renamed, name, family.defaults, usual)
    f.used.update(names.values())
    num_layers = num_layers_of(f)
    plain = type_bytes(f"{name}: torch_dtype", str(f.get("torch_dtype") or "bfloat16"))
    layers = layers_of(f, family, num_layers)
    around = model_names(f, num_layers)

    def lookup(field: str) -> Any:
        return around[field] if field in around else number(f, field)

    widths = widths_of(f, plain, num_layers)
    tie = f.flag("tie_word_embeddings", family.tie)
    final = family.final_norm * around["hidden"] * (2 if flag_of(f, family.norm_bias) else 1)
    front = evaluate(family.front, lookup)
    vectors = final + evaluate(family.model, lookup)
    return ModelShape(
        name=name,
        hidden_size=around["hidden"],
        vocab_size=around["vocab"],
        layers=layers,
        tie_word_embeddings=tie,
        weight_bytes=widths.weight,
        math_bytes=widths.operand,
        mixer_bytes=widths.mixer,
        dense_bytes=widths.dense,
        front_params=front,
        vectors=vectors,
        positions=positions(text),
        has_window_pool=family.window_pool,
        notes=(*notes_of(f, config, text, place, model_type, family), *widths.notes),
    )


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether an unknown config is of BERT's kind: it tells sentences apart, or was trained to fill in words."""
    names = config.get("architectures")
    listed = [str(name) for name in names] if isinstance(names, list) else []
    causal = any("CausalLM" in name or "ConditionalGeneration" in name for name in listed)
    filled = any(name.endswith(("MaskedLM", "PreTraining", "SequenceClassification", "BertModel")) for name in listed)
    return not causal and not config.get("is_decoder") and (filled or "type_vocab_size" in config)


def num_layers_of(f: Fields) -> int:
    """Layers of the decoder. A list of blocks says it where the number is left out."""
    listed = f.get("layers_block_type")
    if f.spelled("num_hidden_layers") is None and isinstance(listed, list) and listed:
        return len(listed)
    num_layers = f.positive("num_hidden_layers")
    if num_layers > MAX_LAYERS:
        raise ScenarioError(f"{f.name}: num_hidden_layers", f"must be at most {MAX_LAYERS}, got {num_layers}")
    return num_layers


def notes_of(
    f: Fields, config: Mapping[str, Any], text: Mapping[str, Any], place: str, model_type: str, family: Family
) -> tuple[str, ...]:
    """What was assumed and what was not read, as sentences."""
    found = []
    if not family.known:
        known_as = f"model_type {model_type!r}" if model_type else "the config, which has no model_type,"
        found.append(f"{known_as} is not known: its layers are read from the fields alone, without norms and biases")
        if f.spelled("tie_word_embeddings") is None:
            found.append("tie_word_embeddings is not said: a head of its own is assumed")
    mtp = next((n for n in ("num_nextn_predict_layers", "num_mtp_layers") if f.get(n)), None)
    if mtp is not None:
        found.append(f"{mtp} {f.get(mtp)}: these layers serve only to speculate and are not counted")
    towers = sorted(k for k in config if k.endswith("_config") and k not in (*NESTED, "quantization_config") and place)
    if towers:
        found.append(f"only {place} is read, not {', '.join(towers)}")
    if f.taken:
        said = ", ".join(f"{name} {value}" for name, value in sorted(f.taken.items()))
        found.append(f"{place} leaves out what {model_type}'s own class has by default: {said}")
    for name, others in SAID_BY.items():
        if any(f.get(other) for other in others):
            f.used.add(name)
    unread = sorted(field for field in f.unread() if field not in HARMLESS and not field.startswith("_"))
    guessed = [n for n in unread if not family.known and OF_LAYERS.search(n) and not OF_TRAINING.search(n)]
    if guessed:
        raise ScenarioError(
            f"{f.name}: model_type",
            f"{model_type!r} is not known, and these fields make other layers than those that can be read: "
            + ", ".join(guessed),
            "a config of a known model_type with the same sizes stands in, if its layers are alike",
        )
    if unread:
        found.append(f"fields that are not read: {', '.join(unread)}")
    return tuple(found)
