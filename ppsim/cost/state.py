"""Layers with a state of fixed size a request: state-space layers (Mamba), linear attention (gated delta rule, KDA,
lightning attention) and short convolutions. They leave nothing a token in the KV cache.

A token decays the state, adds an outer product and reads it. The delta rule looks up what the state says of the key
first. Each of these passes is a multiply-add for every element of the state, so

    FLOPs a token = 2 passes state_elements + 2 kernel conv_channels     passes: 2, and 3 with the delta rule

whatever the prefix: time grows with s, not with s^2. The chunked prefill kernels do the same sums in another order, and
the arithmetic inside their blocks comes on top of it (block size times key and value width a token): it is left out,
being under a third of the passes at the usual block of 64. A forward pass reads and writes the state once.
"""

from __future__ import annotations

from dataclasses import dataclass

WRITE_AND_READ = 2
DELTA_RULE = 3


@dataclass(frozen=True, slots=True)
class FixedState:
    """``matrix_params``: projections. ``state_elements`` of a request, ``state_bytes`` each; ``conv_elements``: the
    last inputs of the convolutions, ``kernel - 1`` of them a channel, in the type of the activations. ``num_heads`` can
    be cut over tensor-parallel ranks; 0: the channels are."""

    kind: str
    matrix_params: int
    num_heads: int
    state_elements: int
    conv_channels: int = 0
    conv_kernel: int = 1
    passes: int = WRITE_AND_READ
    state_bytes: float = 4.0
    width: int = 0  # channels of what it gives to its last projection

    @property
    def conv_elements(self) -> int:
        return self.conv_channels * (self.conv_kernel - 1)

    def params(self, hidden_size: int) -> int:
        return self.matrix_params

    @property
    def token_flops(self) -> int:
        """FLOPs of a token besides its projections."""
        return 2 * self.passes * self.state_elements + 2 * self.conv_kernel * self.conv_channels

    def bytes_of(self, conv_bytes: float) -> float:
        """Bytes of a request's state, the convolutions' in elements of ``conv_bytes``."""
        return self.state_elements * self.state_bytes + self.conv_elements * conv_bytes
