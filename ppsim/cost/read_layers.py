"""All layers of a config: its patterns, its mixers and its feed-forward blocks put together, with the vectors of its
family. See ``patterns`` for which layer is what, ``mixers`` for sizes, ``families`` for what goes without saying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppsim.cost.attention import GroupedQuery, Latent
from ppsim.cost.families import Family, evaluate
from ppsim.cost.fields import Fields
from ppsim.cost.mixers import SHARES_KV, SHARES_PICKS, attention_of, number, state_of
from ppsim.cost.model import FeedForward, Layer, Mixer
from ppsim.cost.patterns import feed_forward_words, mixer_words
from ppsim.cost.state import FixedState
from ppsim.errors import ScenarioError

PER_LAYER = (
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "moe_intermediate_size",
    "head_dim",
    "num_experts",
    "num_experts_per_tok",
    "n_shared_experts",
)


def layers_of(f: Fields, family: Family, num_layers: int) -> tuple[Layer, ...]:
    """Every layer in order. Equal ones are the same object."""
    has_experts = "num_experts" in f
    mixers = mixer_words(f, family, num_layers)
    blocks = feed_forward_words(f, num_layers, has_experts)
    if not family.has_feed_forward:
        blocks = ["none"] * num_layers
    own = [own_fields(f, word, i, num_layers) for i, word in enumerate(mixers)]
    by_number = "layer" in family.layer.replace("layers", "")
    made: dict[tuple[object, ...], Layer] = {}
    found = []
    for i, (mixer, block, fields) in enumerate(zip(mixers, blocks, own)):
        key = (mixer, block, str(sorted(fields.items())), i if by_number else 0)
        if key not in made:
            at = Fields({**f.config, **fields}, f.name, f.defaults, f.class_defaults)
            at.used, at.taken = f.used, f.taken
            made[key] = layer_of(at, family, mixer, block, (i, num_layers))
        found.append(made[key])
    return tuple(found)


def own_fields(f: Fields, mixer: str, index: int, num_layers: int) -> dict[str, Any]:
    """Fields that are a layer's own: lists with an entry a layer, ``per_layer_config``, and what a family says of its
    layers of full attention or of those that share keys and values."""
    found: dict[str, Any] = {}
    for name in PER_LAYER:
        spelling = f.spelled(name)
        value = f.config.get(spelling) if spelling else None
        if spelling and isinstance(value, list):
            if len(value) != num_layers:
                raise ScenarioError(f"{f.name}: {spelling}", f"has {len(value)} entries for {num_layers} layers")
            found[spelling] = value[index]
    heads = f.items("num_attention_heads_per_layer")
    if heads:
        if len(heads) != num_layers:
            raise ScenarioError(
                f"{f.name}: num_attention_heads_per_layer", f"has {len(heads)} entries for {num_layers} layers"
            )
        found["num_attention_heads"] = heads[index]
    if mixer == "full":
        found |= full_layers_own(f)
    shared = f.count("num_kv_shared_layers")
    if shared and index >= num_layers - shared:
        found[SHARES_KV] = True
        if f.flag("use_double_wide_mlp"):
            found["intermediate_size"] = 2 * found.get("intermediate_size", f.count("intermediate_size"))
    f.get("cla_share_factor")
    if f.get("use_cla"):  # Hunyuan: the first layer of each group has keys and values, the others read them
        found[SHARES_KV] = index % f.positive("cla_share_factor") > 0
    picks = picks_of(f, num_layers)
    if picks:
        found[SHARES_PICKS] = not picks[index]
    per_layer = f.get("per_layer_config")
    if isinstance(per_layer, Mapping):
        for name, value in per_layer.items():
            if str(name).isdigit() and int(name) == index and isinstance(value, Mapping):
                found |= value
    return found


def picks_of(f: Fields, num_layers: int) -> list[bool]:
    """Whether each layer's indexer picks for itself (GLM-5): listed, as letters F and S, or one in so many."""
    words = f.items("indexer_types")
    letters = f.get("index_topk_pattern")
    if words is None and isinstance(letters, str):
        words = [{"F": "full", "S": "shared"}.get(letter, letter) for letter in letters]
    if words:
        if len(words) != num_layers or any(word not in ("full", "shared") for word in words):
            raise ScenarioError(f"{f.name}: indexer_types", f"must say full or shared for each of {num_layers} layers")
        return [word == "full" for word in words]
    if "index_topk_freq" in f:
        every, offset = f.positive("index_topk_freq"), f.get("index_skip_topk_offset", 2)
        offset = offset if isinstance(offset, int) else f.positive("index_skip_topk_offset")
        return [max(i - offset + 1, 0) % every == 0 for i in range(num_layers)]
    return []


def full_layers_own(f: Fields) -> dict[str, Any]:
    """Gemma 4 gives layers of full attention a width of their own, and fewer heads where keys serve as values."""
    found: dict[str, Any] = {}
    if f.get("global_head_dim"):
        found["head_dim"] = f.positive("global_head_dim")
    if f.get("num_global_key_value_heads") and f.get("attention_k_eq_v"):
        found["num_key_value_heads"] = f.positive("num_global_key_value_heads")
    return found


