"""new_token_ratio: which part of its remaining tokens a running request is expected to need (protocol.md 4.3).

It starts at ``init`` and falls linearly, by one step for each decode that retracts nothing, down to ``min``. A
retraction sets it from the running set, to any value up to 1; one below ``min`` rises to ``min`` with the next step.
Kept as an exact fraction, so that no rounding can differ between ranks.
"""

from __future__ import annotations

from fractions import Fraction


class NewTokenRatio:
    """The exact ratio; only the number of decay steps since the last reset moves in the hot path."""

    def __init__(self, init: Fraction, minimum: Fraction, decay_steps: int) -> None:
        self.init = min(init, Fraction(1))
        self.minimum = min(minimum, self.init)
        self.step = (self.init - self.minimum) / decay_steps
        self._restart(self.init)

    @property
    def value(self) -> Fraction:
        if self._steps == 0:
            return self._base
        return max(self._base - self._steps * self.step, self.minimum)

    def decay(self) -> None:
        """One decode step of any slot that retracted nothing."""
        self._steps += 1

    def after_retraction(
        self, generated: int, num_requests: int, max_new_tokens: int, retract_decode_steps: int
    ) -> None:
        """Set from the requests that stay: (generated + 20 each) / (sum of max_new_tokens + 1), at most 1."""
        estimate = Fraction(generated + retract_decode_steps * num_requests, max_new_tokens + 1)
        self._restart(min(estimate, Fraction(1)))

    def reset(self) -> None:
        """Back to the start; done when the rank is fully idle (``on_idle``)."""
        self._restart(self.init)

    def key(self) -> tuple[int, int, int]:
        """Canonical content for digests."""
        return (*self._base_parts, self._steps)

    def _restart(self, base: Fraction) -> None:
        self._base, self._steps = base, 0
        self._base_parts = (base.numerator, base.denominator)
