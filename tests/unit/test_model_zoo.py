"""Every class of causal language models in the installed transformers: parameters to the unit, elements of the cache.

The oracle is each class itself, built on the meta device (``bench/model_zoo.py``). What ppsim refuses by name is in the
table of ``docs/models.md`` with its reason, and each row of that table is held here.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from bench import model_zoo
from ppsim.cost.config_json import NESTED, from_config
from ppsim.cost.families import families
from ppsim.errors import ScenarioError

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "models.md").read_text("utf-8")
COMMON = [
    *("llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "qwen3_next", "mixtral", "deepseek_v2", "deepseek_v3"),
    *("deepseek_v32", "gemma", "gemma2", "gemma3_text", "gpt_oss", "glm", "glm4", "glm4_moe", "minimax", "minimax_m2"),
    *("kimi_linear", "nemotron", "nemotron_h", "jamba", "bamba", "falcon_h1", "mamba", "mamba2", "phi", "phi3"),
    *("phimoe", "cohere", "cohere2", "olmo", "olmo2", "olmo3", "olmoe", "granite", "granitemoe", "granitemoehybrid"),
    *("llama4_text", "gpt_neox", "falcon", "starcoder2", "mpt", "bloom", "opt", "gpt2"),
]
READ = [t for t in model_zoo.model_types() if t not in families() or not families()[t].refuse]


@pytest.fixture(autouse=True)
def no_hints() -> None:
    model_zoo.quiet()


@pytest.mark.parametrize("model_type", model_zoo.model_types())
def test_a_class_is_read_as_it_is_or_refused_by_name(model_type: str) -> None:
    entry = model_zoo.judge(model_type)
    assert entry.result != "different", f"{entry.why}: {entry.kinds}"
    assert model_zoo.row_of(entry) in PAGE, "docs/models.md is old: python bench/model_zoo.py > docs/models.md"


def test_every_common_family_is_equal() -> None:
    rows = {
        line.split("`")[1]: line for line in PAGE.splitlines() if line.startswith("| `") and "| class |" not in line
    }
    assert sorted(rows) == model_zoo.model_types()
    assert [name for name in COMMON if "| equal: " not in rows[name]] == []
    assert sum("| equal" in row for row in rows.values()) > 2 * sum("| refused" in row for row in rows.values())


@pytest.mark.parametrize("model_type", READ)
def test_a_saved_config_is_read_like_all_of_its_fields(model_type: str) -> None:
    """A file leaves out what is a default, and a config inside another one everything that its class has by default."""
    try:
        config = model_zoo.config_of(model_type)
        whole = from_config({**config.to_dict(), "model_type": config.model_type or model_type}, "m")
    except (ScenarioError, ImportError) as error:
        pytest.skip(str(error)[:80])
    saved = json.loads(config.to_json_string(use_diff=True))
    shape = from_config({"model_type": config.model_type or model_type, **saved}, "m")
    assert (shape.total_params(), shape.kv_bytes_per_token) == (whole.total_params(), whole.kv_bytes_per_token)
    usual = type(config)().to_dict()
    if any(isinstance(usual.get(inner), dict) for inner in NESTED):
        return  # it is one of those around another
    own = {k: v for k, v in config.to_dict().items() if usual.get(k) != v or k in ("model_type", "num_hidden_layers")}
    inside = from_config({"model_type": "outer", "text_config": {**own, "model_type": config.model_type}}, "m")
    assert inside.layers == whole.layers


DERIVED = ("layer_types", "mlp_layer_types", "layers_block_type", "attention_layers", "indexer_types", "no_rope_layers")
PERIODS: dict[str, list[Any]] = {
    "sliding_window_pattern": [2, 3],
    "first_k_dense_replace": [0, 2],
    "global_attn_every_n_layers": [2, 3],
    "full_attention_interval": [2, 3],
    "moe_layer_freq": [2],
    "decoder_sparse_step": [2],
    "num_dense_layers": [2],
    "interleave_moe_layer_step": [1, 2],
    "no_rope_layer_interval": [2, 3],
    "max_window_layers": [3],
    "use_sliding_window": [True, False],
    "mlp_only_layers": [[1, 2]],
}
OTHERWISE = {
    "bailing_hybrid": "the published code has attention behind the last whole group, which its models do not reach",
    "cohere_compass_text sliding_window_pattern": "the class reads a period, and then overlooks it",
    "gemma4_text sliding_window_pattern": "the class knows no period but its own; a config with one means it",
    "gemma4_unified_text sliding_window_pattern": "the same",
    "beam num_dense_layers": "the same",
}


@pytest.mark.parametrize("model_type", READ)
def test_a_config_without_lists_of_layers_has_those_that_its_class_makes(model_type: str) -> None:
    """Older and shorter configs give a period, or nothing at all; the class rolls the lists out of it."""
    try:
        config = model_zoo.config_of(model_type)
    except Exception as error:
        pytest.skip(str(error)[:80])
    name, kind = config.model_type or model_type, type(config)
    whole = {**config.to_dict(), "model_type": name}
    source = Path(inspect.getfile(kind)).read_text("utf-8")
    said = [(key, value) for key, values in PERIODS.items() if key in source for value in values]
    for key, value in [("", None), *said]:
        short = {k: v for k, v in whole.items() if k not in DERIVED} | ({key: value} if key else {})
        try:
            full = {**kind(**{k: v for k, v in short.items() if k != "model_type"}).to_dict(), "model_type": name}
            theirs = [layer.kind for layer in from_config(full, "m").layers]
        except Exception:
            continue
        if name in OTHERWISE or f"{name} {key}" in OTHERWISE:
            continue
        try:
            ours = from_config(short, "m")
        except ScenarioError:
            continue  # it is refused by name
        assert [layer.kind for layer in ours.layers] == theirs, f"{key} = {value}"


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3"])
def test_a_window_that_is_not_switched_on_is_none(model_type: str) -> None:
    """use_sliding_window is false in these classes where the config does not say it."""
    usual = model_zoo.config_of(model_type, {"use_sliding_window": False}).to_dict()
    config = {k: v for k, v in usual.items() if k not in (*DERIVED, "use_sliding_window")}
    shape = from_config({**config, "model_type": model_type, "sliding_window": 16}, "m")
    assert {layer.kind.split(" |")[0] for layer in shape.layers} == {"full"}


@pytest.mark.parametrize("model_type", READ)
def test_a_config_that_does_not_say_whether_it_ties_is_read_as_its_class_does(model_type: str) -> None:
    try:
        config = model_zoo.config_of(model_type)
        silent = {k: v for k, v in config.to_dict().items() if k != "tie_word_embeddings"}
        shape = from_config({**silent, "model_type": config.model_type or model_type}, "m")
    except Exception as error:
        pytest.skip(str(error)[:80])
    if getattr(type(config)(), "text_config", None) is None:
        assert shape.tie_word_embeddings == bool(getattr(type(config)(), "tie_word_embeddings", False))


@pytest.mark.parametrize("model_type", COMMON)
def test_a_field_that_changes_the_class_changes_ours_alike_or_is_told(model_type: str) -> None:
    """Each flag turned over and each count of a size doubled, one at a time; what the class refuses does not count."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    few = {} if model_type in model_zoo.OWN else {"num_hidden_layers": 4}
    num_compared = 0
    for field, value in changes_of(model_zoo.config_of(model_type).to_dict()):
        try:
            config = model_zoo.config_of(model_type, {**few, field: value})
            with torch.device("meta"):
                model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config)
        except Exception:
            continue
        try:
            shape = from_config({**config.to_dict(), "model_type": config.model_type or model_type}, "m")
        except ScenarioError:
            continue
        num_compared += 1
        told = any(field in note for note in shape.notes) or (model_type, field) in OF_THE_CLASS_ALONE
        assert told or shape.total_params() == model_zoo.num_params(model), f"{field} = {value!r}"
    assert num_compared >= 4


