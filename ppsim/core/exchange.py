"""The ring of outputs: what goes round, when it is sent and when it is awaited (protocol.md 1.5, 3.4).

    last rank    releases the output of slot f = j+P, launched ``depth`` iterations ago, unless the batch skips it
    other ranks  pass on what they received one iteration before
    every rank   receives the output of slot n = j+1, which it harvests in this iteration, unless the batch skips it

Whether a message is sent or awaited is decided from what was launched, which is equal on all ranks, and never from what
has become of the requests since (invariants 33, 35).
"""

from __future__ import annotations

from ppsim.core.channels import commit_all, named, shape_error
from ppsim.core.effects import NOTHING, Effects
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Lane, Output
from ppsim.core.rank import Rank, only_where
from ppsim.core.schedule.slots import LaunchedBatch


class Exchange:
    """The phases that send and receive outputs."""

    @only_where(lambda config: config.pp_async_batch_depth > 0)
    def exchange_if_deep(self, rank: Rank) -> Effects[None]:
        """Step 5: with pp_async_batch_depth > 0 the outputs are exchanged before the launch."""
        return self.exchange(rank) if rank.config.pp_async_batch_depth > 0 else NOTHING

    @only_where(lambda config: config.pp_async_batch_depth == 0)
    def exchange_if_shallow(self, rank: Rank) -> Effects[None]:
        """Step 8: with depth 0 the outputs are exchanged after the launch."""
        return self.exchange(rank) if rank.config.pp_async_batch_depth == 0 else NOTHING

    def exchange(self, rank: Rank) -> Effects[None]:
        """Protocol.md 1.5: wait for the previous output send, then send and receive in the order of the backend."""
        if rank.send_output_work:
            yield from commit_all(rank.send_output_work)
        rank.received = None
        if rank.config.pp_size == 1:
            rank.received = self.own_output(rank)
        elif rank.config.exchange_order == "paired":
            # Two stages, one submission where there is something to send and to receive (protocol.md 3.4).
            yield from self.send_output(rank, paired=self.awaited(rank) is not None)
            yield from self.receive_output(rank)
        elif self.sends_first(rank):
            yield from self.send_output(rank)
            yield from self.receive_output(rank)
        else:
            yield from self.receive_output(rank)
            yield from self.send_output(rank)

    def sends_first(self, rank: Rank) -> bool:
        """Order inside the exchange (protocol.md 3.4): all send first, or only the even ranks do."""
        return rank.config.exchange_order != "parity" or rank.config.pp_rank % 2 == 0

    def own_output(self, rank: Rank) -> Output | None:
        """One stage: the output that is released now is the one that is harvested now (f == n where P == 1)."""
        released = self.release(rank)
        batch = rank.scheduler.slots.to_harvest(rank.iteration).launched
        return None if batch is not None and batch.forward.skip_output_comm else released

    def release(self, rank: Rank) -> Output | None:
        """Last rank: the head of the queue if slot f holds a launched batch, whose output it must be (invariant 35)."""
        slot = rank.scheduler.slots.to_release(rank.iteration)
        if not slot.in_flight or slot.launched is None:
            return None
        expected = slot.launched.iteration
        if not rank.last_rank_comm_queue or rank.last_rank_comm_queue[0].iteration != expected:
            came = str(rank.last_rank_comm_queue[0].iteration) if rank.last_rank_comm_queue else "an empty queue"
            raise ProtocolError(
                rank.link.rank_id,
                rank.iteration,
                slot.index,
                f"output of iteration {expected} at the head of the queue",
                came,
                "the last rank released an output out of order",
                "INV-35",
            )
        return rank.last_rank_comm_queue.popleft()

    def output_to_send(self, rank: Rank) -> Output | None:
        """What goes to the next rank in this exchange; None: nothing is due."""
        if not rank.config.is_last:
            return rank.pp_outputs
        released = self.release(rank)
        launched = rank.scheduler.slots.to_release(rank.iteration).launched
        return None if launched is not None and launched.forward.skip_output_comm else released

    def send_output(self, rank: Rank, paired: bool = False) -> Effects[None]:
        """Pass on what is due to the next rank."""
        message = self.output_to_send(rank)
        return NOTHING if message is None else post_output(rank, message, paired)

    def awaited(self, rank: Rank) -> LaunchedBatch | None:
        """The batch of slot n whose output comes in this exchange, whatever became of its requests (inv. 33; B69)."""
        slot = rank.scheduler.slots.to_harvest(rank.iteration)
        launched = slot.launched if slot.in_flight else None
        return None if launched is None or launched.forward.skip_output_comm else launched

    def receive_output(self, rank: Rank) -> Effects[None]:
        """Take the output of slot n."""
        launched = self.awaited(rank)
        return NOTHING if launched is None else take_output(rank, launched)


def post_output(rank: Rank, output: Output, paired: bool) -> Effects[None]:
    """It is waited for in the next exchange."""
    rank.send_output_work.append((yield from rank.link.send(rank.link.next, output, paired)))


def take_output(rank: Rank, launched: LaunchedBatch) -> Effects[None]:
    """It must have a row for each request of the batch, in order, and their logprobs."""
    link, slot = rank.link, launched.forward.slot
    rank.received = yield from link.receive(Output, link.prev, Lane.TENSOR, launched.iteration, slot)
    expected = len(launched.requests)
    if rank.received.num_rows != expected:
        came = rank.received.num_rows
        at, rids = (link.rank_id, rank.iteration, slot), [r.rid for r in launched.requests]
        raise shape_error(*at, "output", expected, came, link.prev, "INV-34", rids)
    wanted, came = launched.num_logprobs, rank.received.num_logprobs
    if came != wanted:
        rids = [r.rid for r in launched.requests if r.spec.return_logprob]
        raise ProtocolError(
            link.rank_id,
            rank.iteration,
            slot,
            f"logprobs for {wanted} rows ({named(rids)})" if rids else "no logprobs",
            f"for {came} rows",
            f"rank {link.prev} passed the output on without all of its fields",
            "INV-71",
            rids[0] if len(rids) == 1 else "",
        )
