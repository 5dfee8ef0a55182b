"""All invariants of protocol.md section 12 that a run can break, checked while it goes on (``run.invariants``).

Causes come before symptoms: inputs, then what conclusions did to requests, then the decision (``lockstep.py``), then
every part of the replicated state. The first rank to reach an iteration is the one the others are held against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ppsim.check.answered import Answered
from ppsim.check.conclusions import Conclusions
from ppsim.check.early_ends import EarlyEnds
from ppsim.check.observers import Seat
from ppsim.check.one_place import OnePlace
from ppsim.check.page_claims import PageClaims
from ppsim.check.reads import LaunchReads
from ppsim.check.replies import Replies
from ppsim.check.rows import Rows
from ppsim.check.rules import Rules
from ppsim.check.tier_rules import TierRules
from ppsim.check.time_limits import TimeLimits
from ppsim.check.together import Decides, Delivers, Harvests, Parts, Record, Samples, Shown
from ppsim.check.transfers import TransferRules
from ppsim.core import effects as fx
from ppsim.core.consensus import KVPoll
from ppsim.core.disagg.ballots import TERMINAL_VOTES
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import AbortReq, Conclusion, Lane, Message, Meta, NewRequest, Output
from ppsim.core.observations import Clock, Grammars, Receivers, Senders, Statuses
from ppsim.core.schedule.batch import ForwardBatch
from ppsim.core.schedule.journal import Advanced
from ppsim.core.schedule.request import State
from ppsim.core.schedule.scheduler import causes, limits, state_parts


class Audit:
    """One for each process. Keys of the tables below are (rank, what).

    ``tell`` takes the records by which ranks are held against each other (``Together.take``, or on the way to it).
    ``commits_wait``: whether a send is ever waited for (``links.commit``), on which invariant 8 rests.
    """

    def __init__(self, tell: Callable[[Record], None], *, commits_wait: bool) -> None:
        self.tell, self.commits_wait = tell, commits_wait
        self.rules = Rules(tell)
        self.answered = Answered(tell)
        self.next_iteration: dict[int, int] = {}
        self.metas: dict[tuple[int, int], list[int]] = {}
        self.last_sent: dict[tuple[int, int, str], int] = {}
        self.launched: dict[tuple[int, int], tuple[int, tuple[str, ...]]] = {}
        self.page_claims = PageClaims(self.launched)
        self.one_place, self.tier_rules = OnePlace(), TierRules()
        self.reads, self.transfers, self.conclusions = LaunchReads(tell), TransferRules(), Conclusions(tell)
        self.free_after: dict[int, tuple[int, int]] = {}
        self.aborted: dict[int, dict[str, int]] = {}  # rank -> rid -> iteration in which its abort was read
        self.stored: dict[tuple[int, str, int], int] = {}  # (rank, rid, iteration of arrival) -> status
        self.early_ends, self.rows = EarlyEnds(self.aborted), Rows()
        self.lists: dict[int, set[int]] = {}  # rank -> iterations whose request list it has taken, not yet decided

    def watch(self, r: Seat) -> None:
        """Hang every check on a rank, lockstep among them. Call before it runs."""
        before, after = r.observers.before, r.observers.after
        before(lambda effect: self.one_place.look_back(r), fx.Ingest, fx.Recv)
        self.tier_rules.watch(r)
        before(lambda effect: self.between(r), fx.Ingest)
        before(lambda effect: self.posted(r, effect.dst, effect.message), fx.Send)
        before(lambda effect: self.launches(r, effect), fx.Launch)
        before(lambda effect: self.awaited(r, effect.output), fx.AwaitTokens)
        before(lambda effect: self.observed(r, effect), fx.Observe)
        before(lambda effect: self.before_decision(r, effect.decision), fx.Decided)
        after(lambda effect, message: self.received(r, message), fx.Recv)
        after(lambda effect, reply: self.launched_on(r, effect.batch, reply), fx.Launch)
        after(lambda effect, local: self.looked(r, effect, local.value), fx.Observe)
        after(lambda effect, _: self.after_decision(r, effect.decision), fx.Decided)
        after(lambda effect, _: self.harvested(r, effect.harvest), fx.Harvested)
        after(lambda effect, _: self.one_place.look(r), fx.Decided, fx.Harvested)
        self.answered.watch(r)
        self.rules.turns.begin(r)
        self.reads.watch(r)
        self.transfers.watch(r)
        self.conclusions.watch(r)
        self.early_ends.watch(r)
        self.rows.watch(r)
        if r.rank_id == 0:
            Replies(r).watch()
            TimeLimits(r).watch()

    # --- decisions -------------------------------------------------------------------------------------------

    def before_decision(self, r: Seat, decision: fx.Decision) -> None:
        """Slots, skew, inputs, causes, limits: everything that comes before the batch."""
        i, scheduler = decision.iteration, r.rank.scheduler
        expected = self.next_iteration.get(r.rank_id, 0)
        if i != expected or decision.slot != i % len(scheduler.slots):
            self.fail("INV-04", r, f"iteration {i} visits slot {decision.slot}, iteration {expected} was due")
        self.next_iteration[r.rank_id] = i + 1
        config = scheduler.config
        # The request list goes from leader to leader; a replica of the stage before may be behind its own leader.
        upstream = max(0, config.pp_rank - 1) * config.tp_replicas
        reached = None if config.is_first else r.iteration_of(upstream)
        if reached is not None and reached < i:
            self.fail("INV-07", r, f"it is in iteration {i}, but rank {upstream} is in {reached}")
        self._has_list(r, i)
        if i == 0:
            tiers = scheduler.kv.tiers
            host = 0 if tiers is None else tiers.host.capacity_tokens
            for what, size, own in zip(
                ("KV pool", "host tier"), (scheduler.kv.pool.capacity_tokens, host), r.rank.local_tokens
            ):
                if size > own:
                    self.fail("INV-22", r, f"its {what} has {size} tokens, but only {own} fit on this rank")
            capacity = (scheduler.kv.pool.capacity_tokens, config.max_running_requests, host)
            self.compare("start", r, -1, (("INV-22", "capacities", capacity),))
        inputs = ("INV-01", "request list", tuple([str(item) for item in r.rank.inputs]))
        self._read_aborts(r, i)
        self.compare("causes", r, i, (inputs, *causes(scheduler), *limits(scheduler, i)))
        # Hidden states that leave before the exchange overtake the output that their receiver still waits for.
        allowed = 1 if config.hidden_before_exchange else 0
        if config.role == "plain" and r.rank.link.inbox_size > allowed:
            self.fail(
                "INV-36", r, f"{r.rank.link.inbox_size} messages are parked in the inbox, at most {allowed} may be"
            )
        limit = config.pp_async_batch_depth
        if len(r.rank.last_rank_comm_queue) > limit:
            self.fail(
                "INV-35", r, f"{len(r.rank.last_rank_comm_queue)} unreleased outputs, at most {limit} are possible"
            )
        self.rules.before_decision(r, decision)

    def after_decision(self, r: Seat, decision: fx.Decision) -> None:
        """The decision, then every part of the replicated state."""
        self.tell(Decides(r.rank_id, decision.iteration, decision.slot, decision, r.phase()))
        if decision.iteration == 0:  # nothing has been computed before
            self._follow_swaps(r)
        self.compare("parts", r, decision.iteration, state_parts(r.rank.scheduler, decision.iteration))

    def received(self, r: Seat, message: Message) -> None:
        """A rank has taken a request list; it may come an iteration before it is used."""
        if isinstance(message, Meta):
            self.lists.setdefault(r.rank_id, set()).add(message.iteration)
            self.between(r)

    def _has_list(self, r: Seat, iteration: int) -> None:
        """Every rank but the first decides upon the list that it was handed in this iteration, also an empty one."""
        link, lists = r.rank.link, self.lists.setdefault(r.rank_id, set())
        if iteration in lists:
            lists.discard(iteration)
        elif r.rank_id != 0:
            src = link.prev if link.is_leader else link.leader
            text = f"it decides without the request list of iteration {iteration}, which rank {src} sends it"
            self.fail("INV-02", r, f"{text}, empty or not; it skipped the round")

    def _read_aborts(self, r: Seat, iteration: int) -> None:
        """Which requests this rank has been told to abort; a request that comes later may have an old id."""
        aborted, requests = self.aborted.setdefault(r.rank_id, {}), r.rank.scheduler.requests
        for item in r.rank.inputs:
            if isinstance(item, AbortReq):
                aborted.update(dict.fromkeys([item.rid, *(requests if item.abort_all else ())], iteration))
            elif isinstance(item, NewRequest):
                fresh = item.rid not in requests or requests[item.rid].arrived == iteration
                if fresh:
                    aborted.pop(item.rid, None)

    def between(self, r: Seat) -> None:
        """Called when inputs are about to be applied: memory is as the last iteration left it (invariant 30)."""
        pool = r.rank.scheduler.kv.pool
        before = self.free_after.get(r.rank_id)
        if before is not None and before[1] == r.rank.iteration - 1 and before[0] != pool.free_tokens:
            self.fail("INV-30", r, f"{pool.free_tokens} tokens are free, the last iteration left {before[0]}")

    def harvested(self, r: Seat, harvest: fx.Harvest) -> None:
        """Launch and harvest belong together, and tokens to their rows."""
        self.compare("causes after", r, harvest.iteration, causes(r.rank.scheduler))  # before what the harvest shows
        self.tell(Harvests(r.rank_id, harvest.iteration, harvest.slot, harvest, r.phase()))
        scheduler = r.rank.scheduler
        num_slots = len(scheduler.slots)
        if harvest.harvested is not None and harvest.harvested != harvest.iteration - num_slots + 1:
            self.fail(
                "INV-05",
                r,
                f"the batch of iteration {harvest.harvested} is harvested, that of "
                f"{harvest.iteration - num_slots + 1} was due",
            )
        self._harvest_launched(r, harvest)
        self._own_samples(r, harvest)
        if scheduler.config.role != "plain":
            self.released(r, harvest.finished)
        self.conclusions.harvested(r)
        self._last_tokens(r, harvest)
        self.rules.harvested(r, harvest)
        self.transfers.ended(r.rank_id, harvest.finished)
        self.free_after[r.rank_id] = (scheduler.kv.pool.free_tokens, harvest.iteration)

    def _last_tokens(self, r: Seat, harvest: fx.Harvest) -> None:
        """INV-67 where nobody is marked: a last token is delivered behind an abort. Any other is launched again."""
        requests, aborted = r.rank.scheduler.requests, self.aborted.get(r.rank_id, {})
        for rid, n in harvest.delivered if aborted else ():
            if rid in aborted and (rid not in requests or requests[rid].state is State.INFLIGHT):
                self.fail("INV-67", r, f"it delivers its token {n} although an abort that was read names it", rid)

    def _harvest_launched(self, r: Seat, harvest: fx.Harvest) -> None:
        key = (r.rank_id, (harvest.iteration + 1) % len(r.rank.scheduler.slots))
        launched = self.launched.get(key)
        if launched is None or (
            harvest.harvested is None and launched[0] > harvest.iteration - len(r.rank.scheduler.slots) + 1
        ):
            return
        if harvest.harvested is None:
            self.fail("INV-05", r, f"the batch of iteration {launched[0]} was due and is not harvested")
        del self.launched[key]
        slot = r.rank.scheduler.slots.slots[key[1]]
        now = tuple(q.rid for q in slot.launched.requests) if slot.launched is not None else ()
        if now != launched[1]:
            self.fail("INV-59", r, f"the launched batch held {launched[1]}, at its harvest it holds {now}")

    def _own_samples(self, r: Seat, harvest: fx.Harvest) -> None:
        if harvest.harvested is None:
            return
        # A decode server gets the first token of a request with its KV, not from its own last rank.
        skip = 1 if r.rank.config.role == "decode" else 0
        rows = zip(harvest.delivered, harvest.token_ids, strict=True)
        tokens = tuple((rid, token) for (rid, n), token in rows if n > skip)
        aborted = tuple(self.aborted.get(r.rank_id, ()))
        self.tell(Delivers(r.rank_id, r.rank.iteration, r.rank.slot, harvest.harvested, tokens, aborted, r.phase()))

    # --- launches --------------------------------------------------------------------------------------------

    def launches(self, r: Seat, effect: fx.Launch) -> None:
        batch = effect.batch
        key = (r.rank_id, batch.slot)
        if key in self.launched:
            self.fail("INV-06", r, f"slot {batch.slot} still holds the batch of iteration {self.launched[key][0]}")
        self.launched[key] = (batch.iteration, tuple(p.rid for p in batch.pieces))
        aborted = self.aborted.get(r.rank_id, {})
        for piece in batch.pieces:
            if piece.rid in aborted:
                text = f"it was aborted in iteration {aborted[piece.rid]} and is launched again"
                self.fail("INV-60", r, text, piece.rid)
            self.page_claims.claim(r, piece.rid, piece.kv.pages, batch.iteration)

    def _follow_swaps(self, r: Seat) -> None:
        """See the pages that a stash exchanges, beside whoever is told of them already."""
        kv = r.rank.scheduler.kv
        told = kv.on_swap

        def on_swap(pages: list[int]) -> None:
            if told is not None:
                told(pages)
            self.swapped(r, pages)

        kv.on_swap = on_swap

    def swapped(self, r: Seat, pages: list[int]) -> None:
        """Pages of a duplicate may be taken at once: later forwards come behind the chunk that writes to them."""
        self.page_claims.given_up(r.rank_id, pages)
        self.reads.pages.exchanged(r.rank_id)

    # --- messages --------------------------------------------------------------------------------------------

    def posted(self, r: Seat, dst: int, message: Message) -> None:
        if isinstance(message, Meta):
            sent = self.metas.setdefault((r.rank_id, dst), [])
            if message.iteration != (sent[-1] + 1 if sent else 0):
                before = f"follows that of {sent[-1]}" if sent else "is the first one that it sends, that of 0 is due"
                self.fail("INV-02", r, f"the request list of iteration {message.iteration} {before}")
            sent[:] = [message.iteration]
            reached = r.iteration_of(dst) if self.commits_wait else None
            if reached is not None and message.iteration - reached > 1:
                self.fail("INV-08", r, f"it sends list {message.iteration} while rank {dst} is in {reached}")
        elif isinstance(message, Conclusion):
            due = self.last_sent.get((r.rank_id, dst, message.name), r.rank.config.pp_async_batch_depth - 1) + 1
            if message.iteration != due:
                text = (
                    f"the conclusion of {message.name} of iteration {message.iteration} is sent, that of {due} is due"
                )
                self.fail("INV-37", r, text)
            self.last_sent[r.rank_id, dst, message.name] = message.iteration
            both = [rid for rid in message.good if rid in message.bad]
            if both and message.name not in TERMINAL_VOTES:
                self.fail("INV-56", r, f"{both} are both good and bad in a conclusion of {message.name}")
            if message.lane is Lane.CONTROL:
                self.rules.published(r, message)

    def launched_on(self, r: Seat, batch: ForwardBatch, reply: object) -> None:
        """What the last rank sampled for a launch, one token a row; that of a middle chunk counts for nothing."""
        self.rules.turns.launched(r)
        if r.rank.config.is_last:
            rows = zip(batch.pieces, r.sampled(reply), strict=True)
            tokens = tuple((piece.rid, token) for piece, token in rows if piece.is_last_chunk)
            self.tell(Samples(r.rank_id, batch.iteration, batch.slot, tokens, r.phase()))

    def awaited(self, r: Seat, output: Output) -> None:
        """Tokens come from the last stage and from nowhere else."""
        width = r.rank.config.tp_replicas
        if output.sender // width != r.rank.config.pp_size - 1:
            self.fail("INV-44", r, f"rank {output.sender} sampled the tokens of iteration {output.iteration}")

    # --- observations ----------------------------------------------------------------------------------------

    def observed(self, r: Seat, effect: fx.Observe) -> None:
        if isinstance(effect.observation, Clock) and r.rank_id != 0:
            self.fail("INV-58", r, "it looks at its clock; only the first rank may")
        if r.phase().startswith("apply_") and isinstance(effect.observation, Senders | Receivers):
            self.fail("INV-49", r, f"phase {r.phase()} polls {effect.what} of {effect.keys} after the vote")

    def looked(self, r: Seat, effect: fx.Observe, values: tuple[int, ...]) -> None:
        """What came of it."""
        if isinstance(effect.observation, Statuses):
            for rid, value in zip(effect.keys, values, strict=True):
                if rid in r.stored:
                    self.store_read(r, rid, r.stored[rid], value)
            self.conclusions.looked(r, effect, values)
        if isinstance(effect.observation, Grammars):
            self.conclusions.compiled(r, effect, values)
        self.rules.seen(r, effect, values)

    def store_read(self, r: Seat, rid: str, statuses: Sequence[int | None], value: int) -> None:
        """Statuses as they have arrived at the first rank, and what it makes of them."""
        if any(status is None for status in statuses) and value > KVPoll.BOOTSTRAPPING:
            self.fail("INV-55", r, f"a status of {rid} is missing, yet the store says {value}")
        arrived = r.rank.scheduler.requests[rid].arrived  # an id may come again
        for rank, status in enumerate(statuses):
            before = self.stored.get((rank, rid, arrived))
            if status is not None and before is not None and status != KVPoll.FAILED and status < before:
                self.fail("INV-54", r, f"the status of {rid} on rank {rank} went back from {before} to {status}")
            if status is not None:
                self.stored[rank, rid, arrived] = status

    def released(self, r: Seat, finished: tuple[str, ...]) -> None:
        """KV that is sent or received is given back, or computed on, only when this rank's own transfer is terminal."""
        scheduler = r.rank.scheduler
        prefill = scheduler.config.role == "prefill"
        moved = [entry.rid for entry in r.rank.journal.of(Advanced)]
        waiting = [rid for rid in moved if rid in scheduler.requests and not prefill]
        used = [rid for rid in waiting if scheduler.requests[rid].state is not State.TRANSFER]
        for rid in (*finished, *used):
            status = r.transfer_of(rid)
            if status not in (None, KVPoll.SUCCESS, KVPoll.FAILED):
                self.fail("INV-52", r, f"KV of {rid} is given up or used while its transfer is in state {status}")

    # --- inside ----------------------------------------------------------------------------------------------

    def compare(self, what: str, r: Seat, iteration: int, parts: Parts) -> None:
        """Hold a rank's parts against those of the first rank that came to this iteration."""
        self.tell(Shown(r.rank_id, r.rank.iteration, r.rank.slot, what, iteration, parts, r.phase()))

    def fail(self, invariant: str, r: Seat, detail: str, rid: str = "") -> None:
        raise InvariantViolation(invariant, r.rank_id, r.rank.iteration, r.rank.slot, rid, detail)


def follow(r: Seat, tell: Callable[[Record], None]) -> None:
    """What lockstep alone needs of a rank, where nothing else is checked (``run.check`` without ``run.invariants``)."""

    rank_id = r.rank_id

    def decided(effect: fx.Decided, _: object) -> None:
        d = effect.decision
        try:
            tell(Decides(rank_id, d.iteration, d.slot, d))
        except InvariantViolation as broken:
            broken.phase = broken.phase or r.phase()  # asked only where it is told: it is one of the dearest questions
            raise

    def harvested(effect: fx.Harvested, _: object) -> None:
        h = effect.harvest
        try:
            tell(Harvests(rank_id, h.iteration, h.slot, h))
        except InvariantViolation as broken:
            broken.phase = broken.phase or r.phase()
            raise

    r.observers.after(decided, fx.Decided)
    r.observers.after(harvested, fx.Harvested)
