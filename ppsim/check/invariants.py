"""The invariants of lockstep (protocol.md section 12), numbered as there: what each says and who checks it.

``owner`` are the checks themselves: functions that raise ``InvariantViolation`` (or ``ProtocolError`` with this number)
when the rule is broken, or that say what is compared for it. Every number has a planted bug that breaks it
(``ppsim list bugs``), or says here why there can be none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias

from ppsim.check import lockstep, physical, progress, together
from ppsim.check.answered import Answered
from ppsim.check.audit import Audit
from ppsim.check.client_watch import Watch
from ppsim.check.conclusions import Conclusions
from ppsim.check.early_ends import EarlyEnds
from ppsim.check.leftovers import rank_leftover, unanswered
from ppsim.check.one_place import OnePlace, misplaced
from ppsim.check.page_claims import PageClaims
from ppsim.check.page_contents import PageContents
from ppsim.check.reads import LaunchReads
from ppsim.check.replies import Replies
from ppsim.check.rows import Rows
from ppsim.check.rule_facts import FACTS
from ppsim.check.rules import Rules
from ppsim.check.tier_rules import TierRules
from ppsim.check.time_limits import TimeLimits
from ppsim.check.together import Together
from ppsim.check.transfers import TransferRules, not_covered_once
from ppsim.check.turn_rules import TurnRules
from ppsim.check.wait_limits import Agreements, Movement, Retractions
from ppsim.check.waits import Waits
from ppsim.core import phases, start
from ppsim.core.channels import Endpoint
from ppsim.core.disagg import ballots
from ppsim.core.exchange import Exchange
from ppsim.core.schedule.scheduler import Scheduler, causes, limits, state_parts
from ppsim.core.tiers import take_in
from ppsim.core.votes import Voting
from ppsim.errors import UsageError

Owner: TypeAlias = tuple[Callable[..., Any], ...]


@dataclass(frozen=True, slots=True)
class Invariant:
    """One rule. ``number`` is that of protocol.md section 12 up to 64."""

    number: int
    statement: str
    owner: Owner
    unbreakable: str = ""  # why no run can break it, if none can
    fact: str = ""  # what the rule is held against

    @property
    def name(self) -> str:
        return f"INV-{self.number:02d}"

    @property
    def checked_by(self) -> str:
        """The owners in words: file and function."""
        return ", ".join(f"{owner.__module__.rpartition('.')[2]}.{owner.__qualname__}" for owner in self.owner)


def _table() -> tuple[Invariant, ...]:
    rows: list[tuple[int, str, Owner]] = [
        (1, "the ordered request list of an iteration is the same on every rank", (Audit.before_decision,)),
        (
            2,
            "every rank sends and receives one request message per iteration, also an empty one",
            (Audit.posted, Audit._has_list),
        ),
        (3, "all ranks run with the same sizes and scheduling arguments", (start._receive,)),
        (4, "slots are visited 0..L-1 in a circle, none is left out", (Audit.before_decision,)),
        (5, "a batch launched at iteration b is harvested once, at b+L-1, on every rank", (Audit.harvested,)),
        (6, "no slot is scheduled again before its batch was harvested", (Audit.launches,)),
        (
            7,
            "rank k starts iteration i only after rank k-1 processed the list of iteration i",
            (Audit.before_decision,),
        ),
        (8, "once its request send of iteration i is waited for, the next rank has started i-1", (Audit.posted,)),
        (9, "a slot's batch is empty on one rank if and only if it is on all", (lockstep.differ,)),
        (10, "the ordered requests of a batch are the same", (lockstep.differ,)),
        (11, "mode, extend ranges and token counts of a batch are the same", (lockstep.differ,)),
        (12, "the last-chunk flag and the skip rule's result are the same", (state_parts,)),
        (
            13,
            "the chunked request and every count of middle chunks in flight are the same",
            (lockstep.differ, state_parts),
        ),
        (14, "the waiting queue is the same, in order", (lockstep.differ, state_parts)),
        (15, "the running set of every slot is the same, in order", (state_parts,)),
        (16, "batch_is_full of each slot is the same when read", (state_parts,)),
        (17, "new_token_ratio is the same when read", (state_parts,)),
        (18, "retracted requests and their order are the same", (lockstep.differ,)),
        (19, "the choice between prefill and decode is the same in each visit", (lockstep.differ,)),
        (20, "the chunk budget is the same", (limits,)),
        (21, "a change of pp_max_micro_batch_size takes effect in the same iteration", (limits,)),
        (22, "token and request-row capacities are the same", (Audit.before_decision,)),
        (
            23,
            "free and evictable token counts are the same before each memory check",
            (lockstep.differ, state_parts, rank_leftover, Rules._pages),
        ),
        (24, "free rows and metadata buffers are the same before each use", (state_parts, rank_leftover)),
        (25, "the radix tree's history of operations is the same before each use", (state_parts,)),
        (26, "the sequence of evicted nodes is the same", (state_parts,)),
        (27, "a request's matched prefix is the same at admission", (limits,)),
        (
            28,
            "acks, prefetch hits and load-backs of the cache tiers are the same in number and order",
            (causes, take_in),
        ),
        (29, "idle resets happen in the same iteration", (state_parts,)),
        (30, "nothing frees memory between two iterations by a local clock", (Audit.between,)),
        (31, "on each lane sends and receives agree in type and logical iteration", (Endpoint.receive,)),
        (
            32,
            "hidden states are sent if and only if they are received, with the receiver's token count",
            (phases.receive_hidden,),
        ),
        (33, "an output is forwarded if and only if the next rank expects it", (Endpoint.receive,)),
        (34, "an output has one row for each request of the launched batch, in order", (Exchange.receive_output,)),
        (
            35,
            "the last rank's queue holds the launched, unreleased outputs, in order",
            (Exchange.release, Audit.before_decision),
        ),
        (36, "the inbox is empty at the end of an iteration", (Audit.before_decision, rank_leftover)),
        (
            37,
            "a second-pass message exists depending on the iteration number only",
            (Audit.posted, Voting.receive_conclusion),
        ),
        (
            38,
            "a send buffer is not given up before its send was waited for",
            (physical.buffer_given_up, physical.never_committed),
        ),
        (39, "a graph-owned buffer is not rewritten before its send is over", (physical.graph_buffer_rewritten,)),
        (40, "neighbours never both block in an unmatched output send", (progress.first_without_progress,)),
        (41, "the tokens appended are the last rank's samples, on all ranks", (lockstep.differ, Together._own_samples)),
        (42, "requests finish in the same iteration", (lockstep.differ,)),
        (43, "the grammar queue is the same, in order", (causes,)),
        (44, "only the last rank samples", (Audit.awaited,)),
        (45, "the placeholder of a skipped exchange is never appended", (Scheduler.absorb,)),
        (46, "the queues of a role are the same, in order", (causes, rank_leftover)),
        (47, "a request advances on one rank if and only if on all, in the same iteration", (causes, Together._agrees)),
        (48, "a request that failed on one rank fails on all, in the same iteration", (causes, Together._agrees)),
        (49, "applying a conclusion does not look at local state again", (Audit.observed,)),
        (50, "the poll list has one entry for each request of the bootstrap queue", (ballots.agree_bootstrap,)),
        (51, "a request that left the first rank's queue leaves every rank's", (together.refined_queues,)),
        (52, "KV is released on a rank only when its own transfer is terminal", (Audit.released, Together._agrees)),
        (53, "retracted requests are bound to the same slot", (state_parts,)),
        (54, "the store's view of a status only lags: values of the past, in order", (Audit.store_read,)),
        (55, "a missing status is never read as progress", (Audit.store_read,)),
        (56, "bad wins over good", (Audit.posted,)),
        (57, "an abort takes effect in the same iteration on all ranks", (causes,)),
        (58, "no rank but the first looks at a clock", (Audit.observed,)),
        (59, "the composition of a launched batch does not change before its harvest", (Audit._harvest_launched,)),
        (60, "an aborted request launches no further chunk", (Audit.launches,)),
        (61, "every request gets exactly one terminal reply", (Watch.replied, unanswered, Replies.iteration_over)),
        (62, "no unordered container influences an order", (together.refined,)),
        (63, "a feature is switched off on all ranks or on none", (limits,)),
        (64, "a page is not reused while a launched batch of its former owner is in flight", (PageClaims.claim,)),
    ]
    return tuple(Invariant(*row, fact=FACTS[row[0]]) for row in rows)


RULES: tuple[Invariant, ...] = (
    Invariant(
        65,
        "KV is sent only when the forward pass that computed it has ended",
        (physical.sent_before_computed,),
        fact="the end of that forward pass",
    ),
    Invariant(
        66,
        "KV is held for known tokens only; a retracted request holds none",
        (Rules._pages,),
        fact="the tokens that are known, and the pages that are held",
    ),
    Invariant(
        67,
        "a request that is marked for abort delivers nothing more",
        (Rules.harvested,),
        fact="the aborts that the rank has read",
    ),
    Invariant(
        68,
        "nobody is marked for abort whom no abort names",
        (Rules._newly_marked,),
        fact="the aborts of this iteration's list",
    ),
    Invariant(
        69,
        "who can run runs: admissions fit, slots are closed for a reason",
        (Rules._admissions, Rules._closed_slot),
        fact="free places, rows and pages",
    ),
    Invariant(
        70,
        "every wait on a remote event ends",
        (physical.waits_for_ever,),
        fact="whether anything is still to happen",
    ),
    Invariant(
        71,
        "every relay forwards every field of an output",
        (Exchange.receive_output,),
        fact="the fields that the batch asks for",
    ),
    Invariant(
        72,
        "no rank stands still for an agreement",
        (Agreements.ends,),
        fact="the rank's clock before and after",
    ),
    Invariant(
        73,
        "the cache is emptied only while nothing is in flight",
        (Rules._flushes,),
        fact="the launches that are not harvested",
    ),
    Invariant(
        74,
        "what is sent of a request's KV covers its prompt once, without gap or overlap",
        (TransferRules.acts, not_covered_once),
        fact="the token ranges that were asked for, and those that have landed",
    ),
    Invariant(
        75,
        "a decode server computes on KV that the other side has written, on the pages that it gave",
        (TransferRules._has_come,),
        fact="the token ranges that have landed, and the pages that the senders were given",
    ),
    Invariant(
        76,
        "a client is told the tokens 1..n of its request, in order, once each, as they were sampled",
        (Replies.replied, Replies.iteration_over, Together._own_samples),
        fact="the tokens that were sampled, on whichever side, and the replies sent",
    ),
    Invariant(
        77,
        "a request ends with the token that its limit or a stop token says, and not before",
        (Replies._ends_where_it_should,),
        fact="the tokens that were told, and what the client asked for",
    ),
    Invariant(
        78,
        "a launch reads hidden states, tokens and pages of its own iteration and batch, as they were written",
        (Together._as_written, LaunchReads._feeds, PageContents._read, PageContents._stands_on),
        fact="the content of what was written and of what is read",
    ),
    Invariant(
        79,
        "what is concluded is what the ranks saw, and nobody moves without a conclusion",
        (Conclusions.looked, Conclusions.sends, Conclusions.acts, Conclusions.decides, Together._named),
        fact="the statuses of all ranks, and the conclusion that was published",
    ),
    Invariant(
        80,
        "a live request is in exactly one queue, slot, chunk place or batch",
        (misplaced, OnePlace._judge),
        fact="the containers of the rank, after each decision, each harvest and each iteration",
    ),
    Invariant(
        81,
        "an ack of the cache tiers is consumed on a rank only when its own copy is over, and in order",
        (TierRules._consumed,),
        fact="begin and end of the rank's own copies, as its world knows them",
    ),
    Invariant(
        82,
        "a host page is held by what names it, and read only when the copy that fills it is over",
        (TierRules.audit, TierRules.begins, TierRules._started, TierRules._kept, TierRules.behind_loads),
        fact="the tree's nodes, the copies under way, their times and what storage had",
    ),
    Invariant(
        83,
        "a turn that a limit on prefills or chunks in a row promises is given",
        (TurnRules.decided,),
        fact="the decisions, counted by the rule itself",
    ),
    Invariant(
        84,
        "no request is put out of memory more often than run.max_retractions, and who was comes back",
        (Retractions.look, Movement.look),
        fact="the decisions of the first rank",
    ),
    Invariant(
        85,
        "no request waits for longer than run.max_wait_iterations and run.max_wait_ms",
        (Movement.look, Waits.look),
        fact="what the first rank's requests show, and its clock",
    ),
    Invariant(
        86,
        "a flush is answered when every rank has emptied its cache, and not before",
        (Together._flushed,),
        fact="the cache of each rank at the decision behind the flush",
    ),
    Invariant(
        87,
        "a request that fails on the other side while it waits for its turn leaves the queue of all ranks",
        (Answered._waiting,),
        fact="the state of the rank's own transfer, in its world",
    ),
    Invariant(
        88,
        "nobody is turned away who could be served, and nobody ends early whom no abort and no want of memory ends",
        (EarlyEnds._refused, EarlyEnds._unfit, EarlyEnds._ended, TimeLimits.decided),
        fact="what asks and what fits, when it is turned away; the aborts read, the memory that is left, and how long "
        "it has waited or run by the clock that its rank was shown",
    ),
    Invariant(
        89,
        "a request is put out of memory only where the next tokens of its slot do not fit with it",
        (EarlyEnds.put_out,),
        fact="the pages that those tokens need, and those that can be had",
    ),
    Invariant(
        90,
        "a row's token counts if and only if the row ends with the last known token of its request",
        (Rows._row,),
        fact="where the rows of the request begin and end, and its prompt and output",
    ),
)
"""Rules of public bug reports that no number of section 12 says (docs/bugs.md).

