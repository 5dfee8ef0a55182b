"""What a run on real processes is fed with from a run in simulation, so that the same decisions follow (decision 5).

Rule: nothing that steers a decision comes from this machine. Inputs come by iteration of the first rank, what a rank
sees by (rank, iteration, order), tokens by (iteration, slot), refused memory and what facts are drawn from by name. The
model computes all the same, and its links are real: what is wrong with KV, tensors or the order of messages shows.

Where the record has no answer (the run goes further here, or another way) the rank gets this world's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from executor.client import GaveUp, ReplayClient
from ppsim.core.effects import Observe
from ppsim.core.messages import Input
from ppsim.core.observations import Statuses
from ppsim.core.schedule.batch import ForwardBatch
from ppsim.errors import ScenarioError
from ppsim.recording.schema import Observed
from ppsim.scenario import Scenario
from ppsim.scenario.layers import partition_of
from ppsim.scenario.rank import local_capacity_tokens, rank_config
from ppsim.scenario.tree import Chance, Model
from ppsim.workload.refusals import Refusal

if TYPE_CHECKING:
    import torch  # the launcher imports this file before it is needed

HIDDEN: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
"""Of a model whose numbers matter to nobody: small, in float32, with all the layers and the vocabulary."""


@dataclass(frozen=True, slots=True)
class Fed:
    """All of it, for all ranks. ``draws``: answers to each named stream of choices, in order. ``num_iterations``: that
    the first rank decided there, with inputs or without."""

    inputs: Mapping[int, tuple[Input, ...]]
    observations: Sequence[Sequence[Observed]]  # by rank
    samples: Mapping[tuple[int, int], tuple[int, ...]]  # by (iteration, slot)
    refusals: Mapping[str, Refusal]
    draws: Mapping[str, tuple[int, ...]]
    stored: Mapping[tuple[int, str], tuple[int | None, ...]] = field(default_factory=dict)  # (iteration, request)
    num_iterations: int = 0


class FedRank:
    """What one rank is fed with."""

    def __init__(self, fed: Fed, rank: int) -> None:
        self.samples = fed.samples
        self.seen: dict[int, list[Observed]] = {}
        for observed in fed.observations[rank]:
            self.seen.setdefault(observed.iteration, []).append(observed)

    def values(self, effect: Observe) -> tuple[int, ...] | None:
        """What the rank saw at this place of the other run. None: it looks at something else here, or further."""
        values = self.look_up(effect.iteration, effect.what, effect.keys)
        # What the store held is told, not what came of it: the rank's own store concludes from that (``held``).
        return None if isinstance(effect.observation, Statuses) else values

    def look_up(self, iteration: int, what: str, keys: tuple[str, ...] = ()) -> tuple[int, ...] | None:
        """The next look of an iteration, if it was at the same thing."""
        left = self.seen.get(iteration)
        if not left or (left[0].what, left[0].keys) != (what, keys):
            return None
        return left.pop(0).values

    def tokens(self, batch: ForwardBatch, sampled: torch.Tensor) -> torch.Tensor:
        """The recorded tokens in place of the sampled ones, [num_pieces]; -1, no number, stays."""
        recorded = self.samples.get((batch.iteration, batch.slot))
        if recorded is None or len(recorded) != len(sampled):
            return sampled
        return sampled.new_tensor(recorded).where(sampled >= 0, sampled)


class FedChoices:
    """Answers of named streams in order; 0, nothing unusual, where a stream has no more."""

    def __init__(self, draws: Mapping[str, tuple[int, ...]]) -> None:
        self.left = {stream: list(answers) for stream, answers in draws.items()}

    def below(self, stream: str, n: int) -> int:
        left = self.left.get(stream)
        return left.pop(0) % n if left else 0


class FedClient(ReplayClient):
    """Recorded inputs, up to ``run.max_iterations`` (0: no limit). A run that was idle to its end is idle as long."""

    def __init__(self, fed: Fed, max_iterations: int) -> None:
        super().__init__(fed.inputs)
        self.last = max(self.last, fed.num_iterations)
        self.max_iterations = max_iterations

    def ingest(self, iteration: int, idle: bool) -> tuple[Input, ...]:
        if self.max_iterations and iteration >= self.max_iterations:
            raise GaveUp(f"stopped at run.max_iterations = {self.max_iterations}", iteration)
        return super().ingest(iteration, idle)


def fit_to_feed(scenario: Scenario, watchdog_ms: float, rule: str = "") -> Scenario:
    """The scenario with a small model, the same pool and nothing left to chance: what is fed has decided all of it.

    Limits on waiting in milliseconds are of the other world's clock: none is kept but that of the ``rule`` which was
    broken there. Raises ScenarioError where the ranks would be configured in another way.
    """
    ranks = range(scenario.cluster.pp_size)
    pool = tuple(local_capacity_tokens(scenario, rank) for rank in ranks)
    partition = tuple(partition_of(scenario))
    model = Model(
        num_hidden_layers=sum(partition),
        layer_partition=partition,
        vocab_size=scenario.model.vocab_size,
        dtype_bytes=4,
        **HIDDEN,
    )
    run = scenario.run
    limits = {
        "watchdog_ms": run.watchdog_ms or watchdog_ms,
        "max_wait_ms": run.max_wait_ms if rule == "INV-85" else 0.0,
        "max_agreement_wait_ms": run.max_agreement_wait_ms if rule == "INV-72" else 0.0,
    }
    made = scenario.model_copy(
        update={
            "model": model,
            "scheduler": scenario.scheduler.model_copy(update={"max_total_tokens": pool}),
            "chance": Chance(),
            "run": run.model_copy(update=limits),
        }
    )
    for rank in ranks:
        if rank_config(made, rank) != rank_config(scenario, rank):
            raise ScenarioError(
                "model.key", "its decisions depend on a model that is too large to compute", "leave it out"
            )
    return made
