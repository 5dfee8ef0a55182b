"""300 config.json of random sizes: what is read is what the class in transformers builds of it, or is refused.

Oracle: the class itself, on the meta device; parameters to the unit and elements of its cache (``bench/model_zoo.py``).
"""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from bench import model_zoo

NUM_FILES, NUM_PARTS = 300, 10
TYPES = [
    *(
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "qwen2_moe",
        "qwen3_moe",
        "mixtral",
        "deepseek_v3",
        "gemma2",
        "gemma3_text",
    ),
    *("gpt_oss", "glm4", "glm4_moe", "phi3", "cohere2", "olmo2", "olmoe", "granite", "granitemoe", "nemotron"),
    *("starcoder2", "gpt_neox", "falcon", "opt", "bloom", "stablelm", "ernie4_5", "ernie4_5_moe", "smollm3", "exaone4"),
]


def sizes(of: random.Random) -> dict[str, Any]:
    """Widths that any class takes: heads divide, experts are enough for a token."""
    kv, group, width = of.choice([1, 2, 4]), of.choice([1, 2, 4]), of.choice([16, 32, 64])
    heads = kv * group
    return {
        "num_hidden_layers": of.randint(1, 9),
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "hidden_size": heads * width,
        "head_dim": of.choice([width, 2 * width]),
        "intermediate_size": of.randrange(64, 2048, 32),
        "moe_intermediate_size": of.randrange(32, 512, 32),
        "vocab_size": of.randrange(500, 70_000, 500),
        "tie_word_embeddings": of.random() < 0.5,
        "attention_bias": of.random() < 0.5,
        "mlp_bias": of.random() < 0.5,
        "use_bias": of.random() < 0.5,
        "num_experts": of.choice([8, 16]),
        "num_local_experts": of.choice([8, 16]),
        "num_experts_per_tok": of.choice([1, 2, 4]),
        "first_k_dense_replace": of.randint(0, 3),
        "sliding_window": of.choice([8, 16, 64]),
        "pad_token_id": None,
    }


def some_of(model_type: str, of: random.Random) -> dict[str, Any]:
    """A few of the sizes, those that the class has, and the heads together."""
    known = model_zoo.config_of(model_type).to_dict()
    drawn, together = sizes(of), ("num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
    kept = {key for key in drawn if key in known and of.random() < 0.6} | {"pad_token_id"}
    kept -= set(together)
    return {key: drawn[key] for key in [*sorted(kept), *(k for k in together if k in known)]}


@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_a_generated_config_is_read_as_its_class_builds_it(part: int) -> None:
    model_zoo.quiet()
    results: list[str] = []
    for number in range(part, NUM_FILES, NUM_PARTS):
        of = random.Random(number)
        model_type = TYPES[number // NUM_PARTS % len(TYPES)]
        changes = some_of(model_type, of)
        entry = model_zoo.judge(model_type, changes)
        assert entry.result != "different", f"{model_type} {changes}: {entry.why}"
        results.append(entry.result)
    assert results.count("equal") > 0.7 * len(results), results
