"""The steps of an iteration, small functions; their order is the protocol (protocol.md 1.3, 1.5, 1.6).

Each phase takes the rank and returns the effects that it asks, as a generator. Where there is nothing to ask it returns
``NOTHING``, which spares the loop a generator; so a phase that has often nothing to ask is a plain function, which does
its work when it is called, and leaves what asks to a generator of its own (``receive_hidden`` and ``take_hidden``).

Loops are lists of phases (``loop.py``). In iteration i a rank visits slot j = i mod L, harvests slot n = j+1 (launched
L-1 iterations ago), and the last rank releases the output of slot f = j+P (launched ``depth`` iterations ago).
"""

from __future__ import annotations

from ppsim.core.actions import Action
from ppsim.core.channels import commit_all, shape_error
from ppsim.core.effects import NOTHING, AwaitTokens, Decided, Effects, Harvested, Ingest, Launch, Reply, act, reply
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Hidden, Input, Lane, Meta, Output, Shutdown
from ppsim.core.rank import Rank, only_where
from ppsim.core.schedule.slots import LaunchedBatch
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
        rank.inputs = yield Ingest(rank.iteration, is_idle(rank))
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
    return commit_all(rank.send_req_work) if rank.send_req_work else NOTHING


def share_inputs(rank: Rank) -> Effects[None]:
    """Inside the stage: its leader hands the request list, empty or not, to its tensor-parallel replicas."""
    return send_list(rank, rank.link.replicas, Lane.TP) if rank.link.is_leader else NOTHING


def send_inputs(rank: Rank) -> Effects[None]:
    """To the next stage: the request list, empty or not; disaggregation sends it last of all (protocol.md 1.7)."""
    link = rank.link
    return send_list(rank, (link.next,), Lane.CONTROL) if link.is_leader and not rank.config.is_last else NOTHING


def send_list(rank: Rank, dsts: tuple[int, ...], lane: Lane) -> Effects[None]:
    """The request list of this iteration to other ranks; the sends are waited for in the next one."""
    link = rank.link
    for dst in dsts:
        meta = Meta(link.rank_id, rank.iteration, rank.slot, rank.inputs, lane)
        rank.send_req_work.append((yield from link.send(dst, meta)))


def is_idle(rank: Rank) -> bool:
    """The first rank may wait for input: no request anywhere, and nothing that it still has to pass on."""
    if rank.pp_outputs is not None or rank.flushes or not rank.scheduler.fully_idle:
        return False
    return not any(c is not None and (c.good or c.bad) for c in rank.carried.values())


def apply_inputs(rank: Rank) -> Effects[None]:
    """Step 3a: process the request list of this iteration."""
    config = rank.config
    if config.has_timeouts and not (config.is_first and rank.link.is_leader):
        return apply_with_expired(rank)
    return apply_list(rank, rank.inputs)


def apply_list(rank: Rank, inputs: tuple[Input, ...]) -> Effects[None]:
    """The scheduler processes them, and may ask something of this rank's surroundings."""
    rank.scheduler.iteration = rank.iteration
    rank.scheduler.apply(inputs)
    return ask_environment(rank) if rank.journal.has_news else NOTHING


def apply_with_expired(rank: Rank) -> Effects[None]:
    """Behind the list what this rank's clock ends: nothing, unless somebody else's rank watches it too."""
    ended = yield from expired(rank)
    yield from apply_list(rank, rank.inputs + ended)


def ask_environment(rank: Rank) -> Effects[None]:
    """Hand out what the scheduler asked of this rank's surroundings, in order."""
    actions = rank.journal.take_actions()
    return act_all(actions) if actions else NOTHING


def act_all(actions: list[Action]) -> Effects[None]:
    for action in actions:
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
    return NOTHING if rank.batch is None or rank.config.is_first else take_hidden(rank, rank.batch)


def take_hidden(rank: Rank, batch: LaunchedBatch) -> Effects[None]:
    """They must have a row for each token of the batch, and the layers of all stages before this one behind them."""
    link, expected = rank.link, batch.forward.num_tokens
    rank.hidden = yield from link.receive(Hidden, link.prev, Lane.TENSOR, rank.iteration, rank.slot)
    if rank.hidden.num_tokens != expected:
        came = rank.hidden.num_tokens
        at, rids = (link.rank_id, rank.iteration, rank.slot), [r.rid for r in batch.requests]
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
    return commit_all(rank.send_proxy_work) if rank.send_proxy_work else NOTHING


