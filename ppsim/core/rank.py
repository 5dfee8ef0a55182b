"""Everything one rank is, as plain objects: configuration, links, scheduler, outstanding sends (design decision 1).

The generator in ``loop.py`` keeps no state of its own, so nobody ever has to look into a frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from ppsim.core.agreed import Agreed
from ppsim.core.channels import Endpoint
from ppsim.core.checker import Checker, start_checker
from ppsim.core.config import RankConfig
from ppsim.core.effects import Effects, Work
from ppsim.core.messages import Conclusion, Hidden, Input, Lane, Output
from ppsim.core.policy import Policy
from ppsim.core.schedule.journal import Journal
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import LaunchedBatch

MakeScheduler: TypeAlias = Callable[[RankConfig, int, int, Policy, Journal], Scheduler]
"""From the configuration, the agreed capacities of KV pool and host tier in tokens, the policy and the journal."""

Phase: TypeAlias = "Callable[[Rank], Effects[None]]"
"""A step of an iteration: changes the rank, returns the effects that it asks. Known by its ``__name__``."""
Plan: TypeAlias = tuple[Phase, ...]
F = TypeVar("F", bound=Callable[..., object])


def only_where(needs: Callable[[RankConfig], bool]) -> Callable[[F], F]:
    """A note on a phase: with any other configuration it has nothing to do, and the event loop leaves it out.

    The phase looks at its configuration all the same: others call it without asking (``ppsim/world/scripts.py``).
    """

    def note(phase: F) -> F:
        phase.__dict__["needs"] = needs
        return phase

    return note


def is_needed(phase: Phase, config: RankConfig) -> bool:
    """Whether a phase may have something to do; one without a note always may."""
    needs = getattr(phase, "needs", None)
    return needs is None or bool(needs(config))


@dataclass(slots=True, eq=False)
class Rank:
    """State of one pipeline rank (protocol.md 1.2). Fields below the line live for one iteration."""

    config: RankConfig
    policy: Policy
    link: Endpoint
    make_scheduler: MakeScheduler
    plan: Plan = ()  # the phases of an iteration, in order (loop.py)
    at_end: Plan = ()  # what is still owed to others after the last one
    refusals: dict[str, int] = field(default_factory=dict)  # by rid: allocations still refused, on all ranks alike
    local_tokens: tuple[int, int] = (0, 0)  # capacities of this rank alone: KV pool, host tier
    iteration: int = 0
    stopped: bool = False
    started: Scheduler | None = None  # the same as ``scheduler``; None: not yet
    journal: Journal = field(default_factory=Journal)
    checker: Checker | None = None  # None: no call is recorded
    send_req_work: list[Work] = field(default_factory=list)
    send_proxy_work: list[Work] = field(default_factory=list)
    send_output_work: list[Work] = field(default_factory=list)
    pp_outputs: Output | None = None  # received in the previous iteration, to be passed on in this one
    last_rank_comm_queue: deque[Output] = field(default_factory=deque)  # last rank: launched, not yet released
    sweep_had_batch: bool = False
    vote_work: dict[str, list[Work]] = field(default_factory=dict)  # one list a vote: each is waited for alone
    conclusion_work: dict[str, list[Work]] = field(default_factory=dict)
    side_work: dict[Lane, list[Work]] = field(default_factory=dict)
    carried: dict[str, Conclusion | None] = field(default_factory=dict)  # vote -> conclusion to pass on now
    applied_conclusions: dict[str, int] = field(default_factory=dict)  # vote -> number of the last applied conclusion
    flushes: deque[tuple[int, tuple[str, ...]]] = field(default_factory=deque)  # first rank: iteration, unanswered
    last_vote: int | None = None  # iteration of Shutdown: the last one in which a vote is taken
    waits_since_ms: dict[str, int] = field(default_factory=dict)  # by the local clock; never replicated
    runs_since_ms: dict[str, int] = field(default_factory=dict)
    # ----
    inputs: tuple[Input, ...] = ()
    first_pass: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    due: dict[str, Conclusion | None] = field(default_factory=dict)  # conclusions received in this iteration
    batch: LaunchedBatch | None = None
    hidden: Hidden | None = None  # received for this batch
    hidden_out: Hidden | None = None  # produced by this batch
    received: Output | None = None  # output of the slot that is harvested in this iteration
    scheduler: Scheduler = field(init=False)  # the replicated scheduler; it exists once the capacity is agreed

    def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] | None = None) -> None:
        """Make the scheduler from the agreed capacities (None: no host tier); nothing local can reach it."""
        num_host_tokens = 0 if host_tokens is None else host_tokens.value
        self.started = self.scheduler = self.make_scheduler(
            self.config, capacity_tokens.value, num_host_tokens, self.policy, self.journal
        )
        s = self.scheduler
        s.refusals_left = self.refusals
        owners = (s, s.role, s.kv, s.kv.tree, s.kv.pool)
        self.checker = start_checker(self.config, owners, lambda: self.iteration)

    @property
    def slot(self) -> int:
        """Slot visited in this iteration."""
        return self.iteration % self.config.num_slots

    @property
    def first_layer(self) -> int:
        """Number of the layer that this rank's stage begins with: what all stages before it hold (bugs.md B64)."""
        return self.config.first_layer

    @property
    def watches_timeouts(self) -> bool:
        """Only the first rank looks at a clock; it turns what it sees into replicated aborts (bugs.md B02)."""
        return self.config.is_first and self.link.is_leader
