"""Figures of many configurations through the fast path: numpy over all that share stages and depth.

Per split and partition the costs are built once; per chunk size SGLang's profile of the first stage is fitted once, as
the engine does at its start. Then configurations run through ``StreamLoop`` in blocks of similar length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import process_time

import numpy as np

from ppsim.core.config import RankConfig
from ppsim.cost.sglang_chunks import ChunkFit, ChunkPredictor, fit_profile, profile_lengths
from ppsim.cost.stage import NS_PER_MS, StageCost
from ppsim.plan.array_cost import ArrayCost, array_cost
from ppsim.plan.candidate import Candidate, Split
from ppsim.plan.chunk_rule import ChunkRule
from ppsim.plan.feasible import placed, pool_tokens
from ppsim.plan.prompt_feed import Limits, PromptFeed
from ppsim.plan.stream_loop import StreamLoop, Surroundings
from ppsim.plan.trial_load import Probe
from ppsim.scenario.layers import hidden_bytes_per_token
from ppsim.scenario.rank import rank_config, rule_set
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Scenario
from ppsim.world.choices import SeededChoices
from ppsim.world.network import Network

BLOCK_CELLS = 8192  # configurations x stages: enough to hide numpy's overhead, few enough to stay in the cache
FEW_TOKENS = 64  # prompts of so small a vocabulary begin alike now and then, and are found in the cache
NS_PER_US = 1e3
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Figures:
    """What a configuration achieves on a probe; the words are those of ``ppsim run``'s summary."""

    ttft_s: float
    input_tokens_per_s: float
    bubble_ratio: float