OF_THE_CLASS_ALONE = {
    ("kimi_linear", "tie_word_embeddings"),  # these classes do not tie, whatever their config says
    ("nemotron_h", "tie_word_embeddings"),
    ("mpt", "expansion_ratio"),  # the class is four times as wide whatever is said
    ("nemotron_h", "n_shared_experts"),  # the class takes one, its own servers as many as are said
}
NOT_SIZES = ("vocab_size", "num_hidden_layers", "chunk_size_feed_forward", "n_layer", "is_encoder_decoder")


def changes_of(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """Each flag turned over, each positive number doubled, numbers of heads halved."""
    found: list[tuple[str, Any]] = []
    for field, value in fields.items():
        if field in NOT_SIZES or field.startswith("output_") or field.endswith(("_id", "_ids")):
            continue
        if isinstance(value, bool):
            found.append((field, not value))
        elif isinstance(value, int) and value > 0:
            found.append((field, value // 2 if "heads" in field and value > 1 else 2 * value))
    return found


def test_defaults_of_the_classes_are_those_of_the_installed_ones() -> None:
    import transformers

    shipped = (ROOT / "ppsim" / "data" / "class_defaults.toml").read_text("utf-8")
    if f"transformers {transformers.__version__}" not in shipped:
        pytest.skip("another version of transformers")
    assert shipped == model_zoo.defaults_text()
