"""Every class of causal language models in the installed transformers beside what ppsim reads from its config.

    python bench/model_zoo.py > docs/models.md      rewrite the table; tests/unit/test_model_zoo.py holds it
    python bench/model_zoo.py TYPE...               one or more types, with what differs
    python bench/model_zoo.py --defaults > ppsim/data/class_defaults.toml

A small config of each class is built on the meta device, where no tensor has data. Three things are compared:

    parameters   their number, to the unit; of a model with towers for pictures or sound, those of the language model
    keys         elements of the keys and values (and of an indexer's keys) that its own cache holds after 40 tokens,
                 which is more than the windows of these configs
    states       elements of the recurrent states, and of the inputs that convolutions keep: transformers keeps as many
                 as the kernel is wide, a server one less

A class that ppsim refuses by name is listed with its reason.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.cost.config_json import from_config
from ppsim.cost.model import ModelShape
from ppsim.errors import ScenarioError

NUM_TOKENS = 40
NUM_LAYERS = 8
WINDOW = 16
SHORTER: dict[str, Any] = {"num_hidden_layers": NUM_LAYERS, "sliding_window": WINDOW, "attention_chunk_size": WINDOW}
FULL_AND_LINEAR = ["full_attention", "linear_attention"] * (NUM_LAYERS // 2)
OWN: dict[str, dict[str, Any]] = {  # where the defaults of a class make no model, or one without its own features
    "bamba": {"attn_layer_indices": [2, 5]},
    "bloom": {"n_layer": 3},
    "cohere2_moe": {"first_k_dense_replace": 1, "num_shared_experts": 1},
    "cohere_compass_text": {"layer_types": ["sliding_attention"] * NUM_LAYERS},
    "dbrx": {"attn_config": {"kv_n_heads": 4, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 1408},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "gemma3n_text": {
        "intermediate_size": [512] * NUM_LAYERS,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": None,
    },
    "gemma4_text": {"num_kv_shared_layers": 2},
    "glm_moe_dsa": {"indexer_types": ["full", "shared"] * (NUM_LAYERS // 2)},
    "glm4_moe": {"head_dim": 64, "use_qk_norm": True},
    "gpt_neo": {
        "num_layers": NUM_LAYERS,
        "attention_types": [[["global", "local"], NUM_LAYERS // 2]],
    },
    "granitemoehybrid": {"layer_types": FULL_AND_LINEAR},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128, "num_experts": 4, "moe_topk": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * (NUM_LAYERS // 2)},
    "llama4_text": {"interleave_moe_layer_step": 2},
    "ministral": {"head_dim": 128},
    "nemotron": {"num_key_value_heads": 8},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"] * 2,
        "moe_latent_size": 256,
    },
    "qwen2": {"use_sliding_window": True, "max_window_layers": 3},
}
TIES_NOT = ("qwen2_5_omni_text",)  # its class ties by default, and the thinker around it, which has the head, does not
SHORT = 4
TOWERS = ("vision", "audio", "image", "multi_modal", "projector", "embed_tokens_extend")  # in names of parameters


@dataclass(frozen=True, slots=True)
class Entry:
    """A type and its class. ``result``: equal, refused, not built, or different; ``why`` is a sentence for all others.
    ``kinds``: the layers as ppsim reads them. ``cache``: what was compared of the cache."""

    model_type: str
    class_name: str
    result: str
    why: str = ""
    kinds: str = ""
    cache: str = ""


def model_types() -> list[str]:
    """All types that have a class, in alphabetical order."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def class_of(model_type: str) -> str:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])


def config_of(model_type: str, changes: Mapping[str, Any] | None = None) -> Any:
    """A small config of a type: fewer layers and short windows, where it has such fields."""
    from transformers import CONFIG_MAPPING

    kind = CONFIG_MAPPING[model_type]
    known = set(kind().to_dict()) if model_type not in ("gemma4_assistant",) else set()
    aliases = getattr(kind, "attribute_map", {})
    small = {k: v for k, v in SHORTER.items() if k in known or aliases.get(k) in known}
    listed = ("layer_types", "layers_block_type")
    own = OWN.get(model_type, {})
    if any(name in own for name in listed) and "layers_block_type" in own:
        small.pop("num_hidden_layers", None)
    return kind(**{**small, **own, **(changes or {})})


