"""Times of a pipeline's ranks as a system of max-plus equations, read off the protocol's text and off nothing else.

Two things happen on a rank. Its program (the *host*) goes through the steps of the protocol (sections 1.3, 1.5 and 1.6)
in order and blocks in some. What it queues on *streams* begins when it was queued, when what it waits for is there, and
when what stands before it on the stream has ended. Each is an unknown: the maximum of what it waits for. The rows below
say what, with the section of the protocol at the right; ``ns`` all of it. Values in quotes are keys of ``links`` (or
``scheduler``), the default first.

The host
    step                     waits for                                                        text
    begin                    nothing: iteration 0 begins at 0 on every rank; agreeing on the  (open)
                             capacity comes before the run
    take requests (k > 0)    the list of the rank before, sent there + control latency        1.3 step 1
    commit requests          rank k+1 has asked for list i-1 (commit_over "received": has     1.3 step 2, 1.9
                             it). Not with commit "none"
    schedule                 schedule_us (nothing for an empty visit with free_empty_visit)   1.3 step 3
    take hidden states,      asks at once; goes on when the metadata is here: posted there +  1.3 step 4, 3.1
    take an output           control latency. The payload is the stream's affair
      of a message that      nothing: it was taken, metadata and payload, when it came before 2.5
      is in the inbox        the one that was asked for. Only with early_send "before_exchange"
                             does a rank send in another order than the next one asks
    send hidden states,      eager: nothing. rendezvous: the receiver has asked; with         1.9, 13
    send an output           rendezvous_hold "received" the payload has been received, on the
                             receiver's stream. Control lists are never rendezvous
    paired output exchange   both are posted at the same moment; the host goes on when the    3.4
                             metadata is here and, rendezvous, its own send is released.
                             A message that comes alone is an ordinary one
    commit hidden, output    rank k+1 has asked for it ("received": has its metadata). Only   3.1
                             with commit "all". The stream's part (below) in any case
    launch                   nothing, takes no time                                           1.6
    harvest                  its tokens: the end of the output's receive on this rank's       1.3 step 9
                             stream; without overlap and with token_read "schedule_stream"
                             also all that the schedule stream holds when the host gets here.
                             One stage: the end of the pass. A skipped output: nothing        11.8
    post-process             process_us of every harvested batch, skipped ones included;      1.3 step 9
                             replies leave at its end
    order of the visit       requests, schedule, take hidden, [exchange if depth > 0], commit 1.3
                             hidden, launch, [exchange if depth = 0], harvest, send hidden.
                             hidden_send "after_launch": before the harvest, and at depth 0
                             behind the exchange (early_send "before_exchange": before it)
    order of the exchange    commit the output sent last time, send, receive; "parity": odd   1.5, 3.4
                             ranks receive first

Transfers. Order "stream": all payloads of a rank, sent and received, in the order in which its host comes to them, each
behind the end of the one before; "link": those to the next rank behind each other, those from the rank before behind
each other; "none": nobody queues. This is so with overlap and without.
    operation                carried by              waits for                                text
    send hidden(i)           order                   host at the send, the end of pass i      1.3 step 10, 3.3
    send output(b), last     order                   host, the end of pass b                  1.5
    send output(b), others   order                   host, its own receive of output(b)       1.5
      all three, rendezvous                          also: the receiver has asked             13
      all three, payload "matched" without overlap   also: the receive has begun there, in    13, 3.3
                                                     its turn. One stream in which all ranks
                                                     send first locks
      its end                bytes over bandwidth later, + latency with latency_on_stream; the payload arrives at
                             bytes over bandwidth + latency in any case
    receive hidden, output   order                   host behind the metadata; ends when the  3.1, 3.2
                                                     payload has arrived as well
    paired send + receive    order, as one           what the send waits for; behind the pair is behind both

The schedule stream. With overlap it holds nothing. Without:
    receive hidden, output   holds it to its end                                              3.2
    posted send              the event of what it sends (end of the pass) holds it at once    3.3
                             (schedule_hold "post": also the transfer)
    committed send           holds it to the end of the transfer                              3.3
    a transfer waits for the schedule stream only through "order" ("link" and "none" without overlap: the waits above
    share the stream, the transfers do not)

The forward stream, in order
    pass i                   the pass before, the host at the launch, and                     3.3
      overlap off            all that the schedule stream holds at the launch
      overlap on             the end of the receive of hidden(i)
      overlap on, after a    the end of that send; graph_fence "commit": all that the communication stream holds behind
      graph's hidden states  the commit: the rows of the schedule stream above, which is another one then (not
      were committed         schedule_hold), and with order "stream" every transfer that was queued before.
                             It stays until there is a pass
    The copy stream adds nothing: it waits for the receive alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.worlds.max_plus_equations import Deadlock, Equations, Name, NoEquation, Term


@dataclass(frozen=True)
class Batch:
    """One batch of the run. Times in ns."""

    forward_ns: tuple[int, ...]  # one for each stage
    hidden_ns: int = 0  # bytes of its hidden states over the bandwidth of a link
    output_ns: int = 0  # likewise of its sampled tokens
    graph: bool = False  # runs as a CUDA graph
    silent: bool = False  # skip rule: its output is neither sent nor awaited


@dataclass(frozen=True)
class Pipeline:
    """What the times depend on besides the batches. Times in ns; names and values as in the scenario."""

    pp_size: int
    depth: int = 0
    overlap: bool = False
    order: str = "stream"
    send: str = "eager"
    payload: str = "eager"
    commit: str = "all"
    commit_over: str = "posted"
    schedule_hold: str = "commit"
    token_read: str = "arrival"
    graph_fence: str = "send"
    rendezvous_hold: str = "posted"
    latency_ns: int = 0
    control_ns: int = 0
    latency_on_stream: bool = False
    schedule_ns: int = 0
    process_ns: int = 0
    free_empty_visit: bool = False
    exchange_order: str = "send_first"
    hidden_send: str = "after_harvest"
    early_send: str = "after_exchange"
    exchange_first: tuple[int, ...] = ()  # ranks that take the output before they launch although the depth is 0

    @property
    def num_slots(self) -> int:
        return self.pp_size + self.depth


@dataclass(frozen=True)
class Times:
    """The solution, with the equations behind it. With a ``deadlock`` it holds what came before."""

    pipeline: Pipeline
    equations: Equations
    values: dict[Name, int]
    deadlock: Deadlock | None = None

    def at(self, rank: int, number: int, what: str) -> int:
        return self.values[rank, number, what]

    def forward(self, rank: int, iteration: int) -> tuple[int, int]:
        """Start and end of a forward pass."""
        return self.at(rank, iteration, "forward"), self.at(rank, iteration, "forward end")

    def why(self, rank: int, number: int, what: str) -> str:
        return "\n".join(self.equations.reasons(self.values, (rank, number, what)))


def solve(pipeline: Pipeline, batches: Sequence[Batch | None]) -> Times:
    """Times of a run that makes these batches, one entry an iteration. Raises NoEquation where the batches end before
    the last output has gone round."""
    equations = Equations()
    for rank in range(pipeline.pp_size):
        RankEquations(equations, pipeline, batches, rank).write()
    try:
        return Times(pipeline, equations, equations.solve())
    except Deadlock as deadlock:
        return Times(pipeline, equations, deadlock.values, deadlock)


def communicating(batches: Sequence[Batch | None], b: int) -> int | None:
    """The batch, if there is one and its output goes round."""
    batch = batches[b] if 0 <= b < len(batches) else None
    return None if batch is None or batch.silent else b


def released_by(p: Pipeline, batches: Sequence[Batch | None], rank: int, i: int) -> int | None:
    """The batch whose output a rank sends in iteration i: of ``depth`` iterations ago, or what it took in i - 1."""
    return communicating(batches, i - p.depth if rank == p.pp_size - 1 else i - p.num_slots)


def sent_by(p: Pipeline, batches: Sequence[Batch | None], rank: int) -> Iterator[tuple[str, int]]:
    """What a rank sends to the next one, in order: (kind, batch)."""
    hidden_first = (
        p.hidden_send == "after_launch"
        and p.early_send == "before_exchange"
        and p.depth == 0
        and rank not in p.exchange_first
    )
    for i, batch in enumerate(batches):
        output = released_by(p, batches, rank, i)
        sent = [] if output is None else [("output", output)]
        if batch is not None and rank < p.pp_size - 1:
            sent.insert(0 if hidden_first else len(sent), ("hidden", i))
        yield from sent


class RankEquations:
    """Writes down what one rank does, in the order of its program. ``host`` is where its program is."""

    def __init__(self, equations: Equations, pipeline: Pipeline, batches: Sequence[Batch | None], rank: int) -> None:
        self.equations, self.p, self.batches, self.rank = equations, pipeline, batches, rank
        self.is_first, self.is_last = rank == 0, rank == pipeline.pp_size - 1
        self.next, self.prev = (rank + 1) % pipeline.pp_size, (rank - 1) % pipeline.pp_size
        self.host: Name = (rank, -1, "begin")
        self.transfers: Name | None = None  # order "stream": the last transfer of this rank, either way
        self.sends: Name | None = None  # order "link": the last one on the link to the next rank
        self.receives: Name | None = None  # and on the link from the rank before
        self.stream: Name | None = None  # all waits that the stream of the communication holds
        self.forwards: Name | None = None  # the last forward pass
        self.fence: Name | None = None  # with overlap: what the next forward pass waits for
        self.hidden_work: list[int] = []  # batches whose hidden states are on their way
        self.output_work: list[int] = []
        self.coming = deque(sent_by(pipeline, batches, self.prev))
        self.inbox: set[tuple[str, int]] = set()

    # --- small words -----------------------------------------------------------------------------------------

    def put(self, number: int, what: str, *terms: Term | None) -> Name:
        return self.equations.put((self.rank, number, what), *terms)

    def step(self, iteration: int, what: str, *terms: Term | None, ns: int = 0) -> None:
        """The host goes on when it has come here and all terms are true, and ``ns`` later."""
        host: Term = (self.host, ns)
        self.host = self.put(iteration, what, host, *[_later(term, ns) for term in terms])

    def hold(self, number: int, what: str, *terms: Name | None) -> None:
        """The stream waits for something; all that is queued behind it waits too."""
        self.stream = self.put(number, what, self.stream, *terms)

    @property
    def schedule(self) -> Name | None:
        """What the schedule stream holds: without overlap the communication's waits, with overlap nothing."""
        return None if self.p.overlap else self.stream

    def batch(self, iteration: int) -> Batch | None:
        return self.batches[iteration] if 0 <= iteration < len(self.batches) else None

    # --- the program -----------------------------------------------------------------------------------------

    def write(self) -> None:
        self.put(-1, "begin")
        for iteration in range(len(self.batches)):
            self.iterate(iteration)

    def take_control(self, number: int, what: str, sent_as: str) -> None:
        """Wait for a control message of the rank before."""
        self.step(number, f"{what} asked")
        self.step(number, f"{what} taken", ((self.prev, number, f"{sent_as} sent"), self.p.control_ns))

    def commit_control(self, number: int, what: str, taken_as: str) -> None:
        """Wait until the next rank has asked for a control message, or has it."""
        if self.p.commit != "none":
            over = "asked" if self.p.commit_over == "posted" else "taken"
            self.step(number, f"{what} committed", (self.next, number, f"{taken_as} {over}"))

    def iterate(self, i: int) -> None:
        """One visit of a slot. A name in brackets marks where the host is behind that step (PLACES)."""
        p, batch = self.p, self.batch(i)
        self.step(i, "iteration")
        self.take_requests(i)
        self.step(i, "scheduled", ns=0 if batch is None and p.free_empty_visit else p.schedule_ns)
        if batch is not None and not self.is_first:
            self.receive(i, "hidden")
        self.step(i, "[hidden taken]")
        exchanges_first = p.depth > 0 or self.rank in p.exchange_first
        if exchanges_first:
            self.exchange(i)
        self.commit_hidden()
        self.step(i, "[hidden committed]")
        if batch is not None:
            self.launch(i, batch)
        sends = "" if batch is None or self.is_last else p.hidden_send
        if sends == "after_launch" and p.early_send == "before_exchange":
            self.send_hidden(i)
        if not exchanges_first:
            self.exchange(i)
        self.step(i, "[exchanged]")
        if sends == "after_launch" and p.early_send == "after_exchange":
            self.send_hidden(i)
        self.harvest(i)
        self.step(i, "[harvested]")
        if sends == "after_harvest":
            self.send_hidden(i)
        self.step(i, "done")

    def take_requests(self, i: int) -> None:
        """The request list comes from the rank before and goes to the next one, every iteration."""
        if not self.is_first:
            self.take_control(i, "requests", "requests")
        self.step(i, "[requests taken]")
        if not self.is_last:
            if i > 0:
                self.commit_control(i - 1, "requests", "requests")
            self.step(i, "requests sent")
        self.step(i, "[requests passed on]")

    def launch(self, i: int, batch: Batch) -> None:
        p = self.p
        hidden = (self.rank, i, "hidden received") if p.overlap and not self.is_first else None
        start = self.put(i, "forward", self.host, self.forwards, self.schedule, hidden, self.fence)
        self.fence = None
        self.forwards = self.put(i, "forward end", (start, batch.forward_ns[self.rank]))

    def harvest(self, i: int) -> None:
        """Slot n holds the batch of L - 1 iterations ago: the host waits for its tokens and works on them."""
        p, b = self.p, i - (self.p.num_slots - 1)
        batch = self.batch(b)
        if batch is None:
            return
        if not batch.silent:
            if p.pp_size == 1:
                tokens: Name = (self.rank, b, "forward end")
            else:
                tokens = (self.rank, b, "output received")
            held = self.schedule if p.token_read == "schedule_stream" else None
            self.step(b, "tokens read", tokens, held)
        self.step(b, "harvested", ns=p.process_ns)

    # --- messages --------------------------------------------------------------------------------------------

    def exchange(self, i: int) -> None:
        """Outputs: the last rank releases the batch of ``depth`` iterations ago, the others pass on what they took in
        the iteration before, and all take that of slot n."""
        p = self.p
        if p.pp_size == 1:
            return
        self.commit("output", self.output_work)
        sent = released_by(p, self.batches, self.rank, i)
        taken = communicating(self.batches, i - (p.num_slots - 1))
        receive_first = p.exchange_order == "parity" and self.rank % 2 == 1
        if sent is not None and taken is not None and p.exchange_order == "paired":
            self.send_and_receive(sent, taken)
            return
        if taken is not None and receive_first:
            self.receive(taken, "output")
        if sent is not None:
            self.send_output(sent)
        if taken is not None and not receive_first:
            self.receive(taken, "output")

    def send_hidden(self, i: int) -> None:
        batch = self.batches[i]
        assert batch is not None
        self.send(i, "hidden", (self.rank, i, "forward end"), batch.hidden_ns)
        self.hidden_work.append(i)

    def send_output(self, b: int, *, waits: bool = True) -> None:
        batch = self.batches[b]
        assert batch is not None
        ready = "forward end" if self.is_last else "output received"
        self.send(b, "output", (self.rank, b, ready), batch.output_ns, waits=waits)
        self.output_work.append(b)

    def send(self, b: int, kind: str, ready: Name, wire_ns: int, *, waits: bool = True) -> None:
        """Post a send; a rendezvous keeps the host in it. The payload goes when it is ready and its turn has come."""
        p, peer = self.p, self.next
        posted = self.put(b, f"{kind} posted", self.host)
        self.host = posted
        asked: Name | None = None
        if p.send == "rendezvous":
            asked = (peer, b, f"{kind} asked")
            if waits:
                self.release(b, kind)
        turn = {"stream": self.transfers, "link": self.sends, "none": None}[p.order]
        matched = (peer, b, f"{kind} receive") if p.payload == "matched" and not p.overlap else None
        start = self.put(b, f"{kind} send", posted, asked, ready, turn, matched)
        end = self.put(b, f"{kind} sent", (start, wire_ns + (p.latency_ns if p.latency_on_stream else 0)))
        self.put(b, f"{kind} arrives", (start, wire_ns + p.latency_ns))
        self.sends = end
        self.transfers = end
        self.hold(b, f"{kind} event held", ready)
        if p.schedule_hold == "post" and not p.overlap:
            self.hold(b, f"{kind} send held", end)

    def release(self, b: int, kind: str) -> None:
        """A rendezvous lets the host go on."""
        over = "asked" if self.p.rendezvous_hold == "posted" else "received"
        self.step(b, f"{kind} released", (self.next, b, f"{kind} {over}"))

    def receive(self, b: int, kind: str) -> None:
        """Take the message from the inbox, or take all that comes until it is here (protocol.md 2.5)."""
        if (kind, b) in self.inbox:
            self.inbox.remove((kind, b))
            return
        while self.coming:
            came_kind, came = self.coming.popleft()
            self.take(came, came_kind)
            if (came_kind, came) == (kind, b):
                return
            self.inbox.add((came_kind, came))
        raise NoEquation((self.rank, b, f"{kind} asked"), (self.prev, b, f"{kind} posted"))

    def take(self, b: int, kind: str) -> None:
        """Ask, wait for the metadata on the host, queue the payload's receive."""
        self.put(b, f"{kind} asked", self.host)
        self.step(b, f"{kind} metadata", ((self.prev, b, f"{kind} posted"), self.p.control_ns))
        turn = {"stream": self.transfers, "link": self.receives, "none": None}[self.p.order]
        start = self.put(b, f"{kind} receive", self.host, turn)
        done = self.put(b, f"{kind} received", start, (self.prev, b, f"{kind} arrives"))
        self.receives = done
        self.transfers = done
        self.hold(b, f"{kind} receive held", done)

    def send_and_receive(self, sent: int, taken: int) -> None:
        """One submission of both: neither waits for the other, and the host for both."""
        before, ready = self.transfers, (self.rank, sent, "forward end" if self.is_last else "output received")
        self.send_output(sent, waits=False)
        own = self.transfers
        self.transfers = self.put(taken, "pair", before, ready)
        self.receive(taken, "output")
        if self.p.send == "rendezvous":
            self.release(sent, "output")
        self.transfers = self.put(taken, "pair over", own, self.transfers)

    def commit(self, kind: str, work: list[int]) -> None:
        """Wait on the host until the metadata was taken; the stream waits for the payload."""
        for b in work:
            if self.p.commit == "all":
                over = "asked" if self.p.commit_over == "posted" else "metadata"
                self.step(b, f"{kind} committed", (self.next, b, f"{kind} {over}"))
            self.hold(b, f"{kind} commit held", (self.rank, b, f"{kind} sent"))
        work.clear()

    def commit_hidden(self) -> None:
        """With overlap the next pass waits for hidden states that lie in a graph's own buffer."""
        fenced = [b for b in self.hidden_work if self.p.overlap and self.in_graph(b)]
        self.commit("hidden", self.hidden_work)
        for b in fenced:
            self.fence = (self.rank, b, "hidden sent")
            if self.p.graph_fence == "commit":
                self.fence = self.put(b, "fence", self.stream, self.transfers if self.p.order == "stream" else None)

    def in_graph(self, b: int) -> bool:
        batch = self.batch(b)
        return batch is not None and batch.graph


def _later(term: Term | None, ns: int) -> Term | None:
    if term is None or not ns:
        return term
    return (term[0], term[1] + ns) if len(term) == 2 else (term, ns)
