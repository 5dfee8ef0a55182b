"""The steps of an iteration as small generators; their order is the protocol (protocol.md 1.3, 1.5, 1.6).

Each phase takes the rank and yields effects. Loops are lists of phases (``loop.py``). In iteration i a rank visits slot
j = i mod L, harvests slot n = j+1 (launched L-1 iterations ago), and the last rank releases the output of slot
f = j+P (launched ``depth`` iterations ago).
"""

from __future__ import annotations

from ppsim.core.channels import commit_all, shape_error
from ppsim.core.effects import Decided, Effects, Harvested, act, await_tokens, ingest, launch, reply
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Hidden, Lane, Meta, Output, Shutdown
from ppsim.core.rank import Rank
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
        if config.has_timeouts:
            rank.inputs += yield from expired(rank)
    else:
        meta = yield from link.receive(Meta, link.prev, Lane.CONTROL, rank.iteration, rank.slot)
        rank.inputs = meta.inputs


def forward_inputs(rank: Rank) -> Effects[None]:
    """Step 2, ``commit_inputs``, ``share_inputs`` and ``send_inputs`` in one: here the list is passed on at once."""
    if rank.send_req_work:
        yield from commit_inputs(rank)
    if rank.link.replicas:
        yield from share_inputs(rank)
    yield from send_inputs(rank)
    if rank.inputs:
        rank.stopped = any(isinstance(item, Shutdown) for item in rank.inputs)


def commit_inputs(rank: Rank) -> Effects[None]:
    """Wait for the list of the previous iteration: it was taken, and the next rank is at most one iteration behind."""
    if rank.send_req_work:
        yield from commit_all(rank.send_req_work)


def share_inputs(rank: Rank) -> Effects[None]:
    """Inside the stage: its leader hands the request list, empty or not, to its tensor-parallel replicas."""
    link = rank.link
    if link.is_leader:
        for replica in link.replicas:
            meta = Meta(link.rank_id, rank.iteration, rank.slot, rank.inputs, Lane.TP)
            rank.send_req_work.append((yield from link.send(replica, meta)))


def send_inputs(rank: Rank) -> Effects[None]:
    """To the next stage: the request list, empty or not; disaggregation sends it last of all (protocol.md 1.7)."""
    link = rank.link
    if link.is_leader and not rank.config.is_last:
        meta = Meta(link.rank_id, rank.iteration, rank.slot, rank.inputs)
        rank.send_req_work.append((yield from link.send(link.next, meta)))


def is_idle(rank: Rank) -> bool:
    """The first rank may wait for input: no request anywhere, and nothing that it still has to pass on."""
    carries = any(
        conclusion is not None and (conclusion.good or conclusion.bad) for conclusion in rank.carried.values()
    )
    return rank.scheduler.fully_idle and rank.pp_outputs is None and not carries and not rank.flushes


def apply_inputs(rank: Rank) -> Effects[None]:
    """Step 3a: process the request list of this iteration."""
    inputs, config = rank.inputs, rank.config
    if config.has_timeouts and not (config.is_first and rank.link.is_leader):
        inputs += yield from expired(rank)
    rank.scheduler.iteration = rank.iteration
    rank.scheduler.apply(inputs)
    if rank.journal.has_news:
        yield from ask_environment(rank)


def ask_environment(rank: Rank) -> Effects[None]:
    """Hand out what the scheduler asked of this rank's surroundings, in order."""
    for action in rank.journal.take_actions():
        yield from act(action)


def schedule(rank: Rank) -> Effects[None]:
    """Step 3b: choose the batch of this slot."""
    rank.batch, decision = rank.scheduler.schedule(rank.iteration)
    rank.sweep_had_batch |= rank.batch is not None
    yield Decided(decision)
    if rank.journal.has_news:
        yield from hand_out(rank)


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
        at, rids = (link.rank_id, rank.iteration, rank.slot), [r.rid for r in rank.batch.requests]
        raise shape_error(*at, "hidden states", expected, came, link.prev, "INV-32", rids)
    first = rank.first_layer
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


def commit_hidden(rank: Rank) -> Effects[None]:
    """Step 6: the hidden states of the previous iteration must have been taken before the next launch."""
    if rank.send_proxy_work:
        yield from commit_all(rank.send_proxy_work)


def launch_batch(rank: Rank) -> Effects[None]:
    """Step 7: start the forward pass; on the last rank its output waits in the queue until it is released."""
    rank.hidden_out = None
    if rank.batch is None:
        return
    forward = rank.batch.forward
    payload = yield from launch(forward, rank.hidden)
    if rank.config.is_last:
        logprobs = rank.batch.num_logprobs
        output = Output(rank.link.rank_id, forward.iteration, forward.slot, len(forward.pieces), payload, logprobs)
        rank.last_rank_comm_queue.append(output)
    else:
        layers = rank.config.layers[rank.config.pp_rank : rank.config.pp_rank + 1]
        done = rank.first_layer + sum(layers)
        rank.hidden_out = Hidden(rank.link.rank_id, forward.iteration, forward.slot, forward.num_tokens, payload, done)


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
    rank.scheduler.absorb(rank.iteration, tokens)


def report_harvest(rank: Rank) -> Effects[None]:
    """Everything that this iteration delivered or ended is known: record it, act on it, tell the clients."""
    yield Harvested(rank.scheduler.harvest(rank.iteration))
    if rank.journal.has_news:
        yield from hand_out(rank)


def hand_out(rank: Rank) -> Effects[None]:
    """What the scheduler asked of this rank's surroundings, then what it answers clients."""
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


def finish(rank: Rank) -> Effects[None]:
    """After Shutdown: wait for every outstanding send, so that no buffer is left behind."""
    single = (rank.send_req_work, rank.send_proxy_work, rank.send_output_work)
    for works in (*single, *rank.conclusion_work.values(), *rank.side_work.values()):
        yield from commit_all(works)


def send_replies(rank: Rank) -> Effects[None]:
    """Every rank computes the replies; only the first one has a client (protocol.md 7.5)."""
    replies = rank.journal.take_replies()
    if rank.config.is_first and rank.link.is_leader:
        for message in replies:
            yield from reply(message)


def _send_hidden(rank: Rank) -> Effects[None]:
    if rank.hidden_out is not None:
        rank.send_proxy_work.append((yield from rank.link.send(rank.link.next, rank.hidden_out)))
        rank.hidden_out = None