def judge(model_type: str, changes: Mapping[str, Any] | None = None) -> Entry:
    """Build, read and compare one type."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    name = class_of(model_type)
    fields: dict[str, Any] = {"model_type": model_type}
    try:
        config = config_of(model_type, changes)
        fields = {**config.to_dict(), "model_type": config.model_type or model_type}
    except Exception as error:
        config, built = None, first_line(error)
    try:
        shape = from_config(fields, model_type)
    except ScenarioError as error:
        reason = error.problem.partition(" cannot be read: ")[2] or f"{error.field.split(': ')[-1]} {error.problem}"
        return Entry(model_type, name, "refused", reason)
    model, texts = None, [] if config is None else [config, config.get_text_config(decoder=True)]
    for text in texts:  # some classes take the config of the language model alone
        try:
            with torch.device("meta"):
                model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](text).to(torch.bfloat16).eval()
            break
        except Exception as error:
            built = first_line(error)
    if model is None:
        return Entry(model_type, name, "not built", built)
    return compared(model_type, name, shape, model)


def compared(model_type: str, name: str, shape: ModelShape, model: Any) -> Entry:
    """Parameters, keys and states of a model on the meta device against a shape."""
    kinds = "; ".join(f"{n} x {kind}" for kind, n in shape.kinds().items())
    ours, theirs = shape.total_params(), num_params(model)
    if ours != theirs:
        return Entry(model_type, name, "different", f"{ours:,} parameters, the class has {theirs:,}", kinds)
    cache, error = cache_of(model)
    if cache is None:
        return Entry(model_type, name, "equal", "", kinds, f"not compared: {error}")
    wrong = cache_differences(shape, cache)
    if wrong:
        return Entry(model_type, name, "different", wrong, kinds)
    return Entry(model_type, name, "equal", "", kinds, "equal")


def num_params(model: Any) -> int:
    """Parameters of a model, each once, without the towers for pictures and sound."""
    named = model.named_parameters()
    return sum(p.numel() for name, p in named if not any(part in name for part in TOWERS))


@dataclass(frozen=True, slots=True)
class Cache:
    """Elements of a model's own cache after NUM_TOKENS tokens. ``conv_widths``: of each convolution, how many inputs a
    channel it keeps, and how many channels there are."""

    keys: int
    states: int
    convs: tuple[tuple[int, int], ...]


def cache_of(model: Any) -> tuple[Cache | None, str]:
    """The cache that a forward pass fills, or why there is none."""
    import torch

    ids = torch.zeros(1, NUM_TOKENS, dtype=torch.long, device="meta")
    try:
        with torch.no_grad(), torch.device("meta"):
            output = model(input_ids=ids, use_cache=True)
    except Exception as error:
        return None, first_line(error)
    cache = getattr(output, "past_key_values", None) or getattr(output, "cache_params", None)
    layers = getattr(cache, "layers", None)
    if layers is None:
        return None, "no cache with layers"
    keys = states = 0
    convs: list[tuple[int, int]] = []
    for layer in layers:
        for field in ("keys", "values", "indexer_keys"):
            tensor = getattr(layer, field, None)
            keys += tensor.numel() if isinstance(tensor, torch.Tensor) else 0
        states += sum(t.numel() for t in tensors(getattr(layer, "recurrent_states", ())))
        convs += [(t.shape[-1], t.numel() // t.shape[-1]) for t in tensors(getattr(layer, "conv_states", ()))]
    states += sum(t.numel() for t in tensors(getattr(cache, "linear_cache", ())))  # MiniMax keeps them apart
    return Cache(keys, states, tuple(sorted(convs))), ""


def tensors(held: Any) -> Iterable[Any]:
    values = held.values() if isinstance(held, dict) else held
    return (t for t in values if hasattr(t, "numel"))


def cache_differences(shape: ModelShape, cache: Cache) -> str:
    """What is not the same, as a sentence; empty if all is."""
    keys = round(shape.kv_bytes_of(NUM_TOKENS) / shape.kv_bytes)
    states = [state for layer in shape.layers for state in layer.states]
    elements = sum(state.state_elements for state in states)
    convs = tuple(sorted((s.conv_kernel, s.conv_channels) for s in states if s.conv_channels))
    found = []
    if keys != cache.keys:
        found.append(f"{keys:,} elements of keys and values, the cache has {cache.keys:,}")
    if elements != cache.states:
        found.append(f"{elements:,} elements of states, the cache has {cache.states:,}")
    if convs != cache.convs:
        found.append(f"convolutions {sorted(set(convs))}, the cache has {sorted(set(cache.convs))}")
    return "; ".join(found)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:80]}"


def quiet() -> None:
    """Neither deprecations nor hints of transformers belong to the table."""
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()


def entries(types: Iterable[str] | None = None) -> list[Entry]:
    """All types, or some."""
    quiet()
    return [judge(model_type) for model_type in (types or model_types())]


def row_of(entry: Entry) -> str:
    """A line of the table."""
    if entry.result == "equal":
        cache = "" if entry.cache == "equal" else f"; cache {entry.cache}"
        said = f"equal{cache}: {entry.kinds}".replace(" | ", ", ")
    else:
        said = f"{entry.result}: {entry.why}"
    return f"| `{entry.model_type}` | {entry.class_name} | {said} |"


PAGE = """# Which models are read, and how

