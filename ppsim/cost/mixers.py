"""From the fields of a config to the mixers of a layer: attention of one of two forms, or a state of one of six.

Which form it is, is told by the fields that are there: ``kv_lora_rank`` is MLA, ``mamba_n_heads`` a state-space layer
with heads (Mamba-2), ``linear_num_value_heads`` the gated delta rule, and so on. Sizes of the matrices are those of the
published implementations (transformers); they are held against them by ``tests/unit/test_model_zoo.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from ppsim.cost.attention import FULL, GroupedQuery, Indexer, Latent, Reach
from ppsim.cost.families import Family, evaluate
from ppsim.cost.fields import Fields
from ppsim.cost.patterns import window_of
from ppsim.cost.state import DELTA_RULE, FixedState
from ppsim.errors import ScenarioError

SHARES_KV = "_shares_kv"  # of a layer: it reads the keys and values of an earlier one
SHARES_PICKS = "_shares_picks"  # of a layer: it attends to what an earlier one's indexer picked
Number = int | float
STATE_WIDTHS = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


def reach_of(f: Fields, word: str) -> Reach:
    """How far the queries of a layer of this kind look back."""
    if word == "window":
        size = window_of(f)
        if not size:
            raise ScenarioError(f"{f.name}: sliding_window", "is missing", "some layers are said to have a window")
        return Reach("window", size)
    if word == "chunk":
        return Reach("chunk", f.positive("attention_chunk_size"))
    return FULL


def attention_of(f: Fields, family: Family, word: str) -> GroupedQuery | Latent:
    """Attention of a layer of this kind."""
    if f.get("kv_lora_rank") and f.get("use_mla", True):
        return latent(f, family, word)
    f.get("head_dim")
    num_heads = swa(f, "num_attention_heads", word) or f.positive("num_attention_heads")
    factor = family.window_kv_factor if word == "window" else 1
    kv_heads = swa(f, "num_key_value_heads", word) or factor * kv_heads_of(f, num_heads)
    if num_heads % kv_heads:
        raise ScenarioError(
            f"{f.name}: {f.spelled('num_key_value_heads') or 'num_key_value_heads'}",
            f"{kv_heads} does not divide num_attention_heads {num_heads}",
        )
    head_dim = swa(f, "head_dim", word) or head_dim_of(f, num_heads)
    value_dim = swa(f, "v_head_dim", word) or f.count("v_head_dim", head_dim)
    hidden = f.positive("hidden_size")
    names = {"hidden": hidden, "heads": num_heads, "d": head_dim, "q": num_heads * head_dim, "o": num_heads * value_dim}
    gate = evaluate(family.gate, lambda name: names[name] if name in names else number(f, name))
    return GroupedQuery(
        num_heads,
        kv_heads,
        head_dim,
        0 if value_dim == head_dim else value_dim,
        reach_of(f, word),
        gate,
        has_own_kv=not f.config.get(SHARES_KV),
        values_are_keys=word == "full" and f.flag("attention_k_eq_v"),
    )


def number(f: Fields, name: str) -> Number:
    """A field in a formula: absent, null and false are 0, whatever else is there and is no number is 1."""
    value = f.get(name)
    if value is None or (isinstance(value, float) and not isfinite(value)):
        return 0
    return value if isinstance(value, int | float) else 1


def swa(f: Fields, field: str, word: str) -> int:
    """Some models give the layers with a window heads of their own: ``swa_num_attention_heads``."""
    return f.count(f"swa_{field}") if word == "window" else 0


def kv_heads_of(f: Fields, num_heads: int) -> int:
    """Key and value heads: given, one (multi-query), or as many as heads."""
    if f.get("new_decoder_architecture"):  # Falcon: num_kv_heads counts only there
        return f.positive("num_key_value_heads")
    if f.get("multi_query_attention") and f.get("multi_query_group_num"):
        return f.positive("multi_query_group_num")
    if f.get("multi_query"):
        return 1
    attention = f.get("attn_config")
    if isinstance(attention, Mapping):  # MPT
        inner, kind = Fields(attention, f"{f.name}: attn_config"), attention.get("attn_type")
        if kind == "multiquery_attention":
            return 1
        if kind == "grouped_query_attention":
            return inner.positive("kv_n_heads")
    if f.get("new_decoder_architecture") is not None or f.get("multi_query") is not None:
        return num_heads
    return f.positive("num_key_value_heads") if f.get("num_key_value_heads") is not None else num_heads


def head_dim_of(f: Fields, num_heads: int) -> int:
    if f.get("head_dim") is not None:
        return f.positive("head_dim")
    if f.get("kv_channels") is not None:
        return f.positive("kv_channels")
    hidden = f.positive("hidden_size")
    if hidden % num_heads:
        raise ScenarioError(f"{f.name}: head_dim", f"is needed: {num_heads} heads do not divide hidden_size {hidden}")
    return hidden // num_heads


def latent(f: Fields, family: Family, word: str) -> Latent:
    """MLA, with an indexer where ``index_topk`` says so."""
    num_heads = f.positive("num_attention_heads")
    f.get("num_key_value_heads"), f.get("head_dim"), f.get("qk_head_dim")
    q_rank = f.positive("q_lora_rank") if f.get("q_lora_rank") else 0
    hidden = f.positive("hidden_size")
    value_dim = f.positive("v_head_dim")
    names = {"hidden": hidden, "heads": num_heads, "o": num_heads * value_dim}
    return Latent(
        num_heads=num_heads,
        q_lora_rank=q_rank,
        kv_lora_rank=f.positive("kv_lora_rank"),
        qk_nope_head_dim=f.positive("qk_nope_head_dim"),
        qk_rope_head_dim=f.positive("qk_rope_head_dim"),
        v_head_dim=value_dim,
        reach=reach_of(f, word),
        indexer=indexer(f, hidden, q_rank) if "index_topk" in f else None,
        gate_params=evaluate(family.gate, lambda name: names[name] if name in names else number(f, name)),
    )


def indexer(f: Fields, hidden: int, q_rank: int) -> Indexer:
    """Its queries come from the query's latent, its key and the weights of its heads from the hidden states."""
    heads, dim = f.positive("index_n_heads"), f.positive("index_head_dim")
    params = (q_rank or hidden) * heads * dim + hidden * dim + hidden * heads
    has_own_keys = not f.config.get(SHARES_PICKS)
    return Indexer(heads, dim, f.positive("index_topk"), params if has_own_keys else 0, has_own_keys)


