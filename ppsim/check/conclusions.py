"""INV-79: what is concluded is what the ranks saw (the store's minimum, good of all, bad of any); nothing else moves.

grammar  who leaves the grammar queue is compiled, or has failed, where the first stage has looked; later stages have
        waited for their own compile
store   the answer for a request is the minimum of the statuses of all ranks; a status is never ahead of what its
        rank shows itself; what the first rank hands down, admits and fails is that answer
votes   the conclusion itself is ``Together._agrees``; here: a request that is retracted is voted for by the ranks
        that are bound to it, one stage alone concludes too, and a rank moves nobody whom no conclusion names: who
        has moved is seen in the queues
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ppsim.check.observers import Seat
from ppsim.check.together import Concludes, Moves, Record, Voices
from ppsim.core import effects as fx
from ppsim.core.actions import Admitted
from ppsim.core.consensus import KVPoll, store_minimum
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.errors import InvariantViolation
from ppsim.core.leader import FAILED, PENDING, READY
from ppsim.core.messages import Lane, Side, Vote
from ppsim.core.observations import Compiled
from ppsim.core.schedule.journal import Advanced, Ended, Journal
from ppsim.core.schedule.request import Event, Request, State
from ppsim.core.votes import votes_go_on

RETRACT = "retract"
NOBODY: dict[str, list[Request]] = {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store held in one iteration: requests of the bootstrap queue, the minimum of each."""

    iteration: int
    minima: dict[str, int]


