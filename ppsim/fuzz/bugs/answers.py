"""Bugs of what a request gets: its tokens, their extras, its end. bugs.md, classes lost results and abort."""

from __future__ import annotations

from dataclasses import replace

from ppsim.core.effects import Effects
from ppsim.core.loop import Loop
from ppsim.core.messages import AbortReq
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.core.schedule.request import State
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import LaunchedBatch
from ppsim.plugin import planted
from ppsim.plugin.plans import before, behind, does, instead, named


@planted("chunk_count_moves_rows", breaks="INV-34", profile="chunked", source="bugs.md B12")
class ChunkCountMovesRows(Scheduler):
    """On ranks before the last the count of computed tokens is taken for the length of a prompt that came in chunks.

    The token behind it lands where the next request of the batch begins, so rows change places. One prompt alone has
    no neighbour: nothing is seen at low concurrency.
    """

    def rows_of(self, batch: LaunchedBatch, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        first = batch.forward.pieces[0]
        came_in_chunks = not first.is_decode and first.prefix_len > 0
        if self.config.is_last or not came_in_chunks or len(token_ids) < 2:
            return token_ids
        return (*token_ids[1:], token_ids[0])


@planted("logprobs_not_relayed", breaks="INV-71", profile="plain", source="bugs.md B57")
class LogprobsNotRelayed(Loop):
    """Only the token ids of an output go on round the ring."""

    def plan(self) -> Plan:
        steps = super().plan()

        def drop_extras(rank: Rank) -> None:
            if rank.pp_outputs is not None:
                rank.pp_outputs = replace(rank.pp_outputs, num_logprobs=0)
            queue = rank.last_rank_comm_queue
            if queue and rank.config.pp_size > 1:
                queue[-1] = replace(queue[-1], num_logprobs=0)

        return behind(steps, "launch_batch", does(drop_extras))


@planted("token_before_abort", breaks="INV-67", profile="abort", source="bugs.md B60")
class TokenBeforeAbort(Loop):
    """The result of a last chunk is applied before the pending abort is looked at."""

    def plan(self) -> Plan:
        steps = super().plan()
        for name in ("harvest", "absorb_outputs"):
            for phase in named(steps, name):
                steps = instead(steps, name, self.token_first(phase))
        return steps

    def token_first(self, phase: Phase) -> Phase:
        def run(rank: Rank) -> Effects[None]:
            slot = rank.scheduler.slots.to_harvest(rank.iteration)
            batch = slot.launched if slot.in_flight else None
            hidden: list[tuple[int, str]] = []
            for row, request in enumerate(batch.requests if batch is not None else ()):
                is_last = batch is not None and batch.forward.pieces[row].is_last_chunk
                if request.to_abort and request.state is State.PREFILL and is_last:
                    hidden.append((row, request.to_abort))
                    request.to_abort = ""
            yield from phase(rank)
            for row, reason in hidden:
                assert batch is not None
                batch.requests[row].to_abort = reason

        run.__name__ = phase.__name__
        return run


@planted("layers_counted_by_own_stage", breaks="INV-32", profile="plain", source="bugs.md B64")
class LayersCountedByOwnStage(Rank):
    """A stage takes its rank times its own number of layers for the number of its first layer."""

    @property
    def first_layer(self) -> int:
        layers, pp_rank = self.config.layers, self.config.pp_rank
        return pp_rank * layers[pp_rank] if layers else 0


@planted("abort_in_the_middle", breaks="INV-68", profile="abort", source="bugs.md B66")
class AbortInTheMiddle(Loop):
    """An abort acts again in the middle of an iteration, where the slot variables point to another batch."""

    def plan(self) -> Plan:
        steps = super().plan()
        return before(steps, "harvest", does(abort_again))


def abort_again(rank: Rank) -> None:
    """The first request of the visited slot is taken for the one that the abort names."""
    visited = rank.scheduler.slots.current(rank.iteration).launched
    for item in rank.inputs:
        if not isinstance(item, AbortReq) or item.abort_all or visited is None or rank.batch is None:
            continue
        wrong = visited.requests[0]
        if item.rid in rank.scheduler.requests and wrong.rid != item.rid and not wrong.to_abort:
            wrong.to_abort = item.reason
