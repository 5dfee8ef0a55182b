"""What is left of a plug-in without its bugs: how a right rank is built, with the user's policy or without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ppsim.core.config import RankConfig
from ppsim.core.hooks import Hooks
from ppsim.core.loop import build_rank
from ppsim.core.rank import Rank
from ppsim.planted.registry import MARK

MakeHooks: TypeAlias = Callable[[int, int], Hooks]
BuildRank: TypeAlias = Callable[[RankConfig], Rank]


def right_ranks(make_hooks: MakeHooks) -> tuple[BuildRank, ...]:
    """How a right rank is built: with the user's policy, else, where no rank parts from that, without it."""
    policy = without_bugs(make_hooks)
    return (built_with(policy),) if policy is Hooks else (built_with(policy), built_with(Hooks))


def built_with(make_hooks: MakeHooks) -> BuildRank:
    def build(config: RankConfig) -> Rank:
        return build_rank(config, make_hooks(config.pp_rank, config.tp_rank))

    return build


def without_bugs(make_hooks: MakeHooks) -> MakeHooks:
    """The user's policy alone."""
    made = type(make_hooks(0, 0))
    parts = made.__bases__ if made.__name__ == "CombinedHooks" else (made,)
    kept = tuple(part for part in parts if not any(MARK in vars(base) for base in part.__mro__))
    if not kept:
        return Hooks
    if kept == parts:
        return make_hooks
    return kept[0] if len(kept) == 1 else type("CombinedHooks", kept, {})
