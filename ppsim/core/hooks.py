"""The documented places where a policy or a planted bug may step in (design decision 8).

The methods below *are* the right protocol. A plug-in subclasses ``Hooks`` and overrides one of them; every rank gets an
instance of its own, which may look at ``self.pp_rank``. Whatever a hook returns must be the same on all ranks, or the
ranks fall out of step - which is what the planted bugs are for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ppsim.core.consensus import intersect, store_minimum, unite

if TYPE_CHECKING:
    from ppsim.core.config import RankConfig
    from ppsim.core.intake import Intake
    from ppsim.core.loop import Plan
    from ppsim.core.messages import Output, Verdict
    from ppsim.core.prefix import Node
    from ppsim.core.rank import Rank
    from ppsim.core.request import Request
    from ppsim.core.scheduler import Scheduler
    from ppsim.core.slots import LaunchedBatch, Slot


def no_clock() -> int:
    """Where there is no world, no time goes by."""
    return 0


class Hooks:
    """Default policy: the protocol as it should be."""

    def __init__(self, pp_rank: int = 0, tp_rank: int = 0) -> None:
        self.pp_rank = pp_rank
        self.tp_rank = tp_rank
        # The rank's own clock, for policies that look at one although they should not. In simulation it is virtual
        # and as wrong as the scenario says, so what comes of it is found, shrunk and replayed like anything else.
        self.wall_clock_ns: Callable[[], int] = no_clock
        self.failing_allocations: dict[str, int] = {}  # by request: how often the world refuses it memory

    def plan(self, steps: Plan) -> Plan:
        """The phases of an iteration; a plug-in may reorder, drop or replace them."""
        return steps

    # --- start -----------------------------------------------------------------------------------------------

    def arguments(self, config: RankConfig) -> RankConfig:
        """What this rank is started with; all ranks must share it but for their numbers (invariant 3)."""
        return config

    def first_layer(self, layers: tuple[int, ...], pp_rank: int) -> int:
        """Number of the first layer of a stage: what all stages before it hold (bugs.md B64)."""
        return sum(layers[:pp_rank])

    def capacity(self, agreed_tokens: int, local_tokens: int) -> int:
        """KV pool size to use: the minimum over all ranks (invariant 22; bugs.md B04)."""
        return agreed_tokens

    def host_capacity(self, agreed_tokens: int, local_tokens: int) -> int:
        """Size of the host tier: the minimum over all ranks, as of the KV pool (invariant 22)."""
        return agreed_tokens

    # --- cache -----------------------------------------------------------------------------------------------

    def access_stamp(self, clock: int) -> int:
        """Recency of a node touched now; ``clock`` is the tree's logical operation counter."""
        return clock

    def eviction_key(self, node: Node) -> int:
        """The leaf with the smallest key goes first; ties go to the older node."""
        return node.last_access

    # --- scheduling ------------------------------------------------------------------------------------------

    def may_prefill(self, scheduler: Scheduler, slot: Slot) -> bool:
        """Whether this visit tries a prefill before it decodes: prefill comes first (protocol.md 4.1)."""
        return True

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        """Last word on the order in which waiting requests are tried, after the schedule policy."""
        return waiting

    def may_continue_chunk(self, scheduler: Scheduler, slot: Slot, num_places: int) -> bool:
        """A chunked request goes on even where no place is free (bugs.md B17)."""
        return True

    def decode_goes_first(self, num_prefills: int, limit: int) -> bool:
        """Whether a slot decodes now that has run so many prefill batches in a row; limit 0: never (bugs.md B87)."""
        return 0 < limit <= num_prefills

    def waiting_goes_first(self, num_chunks: int, limit: int) -> bool:
        """Whether waiting requests get the first chance after so many chunks of one prompt in a row (B88, B92)."""
        return 0 < limit <= num_chunks

    def rows_taken(self, num_admitted: int, num_new_rows: int) -> int:
        """Rows of the request table that count as taken by this batch, as the rules say (bugs.md B86).

        ``num_admitted`` counts a continued chunk, which has its row already; ``num_new_rows`` counts it where
        scheduler.chunk_counts_as_row says so.
        """
        return num_new_rows

    def context_to_fit(self, new_tokens: int, chunk_budget: int | None) -> int:
        """Prompt tokens that must fit before a request is admitted: all of it, not its next chunk (bugs.md B90)."""
        return new_tokens

    def allocation_fails(self, request: Request) -> bool:
        """Whether memory that admission counted on is refused after all. World: it says so on all ranks alike."""
        left = self.failing_allocations.get(request.rid, 0)
        if left:
            self.failing_allocations[request.rid] = left - 1
        return left > 0

    def frees_retracted(self, request: Request) -> bool:
        """Whether a retracted request gives its KV back (bugs.md B48)."""
        return True

    def chunk_size(self, scheduler: Scheduler, prefix_len: int, planned: int) -> int:
        """Budget of the next chunk of a request whose first ``prefix_len`` tokens are done."""
        return planned

    def clears_full_flag(self, slot: Slot, falls: bool) -> bool:
        """Whether ``batch_is_full`` falls now; ``falls``: by the rules it does (docs/batches.md; bugs.md B86)."""
        return falls

    def retraction_order(self, running: list[Request]) -> list[Request]:
        """Most preferred first; the last one is retracted first (protocol.md 4.5)."""
        return sorted(running, key=lambda r: (-len(r.output_ids), r.prompt_len))

    # --- local observations ------------------------------------------------------------------------------------

    def watches_timeouts(self, is_leader_of_all: bool) -> bool:
        """Only the first rank looks at a clock; it turns what it sees into replicated aborts (bugs.md B02)."""
        return is_leader_of_all

    def clock_ms(self, now_ms: int) -> int:
        """What this rank reads off its clock. World: time is virtual there, and faults.clock_skew_ms is in it."""
        return now_ms

    def leads(self, what: str, is_first: bool) -> bool:
        """Whether this rank decides a leader-chain question itself instead of taking the answer from upstream."""
        return is_first

    def combine_good(self, upstream: tuple[str, ...], local: tuple[str, ...]) -> tuple[str, ...]:
        """Good sets by intersection, in queue order (bugs.md I4, B16)."""
        return intersect(upstream, local)

    def combine_bad(self, upstream: tuple[str, ...], local: tuple[str, ...]) -> tuple[str, ...]:
        """Bad sets by union, upstream first."""
        return unite(upstream, local)

    def takes_part(self, vote: str, good: tuple[str, ...], bad: tuple[str, ...]) -> bool:
        """Whether this rank gives its voice: always, also an empty one (bugs.md B24, B26)."""
        return True

    def forwarded_verdict(self, rank: Rank, verdict: Verdict) -> Verdict:
        """What is passed on of a conclusion: the conclusion itself, unchanged."""
        return verdict

    # --- consensus store: asked on the first rank, for the statuses of all ranks ----------------------------------

    def store_decision(self, statuses: Sequence[int | None]) -> int:
        """What the store says of a request: the minimum, and Bootstrapping if a status is missing (protocol.md 6.4)."""
        return store_minimum(statuses)

    def store_age_ns(self, lag_ns: int, peer: int, iteration: int) -> int:
        """How old the view of a peer's statuses is. World: one first-in-first-out stream, so always the same lag."""
        return lag_ns

    # --- between two pipelines: asked of the first rank's hooks, for the whole world ------------------------------

    def write_begins_ns(self, computed_ns: int) -> int:
        """Earliest instant at which KV is sent: the end of the forward pass that computed it (bugs.md B34)."""
        return computed_ns

    def transfer_drains(self) -> bool:
        """Whether a transfer that was given up has ended only when nothing is under way any more (bugs.md B33)."""
        return True

    def tells_peer(self, what: str) -> bool:
        """Whether the other side hears that this one "failed", "refused" or wants to "stop" (bugs.md B40, B71, B84)."""
        return True

    def lease_ends(self) -> bool:
        """Whether one that waits for a word of a silent peer gives up at last (bugs.md B38)."""
        return True

    # --- abort -----------------------------------------------------------------------------------------------

    def reaches(self, scheduler: Intake, request: Request) -> bool:
        """Whether an abort finds the request: wherever it is, in whatever slot (bugs.md B65)."""
        return True

    def may_end_now(self, request: Request) -> bool:
        """Whether a marked request gives its KV up now: no launched batch may contain it (invariants 59, 64)."""
        return request.num_inflight == 0

    # --- results ---------------------------------------------------------------------------------------------

    def is_middle_chunk(self, request: Request) -> bool:
        """Whether a harvested row belongs to a middle chunk and its token is to be discarded."""
        return request.inflight_middle_chunks > 0

    def rows_to_harvest(self, batch: LaunchedBatch, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The sampled tokens, one a row, as this rank applies them."""
        return token_ids

    # --- communication ---------------------------------------------------------------------------------------

    def sends_first(self, exchange_order: str, pp_rank: int) -> bool:
        """Order inside the exchange (protocol.md 3.4): all send first, or only the even ranks do."""
        return exchange_order != "parity" or pp_rank % 2 == 0

    def sends_output(self, rank: Rank, output: Output) -> bool:
        """Whether an output that was released or received is passed on: always (invariant 33; bugs.md B20, B31)."""
        return True

    def awaits_output(self, rank: Rank, batch: LaunchedBatch) -> bool:
        """Whether the output of a harvested batch is received, whatever became of its requests (bugs.md B69)."""
        return True

    def commits_before_reuse(self, what: str) -> bool:
        """Whether a send is waited for before its buffer is given up (invariant 38)."""
        return True
