"""All ranks of a pipeline without a clock: plain FIFO queues, and any order of steps that a test asks for.

The third driver of the core loop, and the smallest. A rank that can go on is one whose effect can be answered now;
``order`` picks among them. KV is real here: each rank has a memory of (page, offset) cells, a launch writes the input
tokens of its pieces and reads the whole context of each back, and the sampled token is a function of what was read.
So a page that is freed too early, shared wrongly or written twice changes the text that comes out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from zlib import crc32

from ppsim.core import effects as fx
from ppsim.core.agreed import Local
from ppsim.core.config import RankConfig
from ppsim.core.loop import event_loop_pp
from ppsim.core.messages import Input, Lane, Message, NewRequest, Shutdown
from ppsim.core.observations import Capacity
from ppsim.core.parts import UNCHANGED, Change
from ppsim.core.schedule.batch import KVRow, Piece
from ppsim.core.tokens import unpack
from tests.interactions.experiment import ALPHABET

Address: TypeAlias = tuple[int, int, Lane]
MIDDLE_CHUNK_TOKEN = 77  # sampled after a middle chunk; must never reach a client


def next_token(context: list[int]) -> int:
    """The model: any fixed function of the whole context."""
    return crc32(repr(context).encode()) % ALPHABET


def expected_stream(request: NewRequest) -> list[int]:
    """What a client must get, whoever serves the request: the model applied to prompt and output so far."""
    context = unpack(request.prompt)
    out: list[int] = []
    while len(out) < request.max_new_tokens:
        token = next_token(context)
        context.append(token)
        out.append(token)
        if not request.ignore_eos and token in request.stop_token_ids:
            break
    return out


@dataclass(frozen=True)
class Payload:
    """Device data of a message: what the sending rank has read for each row."""

    contexts: tuple[tuple[int, ...], ...]
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class Event:
    """One answered effect, for checks of sequences. ``iteration`` is the rank's own."""

    rank: int
    iteration: int
    effect: fx.Effect
    reply: object


class Stuck(Exception):
    """No rank can go on. ``waits`` has (rank, iteration, effect) of every rank that is not done."""

    def __init__(self, waits: list[tuple[int, int, fx.Effect]]) -> None:
        super().__init__(waits)
        self.waits = waits


class Node:
    """A rank, the effect it stands at, and its memory."""

    def __init__(self, config: RankConfig, capacity: int, change: Change) -> None:
        self.rank = change.rank(config)
        self.rank_id = config.rank_id
        self.capacity = capacity
        self.loop = event_loop_pp(self.rank)
        self.effect: fx.Effect | None = next(self.loop)
        self.cells: dict[tuple[int, int], int] = {}
        self.decisions: list[fx.Decision] = []
        self.harvests: list[fx.Harvest] = []
        self.launched: dict[int, tuple[Piece[KVRow], ...]] = {}  # by iteration

    @property
    def done(self) -> bool:
        return self.effect is None


