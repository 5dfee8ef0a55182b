"""The invariants of lockstep (protocol.md section 12), numbered as there: what each says and who checks it.

``owner`` names the check: a class or function that raises ``InvariantViolation`` (or ``ProtocolError`` with this
number) when it is broken. "type" marks what the type checker holds instead of a run. Every number has a planted bug
that breaks it (``ppsim list bugs``), or says here why there can be none.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Invariant:
    """One rule. ``number`` is that of protocol.md section 12 up to 64."""

    number: int
    statement: str
    owner: str
    unbreakable: str = ""  # why no run can break it, if none can

    @property
    def name(self) -> str:
        return f"INV-{self.number:02d}"


def _table() -> tuple[Invariant, ...]:
    rows: list[tuple[int, str, str] | tuple[int, str, str, str]] = [
        (1, "the ordered request list of an iteration is the same on every rank", "audit.inputs"),
        (2, "every rank sends and receives one request message per iteration, also an empty one", "audit.posted"),
        (3, "all ranks run with the same sizes and scheduling arguments", "core.start"),
        (4, "slots are visited 0..L-1 in a circle, none is left out", "audit.slots"),
        (5, "a batch launched at iteration b is harvested once, at b+L-1, on every rank", "audit.harvests"),
        (6, "no slot is scheduled again before its batch was harvested", "audit.launches"),
        (7, "rank k starts iteration i only after rank k-1 processed the list of iteration i", "audit.skew"),
        (8, "once its request send of iteration i is waited for, the next rank has started i-1", "audit.posted"),
        (9, "a slot's batch is empty on one rank if and only if it is on all", "lockstep"),
        (10, "the ordered requests of a batch are the same", "lockstep"),
        (11, "mode, extend ranges and token counts of a batch are the same", "lockstep"),
        (12, "the last-chunk flag and the skip rule's result are the same", "audit.parts"),
        (13, "the chunked request and every count of middle chunks in flight are the same", "lockstep, audit.parts"),
        (14, "the waiting queue is the same, in order", "lockstep, audit.parts"),
        (15, "the running set of every slot is the same, in order", "audit.parts"),
        (16, "batch_is_full of each slot is the same when read", "audit.parts"),
        (17, "new_token_ratio is the same when read", "audit.parts"),
        (18, "retracted requests and their order are the same", "lockstep"),
        (19, "the choice between prefill and decode is the same in each visit", "lockstep"),
        (20, "the chunk budget is the same", "audit.parts"),
        (21, "a change of pp_max_micro_batch_size takes effect in the same iteration", "audit.parts"),
        (22, "token and request-row capacities are the same", "audit.capacities"),
        (23, "free and evictable token counts are the same before each memory check", "lockstep, audit.parts"),
        (24, "free rows and metadata buffers are the same before each use", "audit.parts"),
        (25, "the radix tree's history of operations is the same before each use", "audit.parts"),
        (26, "the sequence of evicted nodes is the same", "audit.parts"),
        (27, "a request's matched prefix is the same at admission", "audit.parts"),
        (28, "acks, prefetch hits and load-backs of the cache tiers are the same in number and order", "audit.parts"),
        (29, "idle resets happen in the same iteration", "audit.parts"),
        (30, "nothing frees memory between two iterations by a local clock", "audit.between"),
        (31, "on each lane sends and receives agree in type and logical iteration", "core.channels"),
        (32, "hidden states are sent if and only if they are received, with the receiver's token count", "core.phases"),
        (33, "an output is forwarded if and only if the next rank expects it", "core.channels"),
        (34, "an output has one row for each request of the launched batch, in order", "core.phases"),
        (35, "the last rank's queue holds the launched, unreleased outputs, in order", "core.phases, audit.queue"),
        (36, "the inbox is empty at the end of an iteration", "audit.inbox"),
        (37, "a second-pass message exists depending on the iteration number only", "audit.posted"),
        (38, "a send buffer is not given up before its send was waited for", "world.driver"),
        (39, "a graph-owned buffer is not rewritten before its send is over", "world.streams"),
        (40, "neighbours never both block in an unmatched output send", "world.ending"),
        (41, "the tokens appended are the last rank's samples, on all ranks", "lockstep, audit.samples"),
        (42, "requests finish in the same iteration", "lockstep"),
        (43, "the grammar queue is the same, in order", "audit.parts"),
        (44, "only the last rank samples", "audit.samples"),
        (45, "the placeholder of a skipped exchange is never appended", "core.scheduler"),
        (46, "the queues of a role are the same, in order", "audit.parts"),
        (47, "a request advances on one rank if and only if on all, in the same iteration", "audit.parts"),
        (48, "a request that failed on one rank fails on all, in the same iteration", "audit.parts"),
        (49, "applying a conclusion does not look at local state again", "audit.observed"),
        (50, "the poll list has one entry for each request of the bootstrap queue", "core.pd_phases"),
        (51, "a request that left the first rank's queue leaves every rank's", "audit.parts"),
        (52, "KV is released on a rank only when its own transfer is terminal", "audit.released"),
        (53, "retracted requests are bound to the same slot", "audit.parts"),
        (54, "the store's view of a status only lags: values of the past, in order", "audit.stored"),
        (55, "a missing status is never read as progress", "audit.stored"),
        (56, "bad wins over good", "audit.posted"),
        (57, "an abort takes effect in the same iteration on all ranks", "audit.parts"),
        (58, "no rank but the first looks at a clock", "audit.observed"),
        (59, "the composition of a launched batch does not change before its harvest", "audit.harvests"),
        (60, "an aborted request launches no further chunk", "audit.launches"),
        (61, "every request gets exactly one terminal reply", "world.watch, world.ending"),
        (62, "no unordered container influences an order", "audit.parts"),
        (63, "a feature is switched off on all ranks or on none", "audit.parts"),
        (64, "a page is not reused while a launched batch of its former owner is in flight", "audit.launches"),
    ]
    return tuple(Invariant(*row) for row in rows)


RULES: tuple[Invariant, ...] = (
    Invariant(65, "KV is sent only when the forward pass that computed it has ended", "world.pd_transfer"),
    Invariant(66, "KV is held for known tokens only; a retracted request holds none", "world.rules"),
    Invariant(67, "a request that is marked for abort delivers nothing more", "world.rules"),
    Invariant(68, "nobody is marked for abort whom no abort names", "world.rules"),
    Invariant(69, "who can run runs: admissions fit, slots are closed for a reason, turns are given", "world.rules"),
    Invariant(70, "every wait on a remote event ends", "world.pd_simulate"),
    Invariant(71, "every relay forwards every field of an output", "core.phases"),
    Invariant(72, "no rank stands still for an agreement", "world.patience"),
    Invariant(73, "the cache is emptied only while nothing is in flight", "world.rules"),
)
"""Rules of public bug reports that no number of section 12 says (docs/bugs.md).

They go on from 65, and stand for the rules I9, I10, I12, I13, I14, I15, I17, I18 and I20 of bugs.md, in this order.
"""

INVARIANTS: tuple[Invariant, ...] = _table()
BY_NAME: dict[str, Invariant] = {rule.name: rule for rule in (*INVARIANTS, *RULES)}
