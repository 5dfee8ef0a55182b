"""The event loops of a rank, composed from phases (protocol.md 1.3, 1.7, 1.8).

A loop is nothing but a list of phases. Because the list is data, the order of an iteration can be read here at a
glance, and a subclass of ``Loop`` can swap two lines of it. The three roles differ by their lists only.

Two plain ranks at depth 0 while both slots are busy (P = L = 2). In iteration i slot a = i mod L is visited, and
b = (i+1) mod L harvested, which was launched in iteration i-1. Time runs to the right, a letter is a slot:

    rank 0  host    |list i|schedule a|launch a|... waits for b ....|harvest b|list i+1|schedule b|launch b|... waits
            forward                            [======== a ========]                               [======== b ======
            control   i -> 1                                                    i+1 -> 1
            tensor                      old a -> 1          <- b     hidden a -> 1               b -> 1
    rank 1  host    (iteration i-1)  ... waits for old a ...        |list i|schedule a|launch a|... b ...|harvest b|
            forward        [======== b ========]                                       [======== a ========]
            control                                                   <- i
            tensor          b -> 0                                        <- hidden a   a -> 0    <- b

The ranks are an iteration apart. The last one sees its own samples only when they have been round the ring, so that all
ranks harvest b in iteration i; a rank in the middle passes on the output that it received one iteration before; slot
f = (i+P) mod L is the one whose output leaves the last rank (here a, as soon as its pass is over).

With depth the exchange stands before the launch; the loops of disaggregation pass the list on at the end.
"""

from __future__ import annotations

from ppsim.core import comparison, phases
from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.disagg import ballots as pd
from ppsim.core.effects import NOTHING, Effects
from ppsim.core.exchange import Exchange
from ppsim.core.flush import acknowledge_flush, answer_flush
from ppsim.core.leader import agree_grammar
from ppsim.core.rank import Phase, Plan, Rank, is_needed
from ppsim.core.start import agree_on_start
from ppsim.core.tiers import agree_tiers
from ppsim.core.votes import Ballot, Voting


def ballots_of(config: RankConfig) -> tuple[Ballot, ...]:
    """The ring votes of a rank's role, in the order of their passes."""
    if config.role == "prefill":
        return (pd.RELEASE,) if config.bootstrap_consensus == "store" else (pd.BOOTSTRAP, pd.RELEASE)
    return (pd.RETRACT, pd.PREALLOC, pd.TRANSFERRED) if config.role == "decode" else ()


def votes_of(config: RankConfig) -> tuple[str, ...]:
    """Their names."""
    return tuple(ballot.name for ballot in ballots_of(config))


class Loop:
    """The list of phases of a rank's role."""

    def __init__(self, config: RankConfig, exchange: Exchange, voting: Voting, chain: Chain) -> None:
        self.config = config
        self.exchange = exchange
        self.voting = voting
        self.chain = chain

    def plan(self) -> Plan:
        """The phases of an iteration, in order."""
        if self.config.role == "plain":
            return self.plain()
        return self.prefill() if self.config.role == "prefill" else self.decode()

    def at_end(self) -> Plan:
        """After the last iteration: what others still wait for, then every outstanding send."""

        def pass_on_the_rest(rank: Rank) -> Effects[None]:
            return self.voting.pass_on_the_rest(rank, ballots_of(self.config))

        return pass_on_the_rest, comparison.conclude, phases.finish

    def run(self) -> Plan:
        """From the decision to the exchange, the same in every role."""
        return (
            phases.schedule,
            phases.receive_hidden,
            self.exchange.exchange_if_deep,
            phases.commit_hidden,
            phases.launch_batch,
            self.exchange.exchange_if_shallow,
        )

    def plain(self) -> Plan:
        """A plain server."""
        *run, exchange_if_shallow = self.run()
        return (
            phases.ingest_inputs,
            phases.forward_inputs,
            phases.apply_inputs,
            acknowledge_flush,
            self.chain.phase(agree_grammar),
            self.chain.phase(agree_tiers),
            *run,
            phases.send_hidden_first,
            exchange_if_shallow,
            phases.send_hidden_early,
            phases.harvest,
            phases.send_hidden_late,
            answer_flush,
            phases.carry_over,
        )

    def opening(self) -> Plan:
        """The two sides of disaggregation begin alike."""
        return (
            phases.ingest_inputs,
            pd.note_shutdown,
            phases.commit_inputs,
            phases.share_inputs,
            phases.apply_inputs,
            acknowledge_flush,
            self.chain.phase(agree_grammar),
            self.chain.phase(agree_tiers),
        )

    def closing(self) -> Plan:
        """And end alike: the request list and the votes are passed on last."""
        return (
            phases.send_inputs,
            self.voting.send_votes,
            phases.send_hidden_late,
            answer_flush,
            phases.carry_over,
            pd.end_iteration,
        )

    def first_passes(self) -> Plan:
        return tuple(self.voting.first(ballot) for ballot in ballots_of(self.config))

    def second_sends(self) -> Plan:
        return tuple(self.voting.second_send(ballot) for ballot in ballots_of(self.config))

    def prefill(self) -> Plan:
        """A prefill server. ``bootstrap_consensus``: by the store, or by a second ring vote as released in 2026-08."""
        voting, by_vote = self.voting, self.config.bootstrap_consensus != "store"
        return (
            *self.opening(),
            *(() if by_vote else (self.chain.phase(pd.agree_bootstrap),)),
            *self.first_passes(),
            *self.run(),
            *self.second_sends(),
            *(self.conclusion(pd.BOOTSTRAP) if by_vote else ()),
            voting.second_receive(pd.RELEASE),
            voting.second_commit(pd.RELEASE),
            phases.absorb_outputs,
            voting.apply(pd.RELEASE),
            phases.report_harvest,
            *self.closing(),
        )

    def decode(self) -> Plan:
        """A decode server."""
        conclusions = [phase for ballot in ballots_of(self.config) for phase in self.conclusion(ballot)]
        return (
            *self.opening(),
            *self.first_passes(),
            *self.run(),
            *self.second_sends(),
            *conclusions,
            phases.harvest,
            *self.closing(),
        )

    def conclusion(self, ballot: Ballot) -> Plan:
        """A conclusion is taken, applied at once, and what was sent of it is waited for."""
        voting = self.voting
        return voting.second_receive(ballot), voting.apply(ballot), voting.second_commit(ballot)


def event_loop_pp(rank: Rank) -> Effects[None]:
    """Run a rank until Shutdown has come down the request chain."""
    phase: Phase = agree_on_start  # where the rank stands: reports read it from here
    yield from phase(rank)
    plan = [phase for phase in rank.plan if is_needed(phase, rank.config)]
    while True:
        for phase in plan:
            steps = phase(rank)
            if steps is not NOTHING:
                yield from steps
            if rank.stopped:
                for phase in rank.at_end:
                    yield from phase(rank)
                return
        if rank.checker is not None:
            phase = comparison.compare
            yield from phase(rank)
        rank.journal.flush()
        rank.iteration += 1


__all__ = ["Loop", "Phase", "Plan", "ballots_of", "event_loop_pp", "votes_of"]
