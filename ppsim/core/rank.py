"""Everything one rank is, as plain objects: configuration, links, scheduler, outstanding sends (design decision 1).

The generator in ``loop.py`` keeps no state of its own, so digests, checks and tests never look into a frame.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ppsim.core.agreed import Agreed
from ppsim.core.channels import Endpoint
from ppsim.core.checker import Checker, start_checker
from ppsim.core.config import RankConfig
from ppsim.core.effects import Harvest, Reply, Work
from ppsim.core.hooks import Hooks
from ppsim.core.messages import Hidden, Input, Lane, Output, Verdict
from ppsim.core.pd_decode import DecodeRole
from ppsim.core.pd_prefill import PrefillRole
from ppsim.core.roles import Role
from ppsim.core.scheduler import Scheduler
from ppsim.core.slots import LaunchedBatch

NO_HOST_TIER: Agreed[int] = Agreed(0, "no host tier")
ROLES: dict[str, type[Role]] = {"plain": Role, "prefill": PrefillRole, "decode": DecodeRole}


@dataclass(slots=True, eq=False)
class Rank:
    """State of one pipeline rank (protocol.md 1.2). Fields below the line live for one iteration."""

    config: RankConfig
    hooks: Hooks
    link: Endpoint
    iteration: int = 0
    stopped: bool = False
    started: Scheduler | None = None
    checker: Checker | None = None  # None: no call is recorded
    send_req_work: list[Work] = field(default_factory=list)
    send_proxy_work: list[Work] = field(default_factory=list)
    send_output_work: list[Work] = field(default_factory=list)
    pp_outputs: Output | None = None  # received in the previous iteration, to be passed on in this one
    last_rank_comm_queue: deque[Output] = field(default_factory=deque)  # last rank: launched, not yet released
    sweep_had_batch: bool = False
    vote_work: dict[str, list[Work]] = field(default_factory=dict)  # one list a vote: each is waited for alone
    verdict_work: dict[str, list[Work]] = field(default_factory=dict)
    side_work: dict[Lane, list[Work]] = field(default_factory=dict)
    carried: dict[str, Verdict | None] = field(default_factory=dict)  # vote -> conclusion to pass on in this iteration
    applied_verdicts: dict[str, int] = field(default_factory=dict)  # vote -> number of the last applied conclusion
    flushes: deque[tuple[int, tuple[Reply, ...]]] = field(default_factory=deque)  # first rank: iteration, answers held
    last_vote: int | None = None  # iteration of Shutdown: the last one in which a vote is taken
    waits_since_ms: dict[str, int] = field(default_factory=dict)  # by the local clock; never replicated
    runs_since_ms: dict[str, int] = field(default_factory=dict)
    # ----
    inputs: tuple[Input, ...] = ()
    first_pass: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    due: dict[str, Verdict | None] = field(default_factory=dict)  # conclusions received in this iteration
    batch: LaunchedBatch | None = None
    hidden: Hidden | None = None  # received for this batch
    hidden_out: Hidden | None = None  # produced by this batch
    result: Harvest | None = None  # of this iteration, not yet reported
    received: Output | None = None  # output of the slot that is harvested in this iteration

    @property
    def scheduler(self) -> Scheduler:
        """The replicated scheduler; it exists once the capacity is agreed."""
        assert self.started is not None
        return self.started

    def start(self, capacity_tokens: Agreed[int], host_tokens: Agreed[int] = NO_HOST_TIER) -> None:
        """Make the scheduler from the agreed capacities; nothing local can reach it."""
        self.started = Scheduler(self.config, capacity_tokens.value, self.hooks, host_tokens.value)
        self.started.role = ROLES[self.config.role](self.started)
        self.checker = start_checker(self)

    @property
    def slot(self) -> int:
        """Slot visited in this iteration."""
        return self.iteration % self.config.num_slots


def build_rank(config: RankConfig, hooks: Hooks | None = None) -> Rank:
    """A rank that has not started yet."""
    hooks = hooks or Hooks(config.pp_rank, config.tp_rank)
    config = hooks.arguments(config)
    return Rank(config, hooks, Endpoint(config))
