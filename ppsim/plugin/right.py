"""How a right rank is built, to hold one against that runs: right parts, with the user's policy or without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ppsim.core.config import RankConfig
from ppsim.core.parts import RIGHT, Change, build_rank
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.plugin.declare import MARK

BuildRank: TypeAlias = Callable[[RankConfig], Rank]


def right_ranks(change: Change) -> tuple[BuildRank, ...]:
    """How a right rank is built: with the user's policy, else, where no rank parts from that, without it."""
    policy = without_bugs(change.policy)
    return (built_with(policy),) if policy is Policy else (built_with(policy), built_with(Policy))


def built_with(policy: type[Policy]) -> BuildRank:
    def build(config: RankConfig) -> Rank:
        return build_rank(config, RIGHT, policy(config.pp_rank, config.tp_rank))

    return build


def without_bugs(policy: type[Policy]) -> type[Policy]:
    """The user's policy alone: of a class that a planted bug is mixed into, what it has from others."""
    if not any(MARK in vars(base) for base in policy.__mro__):
        return policy
    bases = [without_bugs(base) for base in policy.__bases__ if issubclass(base, Policy)]
    kept = tuple(base for base in dict.fromkeys(bases) if base is not Policy)
    if len(kept) < 2:
        return kept[0] if kept else Policy
    return type("And".join(base.__name__ for base in kept), kept, {})
