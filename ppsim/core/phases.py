"""The steps of an iteration as small generators; their order is the protocol (protocol.md 1.3, 1.5, 1.6).

Each phase takes the rank and yields effects. Loops are lists of phases (``loop.py``). In iteration i a rank visits slot
j = i mod L, harvests slot n = j+1 (launched L-1 iterations ago), and the last rank releases the output of slot
f = j+P (launched ``depth`` iterations ago).
"""

from __future__ import annotations

from ppsim.core.channels import commit_all, shape_error
from ppsim.core.effects import Effects, act, await_tokens, decided, drop, harvested, ingest, launch, reply
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Hidden, Lane, Meta, Output, Shutdown
from ppsim.core.rank import Rank
from ppsim.core.slots import LaunchedBatch
from ppsim.core.timeouts import expired


def ingest_inputs(rank: Rank) -> Effects[None]:
    """Step 1: the first rank takes what clients sent; all others take the list of this iteration from upstream."""
    link, config = rank.link, rank.config
    if not link.is_leader:
        meta = yield from link.receive(Meta, link.leader, Lane.TP, rank.iteration, rank.slot)
        rank.inputs = meta.inputs
    elif config.is_first:
        if rank.last_vote is not None:
            rank.inputs = ()  # Shutdown was read; what follows only lets the last conclusions arrive
            return
        rank.inputs = yield from ingest(rank.iteration, is_idle(rank))
        rank.inputs += yield from expired(rank)
    else:
        meta = yield from link.receive(Meta, link.prev, Lane.CONTROL, rank.iteration, rank.slot)
        rank.inputs = meta.inputs


def forward_inputs(rank: Rank) -> Effects[None]:
    """Step 2: wait for the list of the previous iteration, then pass this one on, empty or not."""
    yield from commit_inputs(rank)
    yield from share_inputs(rank)
    yield from send_inputs(rank)
    rank.stopped = any(isinstance(item, Shutdown) for item in rank.inputs)


def commit_inputs(rank: Rank) -> Effects[None]:
    """The list of the previous iteration was taken: the next rank is at most one iteration behind."""
    yield from commit_all(rank.send_req_work)


def share_inputs(rank: Rank) -> Effects[None]:
    """The leader of a stage hands the request list to its tensor-parallel replicas."""
    link = rank.link
    if link.is_leader:
        for replica in link.replicas:
            meta = Meta(link.rank_id, rank.iteration, rank.slot, rank.inputs, Lane.TP)
            rank.send_req_work.append((yield from link.send(replica, meta)))


def send_inputs(rank: Rank) -> Effects[None]:
    """Pass the request list on; the loops of disaggregation do it at the end of an iteration (protocol.md 1.7)."""
    link = rank.link
    if link.is_leader and not rank.config.is_last:
        meta = Meta(link.rank_id, rank.iteration, rank.slot, rank.inputs)
        rank.send_req_work.append((yield from link.send(link.next, meta)))


def is_idle(rank: Rank) -> bool:
    """The first rank may wait for input: no request anywhere, and nothing that it still has to pass on."""
    carries = any(verdict is not None and (verdict.good or verdict.bad) for verdict in rank.carried.values())
    return rank.scheduler.fully_idle and rank.pp_outputs is None and not carries and not rank.flushes


def apply_inputs(rank: Rank) -> Effects[None]:
    """Step 3a: process the request list of this iteration."""
    inputs = rank.inputs
    if not (rank.config.is_first and rank.link.is_leader):
        inputs += yield from expired(rank)
    rank.scheduler.iteration = rank.iteration
    rank.scheduler.apply(inputs)
    yield from ask_environment(rank)


def ask_environment(rank: Rank) -> Effects[None]:
    """Hand out what the scheduler asked of this rank's surroundings, in order."""
    asked, rank.scheduler.acts = rank.scheduler.acts, []
    for what, key, argument in asked:
        yield from act(what, key, argument)


def schedule(rank: Rank) -> Effects[None]:
    """Step 3b: choose the batch of this slot."""
    rank.batch, decision = rank.scheduler.schedule(rank.iteration)
    rank.sweep_had_batch |= rank.batch is not None
    yield from decided(decision)
    yield from ask_environment(rank)
    yield from send_replies(rank)


