"""Runs of the questions' scenarios, each distinct one made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ppsim.errors import PpsimError
from ppsim.recording.summary import summarize
from ppsim.scenario import load_scenario
from ppsim.studies.questions.asked import Answered, Question, Variant, answer
from ppsim.studies.questions.outcome import Outcome
from ppsim.world import simulate


class Runs:
    """A cache of runs: the simulator is deterministic, so a scenario with its overrides is the run. ``fast``: whether
    one rank stands for all; None: where it can."""

    def __init__(self, fast: bool | None = None) -> None:
        self.fast = fast
        self._made: dict[tuple[str, tuple[str, ...]], Outcome] = {}

    def outcome(self, scenario: str, overrides: tuple[str, ...]) -> Outcome:
        """The run. Raises PpsimError if it does not pass."""
        key = (scenario, overrides)
        if key not in self._made:
            loaded = load_scenario(scenario, overrides)
            result = simulate(loaded, fast=self.fast)
            if result.verdict.kind != "pass":
                raise PpsimError(f"{scenario} with {', '.join(overrides) or 'no override'}: {result.verdict.message}")
            self._made[key] = Outcome(loaded, result.recording, summarize(result.recording, result.verdict))
        return self._made[key]

    def answer(self, question: Question) -> Answered:
        """Run all variants of a question and compare."""
        return answer(question, Variants(self, question))


class Variants(Mapping[str, Outcome]):
    """The variants of a question by label; a run is made when it is first looked at."""

    def __init__(self, runs: Runs, question: Question) -> None:
        self._runs, self._question = runs, question
        self._by_label: dict[str, Variant] = {v.label: v for v in question.variants}

    def __getitem__(self, label: str) -> Outcome:
        variant = self._by_label[label]
        return self._runs.outcome(variant.scenario or self._question.scenario, variant.overrides)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_label)

    def __len__(self) -> int:
        return len(self._by_label)
