"""A simulated rank of one of two pipelines: its local facts are what happens between the sides, not a table.

Who looks at the other side waits until everybody has come to its local time. The first rank of a side sleeps where
looking again cannot help: nothing is launched, the votes have settled, and no status has changed meanwhile. It wakes
when one changes, when a request arrives, or when a limit of its own passes, at the visit that would have come then. (A
change on a later rank could have been seen one visit earlier: that rank looks a little after the first one.)

Over 400 lines because it answers every local fact that has two sides, and they share when this rank sleeps and wakes.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, assert_never

from simpy import Environment, Event

from ppsim.check.client_watch import StopRun
from ppsim.core import actions as acts
from ppsim.core import effects as fx
from ppsim.core import observations as obs
from ppsim.core.consensus import KVPoll
from ppsim.core.errors import CoreError, InvariantViolation
from ppsim.core.messages import AbortReq, NewRequest
from ppsim.core.rank import Rank
from ppsim.core.timeouts import last_moment_ms
from ppsim.workload.clients import Sent
from ppsim.world.client import WorkloadClient
from ppsim.world.driver import BEHIND, BLOCKED, NS_PER_MS, Pending, SimulatedRank, unknown
from ppsim.world.pair.ends import End, Write
from ppsim.world.pair.pages import PageGuard
from ppsim.world.pair.sides import PREFILL
from ppsim.world.pair.transfers import Transfers
from ppsim.world.run_setting import Setting
from ppsim.world.streams import Payload

LOOKS_ACROSS = (obs.Senders, obs.Receivers, obs.FirstTokens, obs.Statuses)


class PipelineRank(SimulatedRank):
    """``side`` is "prefill" or "decode"; ``place`` its number among all ranks, those of the prefill side first."""

    def __init__(
        self, env: Environment, setting: Setting, rank: Rank, local_capacity: int, transfers: Transfers, side: str
    ) -> None:
        super().__init__(env, setting, rank, local_capacity)
        self.transfers, self.side = transfers, side
        self.place = self.rank_id + (0 if side == PREFILL else transfers.num_prefill)
        self.computed: dict[str, list[tuple[int, int]]] = {}  # rid -> (first token, end of the pass) of its launches
        self.num_writes: dict[int, int] = {}  # by room
        self.guard = PageGuard(self, transfers)
        self.nap = Nap(self)
        self.told_by: WorkloadClient | None = None  # the clients whose answers bring requests to this side too
        self.passes_on_until = 0  # iteration
        self.awaited: fx.Ingest | None = None  # the visit whose copies between the tiers have been awaited

    def run(self) -> Generator[Event, None, None]:
        """The SimPy process; an error that ends the run belongs to this side, unless it says otherwise."""
        try:
            yield from super().run()
        except (CoreError, StopRun):
            self.transfers.guilty = self.transfers.guilty or self.side
            raise

    # --- reading inputs, sleeping ------------------------------------------------------------------------------

    def _ingest(self, effect: fx.Ingest) -> Any:
        if not effect.idle:
            pending = self.nap.before(effect.iteration)
            if pending is not None:
                return pending
        idle = effect.idle and not self._passes_an_abort_on(effect.iteration)
        pending = self._copies_are_awaited(effect) or self._hears_of_requests(idle)
        if pending is not None:
            return pending
        inputs = self._read_inputs(fx.Ingest(effect.iteration, idle))
        if inputs or effect.idle:
            self.nap.stirred()
        return inputs

    def _passes_an_abort_on(self, iteration: int) -> bool:
        """An abort has left this first rank idle, and the others take some visits to come to it: meanwhile it looks
        again instead of waiting for the next request. The other side waits for the word of every rank."""
        config = self.rank.config
        if any(isinstance(item, AbortReq) for item in self.rank.inputs):  # of the visit before
            self.passes_on_until = iteration + 2 * (config.num_slots + config.pp_size)
        return iteration < self.passes_on_until

    def _copies_are_awaited(self, effect: fx.Ingest) -> Pending | None:
        """Once a visit, however often it has to wait for the other side."""
        if self.awaited is effect:
            return None
        pending = self._await_copies()
        self.awaited = effect if pending is None else None
        return pending

    def _hears_of_requests(self, idle: bool) -> Pending | None:
        """Prefill side of a closed loop: the decode side's answers bring requests here too. So its inputs are read once
        the other side has come to this instant, and where it is idle it looks again when a request has come."""
        client = self.setting.client
        if self.told_by is None or not isinstance(client, WorkloadClient):
            return None
        if self.env.now < self.now:
            return BEHIND
        if not idle or client.by_iteration or client.is_due(self.now):
            return None
        if self.env.now > self.now:  # it has looked in vain meanwhile
            self.now = client.polled_ns(int(self.env.now), self.now)
            return self._hears_of_requests(idle)
        if not client.by_time and not self.told_by.expects:
            return None
        half_ns = round(self.scenario.run.watchdog_ms * NS_PER_MS) // 2
        due = [client.by_time[0][0]] if client.by_time else []
        if half_ns:
            due.append(self.now + half_ns)  # waiting for clients is no stall
        if due:
            self.wakes_at(min(due))
        return BLOCKED

    def wakes_at(self, at_ns: int) -> None:
        alarm = self.env.timeout(max(0, at_ns - int(self.env.now)))
        alarm.callbacks.append(lambda _: self.wake())

    @property
    def waits_for_clients(self) -> bool:
        """It is idle, and it is the other side's turn."""
        return self.told_by is not None and isinstance(self.effect, fx.Ingest) and self.effect.idle and not self.done

    def _tell_client(self, effect: fx.Reply) -> None:
        if self.side == PREFILL:
            return  # clients read the decode side's answers
        super()._tell_client(effect)
        first = self.setting.peer.ranks[0] if self.setting.peer is not None else None
        if isinstance(first, PipelineRank) and first.told_by is not None and effect.status != "token":
            first.wake()

    def _sent(self, setting: Setting, sent: Sent) -> None:
        """A request goes to both sides."""
        super()._sent(setting, sent)
        if setting is self.setting and setting.peer is not None:
            peer, first = setting.peer, setting.peer.ranks[0]
            assert isinstance(peer.client, WorkloadClient)
            assert isinstance(first, PipelineRank)
            peer.client.put(sent)
            super()._sent(peer, sent)
            first.nap.expects(sent.at_ns)

    def _decided(self, effect: fx.Decided) -> None:
        if effect.decision.iteration == 0:  # nothing has been freed before
            self.rank.scheduler.kv.pool.on_free = self.guard.freed
        self.nap.decided(effect.decision)
        super()._decided(effect)

    def other_side(self, rid: str) -> str:
        """The least that the ends of this request on the other side show; "absent" where one has not registered it."""
        transfers, room = self.transfers, self.rank.scheduler.requests[rid].spec.room
        if self.side == PREFILL:
            ends: list[End | None] = [transfers.receivers.get((transfers.peers.receiver_of(self.rank_id), room or 0))]
        else:
            ends = [transfers.senders.get((rank, room or 0)) for rank in transfers.peers.senders_of(self.rank_id)]
        statuses = [end.status for end in ends if end is not None and end.status is not None]
        return KVPoll(min(statuses)).name.lower() if len(statuses) == len(ends) else "absent"

    # --- looking at the other side -------------------------------------------------------------------------------

    def _observe(self, effect: fx.Observe) -> Any:
        if isinstance(effect.observation, LOOKS_ACROSS):
            if self.env.now < self.now:
                return BEHIND
            self.transfers.advance(self.now)
        return super()._observe(effect)

    def _look(self, observation: obs.Observation, iteration: int) -> tuple[int, ...]:
        transfers, me = self.transfers, self.rank_id
        match observation:
            case obs.Senders(rids):
                return tuple(unknown(transfers.sender(me, self._room(rid)).status) for rid in rids)
            case obs.Receivers(rids):
                return tuple(unknown(transfers.receiver(me, self._room(rid)).status) for rid in rids)
            case obs.FirstTokens(rids):
                return tuple(self._first_token(rid) for rid in rids)
        return super()._look(observation, iteration)

    def _stored(self, rid: str) -> int:
        """The first rank's own status as it is, the others' as they have been replicated to it by now."""
        surroundings, lag_ns = self.setting.surroundings, self.setting.store_lag_ns
        statuses: list[int | None] = []
        for peer in self.setting.ranks:
            age_ns = surroundings.store_age_ns(peer.rank_id, self.rank.iteration, lag_ns)
            sender = self.transfers.sender(peer.rank_id, self._room(rid))
            statuses.append(sender.status_before(self.now if peer is self else self.now - age_ns))
        self.stored[rid] = statuses
        return surroundings.store_decision(rid, statuses)

    def sender_failed_ns(self, rid: str) -> int | None:
        sender = self.transfers.senders.get((self.rank_id, self._room(rid)))
        history = sender.history if sender is not None else []
        return next((at_ns for at_ns, status in history if status == KVPoll.FAILED), None)

    def _first_token(self, rid: str) -> int:
        """What came with the last write of every sender; they all sent the same."""
        receiver = self.transfers.receiver(self.rank_id, self._room(rid))
        tokens = sorted(set(receiver.tokens))
        if len(tokens) != 1:
            text = f"the metadata of its senders hold the first tokens {tokens}, expected one and the same"
            raise InvariantViolation("INV-41", self.rank_id, self.rank.iteration, self.rank.slot, rid, text)
        return tokens[0]

    def status_of(self, rank_id: int, rid: str) -> int | None:
        """What that rank's own sender shows now."""
        return self.transfers.sender(rank_id, self._room(rid)).status

    def landed(self, rid: str) -> Sequence[tuple[int, Sequence[tuple[int, int]]]] | None:
        """What has come from each of this rank's senders."""
        room, transfers = self._room(rid), self.transfers
        senders = transfers.peers.senders_of(self.rank_id)
        return [(rank, transfers.sender(rank, room).landed()) for rank in senders]

    def first_sampled(self, request: NewRequest) -> int | None:
        """What the last stage of the prefill side sampled for the end of the prompt."""
        return None if request.room is None else self.transfers.sampled.get(request.room)

    # --- acting ----------------------------------------------------------------------------------------------------

    def _act(self, effect: fx.Act) -> None:
        action = effect.action
        if not isinstance(action, acts.Transfer):
            super()._act(effect)
            return
        assert self.setting.marks is not None
        self.setting.marks.acted(self, action)
        transfers, post = self.transfers, self.transfers.post
        match action:
            case acts.Bootstrap(rid, room):
                self.computed.pop(rid, None)
                post(self.now, self.place, transfers.sender_registers, self.rank_id, numbered(rid, room), rid)
            case acts.SendChunk(rid, start, stop):
                post(self.now, self.place, transfers.write_asked, self._write(rid, start, stop, is_last=False))
            case acts.SendLast(rid, start, stop):
                post(self.now, self.place, transfers.write_asked, self._write(rid, start, stop, is_last=True))
            case acts.Handshake(rid, room):
                post(self.now, self.place, transfers.receiver_registers, self.rank_id, numbered(rid, room), rid)
            case acts.SendMetadata(rid):
                receiver = transfers.receiver(self.rank_id, self._room(rid))
                self.guard.receives(receiver, self.rank.scheduler.requests[rid].pages)
                post(self.now, self.place, transfers.pages_given, self.rank_id, self._room(rid))
            case acts.AbortSender(rid, room) | acts.AbortReceiver(rid, room):
                self._give_up(numbered(rid, room), "stop")
            case acts.Refused(rid, room):
                self._give_up(numbered(rid, room), "refused")
            case acts.Admitted() | acts.HandshakeAgreed():
                pass  # marked above
            case _:
                assert_never(action)

    def _give_up(self, room: int, what: str) -> None:
        transfers = self.transfers
        if self.side == PREFILL:
            sender = transfers.sender(self.rank_id, room)
            transfers.post(self.now, self.place, transfers.sender_gives_up, sender, what)
        else:
            receiver = transfers.receiver(self.rank_id, room)
            transfers.post(self.now, self.place, transfers.receiver_gives_up, receiver, what)

    def _room(self, rid: str) -> int:
        return numbered(rid, self.rank.scheduler.requests[rid].spec.room)

    def _write(self, rid: str, start: int, stop: int, *, is_last: bool) -> Write:
        """KV of tokens [start, stop), to be sent once the pass that wrote the last of them has ended."""
        request, page, room = self.rank.scheduler.requests[rid], self.rank.config.page_size, self._room(rid)
        nth = self.num_writes[room] = self.num_writes.get(room, 0) + 1
        write = Write(
            self.rank_id,
            room,
            rid,
            nth,
            self.rank.iteration,
            self.rank.slot,
            start,
            stop,
            pages=tuple(request.pages[start // page : -(-stop // page)]),
            computed_ns=max((end for first, end in self.computed.get(rid, ()) if first < stop), default=0),
            duration_ns=self.transfers.wire_ns(self.rank_id, stop - start),
            token=request.output_ids[-1] if is_last else None,
            num_prompt=request.prompt_len,
        )
        self.guard.reads(write)
        return write

    def _launch(self, effect: fx.Launch) -> Any:
        payload = super()._launch(effect)
        if self.side == PREFILL:
            for piece in effect.batch.pieces:
                self.computed.setdefault(piece.rid, []).append((piece.prefix_len, self.streams.forward_free))
            if self.rank.config.is_last and isinstance(payload, Payload):
                for piece, token in zip(effect.batch.pieces, payload.tokens, strict=True):
                    if piece.is_last_chunk:
                        self.transfers.sampled[self._room(piece.rid)] = token
        return payload


def numbered(rid: str, room: int | None) -> int:
    """The room of a request: between two pipelines everyone has one."""
    assert room is not None, f"request {rid} has no room"
    return room


class Nap:
    """The sleep of a first rank that has requests but nothing to do for them."""

    def __init__(self, r: PipelineRank) -> None:
        self.r = r
        self.since_ns = 0  # quiet since then: no input, no batch, no change of a status
        self.num_quiet = 0  # visits since then
        self.last_visit = (-1, 0)  # iteration and instant
        self.period_ns = 0  # between the last two visits
        self.sleeps = False
        self.due_ns: int | None = None
        self.seen = (0, 0)  # requests in the waiting queue, refusals of memory to come: after the latest decision

    def stirred(self) -> None:
        """Something was read or launched: what follows from it takes some iterations."""
        self.num_quiet = 0

    def decided(self, decision: fx.Decision) -> None:
        """Not quiet: a visit that launched, was held up for a number of visits, refused memory, or moved the queue."""
        rank = self.r.rank
        refusals_left = sum(rank.scheduler.refusals_left.values())
        before, self.seen = self.seen, (len(rank.scheduler.waiting), refusals_left)
        if decision.mode != "empty" or decision.stall == fx.DEFERRED or self.seen != before:
            self.stirred()

    def before(self, iteration: int) -> Any:
        """A visit is about to begin; the reply is how to wait, or None to begin."""
        r = self.r
        if self.sleeps:
            return self._wakes()
        if iteration != self.last_visit[0]:
            self.period_ns, self.last_visit = r.now - self.last_visit[1], (iteration, r.now)
            if self.num_quiet == 0 or r.transfers.last_change_ns[r.side] >= self.since_ns:
                self.since_ns, self.num_quiet = r.now, 0
            self.num_quiet += 1
        if not self._may_sleep():
            return None
        return self._falls_asleep() if r.env.now >= r.now else BEHIND

    def _may_sleep(self) -> bool:
        """The votes have gone round twice with nothing new, and nothing counts iterations."""
        r, config = self.r, self.r.rank.config
        scheduler, client = r.rank.scheduler, r.setting.client
        return (
            self.num_quiet > 2 * (config.num_slots + config.pp_size)
            and r.transfers.last_change_ns[r.side] < self.since_ns
            and scheduler.slots.drained
            and not scheduler.grammar_queue
            and not scheduler.kv.outstanding
            and isinstance(client, WorkloadClient)
            and not client.by_iteration
            and not (client.by_time and client.by_time[0][0] <= r.now)
        )

    def _falls_asleep(self) -> Any:
        self.sleeps = True
        self.due_ns = self._next_due_ns()
        if self.due_ns is not None:
            self.r.wakes_at(self.due_ns)
        return BLOCKED

    def expects(self, at_ns: int) -> None:
        """A request will come at that instant."""
        if self.sleeps and (self.due_ns is None or at_ns < self.due_ns):
            self.due_ns = at_ns
            self.r.wakes_at(at_ns)

    def _next_due_ns(self) -> int | None:
        """When something happens by itself: an arrival, a limit, the watchdog's patience, news from the store."""
        r = self.r
        due: list[int] = []
        client = r.setting.client
        assert isinstance(client, WorkloadClient)
        if client.by_time:
            due.append(client.by_time[0][0])
        if r.scenario.run.watchdog_ms:
            due.append(r.now + round(r.scenario.run.watchdog_ms * NS_PER_MS) // 2)
        limits = [last_moment_ms(r.rank, request) for request in r.rank.scheduler.requests.values()]
        due += [(last_ms + 1 - r.skew_ms) * NS_PER_MS for last_ms in limits if last_ms is not None]
        return min([*due, *self._news_ns()], default=None)

    def _news_ns(self) -> list[int]:
        """When the store will show this rank what has changed on the others: the lag is still to come."""
        r, lag_ns = self.r, self.r.setting.store_lag_ns
        if r.side != PREFILL or not lag_ns:
            return []
        ends = [
            r.transfers.sender(peer.rank_id, r._room(rid))
            for peer in r.setting.ranks
            for rid in r.rank.scheduler.requests
        ]
        last_look_ns = r.now - self.period_ns  # in the visit before this one, or later
        return [at + lag_ns + 1 for end in ends for at, _ in end.history if at + lag_ns >= last_look_ns]

    def rings(self) -> None:
        """A status of this side has changed."""
        if self.sleeps:
            self.r.wake()

    def _wakes(self) -> Any:
        r = self.r
        r.setting.watch.empty_iterations = 0  # no livelock: time goes on
        now_ns = int(r.env.now)
        if r.transfers.last_change_ns[r.side] < self.since_ns and (self.due_ns is None or now_ns < self.due_ns):
            return BLOCKED  # woken by something else
        self.sleeps = False
        self.num_quiet = 0
        missed = now_ns - r.now
        r.now += -(-missed // self.period_ns) * self.period_ns if self.period_ns and missed > 0 else max(0, missed)
        self.last_visit = (self.last_visit[0], r.now)
        return None
