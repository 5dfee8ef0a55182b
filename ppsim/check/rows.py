"""INV-90: a row's token counts if and only if the row ends with the last token that is known of its request.

"Last chunk" is a flag of a row. The fact is where the row ends: at the end of prompt and output, or before it. And each
row of a request begins where the one before ended, as long as the request keeps its memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ppsim.check.observers import Seat
from ppsim.check.rules import fail
from ppsim.core.effects import Launch
from ppsim.core.schedule.batch import KVRow, Piece


@dataclass(slots=True)
class Reached:
    """How far one life of a request in memory has come on a rank: ``stop`` tokens are launched."""

    arrived: int
    num_retractions: int
    stop: int


class Rows:
    """One for each process."""

    def __init__(self) -> None:
        self.reached: dict[int, dict[str, Reached]] = {}  # rank -> request

    def watch(self, r: Seat) -> None:
        """Hang it on a rank."""
        r.observers.before(partial(self.launches, r), Launch)

    def launches(self, r: Seat, launch: Launch) -> None:
        """Every row of a batch, before it runs."""
        reached, requests = self.reached.setdefault(r.rank_id, {}), r.rank.scheduler.requests
        for piece in launch.batch.pieces:
            self._row(r, reached, piece)
        if len(reached) > 2 * len(requests) + 64:
            self.reached[r.rank_id] = {rid: at for rid, at in reached.items() if rid in requests}

    def _row(self, r: Seat, reached: dict[str, Reached], piece: Piece[KVRow]) -> None:
        request = r.rank.scheduler.requests.get(piece.rid)
        if request is None:
            return
        stop, due = piece.prefix_len + piece.new_tokens, request.seq_len
        if piece.is_last_chunk != (stop == due):
            what = "counts as the last one" if piece.is_last_chunk else "counts as a middle chunk"
            fail("INV-90", r, piece.rid, f"its row of tokens {piece.prefix_len}:{stop} {what}, it has {due} tokens")
        before = reached.get(piece.rid)
        life = (request.arrived, request.num_retractions)
        if before is not None and (before.arrived, before.num_retractions) == life and piece.prefix_len > before.stop:
            text = f"its row of tokens {piece.prefix_len}:{stop} leaves out those from {before.stop} on"
            fail("INV-90", r, piece.rid, text)
        reached[piece.rid] = Reached(*life, stop)
