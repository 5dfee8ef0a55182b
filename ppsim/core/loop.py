"""The event loops of a rank, composed from phases (protocol.md 1.3, 1.7, 1.8).

A loop is nothing but a list of phases. Because the list is data, the order of an iteration can be read here at a
glance, and a planted bug can swap two lines of it. The three roles differ by their lists only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ppsim.core import checker, phases, votes
from ppsim.core import pd_phases as pd
from ppsim.core.config import RankConfig
from ppsim.core.effects import Effects
from ppsim.core.flush import acknowledge_flush, answer_flush
from ppsim.core.leader import agree_grammar
from ppsim.core.rank import Rank, build_rank
from ppsim.core.start import agree_on_start
from ppsim.core.tiers import agree_tiers

Phase: TypeAlias = Callable[[Rank], Effects[None]]
Plan: TypeAlias = tuple[Phase, ...]

RUN: Plan = (
    phases.schedule,
    phases.receive_hidden,
    phases.exchange_if_deep,
    phases.commit_hidden,
    phases.launch_batch,
    phases.exchange_if_shallow,
)

PLAIN: Plan = (
    phases.ingest_inputs,
    phases.forward_inputs,
    phases.apply_inputs,
    acknowledge_flush,
    agree_grammar,
    agree_tiers,
    *RUN[:-1],
    phases.send_hidden_first,
    RUN[-1],
    phases.send_hidden_early,
    phases.harvest,
    phases.send_hidden_late,
    answer_flush,
    phases.carry_over,
)

PREFILL: Plan = (
    phases.ingest_inputs,
    pd.note_shutdown,
    phases.commit_inputs,
    phases.share_inputs,
    phases.apply_inputs,
    acknowledge_flush,
    agree_grammar,
    agree_tiers,
    pd.agree_bootstrap,
    pd.first("release", pd.view_release),
    *RUN,
    pd.second_send("release"),
    pd.second_receive("release"),
    pd.second_commit("release"),
    phases.absorb_outputs,
    pd.apply("release", pd.apply_release),
    phases.report_harvest,
    phases.send_inputs,
    votes.send_votes,
    phases.send_hidden_late,
    answer_flush,
    phases.carry_over,
    pd.end_iteration,
)

# Released behaviour of 2026-08: the bootstrap is a second ring vote instead of the consensus store.
PREFILL_VOTING: Plan = (
    phases.ingest_inputs,
    pd.note_shutdown,
    phases.commit_inputs,
    phases.share_inputs,
    phases.apply_inputs,
    acknowledge_flush,
    agree_grammar,
    agree_tiers,
    pd.first("bootstrap", pd.view_bootstrap),
    pd.first("release", pd.view_release),
    *RUN,
    pd.second_send("bootstrap"),
    pd.second_send("release"),
    pd.second_receive("bootstrap"),
    pd.apply("bootstrap", pd.apply_bootstrap),
    pd.second_commit("bootstrap"),
    pd.second_receive("release"),
    pd.second_commit("release"),
    phases.absorb_outputs,
    pd.apply("release", pd.apply_release),
    phases.report_harvest,
    phases.send_inputs,
    votes.send_votes,
    phases.send_hidden_late,
    answer_flush,
    phases.carry_over,
    pd.end_iteration,
)

DECODE: Plan = (
    phases.ingest_inputs,
    pd.note_shutdown,
    phases.commit_inputs,
    phases.share_inputs,
    phases.apply_inputs,
    acknowledge_flush,
    agree_grammar,
    agree_tiers,
    pd.first("retract", pd.view_retract),
    pd.first("prealloc", pd.view_prealloc),
    pd.first("transferred", pd.view_transferred),
    *RUN,
    pd.second_send("retract"),
    pd.second_send("prealloc"),
    pd.second_send("transferred"),
    pd.second_receive("retract"),
    pd.apply("retract", pd.apply_retract),
    pd.second_commit("retract"),
    pd.second_receive("prealloc"),
    pd.apply("prealloc", pd.apply_prealloc),
    pd.second_commit("prealloc"),
    pd.second_receive("transferred"),
    pd.apply("transferred", pd.apply_transferred),
    pd.second_commit("transferred"),
    phases.harvest,
    phases.send_inputs,
    votes.send_votes,
    phases.send_hidden_late,
    answer_flush,
    phases.carry_over,
    pd.end_iteration,
)


def plan_of(config: RankConfig) -> Plan:
    """The phases of a rank's role."""
    if config.role == "prefill":
        return PREFILL if config.bootstrap_consensus == "store" else PREFILL_VOTING
    return DECODE if config.role == "decode" else PLAIN


def votes_of(config: RankConfig) -> tuple[str, ...]:
    """The ring votes of a rank's role, in the order of their second passes."""
    if config.role == "prefill":
        return ("release",) if config.bootstrap_consensus == "store" else ("bootstrap", "release")
    return ("retract", "prealloc", "transferred") if config.role == "decode" else ()


def event_loop_pp(rank: Rank, plan: Plan | None = None) -> Effects[None]:
    """Run a rank until Shutdown has come down the request chain."""
    steps = rank.hooks.plan(plan or plan_of(rank.config))
    yield from agree_on_start(rank)
    while True:
        for phase in steps:
            yield from phase(rank)
            if rank.stopped:
                yield from pd.pass_on_the_rest(rank, votes_of(rank.config))
                yield from checker.conclude(rank)
                yield from phases.finish(rank)
                return
        if rank.checker is not None:
            yield from checker.compare(rank)
        rank.iteration += 1


__all__ = ["DECODE", "PLAIN", "PREFILL", "PREFILL_VOTING", "Phase", "build_rank", "event_loop_pp"]
