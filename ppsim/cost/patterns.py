"""Which layer is of which kind: the many ways in which configs say it, read into one word a layer.

    mixers       full, window, chunk, linear, both (attention beside a state), none
    feed-forward dense, moe, none

Lists of words are taken as they are; periods, offsets and strings of letters are rolled out. Layers are counted from 0,
only ``linear_attn_config`` counts from 1. Raises ScenarioError for a word that is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ppsim.cost.families import Family
from ppsim.cost.fields import Fields
from ppsim.errors import ScenarioError

MIXER_WORDS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "indexed_attention": "full",
    "full": "full",
    "sliding_attention": "window",
    "sliding_window": "window",
    "local": "window",
    "chunked_attention": "chunk",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "recurrent": "linear",
    "conv": "linear",
    "kda": "linear",
    "hybrid": "both",
    "moe": "none",
    "mlp": "none",
}
LETTERS = {"M": ("linear", "none"), "*": ("full", "none"), "-": ("none", "dense"), "E": ("none", "moe")}
FEED_FORWARD_WORDS = {"dense": "dense", "sparse": "moe", "moe": "moe", "mlp": "dense"}
LISTS = ("layer_types", "layers_block_type", "block_types", "attention_layers")
USUAL = {"f": "full", "w": "window", "l": "linear"}
PERIODS = ("sliding_window_pattern", "global_attn_every_n_layers")  # said by the config, they replace what is usual


def mixer_words(f: Fields, family: Family, num_layers: int) -> list[str]:
    """The kind of mixer of each layer."""
    letters = f.get("hybrid_override_pattern")
    if letters is not None:
        return [word for word, _ in from_letters(f, letters, num_layers)]
    words = MIXER_WORDS | family.words
    for name in LISTS:
        listed = f.items(name)
        if listed:
            return listed_words(f, words, name, listed, num_layers)
    found = from_indices(f, family, num_layers) or from_periods(f, num_layers)
    if not found and family.usual and not any(f.get(name) for name in PERIODS):
        return usual_words(f, family, num_layers)
    return found or ([family.mixer] * num_layers if family.mixer != "full" else windowed(f, family, num_layers))


def usual_words(f: Fields, family: Family, num_layers: int) -> list[str]:
    """What the family's own class makes of a config that names no kinds: letters of ``families.toml``, repeated.

    ``first`` replaces the letters of the first layers, ``last`` that of the last one; a pattern that leaves a short
    model without attention has it in the last layer. Without a window its layers are full.
    """
    letters = [family.usual[i % len(family.usual)] for i in range(num_layers)]
    letters[: len(family.first)] = family.first[:num_layers]
    if family.last or ("f" in family.usual and "f" not in letters and "w" not in letters):
        letters[-1] = family.last or "f"
    has_window = bool(window_of(f)) and f.get("use_sliding_window") is not False
    return ["full" if letter == "w" and not has_window else USUAL[letter] for letter in letters]


def listed_words(f: Fields, words: dict[str, str], name: str, listed: list[Any], num_layers: int) -> list[str]:
    """Words of a list, one a layer; block_types of a shorter pattern is repeated."""
    if name == "block_types":
        listed = [listed[i % len(listed)] for i in range(num_layers)]
    if len(listed) < num_layers:
        raise ScenarioError(f"{f.name}: {name}", f"has {len(listed)} entries for {num_layers} layers")
    for word in listed:
        if not isinstance(word, str) or word not in words:
            raise ScenarioError(
                f"{f.name}: {name}", f"{word!r} is no kind of layer that is known", f"known: {', '.join(words)}"
            )
    return [words[word] for word in listed[:num_layers]]


def from_letters(f: Fields, letters: Any, num_layers: int) -> list[tuple[str, str]]:
    """``hybrid_override_pattern``: M state-space, * attention, - dense, E experts; each letter is a whole layer."""
    field = f"{f.name}: hybrid_override_pattern"
    if not isinstance(letters, str) or len(letters) != num_layers:
        raise ScenarioError(field, f"must be a string with a letter for each of {num_layers} layers, got {letters!r}")
    unknown = sorted(set(letters) - set(LETTERS))
    if unknown:
        raise ScenarioError(field, f"has {unknown[0]!r}", f"known: {' '.join(LETTERS)}")
    return [LETTERS[letter] for letter in letters]


def from_indices(f: Fields, family: Family, num_layers: int) -> list[str]:
    """Lists of layers: of full attention, of state-space layers, or a 0 or 1 a layer."""
    kinds = f.items("attn_type_list")
    if kinds:
        if len(kinds) != num_layers:
            raise ScenarioError(f"{f.name}: attn_type_list", f"has {len(kinds)} entries for {num_layers} layers")
        return ["full" if kind else "linear" for kind in kinds]
    flags = f.items("hybrid_layer_pattern")  # MiMo: 1 is a layer with a window
    if flags:
        if len(flags) < num_layers:
            raise ScenarioError(f"{f.name}: hybrid_layer_pattern", f"has {len(flags)} entries for {num_layers} layers")
        return ["window" if flag else "full" for flag in flags[:num_layers]]
    inner = f.inner("linear_attn_config")
    if inner is not None:
        return linear_attn_config(inner, num_layers)
    for name in ("attn_layer_indices", "full_attn_idxs"):
        full = f.items(name)
        if full is not None:
            return ["full" if i in full else "linear" for i in range(num_layers)]
    if family.chunk_interval and "attention_chunk_size" in f:  # Llama 4: layers without rotary positions see all
        rotary = f.items("no_rope_layers")
        if rotary and len(rotary) < num_layers:
            raise ScenarioError(f"{f.name}: no_rope_layers", f"has {len(rotary)} entries for {num_layers} layers")
        every = f.count("no_rope_layer_interval", family.chunk_interval)
        rotary = rotary or [(i + 1) % every for i in range(num_layers)]
        return ["chunk" if rotary[i] else "full" for i in range(num_layers)]
    if family.rotary_is_full and f.get("use_sliding_window") and window_of(f):  # SmolLM 3
        rotary = f.items("no_rope_layers") or [
            (i + 1) % f.count("no_rope_layer_interval", 4) for i in range(num_layers)
        ]
        return ["full" if all(rotary[i : i + 1]) else "window" for i in range(num_layers)]
    groups = f.items("attention_types")
    if groups:  # GPT-Neo: [[["global", "local"], 12]]
        return from_groups(f, MIXER_WORDS | family.words, groups, num_layers)
    return []


def from_groups(f: Fields, words: dict[str, str], groups: list[Any], num_layers: int) -> list[str]:
    """``attention_types``: words and how often they come, one group behind the other."""
    field = f"{f.name}: attention_types"
    listed: list[Any] = []
    for group in groups:
        match group:
            case [[*kinds], int(times)] if 0 < times <= num_layers:
                listed += kinds * times
            case _:
                raise ScenarioError(field, f"must be groups of kinds and how often they come, got {group!r}")
    if len(listed) != num_layers:
        raise ScenarioError(field, f"names {len(listed)} layers of {num_layers}")
    return listed_words(f, words, "attention_types", listed, num_layers)


def linear_attn_config(inner: Fields, num_layers: int) -> list[str]:
    """``full_attn_layers`` and ``kda_layers`` must name every layer once, counted from 1."""
    full, linear = inner.items("full_attn_layers") or [], inner.items("kda_layers") or []
    if sorted([*full, *linear], key=str) != sorted(range(1, num_layers + 1), key=str):
        raise ScenarioError(
            inner.name, f"full_attn_layers and kda_layers do not name each of the layers 1 to {num_layers} once"
        )
    return ["full" if i + 1 in full else "linear" for i in range(num_layers)]


def from_periods(f: Fields, num_layers: int) -> list[str]:
    """One layer of attention in so many, the others linear."""
    if "full_attention_interval" in f:
        every = f.positive("full_attention_interval")
        return ["full" if (i + 1) % every == 0 else "linear" for i in range(num_layers)]
    if "layer_group_size" in f:  # Ring and Ling: the last layer of each group, and those after the last whole group
        size = f.positive("layer_group_size")
        whole = num_layers // size * size
        return ["full" if (i + 1) % size == 0 or i >= whole else "linear" for i in range(num_layers)]
    if "attn_layer_period" in f:
        every, offset = f.positive("attn_layer_period"), f.count("attn_layer_offset")
        return ["full" if i % every == offset else "linear" for i in range(num_layers)]
    return []


def windowed(f: Fields, family: Family, num_layers: int) -> list[str]:
    """Attention in all layers; which of them look back no further than a window."""
    if f.get("use_sliding_window") is False or not window_of(f):
        return ["full"] * num_layers
    pattern = f.get("sliding_window_pattern")
    every, first = f.get("global_attn_every_n_layers"), 0
    if pattern is None and every is not None and family.known:
        pattern, first = f.positive("global_attn_every_n_layers"), 1 - family.period_ends
    if pattern is None:
        pattern = f.get("_sliding_window_pattern") or family.window_pattern or None
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return ["window" if pattern[i % len(pattern)] == "L" else "full" for i in range(num_layers)]
    if isinstance(pattern, int) and not isinstance(pattern, bool) and pattern > 0:
        dense, own = f.count("first_k_dense_replace"), f.count("prefix_dense_sliding_window_pattern")
        head = (
            [(i + 1) % own for i in range(min(dense, num_layers))] if own else []
        )  # Cohere 2 MoE: a period of its own
        rest = [(i + 1 - first) % pattern for i in range(num_layers - len(head))]
        return ["window" if place else "full" for place in head + rest]
    if pattern is not None:
        raise ScenarioError(
            f"{f.name}: sliding_window_pattern", f"must be a period or letters L and G, got {pattern!r}"
        )
    first = f.count("max_window_layers") if f.get("use_sliding_window") else 0
    return ["window" if i >= first else "full" for i in range(num_layers)]


def window_of(f: Fields) -> int:
    """Tokens of a sliding window, 0 where there is none."""
    for name in ("sliding_window", "sliding_window_size", "attention_window_size", "window_size", "local_attention"):
        value = f.get(name)
        if isinstance(value, list):
            continue
        if value:
            return f.positive(name)
    return 0


def feed_forward_words(f: Fields, num_layers: int, has_experts: bool) -> list[str]:
    """The kind of feed-forward block of each layer."""
    letters = f.get("hybrid_override_pattern")
    if letters is not None:
        return [word for _, word in from_letters(f, letters, num_layers)]
    listed = f.items("layers_block_type") or []
    if any(word in ("moe", "mlp") for word in listed):
        return [FEED_FORWARD_WORDS.get(str(word), "none") for word in listed[:num_layers]]
    if not has_experts:
        return ["dense"] * num_layers
    return ["moe" if is_moe else "dense" for is_moe in moe_layers(f, num_layers)]


def moe_layers(f: Fields, num_layers: int) -> Sequence[bool]:
    """Which layers have experts."""
    words = f.items("mlp_layer_types")
    if words:
        unknown = [w for w in words if w not in FEED_FORWARD_WORDS]
        if unknown or len(words) < num_layers:
            raise ScenarioError(
                f"{f.name}: mlp_layer_types", f"must say dense or sparse for {num_layers} layers, got {words!r}"
            )
        return [FEED_FORWARD_WORDS[w] == "moe" for w in words[:num_layers]]
    named = f.get("moe_layers") or f.get("moe_layers_enum")
    if isinstance(named, str):
        named = [int(part) if part.strip().isdigit() else part for part in named.split(",")]
    if named:
        if not isinstance(named, list) or not all(isinstance(i, int) and 0 <= i < num_layers for i in named):
            raise ScenarioError(f"{f.name}: moe_layers", f"must name layers 0 to {num_layers - 1}, got {named!r}")
        return [i in named for i in range(num_layers)]
    flags = f.get("moe_layer_freq")
    if isinstance(flags, list):
        if len(flags) < num_layers:
            raise ScenarioError(f"{f.name}: moe_layer_freq", f"has {len(flags)} entries for {num_layers} layers")
        return [bool(flag) for flag in flags[:num_layers]]
    return by_period(f, num_layers)


def by_period(f: Fields, num_layers: int) -> Sequence[bool]:
    """A first layer, a period and exceptions: DeepSeek, Qwen, Llama 4, Jamba and Ernie have words of their own."""
    if "interleave_moe_layer_step" in f:
        step = f.positive("interleave_moe_layer_step")
        return [(i + 1) % step == 0 for i in range(num_layers)]
    if "expert_layer_period" in f:
        step, offset = f.positive("expert_layer_period"), f.count("expert_layer_offset")
        return [i % step == offset for i in range(num_layers)]
    if f.get("moe_layer_start_index") is not None:
        start, last = f.count("moe_layer_start_index"), f.get("moe_layer_end_index")
        last = num_layers - 1 if last in (None, -1) else f.count("moe_layer_end_index")
        step = f.count("moe_layer_interval", 1)
        return [start <= i <= last and (i + 1) % step == 0 for i in range(num_layers)]
    first = f.count("first_k_dense_replace") or f.count("num_dense_layers") or f.count("moe_layer_num_skipped")
    if first >= num_layers:
        raise ScenarioError(f"{f.name}: first_k_dense_replace", f"{first} leaves no expert layer of {num_layers}")
    has_freq = f.get("moe_layer_freq") is not None
    name = next((n for n in ("moe_layer_freq", "moe_layer_frequency") if f.get(n)), "decoder_sparse_step")
    step = f.count(name, 1)
    dense = f.items("mlp_only_layers") or []
    offset = 0 if has_freq else 1  # DeepSeek counts from layer 0, Qwen from 1
    return [i >= first and i not in dense and (i + offset) % step == 0 for i in range(num_layers)]