def receive_hidden(rank: Rank) -> Effects[None]:
    """Step 4: activations of this batch from the stage before, if there is a batch."""
    rank.hidden = None
    if rank.batch is None or rank.config.is_first:
        return
    link = rank.link
    rank.hidden = yield from link.receive(Hidden, link.prev, Lane.TENSOR, rank.iteration, rank.slot)
    expected = rank.batch.forward.num_tokens
    if rank.hidden.num_tokens != expected:
        came = rank.hidden.num_tokens
        raise shape_error(link.rank_id, rank.iteration, rank.slot, "hidden states", expected, came, link.prev, "INV-32")
    first = first_layer(rank)
    if rank.hidden.num_layers != first:
        raise ProtocolError(
            link.rank_id,
            rank.iteration,
            rank.slot,
            f"hidden states behind {first} layers",
            f"{rank.hidden.num_layers}",
            f"the layers of ranks {link.prev} and {link.rank_id} do not join",
            "INV-32",
        )


def exchange_if_deep(rank: Rank) -> Effects[None]:
    """Step 5: with pp_async_batch_depth > 0 the outputs are exchanged before the launch."""
    if rank.config.pp_async_batch_depth > 0:
        yield from exchange(rank)


def commit_hidden(rank: Rank) -> Effects[None]:
    """Step 6: the hidden states of the previous iteration must have been taken before the next launch."""
    if rank.hooks.commits_before_reuse("hidden"):
        yield from commit_all(rank.send_proxy_work)
        return
    for work in rank.send_proxy_work:
        yield from drop(work)
    rank.send_proxy_work.clear()


def launch_batch(rank: Rank) -> Effects[None]:
    """Step 7: start the forward pass; on the last rank its output waits in the queue until it is released."""
    rank.hidden_out = None
    if rank.batch is None:
        return
    forward = rank.batch.forward
    payload = yield from launch(forward, rank.hidden)
    if rank.config.is_last:
        logprobs = num_logprobs(rank.batch)
        output = Output(rank.link.rank_id, forward.iteration, forward.slot, len(forward.pieces), payload, logprobs)
        rank.last_rank_comm_queue.append(output)
    else:
        layers = rank.config.layers[rank.config.pp_rank : rank.config.pp_rank + 1]
        done = first_layer(rank) + sum(layers)
        rank.hidden_out = Hidden(rank.link.rank_id, forward.iteration, forward.slot, forward.num_tokens, payload, done)


def first_layer(rank: Rank) -> int:
    """Number of the layer that this rank's stage begins with."""
    return rank.hooks.first_layer(rank.config.layers, rank.config.pp_rank)


def num_logprobs(batch: LaunchedBatch) -> int:
    """Rows of a batch whose requests asked for logprobs."""
    return sum(request.spec.return_logprob for request in batch.requests)


def send_hidden_first(rank: Rank) -> Effects[None]:
    """Variant of the variant: hidden states leave even before the outputs (``links.early_send``).

    In one in-order communication stream the relay of outputs then waits for the end of the forward pass, and a round
    becomes P (t + h) instead of P t + h (decision 0012). With depth the exchange comes before the launch anyway.
    """
    if rank.config.hidden_after_launch and rank.config.hidden_before_exchange:
        yield from _send_hidden(rank)


def send_hidden_early(rank: Rank) -> Effects[None]:
    """Variant: hidden states leave before the host waits for the harvest, but behind the output relay."""
    if rank.config.hidden_after_launch:
        yield from _send_hidden(rank)


def exchange_if_shallow(rank: Rank) -> Effects[None]:
    """Step 8: with depth 0 the outputs are exchanged after the launch."""
    if rank.config.pp_async_batch_depth == 0:
        yield from exchange(rank)


def harvest(rank: Rank) -> Effects[None]:
    """Step 9: wait for the tokens of slot n on the host, apply them, and answer the clients."""
    yield from absorb_outputs(rank)
    yield from report_harvest(rank)


def absorb_outputs(rank: Rank) -> Effects[None]:
    """Wait for the tokens of slot n on the host and apply them."""
    slot = rank.scheduler.slots.to_harvest(rank.iteration)
    tokens: tuple[int, ...] | None = None
    if slot.in_flight and rank.received is not None:
        tokens = yield from await_tokens(rank.received)
    rank.result = rank.scheduler.absorb(rank.iteration, tokens)


def report_harvest(rank: Rank) -> Effects[None]:
    """Everything that this iteration delivered or ended is known: record it, act on it, tell the clients."""
    assert rank.result is not None
    yield from harvested(rank.scheduler.completed(rank.result))
    yield from ask_environment(rank)
    yield from send_replies(rank)