class Conclusions:
    """Of the ranks of one process. ``tell`` takes what is held against the other ranks."""

    def __init__(self, tell: Callable[[Record], None]) -> None:
        self.tell = tell
        self.answers: dict[int, Answer] = {}
        self.moved: dict[
            int, tuple[int, int]
        ] = {}  # rank -> (advanced, failed) before its conclusions of this iteration
        self.queued: dict[int, dict[str, list[Request]]] = {}  # rank -> who stood in the queues of its role
        self.compiling: dict[int, list[Request]] = {}  # rank -> its grammar queue at its last decision
        self.compiles: dict[int, tuple[int, dict[str, int]]] = {}  # rank -> iteration, and what it has seen of each
        self.awaited: dict[tuple[int, str], int] = {}  # (rank, rid) -> iteration in which it has waited for its compile

    def watch(self, r: Seat) -> None:
        """Hang it on a rank that votes or has a store; of what it sends ``Audit.posted`` tells."""
        before = r.observers.before
        before(partial(self._left_grammar, r), fx.Decided)
        r.observers.after(lambda effect, _: self._waited(r, effect), fx.AwaitLocal)
        if r.rank.config.role == "plain":
            return
        before(partial(self.acts, r), fx.Act)
        before(partial(self.decides, r), fx.Decided)

    # --- the store ---------------------------------------------------------------------------------------------

    def looked(self, r: Seat, look: fx.Observe, values: Sequence[int]) -> None:
        """The first rank has looked into the store for its bootstrap queue."""
        minima: dict[str, int] = {}
        for rid, value in zip(look.keys, values, strict=True):
            statuses = r.stored.get(rid)
            minima[rid] = value if statuses is None else self._answer(r, rid, statuses)
            if statuses is not None and value != minima[rid]:
                told = [None if status is None else int(status) for status in statuses]
                text = f"the store says {int(value)}, the minimum of the statuses {told} is {minima[rid]}"
                fail(r, rid, text)
        self.answers[r.rank_id] = Answer(look.iteration, minima)

    def _answer(self, r: Seat, rid: str, statuses: Sequence[int | None]) -> int:
        """The minimum over all ranks, none left out, and none told as further than it is."""
        config = r.rank.config
        num_ranks = config.pp_size * config.tp_replicas
        if len(statuses) != num_ranks:
            fail(r, rid, f"the store has looked at {len(statuses)} statuses, there are {num_ranks} ranks")
        for rank, status in enumerate(statuses):
            own = r.status_of(rank, rid)
            if status and own and status > own:  # a failure is no progress, and unknown is nothing to compare with
                fail(r, rid, f"the store has status {status} of rank {rank}, which itself is at {own}")
        return int(store_minimum(statuses))

    def sends(self, r: Seat, message: Side | Vote) -> None:
        """The poll list goes down the chain; a replica gives its voice for the retracted."""
        answer = self._present(r) if isinstance(message, Side) else None
        if isinstance(message, Side) and message.lane in (Lane.BOOTSTRAP, Lane.TP) and answer is not None:
            told = dict(zip(answer.minima, message.counts, strict=False))
            if len(message.counts) == len(answer.minima):  # else INV-50
                for rid, minimum in answer.minima.items():
                    if told[rid] != minimum:
                        fail(r, rid, f"status {told[rid]} is handed down, the minimum of all ranks is {minimum}")
        if isinstance(message, Vote) and message.name == RETRACT and not r.rank.link.is_leader:
            self._votes_for_retracted(r)

    def acts(self, r: Seat, act: fx.Act) -> None:
        """A request is admitted by the store's answer."""
        action = act.action
        answer = self._present(r) if isinstance(action, Admitted) else None
        if isinstance(action, Admitted) and answer is not None:
            minimum = answer.minima.get(action.rid, KVPoll.BOOTSTRAPPING)
            if minimum != KVPoll.WAITING_FOR_INPUT:
                fail(r, action.rid, f"it is admitted, but the minimum of all ranks is {minimum}")

    def _present(self, r: Seat) -> Answer | None:
        answer = self.answers.get(r.rank_id)
        return answer if answer is not None and answer.iteration == r.rank.iteration else None

    # --- grammars ----------------------------------------------------------------------------------------------

    def compiled(self, r: Seat, look: fx.Observe, values: Sequence[int]) -> None:
        """A rank of the first stage has looked at its own compiles."""
        self.compiles[r.rank_id] = look.iteration, dict(zip(look.keys, values, strict=True))

    def _waited(self, r: Seat, effect: fx.AwaitLocal) -> None:
        if isinstance(effect.fact, Compiled):
            self.awaited[r.rank_id, effect.fact.key] = effect.iteration

    def _left_grammar(self, r: Seat, _: object) -> None:
        """Who has left the grammar queue since the last decision, and was not aborted."""
        rank, scheduler = r.rank, r.rank.scheduler
        candidates = self.compiling.get(r.rank_id, [])
        if rank.inputs:
            fresh = [q for q in scheduler.requests.values() if q.arrived == rank.iteration]
            candidates = candidates + [q for q in fresh if q.spec.grammar is not None]
        if not candidates and not scheduler.grammar_queue:
            return
        self.compiling[r.rank_id] = list(scheduler.grammar_queue)
        if not candidates:
            return
        failed = [entry.rid for entry in rank.journal.of(Ended) if entry.event is Event.GRAMMAR_FAILED]
        at, seen = self.compiles.get(r.rank_id, (-1, {}))
        for request in candidates:
            rid = request.rid
            is_live = scheduler.requests.get(rid) is request
            if (is_live and request in scheduler.grammar_queue) or not (is_live or rid in failed):
                continue
            if not rank.config.is_first:
                if is_live and self.awaited.get((r.rank_id, rid)) != rank.iteration:
                    fail(r, rid, "it leaves the grammar queue, but this rank has not waited for its own compile")
                continue
            state = seen.get(rid) if at == rank.iteration else None
            due = READY if is_live else FAILED
            if state != due and (is_live or rank.config.tp_replicas == 1):  # else another replica may have seen it fail
                what = {PENDING: "is not over", READY: "has succeeded", FAILED: "has failed"}
                went = "leaves the grammar queue" if is_live else "ends as failed to compile"
                fail(r, rid, f"it {went}, but the compile of this rank {what[state or PENDING]}")

    # --- votes -------------------------------------------------------------------------------------------------

    def decides(self, r: Seat, _: object) -> None:
        """First passes are over, the conclusions of this iteration are still to be applied."""
        rank = r.rank
        advanced, failed = moved(rank.journal)
        answer = self._present(r) if failed else None
        for rid in failed if answer is not None else ():
            if answer is not None and answer.minima.get(rid, KVPoll.FAILED) != KVPoll.FAILED:
                fail(r, rid, f"its handshake counts as failed, but the minimum of all ranks is {answer.minima[rid]}")
        self.moved[r.rank_id] = len(advanced), len(failed)
        for request, queue in self._left(r):
            by_store = queue == "bootstrap" and rank.config.bootstrap_consensus == "store"
            if not by_store and rank.scheduler.requests.get(request.rid) is request:
                fail(r, request.rid, f"it has left the {queue} queue, but no conclusion was applied")
        if rank.link.is_leader:
            self._votes_for_retracted(r)
        if rank.config.pp_size > 1 or not rank.link.is_leader or rank.iteration < rank.config.pp_async_batch_depth:
            return
        for name, (good, bad) in rank.first_pass.items() if votes_go_on(rank, rank.iteration) else ():
            self.tell(Concludes(r.rank_id, rank.iteration, rank.slot, name, rank.iteration, good, bad))

    def _votes_for_retracted(self, r: Seat) -> None:
        """Nobody looks at a transfer here: a rank agrees to those that are bound to the slot it visits."""
        role, slot = r.rank.scheduler.role, r.rank.slot
        if isinstance(role, DecodeRole) and votes_go_on(r.rank, r.rank.iteration):
            bound = tuple([q.rid for q in role.put_out if q.retraction_slot == slot])
            self.tell(Voices(r.rank_id, r.rank.iteration, slot, RETRACT, (bound, ())))

    def harvested(self, r: Seat) -> None:
        """All conclusions of this iteration are applied."""
        rank = r.rank
        config, before = rank.config, self.moved.get(r.rank_id)
        if before is None:
            return
        advanced, failed = moved(rank.journal)
        advanced, failed = advanced[before[0] :], failed[before[1] :]
        left = self._left(r)
        if left:
            advanced += tuple([q.rid for q, _ in left if q.state is not State.ABORTED and q.rid not in advanced])
        if (advanced or failed) and config.vote_variant == "agreed":
            about = rank.iteration - config.pp_size + 1
            self.tell(Moves(r.rank_id, rank.iteration, rank.slot, about, advanced, failed))

    def _left(self, r: Seat) -> list[tuple[Request, str]]:
        """Who has left a queue of its role since the last look, by no abort; with the queue. It is a look."""
        queues = r.rank.scheduler.role.queues()
        before = self.queued.get(r.rank_id, NOBODY)
        if queues == before:
            return []
        self.queued[r.rank_id] = {name: [*queue] for name, queue in queues.items()}
        was = {q: name for name, queue in before.items() for q in queue}
        now = {q: name for name, queue in queues.items() for q in queue}
        return [(q, name) for q, name in was.items() if now.get(q) != name and not q.to_abort]


def moved(journal: Journal) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whom a rank has moved on in this iteration so far, and whom it has failed."""
    if not journal.entries:
        return (), ()
    return tuple([e.rid for e in journal.of(Advanced)]), tuple([e.rid for e in journal.of(Ended) if e.failed])


def fail(r: Seat, rid: str, text: str) -> None:
    raise InvariantViolation("INV-79", r.rank_id, r.rank.iteration, r.rank.slot, rid, text)
