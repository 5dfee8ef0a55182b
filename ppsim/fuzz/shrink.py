"""Shrinking: the smallest experiment that still shows the same bug.

Coarse before fine: requests, then faults (aborts, flushes, observations, clocks, jitter), then ranks and slots, then
features and numbers, then the choices of the tape. Choices of named streams are what they are whatever else is left
out, a tape is not: so an experiment keeps its chooser until nothing coarse can be left out any more. A candidate
counts only if it is a valid scenario and its run fails with the same signature (invariant and rank role), so the bug
cannot turn into another one on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.core.parts import UNCHANGED, Change
from ppsim.errors import ScenarioError
from ppsim.fuzz.experiment import (
    ANY_ROLE,
    USUAL,
    Experiment,
    Outcome,
    Signature,
    Terms,
    is_valid,
    run_experiment,
)
from ppsim.fuzz.shrink_passes import PASSES, Candidate, fewer_ranks, stages, tidied, without_last_zeros

MAX_RUNS = 600
MANY_STAGES = 3  # a pipeline of first, middle and last shows nearly everything


@dataclass
class Shrinker:
    """Greedy descent; ``runs`` counts the experiments that were tried.

    What must stay is the signature of the failure; a subclass may ask for something else (``still_holds``). Where
    bugs are on and the right protocol passes at first, it must pass at every step: else what is left in the end may
    be a scenario that no protocol survives (everybody sends first, on links that block).
    """

    signature: Signature
    change: Change | None
    max_runs: int = MAX_RUNS
    terms: Terms = USUAL
    runs: int = 0
    tried: set[str] = field(default_factory=set)  # keys of candidates that do not show it
    change_is_at_fault: bool = False

    def shrink(self, experiment: Experiment) -> Experiment:
        """Apply all passes until none of them finds anything smaller.

        What is small in requests may need all of its many stages: then once more, with fewer stages from the start,
        and whichever rank it is that breaks the same invariant there.
        """
        self.change_is_at_fault = self.change not in (None, UNCHANGED) and self._passes_without(experiment)
        best, wanted = self._smallest(experiment), self.signature
        if stages(best) <= MANY_STAGES:
            return best
        self.signature = Signature(wanted.invariant, ANY_ROLE)
        self.tried.clear()  # by the role that was wanted
        fewer = self._descend(experiment, fewer_ranks)
        if stages(fewer) < stages(best):
            return self._smallest(fewer)
        self.signature = wanted
        return best

    def _smallest(self, best: Experiment) -> Experiment:
        best = self._on_tape(self._repeated(best))
        best = self._repeated(best)
        self.max_runs += 1  # whatever was used up: this one is left
        return self._descend(best, tidied)

    def _repeated(self, best: Experiment) -> Experiment:
        """All passes, until none of them finds anything smaller."""
        while True:
            before = best.key()
            for candidates in PASSES:
                best = self._descend(best, candidates)
            if best.key() == before or self.runs >= self.max_runs:
                return best

    def _on_tape(self, best: Experiment) -> Experiment:
        """The same run, by the tape of its choices."""
        if best.chooser.kind == "tape":
            return best
        self.runs += 1
        return Experiment(best.raw, without_last_zeros(run_experiment(best, self.change, terms=self.terms).tape))

    def _descend(self, best: Experiment, candidates: Candidate) -> Experiment:
        """One sweep: after a success go on at the same place, where the next smaller candidate stands now."""
        position, improved = 0, True
        while improved:
            improved = False
            for i, candidate in enumerate(candidates(best)):
                if i >= position and candidate.key() != best.key() and self._holds(candidate):
                    best, position, improved = candidate, i, True
                    break
        return best

    def _holds(self, candidate: Experiment) -> bool:
        key = candidate.key()
        if self.runs >= self.max_runs or key in self.tried or not is_valid(candidate):
            return False
        self.runs += 1
        try:
            holds = self.still_holds(run_experiment(candidate, self.change, terms=self.terms))
            if holds and (not self.change_is_at_fault or self._passes_without(candidate)):
                return True
        except ScenarioError:
            pass
        self.tried.add(key)
        return False

    def _passes_without(self, experiment: Experiment) -> bool:
        """Whether the right protocol has no trouble with it."""
        return run_experiment(experiment, terms=self.terms).signature is None

    def still_holds(self, outcome: Outcome) -> bool:
        """Whether a run shows what the first one showed: the same invariant, broken by a rank of the same role."""
        return self.signature.is_like(outcome.signature)
