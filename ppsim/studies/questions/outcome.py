"""What a run of a question left: the summary, and what the recording says beyond it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from ppsim.recording import Recording
from ppsim.recording.summary import Life, request_lives
from ppsim.scenario import Scenario

NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run that passed. ``recording`` is the client's side of a disaggregated run, its ``peer`` the prefill side."""

    scenario: Scenario
    recording: Recording
    summary: dict[str, Any]

    # --- requests ---------------------------------------------------------------------------------------------

    def life(self, rid: str) -> Life:
        """A request by its id. Raises KeyError if the run had none."""
        for life in request_lives(self.recording):
            if life.rid == rid:
                return life
        raise KeyError(rid)

    def ttft_s(self, rid: str) -> float:
        """Seconds from a request's arrival to its first token."""
        life = self.life(rid)
        assert life.arrived_ns is not None
        return (life.token_ns[0] - life.arrived_ns) / NS_PER_S

    def token_gap_s(self, rid: str) -> float:
        """Median time between two tokens of a request that follow each other, first and last rounds apart."""
        times = self.life(rid).token_ns
        return median(b - a for a, b in pairwise(times)) / NS_PER_S

    def mean(self, what: str) -> float:
        """Mean of a statistic of the summary in seconds: ttft_s, tpot_s, e2e_s."""
        return float(self.summary[what]["mean"])

    @property
    def makespan_s(self) -> float:
        return float(self.summary["makespan_s"])

    @property
    def input_tokens_per_s(self) -> float:
        return float(self.summary["input_tokens_per_s"])

    @property
    def output_tokens_per_s(self) -> float:
        return float(self.summary["output_tokens_per_s"])

    # --- batches ----------------------------------------------------------------------------------------------

    def num_batches(self, *modes: str) -> int:
        """Launched batches of these modes (extend, decode, mixed)."""
        return sum(decision.mode in modes for decision in self.recording.decisions[0])

    def starts_s(self, *modes: str, before_s: float = float("inf")) -> list[float]:
        """When the first rank began each batch of these modes, in order."""
        wanted = {d.iteration for d in self.recording.decisions[0] if d.mode in modes}
        spans = [s for s in self.recording.spans[0] if s.stream == "forward" and s.iteration in wanted]
        return [s.start_ns / NS_PER_S for s in spans if s.start_ns / NS_PER_S < before_s]

    def longest_gap_s(self, *modes: str) -> float:
        """Longest time between the beginnings of two such batches that follow each other."""
        return max((b - a for a, b in pairwise(self.starts_s(*modes))), default=0.0)

    def launches(self, rid: str) -> list[int]:
        """Iterations of the batches that hold a piece of the request."""
        return [d.iteration for d in self.recording.decisions[0] if any(p[0] == rid for p in d.pieces)]

    def chunk_sizes(self, rid: str) -> list[int]:
        """New tokens of the request's pieces, in order."""
        return [new for d in self.recording.decisions[0] for name, _, new in d.pieces if name == rid]

    def begin_s(self, rank: int) -> dict[int, float]:
        """When the rank began the forward pass of each iteration."""
        return {s.iteration: s.start_ns / NS_PER_S for s in self.recording.spans[rank] if s.stream == "forward"}

    def forward_s(self, rank: int) -> list[float]:
        """How long each forward pass of a rank took, in order."""
        return [(s.end_ns - s.start_ns) / NS_PER_S for s in self.recording.spans[rank] if s.stream == "forward"]
