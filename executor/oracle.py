"""The unsplit model, as transformers itself runs it: the executor's tokens must equal its greedy ``generate``.

Nothing of the executor's attention, KV or checkpoint reading is used here; random weights are the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from executor.model import FAMILIES, dtype_of, random_config
from executor.weights import RandomWeights
from ppsim.scenario.tree import Scenario


class Oracle:
    """The model of a scenario on the CPU."""

    def __init__(self, scenario: Scenario) -> None:
        model = scenario.model
        cls = FAMILIES[model.architecture].cls("ForCausalLM")
        dtype = dtype_of(model)
        if model.path:
            self.model: Any = cls.from_pretrained(model.path, dtype=dtype, local_files_only=True)
        else:
            self.model = cls(random_config(model, scenario.scheduler.context_length))
            weights = RandomWeights(scenario.seed)
            self.model.to(dtype)
            for name, parameter in self.model.named_parameters():  # a tied head is not among them
                parameter.data.copy_(weights.tensor(name, tuple(parameter.shape)))
        self.model.eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    def generate(self, prompt: Sequence[int], max_new_tokens: int, stop_token_ids: Sequence[int] = ()) -> list[int]:
        """Greedy continuation of a prompt; a stop token ends it and is part of it."""
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            out = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_new_tokens,
                eos_token_id=list(stop_token_ids) or None,
            )
        return [int(token) for token in out[0, len(prompt) :]]