def layer_of(f: Fields, family: Family, mixer: str, block: str, place: tuple[int, int]) -> Layer:
    """One layer from its two words. ``place``: its number, and how many there are."""
    mixers: list[Mixer] = []
    if mixer in ("full", "window", "chunk", "both"):
        mixers.append(attention_of(f, family, "full" if mixer == "both" else mixer))
    if mixer in ("linear", "both"):
        mixers.append(state_of(f, family))
    feed_forward, context = feed_forward_of(f, family, block)
    context |= names_of(f, mixers) | {"layer": place[0], "layers": place[1], "is_moe": int(block == "moe")}

    def lookup(name: str) -> Any:
        return context[name] if name in context else number(f, name)

    formulas = [family.layer]
    formulas += [family.attention] if mixer not in ("linear", "none") else []
    formulas += [family.state] if mixer in ("linear", "both") else []
    formulas += [{"dense": family.dense, "moe": family.moe}.get(block, "0")]
    norms = family.norms * context["hidden"] * (2 if flag_of(f, family.norm_bias) else 1)
    vectors = norms + sum(evaluate(formula, lookup) for formula in formulas)
    return Layer(tuple(mixers), feed_forward, vectors, evaluate(family.extra, lookup))


def flag_of(f: Fields, value: bool | str) -> bool:
    """A row's flag: said, or the value of a field."""
    return value if isinstance(value, bool) else bool(evaluate(value, lambda name: number(f, name)))


def names_of(f: Fields, mixers: list[Mixer]) -> dict[str, int]:
    """What the mixers of a layer are called in formulas."""
    names = {"hidden": f.positive("hidden_size"), "vocab": f.positive("vocab_size")}
    for mixer in mixers:
        if isinstance(mixer, GroupedQuery):
            names |= {"heads": mixer.num_heads, "kv_heads": mixer.num_kv_heads, "d": mixer.head_dim}
            names |= {"q": mixer.num_heads * mixer.head_dim, "kv": mixer.num_kv_heads * mixer.head_dim}
            names |= {"v": mixer.num_kv_heads * mixer.value_dim, "o": mixer.num_heads * mixer.value_dim}
            names |= {"window": mixer.reach.size, "own_kv": int(mixer.has_own_kv)}
        elif isinstance(mixer, Latent):
            names |= {"heads": mixer.num_heads, "q_rank": mixer.q_lora_rank, "kv_rank": mixer.kv_lora_rank}
            names |= {"index_dim": mixer.indexer.elements if mixer.indexer else 0}
        elif isinstance(mixer, FixedState):
            names |= {"state_heads": mixer.num_heads, "conv_channels": mixer.conv_channels}
            names |= {"kernel": mixer.conv_kernel, "state_elements": mixer.state_elements, "inner": mixer.width}
    return names


def feed_forward_of(f: Fields, family: Family, block: str) -> tuple[FeedForward | None, dict[str, int]]:
    """The block behind the mixers, and what its sizes are called in formulas."""
    hidden = f.positive("hidden_size")
    matrices = 3 if flag_of(f, family.gated) and is_gated(f) else 2
    if block == "none":
        return None, {"hidden": hidden}
    if block == "dense":
        width = dense_width(f, family, hidden)
        return FeedForward(dense_params=matrices * hidden * width), {"ff": width, "matrices": matrices}
    found, names = experts_of(f, family, hidden, matrices)
    if f.get("enable_moe_block"):  # Gemma 4: experts beside a dense block
        width = dense_width(f, family, hidden)
        found = replace(found, dense_params=found.dense_params + matrices * hidden * width)
    beside = evaluate(family.beside, lambda name: names[name] if name in names else number(f, name))
    return replace(found, dense_params=found.dense_params + matrices * hidden * beside), names


def is_gated(f: Fields) -> bool:
    """Squared ReLU has no gate in any family that has it (Nemotron)."""
    return f.get("mlp_hidden_act") != "relu2" and f.get("hybrid_override_pattern") is None


def dense_width(f: Fields, family: Family, hidden: int) -> int:
    """Width of a dense block; ``intermediate_size_mlp`` is that of the dense layers where experts have another."""
    if family.ff:
        return evaluate(family.ff, lambda name: hidden if name == "hidden" else number(f, name))
    for name in ("intermediate_size_mlp", "dense_intermediate_size"):
        if f.get(name):
            return f.positive(name)
    if f.get("intermediate_size") is None and any(name in f.config for name in ("n_inner", "ffn_hidden_size")):
        return 4 * hidden  # null there means four times the hidden size
    return f.positive("intermediate_size")


def experts_of(f: Fields, family: Family, hidden: int, matrices: int) -> tuple[FeedForward, dict[str, int]]:
    """Routed experts, the shared ones among the dense weights."""
    experts, top_k = f.positive("num_experts"), f.positive("num_experts_per_tok")
    if top_k > experts:
        raise ScenarioError(f"{f.name}: num_experts_per_tok", f"{top_k} of {experts} experts")
    width = f.positive("moe_intermediate_size" if f.get("moe_intermediate_size") is not None else "intermediate_size")
    shared = f.count("n_shared_experts", family.shared)
    shared_width = f.count("shared_expert_intermediate_size")
    shared = shared or (1 if shared_width else 0)
    names = {"hidden": hidden, "experts": experts, "expert_ff": width, "shared": shared, "matrices": matrices}
    names |= {"shared_ff": shared * (shared_width or width)}
    expert_in = evaluate(family.expert_in, lambda n: names[n] if n in names else number(f, n))
    block = FeedForward(
        dense_params=matrices * hidden * names["shared_ff"],
        num_experts=experts,
        top_k=top_k,
        expert_params=matrices * expert_in * width,
        router_params=evaluate(family.router, lambda n: names[n] if n in names else number(f, n))
        if family.router
        else hidden * experts,
        num_shared_experts=shared,
    )
    return block, names


def model_names(f: Fields, num_layers: int) -> Mapping[str, int]:
    """What formulas outside the layers may name."""
    return {"hidden": f.positive("hidden_size"), "vocab": f.positive("vocab_size"), "layers": num_layers}