def send_hidden_late(rank: Rank) -> Effects[None]:
    """Step 10: hidden states leave after the harvest of slot n."""
    if not rank.config.hidden_after_launch:
        yield from _send_hidden(rank)


def carry_over(rank: Rank) -> Effects[None]:
    """Steps 11 and 12: what was received is passed on in the next iteration; idle housekeeping after a sweep."""
    rank.pp_outputs = None if rank.config.is_last else rank.received
    if rank.slot == rank.config.num_slots - 1:
        if not rank.sweep_had_batch:
            rank.scheduler.on_idle()
        rank.sweep_had_batch = False
    yield from ()


def exchange(rank: Rank) -> Effects[None]:
    """Protocol.md 1.5: wait for the previous output send, then send and receive in the order of the backend."""
    yield from commit_all(rank.send_output_work)
    rank.received = None
    if rank.config.pp_size == 1:
        rank.received = _own_output(rank)
    elif rank.config.exchange_order == "paired":
        # Two stages, one submission where there is something to send and to receive (protocol.md 3.4).
        yield from _send_output(rank, paired=_awaited_output(rank) is not None)
        yield from _receive_output(rank)
    elif rank.hooks.sends_first(rank.config.exchange_order, rank.config.pp_rank):
        yield from _send_output(rank)
        yield from _receive_output(rank)
    else:
        yield from _receive_output(rank)
        yield from _send_output(rank)


def finish(rank: Rank) -> Effects[None]:
    """After Shutdown: wait for every outstanding send, so that no buffer is left behind."""
    single = (rank.send_req_work, rank.send_proxy_work, rank.send_output_work)
    for works in (*single, *rank.verdict_work.values(), *rank.side_work.values()):
        yield from commit_all(works)


def send_replies(rank: Rank) -> Effects[None]:
    """Every rank computes the replies; only the first one has a client (protocol.md 7.5)."""
    outbox = rank.scheduler.outbox
    if rank.config.is_first and rank.link.is_leader:
        for message in outbox:
            yield from reply(message)
    outbox.clear()


def _own_output(rank: Rank) -> Output | None:
    """One stage: the output that is released now is the one that is harvested now (f == n where P == 1)."""
    released = _release(rank)
    batch = rank.scheduler.slots.to_harvest(rank.iteration).launched
    return None if batch is not None and batch.forward.skip_output_comm else released


def _release(rank: Rank) -> Output | None:
    """Last rank: the head of the queue, if slot f holds a launched batch; it must belong to that batch (inv. 35)."""
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


def _send_output(rank: Rank, paired: bool = False) -> Effects[None]:
    message = rank.pp_outputs
    if rank.config.is_last:
        released = _release(rank)
        launched = rank.scheduler.slots.to_release(rank.iteration).launched
        skipped = launched is not None and launched.forward.skip_output_comm
        message = None if skipped else released
    if message is not None and rank.hooks.sends_output(rank, message):
        rank.send_output_work.append((yield from rank.link.send(rank.link.next, message, paired)))


def _awaited_output(rank: Rank) -> LaunchedBatch | None:
    """The batch of slot n whose output comes in this exchange: decided from shared state only (invariant 33)."""
    slot = rank.scheduler.slots.to_harvest(rank.iteration)
    launched = slot.launched if slot.in_flight else None
    if launched is None or launched.forward.skip_output_comm or not rank.hooks.awaits_output(rank, launched):
        return None
    return launched


def _receive_output(rank: Rank) -> Effects[None]:
    launched = _awaited_output(rank)
    if launched is None:
        return
    link, slot = rank.link, launched.forward.slot
    rank.received = yield from link.receive(Output, link.prev, Lane.TENSOR, launched.iteration, slot)
    expected = len(launched.requests)
    if rank.received.num_rows != expected:
        came = rank.received.num_rows
        raise shape_error(link.rank_id, rank.iteration, slot, "output", expected, came, link.prev, "INV-34")
    wanted, came = num_logprobs(launched), rank.received.num_logprobs
    if came != wanted:
        raise ProtocolError(
            link.rank_id,
            rank.iteration,
            slot,
            f"logprobs for {wanted} rows",
            f"for {came} rows",
            f"rank {link.prev} passed the output on without all of its fields",
            "INV-71",
        )


def _send_hidden(rank: Rank) -> Effects[None]:
    if rank.hidden_out is not None:
        rank.send_proxy_work.append((yield from rank.link.send(rank.link.next, rank.hidden_out)))
        rank.hidden_out = None