Any `config.json` whose layers are of the kinds below is read for what it says: `ppsim layers --model FILE` shows the
kinds with their sizes and times, `model.key = "FILE"` in a scenario uses them. What is assumed and what is not read of
a file is said on stderr; what cannot be read is refused by name.

| a layer's mixer | cache of a token | state of a request | prefill of s tokens |
| --- | --- | --- | --- |
| full attention, grouped or multi-query | 2 x KV heads x width | none | s^2 / 2 pairs |
| a window of w, chunks of c | the same, w - 1 of them are needed | none | s w, s c / 2 |
| MLA | one latent and its rotary part | none | s^2 / 2, and the prefix is expanded in each chunk |
| MLA with an indexer | the same and the indexer's key | none | s^2 / 2 of the indexer, s k of the rest |
| Mamba, Mamba-2, RG-LRU | none | state x 4 bytes, inputs of the convolution | s x 2 passes over the state |
| delta rule, KDA | none | the same | s x 3 passes |
| lightning attention | none | the state | s x 2 passes |
| convolution | none | its inputs | s x kernel |

Behind it stands a dense block, experts with or without shared ones, both, or nothing. Formulas and units:
`ppsim/cost/attention.py`, `state.py`, `roofline.py`; which field says which layer is what: `patterns.py`; what a
`model_type` implies without a field (norms, biases, tied embeddings, shared experts, the kinds of the layers where no
list names them): `ppsim/data/families.toml`.

Types that transformers has no class for and that are served all the same (DeepSeek-MoE, Baichuan, Grok, Arctic,
Step-3, HunYuan-Large, Ling, Pangu Pro, ...) have rows in `families.toml` too; `tests/unit/test_published_models.py`
holds them and fifty published configs against the parameters that their authors give. A `model_type` without a row is
read from its fields alone, and a note says so; if a field of layers remains that nothing reads (`mamba_*`,
`*_pattern`, `*_lora_rank`, ...), it is refused with the field's name.

## Types of weights and of the cache