They go on from 65, and stand for the rules I9, I10, I12, I13, I14, I15, I17, I18 and I20 of bugs.md, in this order.
From 74 on they are the partners of rules that trust a flag, or compare ranks only with each other.
"""

INVARIANTS: tuple[Invariant, ...] = _table()
BY_NAME: dict[str, Invariant] = {rule.name: rule for rule in (*INVARIANTS, *RULES)}


class Breaking(Protocol):
    """A planted bug, as far as it says what it breaks (``ppsim.plugin.Planted``)."""

    @property
    def name(self) -> str: ...

    @property
    def breaks(self) -> str: ...

    @property
    def classes(self) -> tuple[type, ...]: ...


def check_breaks(where: str, bugs: Iterable[Breaking]) -> None:
    """Raise UsageError for a planted bug that is to break a rule that there is not. ``where``: the file, or module."""
    for bug in bugs:
        check_rule(f"{where}: {bug.classes[0].__name__}: bug {bug.name!r}", bug.breaks)


def check_rule(who: str, name: str) -> None:
    """Raise UsageError where ``who`` names a rule that there is not."""
    if name not in BY_NAME:
        near = get_close_matches(name, BY_NAME, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"{who} breaks {name!r}, which is no rule ({hint}see: ppsim list invariants)")
