"""One stage of a decoder: transformers' own layers, our KV.

Rule: parameter names are those of the unsplit model (``model.layers.<index in the whole model>...``), so that a stage
is filled from any checkpoint by name, and a layer knows its place without counting.

First stage: embedding. Last stage: final norm, head, greedy sampling. All stages: rotary embedding, without weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from executor.attention import NAME, Paged
from executor.kv import PagedKV
from executor.model import FAMILIES, checkpoint_config, dtype_of, first_line, random_config
from executor.packed import PackedBatch
from executor.weights import CheckpointWeights, RandomWeights, fill
from ppsim.cost.partition import even_partition, layer_offsets
from ppsim.errors import UsageError
from ppsim.scenario.tree import Scenario


@dataclass(frozen=True, slots=True)
class Share:
    """The layers [first, first + num) of a model of ``total`` layers that stage ``rank`` owns."""

    rank: int
    first: int
    num: int
    total: int

    @property
    def is_first(self) -> bool:
        return self.first == 0

    @property
    def is_last(self) -> bool:
        return self.first + self.num == self.total


def share_of(scenario: Scenario, rank: int) -> Share:
    """The layers of a rank: ``model.layer_partition``, or an even split with the remainder to the last ranks."""
    total = scenario.model.num_hidden_layers
    partition = scenario.model.layer_partition or even_partition(total, scenario.cluster.pp_size)
    return Share(rank, layer_offsets(partition)[rank], partition[rank], total)


class Stage(nn.Module):
    """``share`` of the model that ``config`` describes; a module without weights until ``fill``."""

    def __init__(self, config: Any, architecture: str, share: Share, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        family = FAMILIES[architecture]
        config._attn_implementation = NAME
        self.share = share
        self.tied = bool(config.tie_word_embeddings)
        self.dtype, self.device, self.hidden_size = dtype, device, int(config.hidden_size)
        with torch.device("meta"):
            self.model = nn.Module()
            if share.is_first:
                self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
            indices = range(share.first, share.first + share.num)
            self.model.layers = nn.ModuleDict({str(i): family.cls("DecoderLayer")(config, i) for i in indices})
            if share.is_last:
                self.model.norm = family.cls("RMSNorm")(config.hidden_size, eps=config.rms_norm_eps)
                self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        with device:
            self.rotary = family.cls("RotaryEmbedding")(config)
        self.eval()

    @torch.inference_mode()
    def forward(self, rows: torch.Tensor, packed: PackedBatch, kv: PagedKV) -> torch.Tensor:
        """Token ids [T] on the first stage, else hidden states [T, hidden] -> hidden states [T, hidden].

        A batch may have no token at all (a chunk whose budget the decodes have used up): no layer runs then.
        """
        if not packed.num_tokens:
            return torch.empty(0, self.hidden_size, dtype=self.dtype, device=self.device)
        hidden = self.model.embed_tokens(rows) if self.share.is_first else rows  # type: ignore[operator]
        hidden = hidden[None]
        positions = packed.positions[None]
        rotary = self.rotary(hidden, positions)
        paged = Paged(packed, kv, self.share.first)
        for layer in self.model.layers.values():  # type: ignore[operator]
            hidden = layer(hidden, position_embeddings=rotary, position_ids=positions, attention_mask=None, paged=paged)
        return hidden[0]

    @torch.inference_mode()
    def sample(self, hidden: torch.Tensor, packed: PackedBatch) -> torch.Tensor:
        """Last stage: the likeliest next token of each piece, [R] int64; 0 for the row of a middle chunk."""
        if not packed.num_tokens:
            return torch.zeros(packed.num_pieces, dtype=torch.int64, device=self.device)
        logits = self.lm_head(self.model.norm(hidden[packed.last_rows]))  # type: ignore[operator]
        # A NaN is a KV position that was read before it was written (``kv.py``); token -1 says so (``driver.py``).
        return torch.where(logits.isnan().any(-1), -1, logits.argmax(-1) * packed.counts)


def load_stage(scenario: Scenario, rank: int, device: torch.device) -> Stage:
    """The stage of a rank with its weights: from ``model.path``, or drawn from the scenario's seed."""
    model = scenario.model
    stage = empty_stage(scenario, share_of(scenario, rank), device)
    weights = CheckpointWeights(model.path) if model.path else RandomWeights(scenario.seed)
    fill(stage, weights, tied=stage.tied, dtype=stage.dtype, device=device)
    return stage


def empty_stage(scenario: Scenario, share: Share, device: torch.device) -> Stage:
    """A stage without weights; with the share (0, all layers) it has every tensor of the model."""
    model = scenario.model
    if not model.path:
        config = random_config(model, scenario.scheduler.context_length)
        return Stage(config, model.architecture, share, dtype_of(model), device)
    config = checkpoint_config(model.path, model.architecture)
    try:
        stage = Stage(config, model.architecture, share, dtype_of(model), device)
    except Exception as error:  # transformers builds from what the file says: an activation, a scaling of positions
        problem = f"transformers makes no {model.architecture} layer of it: {type(error).__name__}: {first_line(error)}"
        raise UsageError(f"{model.path}/config.json: {problem}") from None
    if not torch.isfinite(stage.rotary.inv_freq).all():
        raise UsageError(f"{model.path}/config.json: rope_theta and rope scaling give an angle that is no number")
    return stage


def kv_of(scenario: Scenario, stage: Stage, num_tokens: int) -> PagedKV:
    """The paged KV of a stage for a pool of ``num_tokens`` tokens."""
    model, page_size = scenario.model, scenario.scheduler.page_size
    return PagedKV(
        stage.share.num,
        num_tokens // page_size,
        page_size,
        model.num_key_value_heads,
        model.head_dim,
        stage.dtype,
        stage.device,
    )
