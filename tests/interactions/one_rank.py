"""The logical loop of a single rank without any messages: apply, schedule, absorb, sweep by sweep (protocol.md 1.3)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ppsim.core.effects import Decision, Harvest, Reply
from ppsim.core.messages import Input
from ppsim.core.parts import UNCHANGED, Change
from ppsim.core.schedule.slots import LaunchedBatch
from ppsim.fuzz.coverage import Coverage
from tests.interactions.experiment import Experiment, sampled


@dataclass
class Visit:
    """What one iteration did."""

    iteration: int
    batch: LaunchedBatch | None
    decision: Decision
    harvest: Harvest


@dataclass
class OneRank:
    """``tokens`` are the sampled tokens of each launched batch, by its iteration."""

    experiment: Experiment
    change: Change = UNCHANGED
    replies: list[Reply] = field(default_factory=list)
    tokens: dict[int, tuple[int, ...] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config, capacity, change = self.experiment.config, self.experiment.capacity_tokens, self.change
        self.scheduler = change.parts.make_scheduler(config, capacity, 0, change.policy())
        self.coverage = Coverage(self.scheduler.journal)
        self.iteration = 0
        self.sweep_had_batch = False

    def visit(self, *inputs: Input) -> Visit:
        """One iteration: inputs, decision, harvest, and the idle housekeeping at the end of a sweep."""
        self.scheduler.apply((*self.experiment.due(self.iteration), *inputs))
        batch, decision = self.scheduler.schedule(self.iteration)
        if batch is not None:
            self.tokens[self.iteration] = sample(batch)
        self.sweep_had_batch |= batch is not None
        due = self.scheduler.slots.to_harvest(self.iteration)
        tokens = self.tokens[due.launched.iteration] if due.in_flight and due.launched else None
        self.scheduler.absorb(self.iteration, tokens)
        harvest = self.scheduler.harvest(self.iteration)
        if (self.iteration + 1) % len(self.scheduler.slots) == 0:
            if not self.sweep_had_batch:
                self.scheduler.on_idle()
            self.sweep_had_batch = False
        self.replies += self.scheduler.journal.take_replies()
        self.scheduler.journal.flush()
        self.iteration += 1
        return Visit(self.iteration - 1, batch, decision, harvest)

    @property
    def over(self) -> bool:
        return self.iteration > self.experiment.last_arrival and self.scheduler.fully_idle

    def visits(self) -> Iterator[Visit]:
        """Until nothing is left to do. Raises AssertionError beyond the liveness bound of the experiment."""
        limit = self.experiment.max_iterations
        while not self.over:
            assert self.iteration <= limit, f"no end after {limit} iterations: {list(self.scheduler.requests)} remain"
            yield self.visit()


def sample(batch: LaunchedBatch) -> tuple[int, ...] | None:
    """What the last rank would sample; None where the skip rule leaves the output out."""
    if batch.forward.skip_output_comm:
        return None
    return tuple(
        sampled(piece.rid, len(request.output_ids) + 1) if piece.is_last_chunk else 77
        for piece, request in zip(batch.forward.pieces, batch.requests, strict=True)
    )
