"""Experiments as a campaign generates them."""

from __future__ import annotations

from ppsim.fuzz.experiment import Experiment
from ppsim.fuzz.generate import generated
from ppsim.fuzz.profiles import PROFILES


def experiments_of(profile: str, num: int, number: int = 1) -> list[Experiment]:
    """The first ``num`` experiments of a profile under the seed ``number``."""
    return [generated(PROFILES[profile], number, 0, index) for index in range(num)]
