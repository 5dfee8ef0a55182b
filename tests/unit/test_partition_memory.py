"""KV capacity of each stage, the limiting one, and what is said when a model does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ppsim.cost.config_json import load_model
from ppsim.cost.gpu import load_gpu
from ppsim.cost.memory import best_partition, capacities, model_capacity
from ppsim.cost.partition import even_partition, partition_by_memory
from ppsim.errors import ScenarioError


def b109_capacity(split: tuple[int, ...]) -> tuple[list[int], int]:
    """Memory 80 a stage, weights 1 a layer, embedding 4 and head 8 on the ends, 0.01 a token and layer."""
    weights = [float(n) for n in split]
    weights[0] += 4
    weights[-1] += 8
    found = capacities([80.0] * 8, weights, [0.01 * n for n in split], split)
    return [s.num_tokens for s in found.stages], found.limiting.stage


def test_b109_capacity_of_a_stage_is_its_free_memory_over_its_layers_and_the_end_stage_limits() -> None:
    even = even_partition(61, 8)
    tokens, limiting = b109_capacity(even)
    assert even == (7, 7, 7, 8, 8, 8, 8, 8)
    assert tokens == [int((80 - 7 - 4) / 0.07), 1042, 1042, 900, 900, 900, 900, int((80 - 8 - 8) / 0.08)]
    assert limiting == 7


def test_b109_a_split_by_memory_holds_more_than_the_even_one() -> None:
    even = even_partition(61, 8)
    better = partition_by_memory(80.0, [1.0] * 61, 0.01, 8, first_extra=4.0, last_extra=8.0)
    assert min(b109_capacity(better)[0]) == 900  # no split of 61 over 8 leaves every stage below 8 layers
    assert min(b109_capacity(even)[0]) == 800
    assert better[-1] < even[-1]


def test_b111_the_stage_with_more_free_memory_can_be_the_one_that_limits() -> None:
    """A: 10 GB for 10 layers, B: 9 GB for 5; per layer 1.0 < 1.8."""
    found = capacities([10.0, 9.0], [0.0, 0.0], [0.001 * 10, 0.001 * 5], [10, 5])
    assert found.stages[0].free_bytes > found.stages[1].free_bytes
    assert found.limiting.stage == 0
    assert found.num_tokens == 1000


def test_deepseek_at_tp8_does_not_fit_on_96_gb_and_fits_on_141_gb() -> None:
    """published.md 0: the published baseline needed the larger card."""
    shape = load_model("deepseek-v3.1")
    with pytest.raises(ScenarioError, match=r"stage 0 lacks \d+\.\d\d GB: 61 layers need 8\d\.\d\d GB of weights"):
        model_capacity(shape, load_gpu("h20"), (61,), 8).require(131072)
    assert model_capacity(shape, load_gpu("h20-141gb"), (61,), 8).require(131072).num_tokens > 131072
    assert model_capacity(shape, load_gpu("h20"), even_partition(61, 4), 8).require(131072).num_tokens > 1_000_000


def test_the_message_names_the_stage_that_lacks_most_and_counts_the_others() -> None:
    shape = load_model("llama-3.1-70b")
    with pytest.raises(ScenarioError) as caught:
        model_capacity(shape, load_gpu("h20"), (10, 40, 30), 1, mem_fraction=0.5).require()
    weights = sum(shape.layer_weight_bytes(i) for i in range(40)) / 1e9
    usable = 96 * 0.5
    lack = weights + 40 * 4096 / 1e9 - usable
    text = str(caught.value)
    assert f"stage 1 lacks {lack:.2f} GB: 40 layers need {weights:.2f} GB" in text
    assert f"{usable:.2f} GB are usable; 1 more stages lack memory" in text


def test_embedding_burdens_the_first_stage_and_the_head_the_last() -> None:
    shape = load_model("llama-3.1-8b")
    stages = model_capacity(shape, load_gpu("h100"), (8, 8, 8, 8), 1).stages
    ends = 128256 * 4096 * 2
    assert [s.weight_bytes - stages[1].weight_bytes for s in stages] == [ends, 0, 0, ends]
    only = model_capacity(shape, load_gpu("h100"), (32,), 1).stages[0]
    assert only.weight_bytes == sum(s.weight_bytes for s in stages)


def test_a_tied_head_costs_nothing_only_where_the_embedding_is_on_the_same_stage() -> None:
    """Tied weights are one tensor. On another GPU the head needs a copy: a stage cannot multiply by what it has not got
    (the engines load the embedding a second time on the last stage)."""
    shape = load_model("llama-3.1-8b")
    tied = replace(shape, tie_word_embeddings=True)
    embedding = 128256 * 4096 * 2
    layers = sum(shape.layer_weight_bytes(i) for i in range(32))
    for partition, copies in (((32,), 1), ((16, 16), 2), ((8, 8, 8, 8), 2)):
        stages = model_capacity(tied, load_gpu("h100"), partition, 1).stages
        assert sum(s.weight_bytes for s in stages) == layers + copies * embedding
        loose = model_capacity(shape, load_gpu("h100"), partition, 1).stages
        assert sum(s.weight_bytes for s in loose) == layers + 2 * embedding
    assert best_partition(tied, load_gpu("h100"), 4, 1) == best_partition(shape, load_gpu("h100"), 4, 1)


@pytest.mark.parametrize("num_tokens", [1000, 1001])
def test_what_fits_to_the_byte_fits_and_one_token_more_does_not(num_tokens: int) -> None:
    """7.8125 bytes beside the weights are 1000 tokens of 2^-7 each; of stages that lack alike the first is named."""
    found = capacities([9.8125, 9.8125], [2.0, 2.0], [2**-7, 2**-7], [4, 4])
    assert found.num_tokens == 1000
    if num_tokens == 1000:
        assert found.require(num_tokens) is found
        return
    with pytest.raises(ScenarioError, match=r"^gpu.memory_gb: stage 0 lacks .*; 1 more stages lack memory"):
        found.require(num_tokens)


def test_a_stage_that_lacks_memory_alone_is_told_without_others() -> None:
    with pytest.raises(ScenarioError) as caught:
        capacities([9.0, 10.0], [10.0, 2.0], [0.001] * 2, [4, 4]).require()
    assert "more stages lack" not in str(caught.value)
    assert capacities([9.0], [10.0], [0.001], [4]).num_tokens == 0, "less than no room is no room"


def test_each_stage_weighs_its_own_layers() -> None:
    """DeepSeek's first three layers are dense and small: no other stage has them (numbers of the model, by index)."""
    shape = load_model("deepseek-v3.1")
    stages = model_capacity(shape, load_gpu("b200"), (3, 29, 29), 8).stages
    dense, experts = shape.layer_weight_bytes(0), shape.layer_weight_bytes(3)
    assert dense < experts
    expected = [3 * dense + shape.embedding_bytes, 29 * experts, 29 * experts + shape.embedding_bytes]
    assert [s.weight_bytes for s in stages] == pytest.approx([total / 8 for total in expected])


