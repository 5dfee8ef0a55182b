"""Examples a second and core of the fuzzer, and where the time goes.

    python bench/bench_fuzz.py [--profile NAME] [--examples N] [--seed N] [--profiler]

Each example is run with more and more switched on; the differences are the prices. All are CPU seconds of this process,
so a busy machine changes little. ``--profiler`` adds the functions in which a whole example spends its time.
"""

from __future__ import annotations

import argparse
import copy
import cProfile
import platform
import pstats
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from ppsim.core.parts import UNCHANGED
from ppsim.fuzz.coverage_probes import hits
from ppsim.fuzz.experiment import Experiment, digest_of, run_experiment
from ppsim.fuzz.generate import generated as example
from ppsim.fuzz.profiles import profile_named
from ppsim.fuzz.round import ROUND, TWICE_EVERY
from ppsim.scenario.check import check_scenario
from ppsim.scenario.load import validate
from ppsim.world.choices import RecordingChoices
from ppsim.world.simulate import simulate

UNCHECKED = {"check": False, "invariants": False}
LOCKSTEP = {"check": True, "invariants": False}


def generated(profile: str, num: int, number: int) -> list[Experiment]:
    """Experiments as a campaign generates them."""
    return [example(profile_named(profile), number, i // ROUND, i % ROUND) for i in range(num)]


def timed(times: defaultdict[str, float], name: str, work: Callable[[], Any]) -> Any:
    """Do it, and add the CPU seconds to ``times[name]``."""
    before = time.process_time()
    result = work()
    times[name] += time.process_time() - before
    return result


def checked(experiment: Experiment) -> None:
    check_scenario(validate(experiment.raw))


def simulation(experiment: Experiment, run: dict[str, bool]) -> Callable[[], Any]:
    """A run with other checks than the experiment asks for."""
    raw = copy.deepcopy(experiment.raw)
    raw["run"] |= run
    scenario = validate(raw)
    return lambda: simulate(
        scenario, change=UNCHANGED, choices=RecordingChoices(experiment.chooser.choices(experiment.tape))
    )


def measure(experiments: list[Experiment]) -> tuple[defaultdict[str, float], Counter[str]]:
    """(seconds by what was on, work done)."""
    times: defaultdict[str, float] = defaultdict(float)
    work: Counter[str] = Counter()
    for experiment in experiments:
        timed(times, "validate", partial(checked, experiment))
        timed(times, "unchecked", simulation(experiment, UNCHECKED))
        timed(times, "lockstep", simulation(experiment, LOCKSTEP))
        result = timed(times, "invariants", simulation(experiment, {}))
        timed(times, "digest", partial(digest_of, result))
        outcome = timed(times, "whole", partial(run_experiment, experiment))
        timed(times, "probes", partial(hits, outcome))
        for recording in (result.recording, result.recording.peer):
            if recording is not None:
                work["rank-iterations"] += sum(len(decisions) for decisions in recording.decisions)
        work["choices"] += len(outcome.tape)
    return times, work


def report(num: int, generation_s: float, times: defaultdict[str, float], work: Counter[str]) -> None:
    """Milliseconds of an example by phase, shares, and ratios."""
    again = times["whole"] / TWICE_EVERY
    rows = [
        ("generating it", generation_s),
        ("validating the scenario", times["validate"]),
        ("simulating, nothing checked", times["unchecked"]),
        ("+ decisions of all ranks compared", times["lockstep"] - times["unchecked"]),
        ("+ every invariant", times["invariants"] - times["lockstep"]),
        ("hashing every line of the recording", times["digest"]),
        ("probes and arrows", times["probes"]),
        ("running one in twenty again", again),
    ]
    total = sum(seconds for _, seconds in rows)
    print(f"{'phase of an example':<38} {'ms':>8} {'share':>8}")
    for name, seconds in rows:
        print(f"{name:<38} {1000 * seconds / num:>8.2f} {100 * seconds / total:>6.1f} %")
    print(f"{'together':<38} {1000 * total / num:>8.2f}")
    print(
        f"\n{num / total:.1f} examples/s on one core, {1000 * times['whole'] / num:.2f} ms for one run with all checks"
    )
    print(f"checks cost {times['invariants'] / times['unchecked']:.2f} times the bare simulation")
    print(f"{work['rank-iterations'] / num:.0f} rank-iterations and {work['choices'] / num:.0f} choices an example")
    print(f"{work['rank-iterations'] / times['invariants']:,.0f} checked rank-iterations/s")


def profiled(experiments: list[Experiment]) -> None:
    """The functions with the most time of their own."""
    profiler = cProfile.Profile()
    profiler.enable()
    for experiment in experiments:
        run_experiment(experiment)
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="all")
    parser.add_argument("--examples", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profiler", action="store_true")
    options = parser.parse_args()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"{python}, profile {options.profile}, seed {options.seed}")
    before = time.process_time()
    experiments = generated(options.profile, options.examples, options.seed)
    generation_s = time.process_time() - before
    times, work = measure(experiments)
    report(len(experiments), generation_s, times, work)
    if options.profiler:
        profiled(experiments[:100])


if __name__ == "__main__":
    main()
