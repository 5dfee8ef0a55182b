"""What every rank of a run must share. Integers and exact fractions only: no float steers a decision (decision 4).

Derived once from the scenario (``ppsim.scenario.rank``), so that both worlds start the same machine. Only
``pp_rank`` and ``tp_rank`` differ between the ranks of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class RankConfig:
    """Limits in tokens unless the name says otherwise; None means "no limit" or "off"."""

    pp_rank: int
    pp_size: int
    tp_rank: int = 0
    layers: tuple[int, ...] = ()  # of each stage; empty: nobody asks
    tp_replicas: int = 1
    pp_async_batch_depth: int = 0
    schedule_policy: str = "fcfs"
    chunked_prefill_size: int | None = 8192
    max_prefill_tokens: int = 16384
    prefill_max_requests: int | None = None
    enable_mixed_chunk: bool = False
    prefill_decode_interval: int = 0
    max_consecutive_prefills: int = 0  # of a slot whose decode set waits; 0: no limit
    max_consecutive_chunks: int = 0  # of one prompt while others wait; 0: no limit
    max_running_requests: int = 256
    max_micro_batch_size: int = 64  # requests decoding in one slot
    page_size: int = 1
    enable_radix_cache: bool = True
    context_length: int = 131072
    clip_max_new_tokens: int = 4096
    hicache_write_policy: str = ""  # write_through | write_back; empty: no host tier (hicache.py)
    hicache_storage: bool = False  # prefetch from storage when a request arrives
    reserve_all_slots: bool = False
    # Where SGLang's rules can hurt, one switch a rule (scheduler.rules, docs/batches.md); the defaults are SGLang's.
    reopen_empty_slots: bool = False  # a slot with nothing running is never closed
    defer_empty_visits: bool = True  # prefill_decode_interval also holds up a slot that has nothing to decode
    empty_chunk_pieces: bool = True  # a chunk whose budget is used up by the decodes is launched with 0 tokens
    chunk_counts_as_row: bool = True  # a continued chunk counts among the rows that its batch takes
    evict_ahead: bool = True  # allocations evict more than they take (kv.py)
    hidden_after_launch: bool = False
    hidden_before_exchange: bool = False  # and before the outputs, at depth 0
    skip_pure_chunk_output: bool = False
    exchange_order: str = "send_first"
    cuda_graph: bool = True
    role: str = "plain"  # plain | prefill | decode
    bootstrap_consensus: str = "store"  # store: PP0 leads from replicated statuses; vote: two passes round the ring
    vote_variant: str = "agreed"  # agreed | fresh_poll | forwards_applied | released (votes.py)
    waiting_timeout_ms: int = 0  # 0: off; watched by the first rank only
    running_timeout_ms: int = 0
    num_reserved_decode_tokens: int = 512
    init_new_token_ratio: Fraction = Fraction(7, 10)
    min_new_token_ratio: Fraction = Fraction(7, 10) * Fraction(14, 100)
    new_token_ratio_decay_steps: int = 600
    retract_decode_steps: int = 20
    consensus_check_interval: int = 0  # iterations between two comparisons of calls (checker.py); 0: off
    # Dynamic chunking: (first prefix length, chunk size) in rising order; size 0 falls back to the fixed size.
    chunk_table: tuple[tuple[int, int], ...] = field(default=())
    # What follows from the above, worked out once: every phase of every iteration asks for it.
    num_slots: int = field(init=False, compare=False, repr=False)  # L = pp_size + depth (protocol.md 0.2)
    is_first: bool = field(init=False, compare=False, repr=False)
    is_last: bool = field(init=False, compare=False, repr=False)
    has_timeouts: bool = field(init=False, compare=False, repr=False)
    first_layer: int = field(init=False, compare=False, repr=False)  # with which its stage begins (bugs.md B64)

    def __post_init__(self) -> None:
        derived = {
            "num_slots": self.pp_size + self.pp_async_batch_depth,
            "is_first": self.pp_rank == 0,
            "is_last": self.pp_rank == self.pp_size - 1,
            "has_timeouts": bool(self.waiting_timeout_ms or self.running_timeout_ms),
            "first_layer": sum(self.layers[: self.pp_rank]),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def polls_again(self) -> bool:
        """A conclusion is filtered by another look at local state when it is applied."""
        return self.vote_variant in ("fresh_poll", "released")

    @property
    def forwards_applied(self) -> bool:
        """A rank passes on what it did, not what it was told."""
        return self.vote_variant in ("forwards_applied", "released")

    @property
    def rank_id(self) -> int:
        """The number of this rank among all: stages in order, replicas of a stage side by side."""
        return self.pp_rank * self.tp_replicas + self.tp_rank
