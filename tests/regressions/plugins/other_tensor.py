"""Tensors that are not the same on all members of a group are sliced and gathered (sglang #30015).

Tensors have no content in simulation, only a handle. Half of what a replica sends is another member's there; here the
whole handle is that of another tensor of the same shape, the one of the batch before.
"""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.channels import Endpoint
from ppsim.core.config import RankConfig
from ppsim.core.effects import Effects, Work
from ppsim.core.messages import Hidden, Message
from ppsim.plugin import planted


@planted("other_tensor", breaks="INV-78", profile="plain", source="sglang #30015")
class OtherTensor(Endpoint):
    """A stage sends the tensor of the batch before under this batch's address; shapes agree."""

    def __init__(self, config: RankConfig) -> None:
        super().__init__(config)
        self.before: Hidden | None = None

    def send(self, dst: int, message: Message, paired: bool = False) -> Effects[Work]:
        if isinstance(message, Hidden):
            old, self.before = self.before, message
            if old is not None and old.num_tokens == message.num_tokens:
                message = replace(message, payload=old.payload)
        return (yield from super().send(dst, message, paired))