# --- states ----------------------------------------------------------------------------------------------------


def state_of(f: Fields, family: Family) -> FixedState:
    """The state of a linear layer, by the fields that describe it."""
    builders = {
        "mamba2": mamba2,
        "mamba1": mamba1,
        "delta": gated_delta,
        "kda": kda,
        "lightning": lightning,
        "conv": short_conv,
        "rg_lru": rg_lru,
    }
    kind = family.state_kind or kind_of(f)
    if not kind:
        raise ScenarioError(
            f"{f.name}: model_type",
            f"{f.get('model_type')!r} has linear layers of a kind that no field describes",
            "known: mamba_num_heads, mamba_d_state, linear_num_value_heads, linear_attn_config, conv_L_cache",
        )
    return builders[kind](f)


def kind_of(f: Fields) -> str:
    """By the field that only one kind has; empty if none is there."""
    marks = (
        ("linear_attn_config", "kda"),
        ("linear_num_value_heads", "delta"),
        ("linear_num_heads", "kda"),
        ("mamba_num_heads", "mamba2"),
        ("mamba_n_heads", "mamba2"),
        ("mamba_d_state", "mamba1"),
        ("conv_L_cache", "conv"),
        ("lru_width", "rg_lru"),
        ("attn_type_list", "lightning"),
    )
    return next((kind for field, kind in marks if f.get(field)), "")


def state_width(f: Fields) -> float:
    """Bytes of an element of the state: float32 unless the config says otherwise."""
    name = f.get("mamba_ssm_dtype") or f.get("mamba_ssm_cache_dtype") or "float32"
    if name not in STATE_WIDTHS:
        raise ScenarioError(f"{f.name}: mamba_ssm_dtype", f"unknown type {name!r}", f"known: {', '.join(STATE_WIDTHS)}")
    return STATE_WIDTHS[name]


def first_of(f: Fields, *names: str, default: int = 0) -> int:
    """The first of these fields that has a value; the first name stands in the message if none has."""
    given = next((name for name in names if f.get(name) is not None), None)
    if given is None and default:
        return default
    return f.positive(given or names[0])


def mamba2(f: Fields) -> FixedState:
    """One matrix in (gate, inputs, the two vectors of each group, a step a head), one out; state heads x width x N."""
    hidden = f.positive("hidden_size")
    heads = first_of(f, "mamba_num_heads", "mamba_n_heads", "num_heads")
    width = mamba2_width(f, hidden, heads)
    n = first_of(f, "ssm_state_size", "mamba_d_state", "state_size")
    groups = first_of(f, "n_groups", "mamba_n_groups", "mamba_ngroups", default=1)
    inner = heads * width
    channels = inner + 2 * groups * n
    kernel = first_of(f, "conv_kernel", "mamba_d_conv", default=4)
    matrices = hidden * (inner + channels + heads) + inner * hidden
    return FixedState("Mamba-2", matrices, heads, inner * n, channels, kernel, state_bytes=state_width(f), width=inner)