def launch_batch(rank: Rank) -> Effects[None]:
    """Step 7: start the forward pass; on the last rank its output waits in the queue until it is released."""
    rank.hidden_out = None
    return NOTHING if rank.batch is None else launch(rank, rank.batch)


def launch(rank: Rank, batch: LaunchedBatch) -> Effects[None]:
    """What comes of the forward pass."""
    forward = batch.forward
    payload = yield Launch(forward, rank.hidden)
    if rank.config.is_last:
        logprobs = batch.num_logprobs
        output = Output(rank.link.rank_id, forward.iteration, forward.slot, len(forward.pieces), payload, logprobs)
        rank.last_rank_comm_queue.append(output)
    else:
        layers = rank.config.layers[rank.config.pp_rank : rank.config.pp_rank + 1]
        done = rank.first_layer + sum(layers)
        rank.hidden_out = Hidden(rank.link.rank_id, forward.iteration, forward.slot, forward.num_tokens, payload, done)


@only_where(lambda config: config.hidden_after_launch and config.hidden_before_exchange)
def send_hidden_first(rank: Rank) -> Effects[None]:
    """Variant of the variant: hidden states leave even before the outputs (``links.early_send``).

    In one in-order communication stream the relay of outputs then waits for the end of the forward pass, and a round
    becomes P (t + h) instead of P t + h (decision 0012). With depth the exchange comes before the launch anyway.
    """
    config = rank.config
    return send_hidden(rank) if config.hidden_after_launch and config.hidden_before_exchange else NOTHING


@only_where(lambda config: config.hidden_after_launch)
def send_hidden_early(rank: Rank) -> Effects[None]:
    """Variant: hidden states leave before the host waits for the harvest, but behind the output relay."""
    return send_hidden(rank) if rank.config.hidden_after_launch else NOTHING


def harvest(rank: Rank) -> Effects[None]:
    """Step 9: wait for the tokens of slot n on the host, apply them, and answer the clients."""
    yield from absorb_outputs(rank)
    yield from report_harvest(rank)


def absorb_outputs(rank: Rank) -> Effects[None]:
    """Wait for the tokens of slot n on the host and apply them."""
    if rank.received is not None and rank.scheduler.slots.to_harvest(rank.iteration).in_flight:
        return absorb_tokens(rank, rank.received)
    rank.scheduler.absorb(rank.iteration, None)
    return NOTHING


def absorb_tokens(rank: Rank, output: Output) -> Effects[None]:
    tokens: tuple[int, ...] = yield AwaitTokens(output)
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


@only_where(lambda config: not config.hidden_after_launch)
def send_hidden_late(rank: Rank) -> Effects[None]:
    """Step 10: hidden states leave after the harvest of slot n."""
    return NOTHING if rank.config.hidden_after_launch else send_hidden(rank)


def carry_over(rank: Rank) -> Effects[None]:
    """Steps 11 and 12: what was received is passed on in the next iteration; idle housekeeping after a sweep."""
    rank.pp_outputs = None if rank.config.is_last else rank.received
    if rank.slot == rank.config.num_slots - 1:
        if not rank.sweep_had_batch:
            rank.scheduler.on_idle()
        rank.sweep_had_batch = False
    return NOTHING


def finish(rank: Rank) -> Effects[None]:
    """After Shutdown: wait for every outstanding send, so that no buffer is left behind."""
    single = (rank.send_req_work, rank.send_proxy_work, rank.send_output_work)
    for works in (*single, *rank.conclusion_work.values(), *rank.side_work.values()):
        yield from commit_all(works)


def send_replies(rank: Rank) -> Effects[None]:
    """Every rank computes the replies; only the first one has a client (protocol.md 7.5)."""
    replies = rank.journal.take_replies()
    if rank.config.is_first and rank.link.is_leader:
        return reply_all(replies)
    return NOTHING


def reply_all(replies: list[Reply]) -> Effects[None]:
    for message in replies:
        yield from reply(message)


def send_hidden(rank: Rank) -> Effects[None]:
    """If any are left to send; they are waited for before the next launch."""
    return NOTHING if rank.hidden_out is None else post_hidden(rank, rank.hidden_out)


def post_hidden(rank: Rank, hidden: Hidden) -> Effects[None]:
    rank.send_proxy_work.append((yield from rank.link.send(rank.link.next, hidden)))
    rank.hidden_out = None
