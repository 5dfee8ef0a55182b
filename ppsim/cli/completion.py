"""What a shell offers after TAB: names of scenarios, runs, planted bugs and profiles.

Rule: completion never fails and says nothing; what cannot be read is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


def beginning(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """A completion from a function that knows all names."""

    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names() if name.startswith(incomplete)]
        except Exception:  # a shell that waits for an answer is no place for an error
            return []

    return complete


def scenario_names() -> Iterable[str]:
    from ppsim.scenario.load import known_scenarios

    return known_scenarios()


def run_names() -> Iterable[str]:
    from ppsim.recording.folder import LATEST, RECORDINGS, RUNS

    return [LATEST, *sorted({path.parent.name for name in RECORDINGS for path in RUNS.glob(f"*/{name}")} - {LATEST})]


def bug_names() -> Iterable[str]:
    from ppsim.plugin import all_bugs

    return all_bugs()


def profile_names() -> Iterable[str]:
    from ppsim.fuzz.profiles import PROFILES

    return PROFILES


scenarios, runs, bugs, profiles = map(beginning, (scenario_names, run_names, bug_names, profile_names))
