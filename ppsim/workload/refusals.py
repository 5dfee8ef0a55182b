"""Memory that the world refuses to a launch although admission has counted on it (``chance.max_failed_allocations``).

It may be the first launch of a request, a later chunk of its prompt, or the prompt that is computed again after a
retraction. All ranks are refused alike: what they allocate is a function of replicated decisions.
"""

from __future__ import annotations

from typing import NamedTuple

from ppsim.core.schedule.batch import ForwardBatch


class Refusal(NamedTuple):
    """Memory that a request does not get although admission has counted on it, the same on all ranks."""

    num_failing: int
    behind: int  # launches of it that get theirs before


class Refusals:
    """Of one rank: ``left`` is what its policy looks at, by request how often memory is still refused to it now."""

    def __init__(self, failing: dict[str, Refusal]) -> None:
        self.left = {rid: refusal.num_failing for rid, refusal in failing.items() if not refusal.behind}
        self.later = {rid: refusal for rid, refusal in failing.items() if refusal.behind}

    def launched(self, batch: ForwardBatch) -> None:
        """Prompt pieces got their memory."""
        for piece in batch.pieces if self.later else ():
            refusal = None if piece.is_decode else self.later.pop(piece.rid, None)
            if refusal is None:
                continue
            if refusal.behind > 1:
                self.later[piece.rid] = refusal._replace(behind=refusal.behind - 1)
            else:
                self.left[piece.rid] = refusal.num_failing
