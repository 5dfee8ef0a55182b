"""One simulated rank: answers the effects of the core generator on a local clock.

A handler returns the reply, or BLOCKED with the peer it waits for; then the SimPy process sleeps until that peer has
acted, and the same effect is tried again. Everything is arithmetic on integers until a rank really has to wait.

Over 400 lines because a handler for each effect stands here, all on one clock and the same queues. They are methods of
one class, not a class each, because most of the time of a run is spent in them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeAlias, assert_never
from zlib import crc32

from simpy import Environment, Event

from ppsim.check.observers import After, Before, Observers, phase_of
from ppsim.check.physical import buffer_given_up
from ppsim.core import effects as fx
from ppsim.core import observations as obs
from ppsim.core.actions import FetchStored, LoadBack, WriteBack, WriteThrough
from ppsim.core.agreed import Local
from ppsim.core.consensus import KVPoll
from ppsim.core.errors import InvariantViolation
from ppsim.core.loop import event_loop_pp
from ppsim.core.messages import Hidden, Kind, Lane, NewRequest, Output
from ppsim.core.observations import CopyKey
from ppsim.core.rank import Rank
from ppsim.core.tokens import count
from ppsim.cost.stage import StageCost
from ppsim.recording.schema import WALL_CLOCK
from ppsim.scenario.hicache import local_host_tokens
from ppsim.scenario.tree import Scenario
from ppsim.workload.clients import Sent
from ppsim.workload.refusals import Refusals
from ppsim.world.chance import allocated, clock_skew_ms, pauses
from ppsim.world.network import CARRIERS, Parcel
from ppsim.world.no_progress_bound import Bound
from ppsim.world.run_setting import Setting
from ppsim.world.streams import Payload, Streams
from ppsim.world.tiers import Tiers

NS_PER_US = 1000
NS_PER_MS = 1_000_000
WORDS = {kind: kind.value for kind in Kind}


class Pending:
    """A handler's word that the reply is not there yet."""


Looks: TypeAlias = tuple[Sequence[Before], Sequence[After]]
BLOCKED = Pending()  # until a peer acts
BEHIND = Pending()  # until everybody else has come to this rank's local time: it looks at the world