def mamba2_width(f: Fields, hidden: int, heads: int) -> int:
    """Width of a head: given, or the expanded width over the heads. "auto" means that, too."""
    for name in ("mamba_head_dim", "mamba_d_head", "mamba_headdim"):
        if f.get(name) not in (None, "auto"):
            return f.positive(name)
    if f.get("num_heads") is not None and f.get("head_dim") is not None:
        return f.positive("head_dim")
    inner = f.count("mamba_d_ssm") or first_of(f, "mamba_expand", "expand", default=2) * hidden
    return inner // heads


def mamba1(f: Fields) -> FixedState:
    """A state of N elements a channel; the step has a low rank."""
    hidden, n = f.positive("hidden_size"), first_of(f, "mamba_d_state", "state_size")
    inner = f.count("mamba_inner") or hidden * first_of(f, "mamba_expand", "expand", default=2)
    rank = f.get("mamba_dt_rank") if f.get("mamba_dt_rank") is not None else f.get("time_step_rank")
    rank = -(-hidden // 16) if rank in (None, "auto") else first_of(f, "mamba_dt_rank", "time_step_rank")
    kernel = first_of(f, "mamba_d_conv", "conv_kernel", default=4)
    matrices = hidden * 2 * inner + inner * (rank + 2 * n) + rank * inner + inner * hidden
    return FixedState("Mamba", matrices, 0, inner * n, inner, kernel, width=inner)


def gated_delta(f: Fields) -> FixedState:
    """Queries, keys, values and gate in one matrix, two numbers a head; a state of key width x value width a head."""
    hidden = f.positive("hidden_size")
    key_heads, heads = f.positive("linear_num_key_heads"), f.positive("linear_num_value_heads")
    key_dim, value_dim = f.positive("linear_key_head_dim"), f.positive("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + heads * value_dim
    matrices = hidden * (channels + heads * value_dim + 2 * heads) + heads * value_dim * hidden
    kernel = f.count("linear_conv_kernel_dim", 4)
    return FixedState(
        "delta rule",
        matrices,
        heads,
        heads * key_dim * value_dim,
        channels,
        kernel,
        DELTA_RULE,
        state_width(f),
        heads * value_dim,
    )


def kda(f: Fields) -> FixedState:
    """Kimi's delta attention: a forget gate a channel, made through a bottleneck of the head's width, as is the output
    gate; ``f_lora`` and ``g_lora`` False: by one matrix."""
    inner_fields = f.inner("linear_attn_config")
    hidden = f.positive("hidden_size")
    if inner_fields is not None:
        heads, dim = inner_fields.positive("num_heads"), inner_fields.positive("head_dim")
        kernel = inner_fields.count("short_conv_kernel_size", 4)
    else:
        heads, dim = f.positive("linear_num_heads"), f.positive("linear_head_dim")
        kernel = f.count("linear_conv_kernel_dim", 4)
    inner = heads * dim
    gates = 2 * (hidden * dim + dim * inner) if f.get("kda_low_rank_gates", True) else 2 * hidden * inner
    matrices = 3 * hidden * inner + gates + hidden * heads + inner * hidden
    return FixedState("KDA", matrices, heads, heads * dim * dim, 3 * inner, kernel, DELTA_RULE, width=inner)


def lightning(f: Fields) -> FixedState:
    """Lightning attention (MiniMax): queries, keys and values in one matrix, an output gate, no convolution."""
    hidden, heads = f.positive("hidden_size"), f.positive("num_attention_heads")
    dim = head_dim_of(f, heads)
    matrices = hidden * 3 * heads * dim + 2 * hidden * heads * dim
    return FixedState("lightning", matrices, heads, heads * dim * dim, width=heads * dim)


def short_conv(f: Fields) -> FixedState:
    """A gated convolution over the last few tokens (LFM2): no state but these."""
    hidden = f.positive("hidden_size")
    width = f.count("conv_dim", hidden)
    matrices = hidden * 3 * width + f.count("conv_dim_out", width) * hidden
    return FixedState("convolution", matrices, 0, 0, width, f.positive("conv_L_cache"), passes=0, width=width)


def rg_lru(f: Fields) -> FixedState:
    """Griffin's recurrent unit: one number a channel, two gates that are dense within a head."""
    hidden, width = f.positive("hidden_size"), f.count("lru_width") or f.positive("hidden_size")
    heads = f.positive("num_attention_heads")
    matrices = 3 * hidden * width + 2 * width * (width // heads)
    return FixedState("RG-LRU", matrices, heads, width, width, f.count("conv1d_width", 4), width=width)
