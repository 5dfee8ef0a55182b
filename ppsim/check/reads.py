"""INV-78: a launch reads the hidden states, tokens and pages of its own iteration and batch, unchanged since written.

An address says which iteration a tensor is of; what is in it is another matter: a buffer that was given to the next
launch, a batch of the same shape, a page that was given away. So what a launch *wrote* is noted by its content, and
what is *read* is held against it: on hardware a checksum of the bytes, in simulation the launch that made the payload.

    hidden states   written by the stage before in this iteration, read by the launch of this one
    output          written by the last stage at its launch, read by every rank that waits for the tokens
    token ids       of the request list and of what was delivered since, read by the first stage
    KV pages        ``page_contents.py``
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ppsim.check.observers import Seat
from ppsim.check.page_contents import PageContents
from ppsim.check.together import Reads, Record, Writes
from ppsim.core import effects as fx
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import NewRequest
from ppsim.core.schedule.batch import ForwardBatch, KVRow, Piece
from ppsim.core.tokens import TokenBytes, cut, pack

HIDDEN, OUTPUT = "hidden states", "tokens"


@dataclass(slots=True)
class Known:
    """The tokens of one life of a request, as they came to this rank."""

    arrived: int
    prompt: TokenBytes
    num_prompt: int
    delivered: list[int] = field(default_factory=list)

    def ids(self, start: int, stop: int) -> TokenBytes:
        """Tokens [start, stop) of prompt and output."""
        behind = self.delivered[max(start - self.num_prompt, 0) : max(stop - self.num_prompt, 0)]
        return cut(self.prompt, start, min(stop, self.num_prompt)) + pack(behind)


class LaunchReads:
    """Of the ranks of one process."""

    def __init__(self, tell: Callable[[Record], None]) -> None:
        self.tell = tell
        self.known: dict[int, dict[str, Known]] = {}  # rank of the first stage -> request
        self.pages = PageContents()

    def watch(self, r: Seat) -> None:
        """Hang it on a rank. ``pages`` also hears of exchanged ones (``Audit.swapped``)."""
        before, after = r.observers.before, r.observers.after
        before(partial(self.launches, r), fx.Launch)
        after(partial(self.wrote, r), fx.Launch)
        before(partial(self.awaits, r), fx.AwaitTokens)
        if r.rank.config.is_first:
            before(partial(self.decided, r), fx.Decided)
        after(partial(self.harvested, r), fx.Harvested)

    # --- tensors -----------------------------------------------------------------------------------------------

    def launches(self, r: Seat, launch: fx.Launch) -> None:
        """Before the forward pass begins."""
        batch, hidden = launch.batch, launch.hidden
        if hidden is not None:
            self._reads(r, HIDDEN, r.rank.link.prev, batch, hidden.payload)
        is_first = r.rank.config.is_first
        for piece in batch.pieces:
            if is_first:
                self._feeds(r, piece)
            self.pages.launches(r, piece)

    def wrote(self, r: Seat, launch: fx.Launch, reply: object) -> None:
        """The forward pass is under way; its result is what its payload holds."""
        self.tell(Writes(r.rank_id, launch.batch.iteration, launch.batch.slot, r.content(reply)))

    def awaits(self, r: Seat, effect: fx.AwaitTokens) -> None:
        """The output of the slot that is harvested now; replicas of a stage have outputs of their own."""
        launched = r.rank.scheduler.slots.to_harvest(r.rank.iteration).launched
        config = r.rank.config
        if launched is not None:
            writer = (config.pp_size - 1) * config.tp_replicas + config.tp_rank
            self._reads(r, OUTPUT, writer, launched.forward, effect.output.payload)

    def _reads(self, r: Seat, what: str, writer: int, batch: ForwardBatch, payload: object) -> None:
        rid, place = batch.pieces[0].rid if batch.pieces else "", (r.rank_id, r.rank.iteration, r.rank.slot)
        self.tell(Reads(*place, what, writer, batch.iteration, r.content(payload), rid))

    # --- token ids ---------------------------------------------------------------------------------------------

    def decided(self, r: Seat, effect: fx.Decided) -> None:
        """New requests of this iteration's list; the first stage alone embeds them."""
        inputs, decision = r.rank.inputs, effect.decision
        if not inputs:
            return
        known, requests = self.known.setdefault(r.rank_id, {}), r.rank.scheduler.requests
        for item in inputs:
            request = requests.get(item.rid) if isinstance(item, NewRequest) else None
            if isinstance(item, NewRequest) and request is not None and request.arrived == decision.iteration:
                before = known.get(item.rid)
                if before is None or before.arrived != request.arrived or request.spec.prompt == item.prompt:
                    known[item.rid] = Known(request.arrived, item.prompt, request.prompt_len)

    def harvested(self, r: Seat, effect: fx.Harvested, _: object) -> None:
        """What was delivered is what the next launch of a request feeds in."""
        harvest = effect.harvest
        if not harvest.delivered and not harvest.finished:
            return
        known = self.known.get(r.rank_id, {})
        for (rid, _), token in zip(harvest.delivered, harvest.token_ids, strict=True):
            if rid in known:
                known[rid].delivered.append(token)
        for rid in harvest.finished:
            if rid not in r.rank.scheduler.requests:  # it may be here again
                known.pop(rid, None)
        self.pages.ended(r, harvest.finished)

    def _feeds(self, r: Seat, piece: Piece[KVRow]) -> None:
        """The first stage embeds these token ids."""
        start, stop = piece.prefix_len, piece.prefix_len + piece.new_tokens
        known = self.known.get(r.rank_id, {}).get(piece.rid)
        if known is None:
            return
        ids, due = piece.kv.input_ids(start, stop), known.ids(start, stop)
        if pack(ids) == due:
            return
        place = next((n for n, token in enumerate(ids) if pack([token]) != cut(due, n, n + 1)), len(ids))
        came = f"token {ids[place]}" if place < len(ids) else f"{len(ids)} tokens"
        text = f"its launch reads {came} at position {start + place}, which is neither of its prompt nor sampled there"
        raise InvariantViolation("INV-78", r.rank_id, r.rank.iteration, r.rank.slot, piece.rid, text)