@dataclass(slots=True)
class FastPath:
    """A scenario and a probe. Costs, fits and pools are kept: evaluating more candidates gets cheaper."""

    scenario: Scenario
    probe: Probe
    costs: dict[tuple[Split, tuple[int, ...]], StageCost] = field(default_factory=dict)
    pools: dict[tuple[Split, tuple[int, ...]], int] = field(default_factory=dict)
    fits: dict[tuple[Split, tuple[int, ...], int], ChunkFit] = field(default_factory=dict)
    configs: dict[tuple[Split, tuple[int, ...]], RankConfig] = field(default_factory=dict)
    num_evaluated: int = 0
    cpu_s: float = 0.0  # of one core, for the report alone

    def figures(self, candidates: Sequence[Candidate]) -> list[Figures]:
        """In the order of the candidates, which must all be feasible."""
        began = process_time()
        out: list[Figures | None] = [None] * len(candidates)
        groups: dict[tuple[int, int], list[int]] = {}
        for i, candidate in enumerate(candidates):
            groups.setdefault((candidate.split.pp_size, candidate.pp_async_batch_depth), []).append(i)
        for (pp_size, _), members in groups.items():
            members.sort(key=lambda i: (candidates[i].chunked_prefill_size, candidates[i].smooth_factor, i))
            width = block_width(pp_size)
            for first in range(0, len(members), width):
                block = members[first : first + width]
                for i, found in zip(block, self._block([candidates[i] for i in block])):
                    out[i] = found
        self.num_evaluated += len(candidates)
        self.cpu_s += process_time() - began
        return [found for found in out if found is not None]

    def cost(self, split: Split, partition: tuple[int, ...]) -> StageCost:
        """Stage times of a split."""
        key = (split, partition)
        if key not in self.costs:
            self.costs[key] = stage_cost(placed(self.scenario, split, partition))
        return self.costs[key]

    def pool(self, split: Split, partition: tuple[int, ...]) -> int:
        """Tokens of KV that a split holds."""
        key = (split, partition)
        if key not in self.pools:
            self.pools[key] = pool_tokens(self.scenario, split, partition)
        return self.pools[key]

    def predictor(self, c: Candidate) -> ChunkPredictor | None:
        """SGLang's predictor after profiling this configuration; None for fixed chunks."""
        if not c.is_dynamic:
            return None
        key = (c.split, c.layer_partition, c.chunked_prefill_size)
        if key not in self.fits:
            self.fits[key] = profiled(self.cost(c.split, c.layer_partition), c.chunked_prefill_size)
        limits = self.scenario.scheduler
        return ChunkPredictor.from_fit(
            self.fits[key],
            c.chunked_prefill_size,
            page_size=limits.page_size,
            context_length=limits.context_length,
            max_prefill_tokens=limits.max_prefill_tokens,
            smooth_factor=c.smooth_factor,
        )

    def _block(self, candidates: Sequence[Candidate]) -> list[Figures]:
        places = [(c.split, c.layer_partition) for c in candidates]
        known = {place: i for i, place in enumerate(dict.fromkeys(places))}
        index = np.array([known[place] for place in places], dtype=np.int64)
        cost = array_cost([self.cost(*place) for place in known]).take(index)
        rule = ChunkRule.of([self.predictor(c) for c in candidates], [c.chunked_prefill_size for c in candidates])
        shape = (candidates[0].split.pp_size, candidates[0].pp_async_batch_depth)
        return stream_figures(cost, rule, self._limits(candidates), self.probe, surroundings(self.scenario), *shape)

    def config(self, split: Split, partition: tuple[int, ...]) -> RankConfig:
        """What the ranks of a split are started with, but for its chunks."""
        key = (split, partition)
        if key not in self.configs:
            self.configs[key] = rank_config(placed(self.scenario, split, partition), 0)
        return self.configs[key]

    def _limits(self, candidates: Sequence[Candidate]) -> Limits:
        configs = [self.config(c.split, c.layer_partition) for c in candidates]
        one, page = configs[0], configs[0].page_size
        pieces = [min(c.max_micro_batch_size, c.prefill_max_requests or c.max_micro_batch_size) for c in configs]
        pools = [self.pool(c.split, c.layer_partition) // page * page for c in candidates]
        return Limits(
            float(page),
            float(one.max_prefill_tokens),
            np.array([c.max_running_requests for c in configs], dtype=np.float64),
            np.array(pieces, dtype=np.float64),
            np.array(pools, dtype=np.float64),
            reopen_empty_slots=one.reopen_empty_slots,
            chunk_counts_as_row=one.chunk_counts_as_row,
        )


def block_width(pp_size: int) -> int:
    """Configurations side by side."""
    return max(BLOCK_CELLS // pp_size, 1)


def profiled(cost: StageCost, chunk: int) -> ChunkFit:
    """SGLang's profile of the first stage, fitted: what ``ppsim.scenario.chunks.sglang_predictor`` does, on arrays."""
    lengths = profile_lengths(chunk)
    arrays, tokens = array_cost([cost]), np.array(lengths, dtype=np.float64)
    features = arrays.piece(np.zeros_like(tokens), tokens, np.ones(len(tokens), dtype=np.bool_))
    return fit_profile(lengths, [float(t) for t in arrays.stage_ns(features)[0] / NS_PER_MS])


def stream_figures(
    cost: ArrayCost, rule: ChunkRule, limits: Limits, probe: Probe, around: Surroundings, pp_size: int, depth: int
) -> list[Figures]:
    """A block of configurations of one number of stages and depth, side by side."""
    lengths, arrivals = (np.array(v, dtype=np.float64) for v in (probe.prompts, probe.arrivals_ns))
    result = StreamLoop(PromptFeed(cost, rule, limits, lengths, arrivals), around, pp_size, depth).run()
    return [
        Figures(float(ttft) / NS_PER_S, probe.num_tokens * NS_PER_S / float(span), float(bubble))
        for ttft, span, bubble in zip(result.mean_ttft_ns, result.makespan_ns, result.bubble_ratio)
    ]


def surroundings(s: Scenario) -> Surroundings:
    """Hosts and links of a scenario in the units of the fast path."""
    links, host, hidden_bytes = s.links, s.host, hidden_bytes_per_token(s)
    network = Network(links, SeededChoices(s.seed), hidden_bytes, s.cluster.comm_overlap)  # for its numbers alone
    byte_ns, per_bytes = network.byte_ns
    return Surroundings(
        schedule_ns=float(round(host.schedule_us * NS_PER_US)),
        process_ns=float(round(host.process_us * NS_PER_US)),
        latency_ns=float(network.latency_ns),
        control_latency_ns=float(network.control_latency_ns),
        byte_ns=float(byte_ns),
        per_bytes=float(per_bytes),
        hidden_bytes=hidden_bytes,
        poll_ns=float(round(host.idle_poll_us * NS_PER_US)),
        commit=links.commit,
        after_harvest=s.scheduler.hidden_send == "after_harvest",
        comm_overlap=s.cluster.comm_overlap,
        one_stream=links.order == "stream",
        free_empty_visit=host.free_empty_visit,
    )


def not_in_fast_path(s: Scenario) -> tuple[str, ...]:
    """Keys of the scenario that the fast path leaves out; the event simulation has them."""
    overlap, early = s.cluster.comm_overlap, s.scheduler.hidden_send == "after_launch"
    found = {
        "links.send": s.links.send != "eager",
        "links.payload": s.links.payload != "eager",
        "links.commit_over": s.links.commit_over != "posted" and s.links.commit != "none",
        "links.schedule_hold": s.links.schedule_hold != "commit" and not overlap,
        "links.token_read": s.links.token_read != "arrival" and not overlap,
        "links.early_send": s.links.early_send != "after_exchange" and early,
        "links.jitter_us": s.links.jitter_us > 0,
        "links.order": s.links.order == "none",
        "links.latency_on_stream": s.links.latency_on_stream and s.links.latency_us > 0,
        "host.stage_jitter_percent": s.host.stage_jitter_percent > 0,
        "scheduler.exchange_order": s.scheduler.exchange_order != "send_first",
        "scheduler.skip_pure_chunked_output_comm": s.scheduler.skip_pure_chunked_output_comm,
        "scheduler.prefill_decode_interval": s.scheduler.prefill_decode_interval > 0
        and rule_set(s.scheduler)["defer_empty_visits"],
        "scheduler.max_consecutive_chunks": s.scheduler.max_consecutive_chunks > 0,
        "scheduler.reserve_decode": s.scheduler.reserve_decode != "slot",
        "model.vocab_size": s.model.vocab_size < FEW_TOKENS and not s.scheduler.disable_radix_cache,  # equal prompts
    }
    return tuple(key for key, matters in found.items() if matters)