class SimulatedRank:
    """A rank with its host clock ``now`` (ns) and its GPU streams."""

    def __init__(self, env: Environment, setting: Setting, rank: Rank, local_capacity: int) -> None:
        self.env, self.setting, self.rank = env, setting, rank
        self.rank_id = rank.link.rank_id
        self.scenario: Scenario = setting.scenario
        self.cost: StageCost = setting.cost
        self.now = 0
        self.streams = Streams(self.rank_id, setting.scenario.cluster.comm_overlap, setting.scenario.links)
        self.local_capacity = allocated(setting, self.rank_id, local_capacity)
        self.skew_ms = clock_skew_ms(setting, self.rank_id)
        self.refusals = Refusals(setting.failing)
        rank.policy.wall_clock_ns, rank.refusals = self._own_clock, self.refusals.left
        self.tiers = Tiers(self) if setting.scenario.hicache.enabled else None
        self.observers = Observers()
        self.bound = Bound(self)
        self.stored: dict[str, list[int | None]] = {}  # statuses that the last look into the store found, by request
        self.effect: fx.Effect | None = None
        self.waits_for: int | None = None  # peer of a blocked effect
        self.done = False
        self.is_paused = False
        self.launched_ns: int | None = None  # when the forward pass launched last begins
        self.pauses = pauses(setting, self.rank_id)
        self.iteration_starts: list[int] = []
        setting.recording.visits[self.rank_id] = self.iteration_starts
        self.asleep: Event | None = None
        self.loop = event_loop_pp(rank)
        host = setting.scenario.host
        self.schedule_ns = round(host.schedule_us * NS_PER_US)
        self.process_ns = round(host.process_us * NS_PER_US)
        self.handlers: dict[type[fx.Effect], Callable[[Any], Any]] = {
            fx.Ingest: self._ingest,
            fx.Send: self._send,
            fx.Recv: self._recv,
            fx.Commit: self._commit,
            fx.Drop: self._drop,
            fx.Launch: self._launch,
            fx.AwaitTokens: self._await_tokens,
            fx.Observe: self._observe,
            fx.AwaitLocal: self._await_local,
            fx.Act: self._act,
            fx.Reply: self._reply,
            fx.Decided: self._decided,
            fx.Harvested: self._harvested,
        }

    def run(self) -> Generator[Event, None, None]:
        """The SimPy process."""
        try:
            yield from self._run()
        except (Exception, SystemExit):
            self.setting.running = self.setting.running or self
            raise

    def _run(self) -> Generator[Event, None, None]:
        reply: Any = None
        rank, ask, bound, answers, pauses = self.rank, self.loop.send, self.bound, self._answers(), self.pauses
        num_free = counted = -1  # effects still to come in iteration ``counted`` that the bound is not asked about
        while True:
            try:
                effect = ask(reply)
            except StopIteration:
                self.done = True
                return
            except (Exception, SystemExit) as error:
                if self.setting.running is None:  # others may still run into something before the first error ends it
                    self.setting.running, self.setting.raised = self, error
                raise
            self.effect = effect
            if pauses and rank.iteration >= pauses[0].at_iteration:
                yield from self._pause()
            if num_free > 0 and rank.iteration <= counted:
                num_free -= 1
            else:
                num_free, counted = bound.allows(effect), rank.iteration
            handler, looks = answers[type(effect)]
            if looks is not None:
                for look in looks[0]:
                    look(effect)
            reply = handler(effect)
            if reply is BLOCKED or reply is BEHIND:
                while reply is BLOCKED or reply is BEHIND:
                    if reply is BEHIND:
                        yield self.env.timeout(self.now - self.env.now)
                    else:
                        self.asleep = Event(self.env)
                        yield self.asleep
                    reply = handler(effect)
                self.waits_for = None
            if looks is not None:
                for look_back in looks[1]:
                    look_back(effect, reply)

    def _answers(self) -> dict[type[fx.Effect], tuple[Callable[[Any], Any], Looks | None]]:
        """For each kind of effect how it is answered, and who looks at it before and after, if anybody does."""
        befores, afters = self.observers.befores, self.observers.afters
        looks = {kind: (befores[kind], afters[kind]) for kind in self.handlers}
        return {kind: (answer, looks[kind] if any(looks[kind]) else None) for kind, answer in self.handlers.items()}

    def _pause(self) -> Generator[Event, None, None]:
        """Stand still (faults.pauses). The world's time comes to the end of the pause only if nothing else can run."""
        pause_ns = round(self.pauses.pop(0).ms * NS_PER_MS)
        self.is_paused = True
        until = max(self.now + pause_ns, self.env.now)  # others may have gone on while its streams were not known
        yield self.env.timeout(until - self.env.now) if pause_ns else Event(self.env)
        self.now += pause_ns
        self.is_paused = False

    def wall_clock_ns(self) -> int:
        """What this rank's clock shows."""
        return self.now + self.skew_ms * NS_PER_MS

    def _own_clock(self) -> int:
        """For a policy that looks at the clock although it should not: recorded like any other look."""
        now_ns = self.wall_clock_ns()
        self.setting.recording.observed(self.rank_id, self.rank.iteration, WALL_CLOCK, (), (now_ns,))
        return now_ns

    def wake(self) -> None:
        """Try the blocked effect again."""
        if self.asleep is not None:
            self.asleep.succeed()
            self.asleep = None

    def phase(self) -> str:
        """Name of the phase the loop stands in, for reports."""
        return phase_of(self.loop)

    # --- what the judge asks (``ppsim.check.observers.Seat``) ------------------------------------------------------

    def iteration_of(self, rank_id: int) -> int | None:
        """The iteration in which another rank is; None: it has ended."""
        peer = self.setting.ranks[rank_id]
        return None if peer.done else peer.rank.iteration

    def transfer_of(self, rid: str) -> int | None:
        """Of a single role against a modelled peer; where both sides are here, ``pair/pages.py`` looks at the pages."""
        facts, iteration = self.setting.facts, self.rank.iteration
        if self.rank.config.role == "prefill":
            poll, kind = facts.sender, "transfer"
        else:
            poll, kind = facts.receiver, "receive"
        return unknown(poll(self.rank_id, iteration, rid)) if (self.rank_id, kind, rid) in facts.known else None

    def copy(self, key: CopyKey) -> tuple[int, int] | None:
        """Of a copy between the tiers: its begin and its end on this rank."""
        if self.tiers is None or key not in self.tiers.ends:
            return None
        return self.tiers.begins[key], self.tiers.ends[key]

    def fetched(self, key: CopyKey) -> int | None:
        """Of a fetch that was begun: the tokens that storage has on this rank."""
        return None if self.tiers is None else self.tiers.hits.get(key)

    def other_side(self, rid: str) -> str:
        """The peer of a single role is modelled: what it shows is all there is."""
        return ""

    def status_of(self, rank_id: int, rid: str) -> int | None:
        """Of a single role: the facts of that rank in its present iteration."""
        return self.setting.facts.sender(rank_id, self.setting.ranks[rank_id].rank.iteration, rid)

    def landed(self, rid: str) -> Sequence[tuple[int, Sequence[tuple[int, int]]]] | None:
        """A modelled peer writes nothing: that its transfer is over is all there is to know (``transfer_of``)."""
        return None

    def first_sampled(self, request: NewRequest) -> int | None:
        """A modelled peer samples what the sampler says."""
        return self.setting.sampler.token(request.rid, 1)

    def content(self, payload: object) -> int:
        """Tensors have no content here: they are known by the launch that made them, and by their tokens."""
        assert isinstance(payload, Payload)
        return crc32(f"{payload.rank}/{payload.iteration}/{payload.tokens}".encode())

    def sender_failed_ns(self, rid: str) -> int | None:
        """Against a modelled peer, whose facts belong to iterations; of two pipelines see ``pair/rank.py``."""
        status = self.setting.facts.sender(self.rank_id, self.rank.iteration, rid)
        return self.now if status == KVPoll.FAILED else None

    def sampled(self, reply: object) -> tuple[int, ...]:
        """The tokens of a launch on the last stage."""
        assert isinstance(reply, Payload)
        return reply.tokens

    # --- communication ---------------------------------------------------------------------------------------

    def _send(self, effect: fx.Send) -> Any:
        network = self.setting.network
        message = effect.message
        if network.holds_host and not effect.paired and isinstance(message, CARRIERS):
            return self._send_blocking(effect)
        work = network.post(self.rank_id, effect.dst, message, self.now, self.streams, effect.paired)
        peer = self.setting.ranks[effect.dst]
        if peer.waits_for == self.rank_id:
            self._wake_receiver(effect.dst, message.lane)
        return work

    def _send_blocking(self, effect: fx.Send) -> Any:
        """A rendezvous send holds the host until the receiver has asked for the message, or has received it."""
        network = self.setting.network
        if self.waits_for is None:
            self.pending_work = network.post(self.rank_id, effect.dst, effect.message, self.now, self.streams)
            self._wake_receiver(effect.dst, effect.message.lane)
        parcel = network.works[self.pending_work]
        released = network.released_ns(parcel)
        if released is None:
            self.waits_for = effect.dst
            return BLOCKED
        self.now = max(self.now, released)
        return self.pending_work

    def _wake_receiver(self, dst: int, lane: Lane) -> None:
        peer = self.setting.ranks[dst]
        if peer.waits_for == self.rank_id and isinstance(peer.effect, fx.Recv) and peer.effect.lane is lane:
            peer.wake()

    def _recv(self, effect: fx.Recv) -> Any:
        network = self.setting.network
        queue = network.queues.get((effect.src, self.rank_id, effect.lane))
        if not queue:
            self.waits_for = effect.src
            return BLOCKED
        parcel = queue[0]
        if parcel.posted_ns is None:
            sender = self.setting.ranks[effect.src]
            network.ask(parcel, self.now, sender.streams)
            if sender.asleep is not None:
                sender.wake()
        if parcel.payload is not None and not self._received(parcel):
            return BLOCKED
        queue.popleft()
        if parcel.meta_ns > self.now:
            self.now = parcel.meta_ns
        return parcel.message if parcel.payload is None else self._arrived(parcel)

    def _arrived(self, parcel: Parcel) -> Hidden | Output:
        """The message with its payload as this rank holds it."""
        source, message, received_ns = parcel.payload, parcel.message, parcel.received_ns
        assert source is not None
        assert received_ns is not None
        assert isinstance(message, CARRIERS)
        kind, times = WORDS[message.kind], (parcel.leaves_ns, parcel.sent_until_ns, parcel.arrival_ns)
        self.setting.recording.message(parcel.src, self.rank_id, kind, message.iteration, *times)
        payload = Payload(received_ns, source.iteration, source.tokens, rank=source.rank)
        if isinstance(message, Hidden):
            rows = message.num_tokens
            return Hidden(message.sender, message.iteration, message.slot, rows, payload, message.num_layers)
        rows = message.num_rows
        return Output(message.sender, message.iteration, message.slot, rows, payload, message.num_logprobs)

    def _received(self, parcel: Parcel) -> bool:
        """Receive a payload. False: when it is there, or when the host may go on, is not known yet."""
        network, sender = self.setting.network, self.setting.ranks[parcel.src]
        if parcel.received_ns is None:
            if network.held and self.streams.in_order and self._must_settle():
                return False
            network.receive(parcel, max(self.now, parcel.meta_ns), self.streams, sender.streams)
            if not network.leaves_at_once:
                sender.wake()
        half = network.pairs.get(self.rank_id) if network.pairs else None
        if half is not None and parcel.message.kind is half.message.kind:  # not one that goes into the inbox
            if network.holds_host:  # the host goes on when both halves of the pair let it
                released = network.released_ns(half)
                if released is None:
                    self.waits_for = half.dst
                    return False
                self.now = max(self.now, released)
            del network.pairs[self.rank_id]
        return True

    def _must_settle(self) -> bool:
        """Stand still until it is known when everything leaves that this rank has posted. Its host waits for nothing
        here, but where its streams are follows from when the receivers' are at their receives."""
        network = self.setting.network
        first = network.before(self.rank_id) if network.held else None
        if first is not None:
            self.waits_for = first.dst
        return first is not None

    def _commit(self, effect: fx.Commit) -> Any:
        network = self.setting.network
        parcel = network.works.get(effect.work)
        if parcel is None:
            raise InvariantViolation(
                "INV-38", self.rank_id, self.rank.iteration, self.rank.slot, "", "a send is committed twice"
            )
        if parcel.message.lane in network.awaited:
            if parcel.posted_ns is None:
                self.waits_for = parcel.dst
                return BLOCKED
            if parcel.posted_ns > self.now:
                self.now = parcel.posted_ns
            if parcel.meta_ns > self.now and network.links.commit_over == "received":
                self.now = parcel.meta_ns
        if parcel.payload is not None:
            fenced = parcel.payload.is_static and self.streams.fences_commits
            if not parcel.under_way or (fenced and self._must_settle()):
                self.waits_for = parcel.dst
                return BLOCKED
            self.streams.committed(parcel.payload, parcel.sent_until_ns)
        del network.works[effect.work]
        return None

    def _drop(self, effect: fx.Drop) -> None:
        parcel = self.setting.network.works.pop(effect.work)
        unsent = parcel.payload is not None and not parcel.under_way
        is_over = parcel.posted_ns is not None and not unsent and parcel.sent_until_ns <= self.now
        wrong = buffer_given_up(parcel.message.kind.value, parcel.dst, self.now, is_over=is_over)
        if wrong:
            raise InvariantViolation("INV-38", self.rank_id, self.rank.iteration, self.rank.slot, "", wrong)

    # --- device ----------------------------------------------------------------------------------------------

    def _launch(self, effect: fx.Launch) -> Payload | Pending:
        batch, setting = effect.batch, self.setting
        graph = batch.can_run_cuda_graph and not self.rank.config.is_last
        if (graph or self.streams.holds_posted) and self._must_settle():
            return BLOCKED
        self.refusals.launched(batch)
        hidden_ready = 0
        if effect.hidden is not None:
            assert isinstance(effect.hidden.payload, Payload)
            hidden_ready = effect.hidden.payload.ready_ns
        if self.tiers is not None:
            hidden_ready = max(hidden_ready, self.tiers.fence_ns)
        work = [(p.prefix_len, p.new_tokens, p.is_decode) for p in batch.pieces]
        duration = self.cost.batch_ns(self.rank.config.pp_rank, batch.slot, work)
        jitter_percent = self.scenario.host.stage_jitter_percent
        jitter = round(duration * jitter_percent / 100) if jitter_percent else 0
        if jitter:
            duration += setting.choices.below(f"stage jitter {self.rank_id}", jitter + 1)
        start = self.streams.launch(self.now, hidden_ready, duration, batch.iteration, batch.slot, graph)
        self.launched_ns, end = start, self.streams.forward_free
        setting.recording.span(self.rank_id, "forward", batch.slot, batch.iteration, start, end)
        tokens: tuple[int, ...] = ()
        if self.rank.config.is_last:
            tokens = self._sample(effect)
        return Payload(end, batch.iteration, tokens, is_static=graph, rank=self.rank_id)

    def _sample(self, effect: fx.Launch) -> tuple[int, ...]:
        batch = effect.batch
        requests = self.rank.scheduler.requests
        sampler = self.setting.sampler
        tokens = tuple(
            [sampler.token(p.rid, len(requests[p.rid].output_ids) + 1) if p.is_last_chunk else 0 for p in batch.pieces]
        )
        if self.rank.link.is_leader:
            self.setting.recording.sampled(batch.iteration, batch.slot, tokens)
        return tokens

    def _await_tokens(self, effect: fx.AwaitTokens) -> tuple[int, ...] | Pending:
        if self.streams.reads_stream and self.streams.holds_posted and self._must_settle():
            return BLOCKED
        payload = effect.output.payload
        assert isinstance(payload, Payload)
        self.now = max(self.now, self.streams.read_after(payload.ready_ns))
        return payload.tokens

    # --- the rank's surroundings -------------------------------------------------------------------------------

    def _ingest(self, effect: fx.Ingest) -> Any:
        return self._await_copies() or self._read_inputs(effect)

    def _await_copies(self) -> Pending | None:
        """With nothing to do but to wait for copies between the tiers, the clock goes to where looking can help."""
        if self.tiers is not None and (self.tiers.nothing_else_to_do() or self.tiers.time_stands_still()):
            if self.env.now < self.now:
                return BEHIND
            self.now = self.tiers.wake_up_ns()
            self.setting.watch.empty_iterations = 0  # no livelock: time goes on
        return None

    def _read_inputs(self, effect: fx.Ingest) -> Any:
        inputs, self.now = self.setting.client.ingest(effect.iteration, effect.idle, self.now)
        recording = self.setting.recording
        for item in inputs:
            if isinstance(item, NewRequest) and item.rid in self.setting.scripted:
                recording.arrival(item.rid, self.now, count(item.prompt), item.max_new_tokens)
        recording.ingested(effect.iteration, inputs, self.now)
        return inputs

    def _observe(self, effect: fx.Observe) -> Any:
        observation = effect.observation
        if isinstance(observation, obs.Statuses | obs.Hits) and self.env.now < self.now:
            return BEHIND
        values = self._look(observation, effect.iteration)
        recording = self.setting.recording
        recording.observed(self.rank_id, effect.iteration, effect.what, effect.keys, values)
        if isinstance(observation, obs.Statuses):
            for rid in effect.keys:
                recording.stored(effect.iteration, rid, self.stored[rid])
        return Local(values, self.rank_id, effect.iteration)

    def _look(self, observation: obs.Observation, iteration: int) -> tuple[int, ...]:
        facts, me = self.setting.facts, self.rank_id
        match observation:
            case obs.Capacity():
                return (self.local_capacity,)
            case obs.HostCapacity():
                return (local_host_tokens(self.scenario, self.rank.config.pp_rank),)
            case obs.Copies(keys):
                return tuple(self._copies.finished(key, iteration) for key in keys)
            case obs.Hits(keys):
                return tuple(self._copies.agreed_hit(key) for key in keys)
            case obs.OwnHits(keys):
                return tuple(self._copies.reported(key, self) for key in keys)
            case obs.Clock():
                return (self.setting.surroundings.clock_ms(me, self.wall_clock_ns() // NS_PER_MS),)
            case obs.Grammars(rids):
                return tuple(facts.grammar(me, iteration, rid) for rid in rids)
            case obs.Senders(rids):
                return tuple(unknown(facts.sender(me, iteration, rid)) for rid in rids)
            case obs.Receivers(rids):
                return tuple(unknown(facts.receiver(me, iteration, rid)) for rid in rids)
            case obs.FirstTokens(rids):
                return tuple(self.setting.sampler.token(rid, 1) for rid in rids)
            case obs.Statuses(rids):
                return tuple(self._stored(rid) for rid in rids)
            case _:
                assert_never(observation)

    @property
    def _copies(self) -> Tiers:
        """Copies between the tiers; a rank speaks of them only where its cache has tiers."""
        if self.tiers is None:
            text = "it speaks of a copy between the tiers of its cache, and there are none (hicache.enabled)"
            raise InvariantViolation("INV-02", self.rank_id, self.rank.iteration, self.rank.slot, "", text)
        return self.tiers

    def _stored(self, rid: str) -> int:
        """What the store of the first rank says: the minimum of the statuses as they have arrived there by now."""
        surroundings, lag_ns = self.setting.surroundings, self.setting.store_lag_ns
        statuses: list[int | None] = []
        arrived = self.rank.scheduler.requests[rid].arrived
        for peer in self.setting.ranks:
            age_ns = surroundings.store_age_ns(peer.rank_id, self.rank.iteration, lag_ns)
            iteration = bisect_right(peer.iteration_starts, self.now - age_ns) - 1
            if peer is self:  # its own status is not replicated: it is there
                iteration = self.rank.iteration
            known = iteration >= arrived  # a rank reads the request in the same iteration
            statuses.append(self.setting.facts.sender_of(peer.rank_id, iteration, rid, arrived) if known else None)
        self.stored[rid] = statuses
        return surroundings.store_decision(rid, statuses)

    def _await_local(self, effect: fx.AwaitLocal) -> None:
        """Block until a fact of this rank is true; a blocked rank counts no iterations, so they are given a time."""
        match effect.fact:
            case obs.Copied(key):
                self._copies.await_end(key)
                what = "copy"
            case obs.Compiled():
                what = "grammar"
            case _:
                assert_never(effect.fact)
        wait = self.setting.facts.iterations_until(self.rank_id, effect.iteration, what, effect.key)
        self.now += round(wait * self.scenario.observations.tick_ms * NS_PER_MS)

    def _act(self, effect: fx.Act) -> None:
        action = effect.action
        if isinstance(action, WriteThrough | WriteBack | LoadBack | FetchStored):
            self._copies.start(action)
            return
        self.setting.facts.act(self.rank_id, self.rank.iteration, action)
        if self.setting.marks is not None:
            self.setting.marks.acted(self, action)

    def _reply(self, effect: fx.Reply) -> None:
        self.setting.recording.reply(self.now, effect)
        self._tell_client(effect)

    def _tell_client(self, effect: fx.Reply) -> None:
        """The answer is with its client, which may send the next request at once."""
        for sent in self.setting.client.replied(effect, self.now):
            self._sent(self.setting, sent)

    def _sent(self, setting: Setting, sent: Sent) -> None:
        at_ns, request = sent
        setting.recording.arrival(request.rid, at_ns, count(request.prompt), request.max_new_tokens)

    def _decided(self, effect: fx.Decided) -> None:
        decision = effect.decision
        if decision.iteration == 0:  # nothing has been computed before
            self.rank.scheduler.kv.on_swap = self._swapped if self.tiers is not None else None
        self.iteration_starts.append(self.now)
        if self.tiers is not None:
            self.tiers.visited(bool(decision.pieces))
        if decision.mode != "empty" or not self.scenario.host.free_empty_visit:
            self.now += self.schedule_ns
        self.setting.recording.decision(self.rank_id, decision)

    def _swapped(self, pages: list[int]) -> None:
        """A duplicate's pages are free although a launched chunk may still write them."""
        assert self.tiers is not None
        self.tiers.swapped()

    def _harvested(self, effect: fx.Harvested) -> None:
        if effect.harvest.harvested is not None:
            self.now += self.process_ns
        self.setting.recording.harvest(self.rank_id, effect.harvest)


def unknown(status: int | None) -> int:
    """A request that this rank has not registered yet reads as Bootstrapping, never as progress (invariant 55)."""
    return KVPoll.BOOTSTRAPPING if status is None else status
