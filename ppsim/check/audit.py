"""All invariants of protocol.md section 12 that a run can break, checked while it goes on (``run.invariants``).

Causes come before symptoms: inputs, then what conclusions did to requests, then the decision (``lockstep.py``), then
every part of the replicated state. The first rank to reach an iteration is the one the others are held against.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

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
from ppsim.check.shown import Values, behind_decision, behind_harvest, behind_inputs
from ppsim.check.tier_rules import TierRules
from ppsim.check.time_limits import TimeLimits
from ppsim.check.together import Decides, Delivers, Harvests, Parts, Record, Samples, Shown, Together
from ppsim.check.transfers import TransferRules
from ppsim.core import effects as fx
from ppsim.core.agreed import Local
from ppsim.core.consensus import KVPoll
from ppsim.core.disagg.ballots import TERMINAL_VOTES
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import AbortReq, Conclusion, Lane, Message, Meta, NewRequest, Side, Vote
from ppsim.core.observations import Clock, Grammars, Receivers, Senders, Statuses
from ppsim.core.schedule.journal import Advanced
from ppsim.core.schedule.request import State
from ppsim.core.schedule.scheduler import causes, limits, state_parts

POLLS = (Senders, Receivers)


class Audit:
    """One for each process. Keys of the tables below are (rank, what).

    ``tell`` takes the records by which ranks are held against each other (``Together.take``, or on the way to it).
    ``commits_wait``: whether a send is ever waited for (``links.commit``), on which invariant 8 rests. ``together``:
    who takes the records, where that is at hand; most of them need not be made then.
    """

    def __init__(self, tell: Callable[[Record], None], *, commits_wait: bool, together: Together | None = None) -> None:
        self.tell, self.commits_wait = tell, commits_wait
        self.lockstep = None if together is None else together.lockstep
        self.shows_the_same = nobody_compares if together is None else together.shows_the_same
        self.rules = Rules(tell)
        self.answered = Answered(tell)
        self.next_iteration: dict[int, int] = {}
        self.metas: dict[tuple[int, int], int] = {}  # (sender, receiver) -> iteration of the latest list
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
        self.lists[r.rank_id] = set()
        before(partial(self.one_place.look_back, r), fx.Ingest, fx.Recv)
        self.tier_rules.watch(r)
        before(partial(self.between, r), fx.Ingest)
        before(partial(self.posted, r), fx.Send)
        before(partial(self.launches, r), fx.Launch)
        before(partial(self.awaited, r), fx.AwaitTokens)
        before(partial(self.observed, r), fx.Observe)
        before(partial(self.before_decision, r), fx.Decided)
        after(partial(self.received, r), fx.Recv)
        after(partial(self.launched_on, r), fx.Launch)
        after(partial(self.looked, r), fx.Observe)
        after(partial(self.after_decision, r), fx.Decided)
        after(partial(self.harvested, r), fx.Harvested)
        after(partial(self.one_place.look, r), fx.Decided, fx.Harvested)
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

    def before_decision(self, r: Seat, effect: fx.Decided) -> None:
        """Slots, skew, inputs, causes, limits: everything that comes before the batch."""
        decision, rank, rank_id = effect.decision, r.rank, r.rank_id
        i, scheduler = decision.iteration, rank.scheduler
        config, inputs = scheduler.config, rank.inputs
        expected = self.next_iteration.get(rank_id, 0)
        if i != expected or decision.slot != i % len(scheduler.slots.slots):
            self.fail("INV-04", r, f"iteration {i} visits slot {decision.slot}, iteration {expected} was due")
        self.next_iteration[rank_id] = i + 1
        if not config.is_first:
            # The request list goes from leader to leader; a replica of the stage before may be behind its own leader.
            upstream = max(0, config.pp_rank - 1) * config.tp_replicas
            reached = r.iteration_of(upstream)
            if reached is not None and reached < i:
                self.fail("INV-07", r, f"it is in iteration {i}, but rank {upstream} is in {reached}")
        self._has_list(r, i)
        if i == 0:
            self._capacities(r)
        if inputs:
            self._read_aborts(r, i)
        if not self.shows_the_same("causes", i, behind_inputs(scheduler, inputs, i)):
            shown = ("INV-01", "request list", tuple([str(item) for item in inputs]))
            self._differs("causes", r, i, (shown, *causes(scheduler), *limits(scheduler, i)))
        # Hidden states that leave before the exchange overtake the output that their receiver still waits for.
        if config.role == "plain" and rank.link.inbox_size > config.hidden_before_exchange:
            allowed = int(config.hidden_before_exchange)
            self.fail("INV-36", r, f"{rank.link.inbox_size} messages are parked in the inbox, at most {allowed} may be")
        limit = config.pp_async_batch_depth
        if len(rank.last_rank_comm_queue) > limit:
            self.fail("INV-35", r, f"{len(rank.last_rank_comm_queue)} unreleased outputs, at most {limit} are possible")
        self.rules.before_decision(r, decision)

    def _capacities(self, r: Seat) -> None:
        """Before the first decision: what was agreed fits here, and is the same everywhere."""
        scheduler = r.rank.scheduler
        tiers, pool = scheduler.kv.tiers, scheduler.kv.pool
        host = 0 if tiers is None else tiers.host.capacity_tokens
        for what, size, own in zip(("KV pool", "host tier"), (pool.capacity_tokens, host), r.rank.local_tokens):
            if size > own:
                self.fail("INV-22", r, f"its {what} has {size} tokens, but only {own} fit on this rank")
        capacity = (pool.capacity_tokens, scheduler.config.max_running_requests, host)
        if not self.shows_the_same("start", -1, (capacity,)):
            self._differs("start", r, -1, (("INV-22", "capacities", capacity),))

    def after_decision(self, r: Seat, effect: fx.Decided, _: object) -> None:
        """The decision, then every part of the replicated state."""
        decision = effect.decision
        i = decision.iteration
        if self.lockstep is not None:
            self.lockstep.decision(r.rank_id, decision)
        else:
            self.tell(Decides(r.rank_id, i, decision.slot, decision))
        if i == 0:  # nothing has been computed before
            self._follow_swaps(r)
        if not self.shows_the_same("parts", i, behind_decision(r.rank.scheduler, i)):
            self._differs("parts", r, i, state_parts(r.rank.scheduler, i))

    def received(self, r: Seat, effect: fx.Recv, message: Message) -> None:
        """A rank has taken a request list; it may come an iteration before it is used."""
        if isinstance(message, Meta):
            self.lists[r.rank_id].add(message.iteration)
            self.between(r)

    def _has_list(self, r: Seat, iteration: int) -> None:
        """Every rank but the first decides upon the list that it was handed in this iteration, also an empty one."""
        lists = self.lists[r.rank_id]
        if iteration in lists:
            lists.discard(iteration)
        elif r.rank_id != 0:
            link = r.rank.link
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

    def between(self, r: Seat, _: object = None) -> None:
        """Called when inputs are about to be applied: memory is as the last iteration left it (invariant 30)."""
        before = self.free_after.get(r.rank_id)
        if before is None:
            return
        free_tokens = r.rank.scheduler.kv.pool.free_tokens
        if before[0] != free_tokens and before[1] == r.rank.iteration - 1:
            self.fail("INV-30", r, f"{free_tokens} tokens are free, the last iteration left {before[0]}")

    def harvested(self, r: Seat, effect: fx.Harvested, _: object) -> None:
        """Launch and harvest belong together, and tokens to their rows."""
        harvest, scheduler = effect.harvest, r.rank.scheduler
        i = harvest.iteration
        if not self.shows_the_same("causes after", i, behind_harvest(scheduler)):  # before what the harvest shows
            self._differs("causes after", r, i, causes(scheduler))
        if self.lockstep is not None:
            self.lockstep.harvest(r.rank_id, harvest)
        else:
            self.tell(Harvests(r.rank_id, i, harvest.slot, harvest))
        due = i - len(scheduler.slots.slots) + 1
        if harvest.harvested is not None and harvest.harvested != due:
            self.fail("INV-05", r, f"the batch of iteration {harvest.harvested} is harvested, that of {due} was due")
        self._harvest_launched(r, harvest)
        if harvest.harvested is not None:
            self._own_samples(r, harvest)
        if scheduler.config.role != "plain":
            if harvest.finished or r.rank.journal.entries:
                self.released(r, harvest.finished)
            self.conclusions.harvested(r)
        if harvest.delivered:
            self._last_tokens(r, harvest)
        self.rules.harvested(r, harvest)
        if harvest.finished:
            self.transfers.ended(r.rank_id, harvest.finished)
        self.free_after[r.rank_id] = (scheduler.kv.pool.free_tokens, i)

    def _last_tokens(self, r: Seat, harvest: fx.Harvest) -> None:
        """INV-67 where nobody is marked: a last token is delivered behind an abort. Any other is launched again."""
        requests, aborted = r.rank.scheduler.requests, self.aborted.get(r.rank_id, {})
        for rid, n in harvest.delivered if aborted else ():
            if rid in aborted and (rid not in requests or requests[rid].state is State.INFLIGHT):
                self.fail("INV-67", r, f"it delivers its token {n} although an abort that was read names it", rid)

    def _harvest_launched(self, r: Seat, harvest: fx.Harvest) -> None:
        slots = r.rank.scheduler.slots.slots
        key = (r.rank_id, (harvest.iteration + 1) % len(slots))
        launched = self.launched.get(key)
        if launched is None or (harvest.harvested is None and launched[0] > harvest.iteration - len(slots) + 1):
            return
        if harvest.harvested is None:
            self.fail("INV-05", r, f"the batch of iteration {launched[0]} was due and is not harvested")
        del self.launched[key]
        slot = slots[key[1]]
        now = tuple([q.spec.rid for q in slot.launched.requests]) if slot.launched is not None else ()
        if now != launched[1]:
            self.fail("INV-59", r, f"the launched batch held {launched[1]}, at its harvest it holds {now}")

    def _own_samples(self, r: Seat, harvest: fx.Harvest) -> None:
        assert harvest.harvested is not None
        # A decode server gets the first token of a request with its KV, not from its own last rank.
        skip = 1 if r.rank.config.role == "decode" else 0
        rows = zip(harvest.delivered, harvest.token_ids, strict=True)
        tokens = tuple([(rid, token) for (rid, n), token in rows if n > skip])
        aborted = tuple(self.aborted.get(r.rank_id, ()))
        self.tell(Delivers(r.rank_id, r.rank.iteration, r.rank.slot, harvest.harvested, tokens, aborted))

    # --- launches --------------------------------------------------------------------------------------------

    def launches(self, r: Seat, effect: fx.Launch) -> None:
        batch = effect.batch
        key = (r.rank_id, batch.slot)
        if key in self.launched:
            self.fail("INV-06", r, f"slot {batch.slot} still holds the batch of iteration {self.launched[key][0]}")
        self.launched[key] = (batch.iteration, tuple([p.rid for p in batch.pieces]))
        aborted = self.aborted.get(r.rank_id, ())
        for piece in batch.pieces:
            if piece.rid in aborted:
                text = f"it was aborted in iteration {self.aborted[r.rank_id][piece.rid]} and is launched again"
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

    def posted(self, r: Seat, effect: fx.Send) -> None:
        dst, message = effect.dst, effect.message
        if isinstance(message, Meta):
            sent = self.metas.get((r.rank_id, dst), -1)
            if message.iteration != sent + 1:
                before = f"follows that of {sent}" if sent >= 0 else "is the first one that it sends, that of 0 is due"
                self.fail("INV-02", r, f"the request list of iteration {message.iteration} {before}")
            self.metas[r.rank_id, dst] = message.iteration
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
            both = [rid for rid in message.good if rid in message.bad] if message.bad else ()
            if both and message.name not in TERMINAL_VOTES:
                self.fail("INV-56", r, f"{both} are both good and bad in a conclusion of {message.name}")
            if message.lane is Lane.CONTROL:
                self.rules.published(r, message)
        elif isinstance(message, Side | Vote):
            self.answered.sends(r, message)
            self.conclusions.sends(r, message)

    def launched_on(self, r: Seat, effect: fx.Launch, reply: object) -> None:
        """What the last rank sampled for a launch, one token a row; that of a middle chunk counts for nothing."""
        batch = effect.batch
        self.rules.turns.launched(r)
        if r.rank.config.is_last:
            rows = zip(batch.pieces, r.sampled(reply), strict=True)
            tokens = tuple([(piece.rid, token) for piece, token in rows if piece.is_last_chunk])
            self.tell(Samples(r.rank_id, batch.iteration, batch.slot, tokens))

    def awaited(self, r: Seat, effect: fx.AwaitTokens) -> None:
        """Tokens come from the last stage and from nowhere else."""
        output, width = effect.output, r.rank.config.tp_replicas
        if output.sender // width != r.rank.config.pp_size - 1:
            self.fail("INV-44", r, f"rank {output.sender} sampled the tokens of iteration {output.iteration}")

    # --- observations ----------------------------------------------------------------------------------------

    def observed(self, r: Seat, effect: fx.Observe) -> None:
        if isinstance(effect.observation, Clock) and r.rank_id != 0:
            self.fail("INV-58", r, "it looks at its clock; only the first rank may")
        if isinstance(effect.observation, POLLS) and r.phase().startswith("apply_"):
            self.fail("INV-49", r, f"phase {r.phase()} polls {effect.what} of {effect.keys} after the vote")

    def looked(self, r: Seat, effect: fx.Observe, local: Local[tuple[int, ...]]) -> None:
        """What came of it."""
        values = local.value
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

    def _differs(self, what: str, r: Seat, iteration: int, parts: Parts) -> None:
        """A rank's parts are not those of the first rank that came to this iteration, or nobody here knows."""
        self.tell(Shown(r.rank_id, r.rank.iteration, r.rank.slot, what, iteration, parts))

    def fail(self, invariant: str, r: Seat, detail: str, rid: str = "") -> None:
        raise InvariantViolation(invariant, r.rank_id, r.rank.iteration, r.rank.slot, rid, detail)


def nobody_compares(what: str, at: int, values: Values) -> bool:
    """Where the ranks are held against each other later: every record is made."""
    return False


def follow(r: Seat, tell: Callable[[Record], None]) -> None:
    """What lockstep alone needs of a rank, where nothing else is checked (``run.check`` without ``run.invariants``)."""

    def decided(effect: fx.Decided, _: object) -> None:
        d = effect.decision
        tell(Decides(r.rank_id, d.iteration, d.slot, d))

    def harvested(effect: fx.Harvested, _: object) -> None:
        h = effect.harvest
        tell(Harvests(r.rank_id, h.iteration, h.slot, h))

    r.observers.after(decided, fx.Decided)
    r.observers.after(harvested, fx.Harvested)