`quantization_config` (or `compression_config`, or ModelOpt's `hf_quant_config.json` beside the config) gives the bits
of a weight with their scales, at which width it is multiplied, and what is left out: `ppsim/cost/quantization.py`.
Groups of several widths, modules with a type of their own, and a scheme for the cache are told; a type for each layer
and an unknown method are refused. `model.quantization` (`--quantization`) quantises a checkpoint while it is loaded.
`model.kv_cache_dtype` (`--kv-cache-dtype` of `layers`, `chunks`, `compare`, `tune` and of launch lines) is the type
of the cache; `auto` is the model's own. The executor computes and caches in one type and refuses any other wish.

`model.key` gives layers, memory and bytes whatever `cost.source`; costs that are nobody's (the defaults of the
quadratic model) are told by `run`, and `tune` recommends nothing on them. `gpu.key` and `--gpu` take a key of `ppsim
list gpus` or a TOML file of the fields of `[gpu]`; figures in a scenario's `[gpu]` replace those of the key, or make
a GPU alone.

Left out of times and memory: norms and biases (under 0.1 %), layers that only speculate
(`num_nextn_predict_layers`), towers for pictures and sound, which are named in a note. SGLang keeps an indexer's key in
FP8 with a scale, 132 bytes for a width of 128; here it has the type of the cache.

## Memory

`gpu.mem_fraction_static` of a GPU holds weights, states and cache. States have a pool of their own, a slot a request:
`scheduler.max_mamba_cache_size` slots, or `scheduler.mamba_full_memory_ratio` of the cache's memory, as in SGLang. A
running request takes a slot (three with a radix cache, as in SGLang, where states of prefixes are kept), so the pool
is a limit on running requests: the smallest of all ranks, like the KV pool. Which states a prefix hit finds is not
modelled: a hit is a hit. Layers with a window count all tokens of the pool, or 0.8 of them for the families where
SGLang gives them a pool of their own (`window_pool` in `families.toml`).

## Every class of transformers

Oracle: the classes of causal language models in transformers {version}, a small config of each on the meta device.
*Equal* means the same number of parameters, to the unit, and the same number of elements in the cache that the class
itself fills: keys and values inside the windows, states, inputs of convolutions. `bench/model_zoo.py` writes this page,
`tests/unit/test_model_zoo.py` holds each row. {counts}

| `model_type` | class | result |
| --- | --- | --- |
{rows}
"""


def page(found: list[Entry]) -> str:
    """The whole page."""
    import transformers

    results = ("equal", "refused", "not built", "different")
    counts = {result: sum(e.result == result for e in found) for result in results}
    said = ", ".join(f"{n} {result}" for result, n in counts.items() if n)
    rows = "\n".join(row_of(entry) for entry in found)
    return PAGE.format(version=transformers.__version__, counts=f"Of {len(found)} types: {said}.", rows=rows)


def is_size(value: Any) -> bool:
    """Numbers, flags that are on, and patterns that are repeated; not lists with an entry a layer."""
    return bool(value) and (isinstance(value, int | float) or (isinstance(value, list) and len(value) <= SHORT))


def defaults_text() -> str:
    """A table for each type that ppsim reads: what its config class has by default, of the fields that make sizes."""
    import transformers
    from transformers import CONFIG_MAPPING

    from ppsim.cost.families import families
    from ppsim.cost.harmless import HARMLESS

    lines = [
        f"# Defaults of the config classes of transformers {transformers.__version__}, written by",
        "# python bench/model_zoo.py --defaults; a config inside another one leaves them out.",
        "",
    ]
    for model_type, family in families().items():
        if family.refuse or model_type not in CONFIG_MAPPING:
            continue
        fields = CONFIG_MAPPING[model_type]().to_dict()
        sizes = (name for name, value in fields.items() if is_size(value))
        found = {name: fields[name] for name in sizes if name not in HARMLESS}
        if model_type in TIES_NOT:
            found.pop("tie_word_embeddings", None)
        if found:
            values = ", ".join(f"{name} = {json.dumps(value)}" for name, value in found.items())
            lines.append(f"{json.dumps(model_type)} = {{ {values} }}")
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:] == ["--defaults"]:
        quiet()
        print(defaults_text(), end="")
        return
    if sys.argv[1:]:
        for entry in entries(sys.argv[1:]):
            print(row_of(entry))
        return
    print(page(entries()), end="")


if __name__ == "__main__":
    main()