@dataclass
class Ring:
    """``inputs`` by iteration of the first rank. ``order(n)`` picks one of n ranks that can go on.

    ``commits_wait``: a send is over only when the peer has taken the message, as with gloo. ``tamper(src, dst,
    message)`` gives the messages that really arrive instead of this one.
    """

    config: RankConfig
    inputs: Mapping[int, tuple[Input, ...]]
    order: Callable[[int], int] = lambda n: 0
    capacities: tuple[int, ...] = (10_000,)
    commits_wait: bool = True
    stays_open: bool = False  # an idle first rank reads empty lists instead of Shutdown
    change: Change = UNCHANGED
    tamper: Callable[[int, int, Message], list[Message]] | None = None
    watch: Callable[[Ring, Node, fx.Effect], None] | None = None
    queues: dict[Address, deque[tuple[int, Message]]] = field(default_factory=dict)
    sent: dict[Address, list[Message]] = field(default_factory=dict)
    received: dict[Address, list[Message]] = field(default_factory=dict)
    untaken: set[int] = field(default_factory=set)  # works whose message the peer has not taken
    uncommitted: set[int] = field(default_factory=set)  # works whose sender has not waited for them
    num_works: int = 0
    replies: list[fx.Reply] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        c = self.config
        self.nodes = [
            Node(replace(c, pp_rank=p, tp_rank=t), self.capacities[p % len(self.capacities)], self.change)
            for p in range(c.pp_size)
            for t in range(c.tp_replicas)
        ]

    # --- running ---------------------------------------------------------------------------------------------

    def run(self) -> Ring:
        """To the end. Raises Stuck if no rank can go on, and whatever the core raises."""
        for _ in self.steps():
            pass
        return self

    def steps(self) -> Iterator[Node]:
        """One answered effect after the other; the rank that has moved."""
        while not all(node.done for node in self.nodes):
            ready = [node for node in self.nodes if self.can_go_on(node)]
            if not ready:
                raise Stuck([(n.rank_id, n.rank.iteration, n.effect) for n in self.nodes if n.effect is not None])
            node = ready[self.order(len(ready))]
            self.step(node)
            yield node

    def can_go_on(self, node: Node) -> bool:
        match node.effect:
            case None:
                return False
            case fx.Recv(src, lane):
                return bool(self.queues.get((src, node.rank_id, lane)))
            case fx.Commit(work):
                return not (self.commits_wait and work in self.untaken)
        return True

    def step(self, node: Node) -> None:
        effect = node.effect
        assert effect is not None
        if self.watch is not None:
            self.watch(self, node, effect)
        reply = self.answer(node, effect)
        self.events.append(Event(node.rank_id, node.rank.iteration, effect, reply))
        try:
            node.effect = node.loop.send(reply)
        except StopIteration:
            node.effect = None

    # --- answers ---------------------------------------------------------------------------------------------

    def answer(self, node: Node, effect: fx.Effect) -> Any:
        match effect:
            case fx.Ingest():
                return self.ingest(effect)
            case fx.Send():
                return self.send(node, effect)
            case fx.Recv(src, lane):
                work, message = self.queues[src, node.rank_id, lane].popleft()
                self.received.setdefault((src, node.rank_id, lane), []).append(message)
                self.untaken.discard(work)
                return message
            case fx.Launch():
                return self.launch(node, effect)
            case fx.AwaitTokens(output):
                assert isinstance(output.payload, Payload)
                return output.payload.tokens
            case fx.Observe(Capacity()):
                return Local((node.capacity,), node.rank_id, effect.iteration)
            case fx.Reply():
                self.replies.append(effect)
            case fx.Decided(decision):
                node.decisions.append(decision)
            case fx.Harvested(harvest):
                node.harvests.append(harvest)
            case fx.Commit(work):
                self.uncommitted.remove(work)
            case fx.Act():
                pass
            case _:
                raise AssertionError(f"the plain loop has no business with {effect}")
        return None

    def ingest(self, effect: fx.Ingest) -> tuple[Input, ...]:
        if effect.idle and effect.iteration > max(self.inputs, default=-1) and not self.stays_open:
            return (Shutdown(),)
        return self.inputs.get(effect.iteration, ())

    def send(self, node: Node, effect: fx.Send) -> int:
        self.num_works += 1
        self.uncommitted.add(self.num_works)
        address = (node.rank_id, effect.dst, effect.message.lane)
        self.sent.setdefault(address, []).append(effect.message)
        arriving = [effect.message]
        if self.tamper is not None:
            arriving = self.tamper(node.rank_id, effect.dst, effect.message)
        if arriving:
            self.untaken.add(self.num_works)
        for message in arriving:
            self.queues.setdefault(address, deque()).append((self.num_works, message))
        return self.num_works

    def launch(self, node: Node, effect: fx.Launch) -> Payload:
        """Run the batch on this rank's memory, and compare what was read with what the stage before has read."""
        contexts = []
        node.launched[effect.batch.iteration] = effect.batch.pieces
        for piece in effect.batch.pieces:
            end = piece.prefix_len + piece.new_tokens
            where = [(piece.kv.pages[i // self.config.page_size], i % self.config.page_size) for i in range(end)]
            for i, token in enumerate(piece.kv.input_ids(piece.prefix_len, end), start=piece.prefix_len):
                node.cells[where[i]] = token
            contexts.append(tuple(node.cells[cell] for cell in where))
        if effect.hidden is not None:
            assert isinstance(effect.hidden.payload, Payload)
            assert effect.hidden.payload.contexts == tuple(contexts), f"rank {node.rank_id} read other KV than rank 0"
        tokens = tuple(
            next_token(list(context)) if piece.is_last_chunk else MIDDLE_CHUNK_TOKEN
            for piece, context in zip(effect.batch.pieces, contexts, strict=True)
        )
        return Payload(tuple(contexts), tokens if node.rank.config.is_last else ())

    # --- results ---------------------------------------------------------------------------------------------

    @property
    def streams(self) -> dict[str, list[int]]:
        """Tokens that the client got, by request."""
        out: dict[str, list[int]] = {}
        for reply in self.replies:
            out.setdefault(reply.rid, []).extend(reply.token_ids)
        return out

    @property
    def last_replies(self) -> dict[str, str]:
        """The terminal status of each request. Fails if one got two."""
        out: dict[str, str] = {}
        for reply in self.replies:
            if reply.status != "token":
                assert reply.rid not in out, f"{reply.rid} got two last replies"
                out[reply.rid] = reply.status
        return out


def tape(numbers: bytes) -> Callable[[int], int]:
    """An order that is read from a tape, over and over; an empty tape always takes the first."""
    position = 0

    def pick(n: int) -> int:
        nonlocal position
        if not numbers:
            return 0
        position += 1
        return numbers[position % len(numbers)] % n

    return pick
