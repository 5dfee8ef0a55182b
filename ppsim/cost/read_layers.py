"""All layers of a config: its patterns, its mixers and its feed-forward blocks put together, with the vectors of its
family. See ``patterns`` for which layer is what, ``mixers`` for sizes, ``families`` for what goes without saying."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ppsim.cost.attention import GroupedQuery, Latent
from ppsim.cost.families import Family, evaluate
from ppsim.cost.fields import Fields
from ppsim.cost.mixers import attention_of, number, state_of
from ppsim.cost.model import FeedForward, Layer, Mixer
from ppsim.cost.patterns import ONE_BLOCK_TYPES, feed_forward_words, mixer_words
from ppsim.cost.state import FixedState
from ppsim.errors import ScenarioError


def layers_of(f: Fields, family: Family, num_layers: int) -> tuple[Layer, ...]:
    """Every layer in order. Equal ones are the same object."""
    has_experts = f.spelled("num_experts") is not None and bool(f.get("num_experts"))
    mixers = mixer_words(f, family, num_layers)
    blocks = feed_forward_words(f, num_layers, has_experts)
    made: dict[tuple[str, str, int], Layer] = {}
    found = []
    for i, (mixer, block) in enumerate(zip(mixers, blocks)):
        key = (mixer, block, i if "layer" in family.layer.replace("layers", "") else -1)
        if key not in made:
            made[key] = layer_of(f, family, mixer, block, i)
        found.append(made[key])
    return tuple(found)


def layer_of(f: Fields, family: Family, mixer: str, block: str, index: int) -> Layer:
    """One layer from its two words."""
    mixers: list[Mixer] = []
    if mixer in ("full", "window", "chunk", "both"):
        mixers.append(attention_of(f, family, "full" if mixer == "both" else mixer))
    if mixer in ("linear", "both"):
        mixers.append(state_of(f, family))
    feed_forward, context = feed_forward_of(f, family, block)
    context |= names_of(f, mixers) | {"layer": index}

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
        elif isinstance(mixer, Latent):
            names |= {"heads": mixer.num_heads, "q_rank": mixer.q_lora_rank, "kv_rank": mixer.kv_lora_rank}
            names |= {"index_dim": mixer.indexer.head_dim if mixer.indexer else 0}
        elif isinstance(mixer, FixedState):
            names |= {"state_heads": mixer.num_heads, "conv_channels": mixer.conv_channels}
            names |= {"kernel": mixer.conv_kernel, "state_elements": mixer.state_elements}
    return names


def feed_forward_of(f: Fields, family: Family, block: str) -> tuple[FeedForward | None, dict[str, int]]:
    """The block behind the mixers, and what its sizes are called in formulas."""
    hidden = f.positive("hidden_size")
    matrices = 3 if flag_of(f, family.gated) and is_gated(f) else 2
    if block == "none":
        return None, {"hidden": hidden}
    if block == "dense":
        width = dense_width(f, hidden)
        return FeedForward(dense_params=matrices * hidden * width), {"ff": width, "matrices": matrices}
    return experts_of(f, family, hidden, matrices)


def is_gated(f: Fields) -> bool:
    """Squared ReLU has no gate in any family that has it (Nemotron)."""
    return f.get("mlp_hidden_act") != "relu2" and f.get("hybrid_override_pattern") is None


def dense_width(f: Fields, hidden: int) -> int:
    """Width of a dense block; ``intermediate_size_mlp`` is that of the dense layers where experts have another."""
    for name in ("intermediate_size_mlp", "dense_intermediate_size"):
        if f.get(name):
            return f.positive(name)
    if f.get("intermediate_size") is None and any(spelling in f.config for spelling in ("n_inner", "ffn_hidden_size")):
        return 4 * hidden  # null there means four times the hidden size
    return f.positive("intermediate_size")


def experts_of(f: Fields, family: Family, hidden: int, matrices: int) -> tuple[FeedForward, dict[str, int]]:
    """Routed experts, the shared ones among the dense weights."""
    experts, top_k = f.positive("num_experts"), f.positive("num_experts_per_tok")
    if top_k > experts:
        raise ScenarioError(f"{f.name}: num_experts_per_tok", f"{top_k} of {experts} experts")
    width = f.positive("moe_intermediate_size" if f.spelled("moe_intermediate_size") else "intermediate_size")
    shared = f.count("n_shared_experts", family.shared)
    shared_width = f.count("shared_expert_intermediate_size")
    shared = shared or (1 if shared_width else 0)
    names = {"hidden": hidden, "experts": experts, "expert_ff": width, "shared": shared, "matrices": matrices}
    names |= {"shared_ff": shared * (shared_width or width)}
    block = FeedForward(
        dense_params=matrices * hidden * names["shared_ff"],
        num_experts=experts,
        top_k=top_k,
        expert_params=matrices * hidden * width,
        router_params=evaluate(family.router, lambda n: names[n] if n in names else number(f, n))
        if family.router
        else hidden * experts,
        num_shared_experts=shared,
    )
    return block, names


def model_names(f: Fields, num_layers: int) -> Mapping[str, int]:
    """What formulas outside the layers may name."""
    return {"hidden": f.positive("hidden_size"), "vocab": f.positive("vocab_size"), "layers": num_layers}


_ = ONE_BLOCK_TYPES