def test_the_best_split_is_the_best_of_all_for_tied_and_loose_heads_and_reserved_memory() -> None:
    """Exhaustive: every split of 32 layers over three stages, by the capacity formula itself."""
    loose = load_model("llama-3.1-8b")
    gpu, fraction, reserved = load_gpu("h100"), 0.2, 4.0
    for shape in (loose, replace(loose, tie_word_embeddings=True)):
        for pp_size in (1, 3):
            splits = [(a, b, 32 - a - b) for a in range(1, 31) for b in range(1, 32 - a)] if pp_size == 3 else [(32,)]
            rooms = {p: model_capacity(shape, gpu, p, 1, fraction, reserved).num_tokens for p in splits}
            if max(rooms.values()) == 0:
                with pytest.raises(ScenarioError):
                    best_partition(shape, gpu, pp_size, 1, fraction, reserved)
                continue
            best = best_partition(shape, gpu, pp_size, 1, fraction, reserved)
            assert rooms[best] == max(rooms.values())


def test_one_stage_with_a_tied_head_holds_one_embedding() -> None:
    """Memory for the layers and one and a half embeddings: enough where the head is the embedding, else not."""
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100")
    tied = replace(shape, tie_word_embeddings=True)
    fraction = (sum(shape.layer_weight_bytes(i) for i in range(32)) + 1.5 * shape.embedding_bytes) / (80 * 1e9)
    assert best_partition(tied, gpu, 1, 1, fraction) == (32,)
    with pytest.raises(ScenarioError):
        best_partition(shape, gpu, 1, 1, fraction)


def test_a_split_that_is_none_is_refused_before_anything_is_weighed() -> None:
    shape, gpu = load_model("llama-3.1-8b"), load_gpu("h100")
    with pytest.raises(ScenarioError, match="sums to 31"):
        model_capacity(shape, gpu, (16, 15), 1)
    with pytest.raises(ScenarioError, match="heads"):
        model_capacity(shape, gpu, (32,), 3)


def test_latents_are_replicated_over_tp_and_heads_are_cut() -> None:
    latent = load_model("deepseek-v3.1")
    heads = load_model("qwen3-235b-a22b-fp8")
    for shape, tp, expected in ((latent, 8, 576 * 2 * 61), (heads, 4, 192_512 / 4), (heads, 8, 192_512 / 4)):
        at = model_capacity(shape, load_gpu("b200"), (shape.num_layers,), tp).stages[0]
        assert at.kv_bytes_per_token == pytest.approx(expected)


def test_p04_fewer_layers_on_the_end_stages_hold_more_when_memory_is_tight() -> None:
    """Sign of vLLM PR 6920: 70B in FP8 on eight small devices, 1476 blocks evenly, 3078 balanced."""
    shape, small = load_model("llama-3.1-70b-fp8"), load_gpu("h20")
    fraction = 12.0 / 96
    even = model_capacity(shape, small, even_partition(80, 8), 1, fraction)
    best = best_partition(shape, small, 8, 1, fraction)
    better = model_capacity(shape, small, best, 1, fraction)
    assert even.limiting.stage in (0, 7)
    assert best[0] < 10 > best[-1]
    assert better.num_tokens > 1.5 * even.num_tokens


def test_reserved_memory_is_taken_off_what_is_usable() -> None:
    shape = load_model("llama-3.1-8b")
    free = model_capacity(shape, load_gpu("h100"), (32,), 1, 0.9).stages[0].free_bytes
    less = model_capacity(shape, load_gpu("h100"), (32,), 1, 0.9, reserved_gb=5.0).stages[0].free_bytes
    assert free - less == pytest.approx(5e9)
