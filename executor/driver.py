"""One rank of the real world: the core generator on one side, a model, links and a client on the other.

``drive`` is the whole engine. What each effect means here is one method of ``Answers``; the table is in ``__init__``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

from executor.client import Client
from executor.fed import FedRank
from executor.kv import PagedKV
from executor.packed import pack
from executor.stage import Stage
from executor.status import Status
from executor.surroundings import Surroundings
from executor.timing import ForwardTimer
from executor.transport import Transport
from ppsim.check.observers import Observers
from ppsim.check.physical import buffer_given_up
from ppsim.core.agreed import Local
from ppsim.core.effects import (
    Act,
    AwaitLocal,
    AwaitTokens,
    Commit,
    Decided,
    Drop,
    Effects,
    Harvested,
    Ingest,
    Launch,
    Observe,
    Recv,
    Reply,
    Send,
    Work,
)
from ppsim.core.errors import InvariantViolation, ProtocolError
from ppsim.core.messages import Hidden, Input, Message, NewRequest, Output
from ppsim.core.observations import Capacity, Statuses
from ppsim.core.rank import Rank
from ppsim.core.schedule.batch import ForwardBatch
from ppsim.core.tokens import count
from ppsim.recording import Recording
from ppsim.recording.schema import WALL_CLOCK, Came, Left

TERMINAL = ("finished", "aborted", "refused")
MAX_CLOCK_READS = 1024  # of one rank between two effects
WRITTEN_BEFORE = (Send, Recv, Ingest, AwaitLocal)
"""Effects with which something leaves the rank, or in which it may wait: what was recorded is on file before them."""


class Answers:
    """The replies of the real world to the effects of rank ``rank``. Times count from the common start of the run."""

    def __init__(
        self,
        rank: int,
        stage: Stage,
        kv: PagedKV,
        capacity_tokens: int,
        transport: Transport,
        client: Client,
        recording: Recording,
        timer: ForwardTimer,
        status: Status,
        surroundings: Surroundings,
        observers: Observers,
        fed: FedRank | None = None,
    ) -> None:
        self.rank, self.stage, self.kv, self.capacity_tokens = rank, stage, kv, capacity_tokens
        self.transport, self.client, self.recording, self.timer = transport, client, recording, timer
        self.status = status
        self.surroundings = surroundings
        self.observers = observers
        self.fed = fed
        self.num_ended = 0
        self.samples: deque[tuple[ForwardBatch, torch.Tensor]] = deque()
        self.leaving: dict[Work, Left] = {}  # device data whose sends are not over
        self.clock_reads: deque[int] = deque(maxlen=MAX_CLOCK_READS)
        self.table: dict[type, Callable[[Any], object]] = {
            Ingest: self.ingest,
            Send: self.send,
            Recv: self.recv,
            Commit: self.commit,
            Drop: self.drop,
            Launch: self.launch,
            AwaitTokens: self.await_tokens,
            Observe: self.observe,
            AwaitLocal: self.await_local,
            Act: self.act,
            Reply: self.reply,
            Decided: self.decided,
            Harvested: self.harvested,
        }

    def drive(self, core: Rank, loop: Effects[None]) -> None:
        """Run the event loop of a rank to its end."""
        befores, afters = self.observers.befores, self.observers.afters
        answer: object = None
        while True:
            try:
                effect = loop.send(answer)
            except StopIteration:
                return
            self.status.beat(self.rank, effect, core.iteration if core.started else -1)
            for look in befores[type(effect)]:
                look(effect)
            if type(effect) in WRITTEN_BEFORE:
                self.recording.flush()
            answer = self.table[type(effect)](effect)
            self.status.answered(self.rank)
            for look_back in afters[type(effect)]:
                look_back(effect, answer)

    # --- clients ---------------------------------------------------------------------------------------------

    def ingest(self, effect: Ingest) -> tuple[Input, ...]:
        inputs = self.client.ingest(effect.iteration, effect.idle)
        now_ns = self.timer.now_ns()
        for item in inputs:
            if isinstance(item, NewRequest) and item.rid not in self.client.timed:
                self.recording.arrival(item.rid, now_ns, count(item.prompt), item.max_new_tokens)
        self.recording.ingested(effect.iteration, inputs, now_ns)
        return inputs

    def reply(self, effect: Reply) -> None:
        if effect.status in TERMINAL:
            self.num_ended += 1
            self.status.ended(self.num_ended)
        now_ns = self.timer.now_ns()
        self.recording.reply(now_ns, effect)
        for at_ns, request in self.client.replied(effect, now_ns):
            self.recording.arrival(request.rid, at_ns, count(request.prompt), request.max_new_tokens)

    # --- links -----------------------------------------------------------------------------------------------

    def send(self, effect: Send) -> Work:
        leaves_ns = self.timer.now_ns()
        work = self.transport.send(effect.dst, effect.message)
        self.status.sent(work, effect.dst)
        message = effect.message
        if isinstance(message, Hidden | Output):
            self.leaving[work] = Left(effect.dst, message.kind.value, message.iteration, leaves_ns, leaves_ns)
        return work

    def recv(self, effect: Recv) -> Message:
        message = self.transport.recv(effect.src, effect.lane)
        if isinstance(message, Hidden | Output):
            came = Came(effect.src, message.kind.value, message.iteration, self.timer.now_ns())
            self.recording.has_come(self.rank, came)
        return message

    def commit(self, effect: Commit) -> None:
        if effect.work not in self.transport.outstanding:
            raise self.broken_send("a send is committed twice")
        self.transport.commit(effect.work)
        left = self.leaving.pop(effect.work, None)
        if left is not None:
            self.recording.has_left(self.rank, left._replace(sent_ns=self.timer.now_ns()))

    def drop(self, effect: Drop) -> None:
        """The backend tells the end of a send only to who waits for it: to everybody else it is not over."""
        sent = self.transport.outstanding.get(effect.work)
        if sent is None:
            raise self.broken_send("the buffer of a send that is committed is given up once more")
        raise self.broken_send(buffer_given_up(sent.kind, sent.dst, self.timer.now_ns(), is_over=False))

    def broken_send(self, detail: str) -> InvariantViolation:
        core = self.surroundings.core
        return InvariantViolation("INV-38", self.rank, core.iteration, core.slot, "", detail)

    # --- model -----------------------------------------------------------------------------------------------

    def launch(self, effect: Launch) -> torch.Tensor:
        """Hidden states [num_tokens, hidden_size], or on the last rank the sampled token ids [num_pieces]."""
        batch, share = effect.batch, self.stage.share
        packed = pack(batch, self.kv.page_size, self.kv.num_pages, self.rank, self.stage.device)
        rows = self.input_ids(batch) if share.is_first else self.hidden_rows(effect)
        with self.timer.forward(batch):
            out: torch.Tensor = self.stage(rows, packed, self.kv)
            if share.is_last:
                out = self.stage.sample(out, packed)
                out = out if self.fed is None else self.fed.tokens(batch, out)
        if share.is_last:
            self.samples.append((batch, out))
        self.keep_up(self.timer.finished())
        return out

    def input_ids(self, batch: ForwardBatch) -> torch.Tensor:
        ids = [i for p in batch.pieces for i in p.kv.input_ids(p.prefix_len, p.prefix_len + p.new_tokens)]
        if len(ids) != batch.num_tokens:
            came = f"{len(ids)} token ids for them"
            raise ProtocolError(
                self.rank, batch.iteration, batch.slot, f"pieces of {batch.num_tokens} tokens", came, "the scheduler"
            )
        return torch.tensor(ids, dtype=torch.int64, device=self.stage.device)

    def hidden_rows(self, effect: Launch) -> torch.Tensor:
        batch, payload = effect.batch, effect.hidden.payload if effect.hidden else None
        if isinstance(payload, torch.Tensor) and payload.shape[0] == batch.num_tokens:
            return payload
        came = f"shape {list(payload.shape)}" if isinstance(payload, torch.Tensor) else "none"
        blame = f"rank {self.rank - 1} sent activations of another batch"
        expected = f"hidden states of {batch.num_tokens} tokens"
        raise ProtocolError(self.rank, batch.iteration, batch.slot, expected, came, blame)

    def await_tokens(self, effect: AwaitTokens) -> tuple[int, ...]:
        output = effect.output
        assert isinstance(output.payload, torch.Tensor), type(output.payload)
        token_ids = tuple(output.payload.tolist())
        if min(token_ids) < 0:  # ``Stage.sample``
            row = token_ids.index(-1)
            detail = (
                f"row {row} has no number for a logit: KV was read that no launch has written "
                "(or the model's own numbers overflow: its weights were checked, its activations are not)"
            )
            raise InvariantViolation("INV-64", self.rank, output.iteration, output.slot, "", detail)
        return token_ids

    # --- the rest --------------------------------------------------------------------------------------------

    def observe(self, effect: Observe) -> Local[tuple[int, ...]]:
        values = None if self.fed is None else self.fed.values(effect)
        if values is None and isinstance(effect.observation, Capacity):
            values = (self.capacity_tokens,)
        elif values is None:
            values = self.surroundings.look(effect.observation, effect.iteration)
        if values is None:
            detail = f"nothing here can answer the observation {effect.what!r}"
            raise InvariantViolation("INV-02", self.rank, effect.iteration, -1, "", detail)
        self.recording.observed(self.rank, effect.iteration, effect.what, effect.keys, values)
        if isinstance(effect.observation, Statuses):
            for rid in effect.keys:
                self.recording.stored(effect.iteration, rid, self.surroundings.stored[rid])
        return Local(values, self.rank, effect.iteration)

    def await_local(self, effect: AwaitLocal) -> None:
        self.surroundings.wait(effect.fact, effect.iteration)

    def act(self, effect: Act) -> None:
        self.surroundings.act(effect.action, self.surroundings.core.iteration)

    def wall_clock_ns(self) -> int:
        """For a policy that looks at its clock although it should not: what it saw is recorded like any other look."""
        iteration = self.surroundings.core.iteration
        fed = None if self.fed is None else self.fed.look_up(iteration, WALL_CLOCK)
        now_ns = self.timer.now_ns() if fed is None else fed[0]
        self.recording.observed(self.rank, iteration, WALL_CLOCK, (), (now_ns,))
        self.clock_reads.append(now_ns)
        return now_ns

    def clock_of_twin(self) -> int:
        """For the right rank beside this one, which asks as often as it does, right behind it."""
        return self.clock_reads.popleft() if self.clock_reads else 0

    def decided(self, effect: Decided) -> None:
        self.recording.visited(self.rank, self.timer.now_ns())
        self.surroundings.report(effect.decision.iteration)
        self.recording.decision(self.rank, effect.decision)

    def harvested(self, effect: Harvested) -> None:
        self.recording.harvest(self.rank, effect.harvest)

    def settle(self) -> None:
        """Put what was measured into the recording, however far the run came."""
        self.keep_up(self.timer.spans())

    def keep_up(self, passes: Iterable[tuple[int, int, int, int]]) -> None:
        """Record forward passes that are over, and the tokens that were sampled in them."""
        for slot, iteration, start_ns, end_ns in passes:
            self.recording.span(self.rank, "forward", slot, iteration, start_ns, end_ns)
            if self.samples and self.samples[0][0].iteration == iteration:
                _, token_ids = self.samples.popleft()
                self.recording.sampled(iteration, slot, tuple(token_ids.tolist()))
