"""Experiments as a campaign generates them."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, given, seed, settings

from ppsim.fuzz.draw import from_the_seed_alone
from ppsim.fuzz.experiment import Experiment
from ppsim.fuzz.generate import strategy
from ppsim.fuzz.profiles import PROFILES


def experiments_of(profile: str, num: int, number: int = 1) -> list[Experiment]:
    """The first ``num`` experiments of a profile under the seed ``number``."""
    found: list[Experiment] = []

    @seed(number)
    @settings(
        max_examples=num,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy(PROFILES[profile]))
    def collect(experiment: Experiment) -> None:
        found.append(experiment)

    with from_the_seed_alone():
        collect()
    return found
