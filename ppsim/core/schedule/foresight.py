"""Admission of requests whose length is known: ``ignore_eos`` with the radix cache off (SGLang's own rule for them).

Such a request makes exactly ``max_new_tokens`` tokens, so what it will take and when it gives it back can be foreseen.
Who runs in the slot, who is in the batch already and who is tried are put in the order in which they end. Until the
first of them ends each takes one token a step, then its tokens come back and one less takes a token, and so on:

    at the end of the i-th   free + given back by those before it - its tokens left x number that still run

must stay above one token for each that still runs. A request that may end early counts with the new-token ratio. As in
SGLang only this slot is looked at, and requests admitted by the common rule after the first look are not seen.

Source: the function of SGLang's scheduling policy for this case, read and not run (docs/decisions/0002). All numbers
are integers: tokens left are kept times the denominator of the ratio.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.core.schedule.ratio import NewTokenRatio
from ppsim.core.schedule.request import Request

RESERVE_TOKENS = 1  # for each request that still runs


class Foresight:
    """For one prefill batch of a slot. ``running`` is the slot's decode set."""

    def __init__(self, ratio: NewTokenRatio, running: Sequence[Request]) -> None:
        share = ratio.value
        self.part, self.whole = share.numerator, share.denominator
        self.running = running
        self.ends: list[tuple[int, int]] | None = None  # (tokens left x whole, tokens held), in order of their end

    def fits(self, request: Request, admitted: Sequence[Request], free_tokens: int) -> bool:
        """Whether ``request`` fits beside the others, if ``free_tokens`` are free once its prompt is in."""
        if self.ends is None:
            known = [self._end(r) for r in (request, *self.running, *admitted)]
            self.ends = sorted((end for end in known if end[0] > 0), key=lambda end: end[0])
        else:
            self._insert(self._end(request))
        given_back = 0
        for place, (left, held) in enumerate(self.ends):
            num_running = len(self.ends) - place
            if (free_tokens + given_back - RESERVE_TOKENS * num_running) * self.whole <= left * num_running:
                return False
            given_back += held
        return True

    def _end(self, request: Request) -> tuple[int, int]:
        part = self.whole if request.spec.ignore_eos else self.part
        left = request.spec.max_new_tokens * part - len(request.output_ids) * self.whole
        return left, request.seq_len

    def _insert(self, end: tuple[int, int]) -> None:
        """In front of the first that ends no earlier; one that ends last goes in front of the last (as in SGLang)."""
        assert self.ends is not None
        if end[0] <= 0:
            return
        places = (i for i, other in enumerate(self.ends) if end[0] <= other[0])
        self.ends.insert(next(places, max(len(self.ends) - 1, 0)), end)
