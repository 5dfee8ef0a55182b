"""A recorded run through the core's scheduler: apply, schedule, harvest, visit by visit, without any messages.

Rule: nothing is decided here. The scheduler is the one that both worlds run; the recording gives what came in
(requests, sampled tokens), and every field of every visit is compared with what the scheduler made of it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ppsim.conform.format import RecordedRequest, RecordedRun, RecordedVisit, fields_of_a_visit
from ppsim.core.config import RankConfig
from ppsim.core.effects import Reply
from ppsim.core.errors import CoreError
from ppsim.core.messages import NewRequest
from ppsim.core.parts import RIGHT, Parts
from ppsim.core.policy import Policy
from ppsim.core.schedule.journal import Ended
from ppsim.core.schedule.slots import LaunchedBatch
from ppsim.core.tokens import pack

RATIO_TOLERANCE = 1e-9  # engines keep the ratio as a float that is lowered step by step; here it is a fraction
NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class Difference:
    """The first field of a run that is not as recorded. ``note`` says what else is known of it; may be empty."""

    seed: int
    line: int
    visit: int
    field: str
    recorded: Any
    here: Any
    note: str = ""


def config_of(run: RecordedRun) -> RankConfig:
    """What a rank is started with for a recorded run: SGLang's rules. The first rank stands for all."""
    c = run.config
    return RankConfig(
        pp_rank=0,
        pp_size=c["pp_size"],
        pp_async_batch_depth=c["pp_async_batch_depth"],
        schedule_policy=c["schedule_policy"],
        chunked_prefill_size=c["chunked_prefill_size"],
        max_prefill_tokens=c["max_prefill_tokens"],
        prefill_max_requests=c["prefill_max_requests"],
        enable_mixed_chunk=c["enable_mixed_chunk"],
        prefill_decode_interval=c["prefill_decode_interval"],
        max_running_requests=c["max_running_requests"],
        max_micro_batch_size=c["max_micro_batch_size"],
        page_size=c["page_size"],
        enable_radix_cache=c["radix_cache"],
        chunk_table=c["chunk_table"],
        context_length=NO_LIMIT,
    )


def first_difference(
    run: RecordedRun, config: RankConfig | None = None, parts: Parts = RIGHT, policy: Policy | None = None
) -> Difference | None:
    """Drive the scheduler with a recorded run; None if every field of every visit is as recorded.

    ``config``, ``parts`` and ``policy`` replace what the recording says, to ask what another rule would have done.
    Raises RecordedRunError where the recording itself cannot be: a token is needed that it does not hold.
    """
    driver = Driver(run, config or config_of(run), parts, policy or Policy())
    for number, recorded in enumerate(run.visits):
        try:
            here = driver.visit(number)
        except CoreError as error:
            return Difference(run.seed, run.line, number, "error", None, str(error), driver.note())
        for field in fields_of_a_visit():
            if not same(field, getattr(recorded, field), here[field]):
                return Difference(
                    run.seed, run.line, number, field, getattr(recorded, field), here[field], driver.note()
                )
    return None


def same(field: str, recorded: Any, here: Any) -> bool:
    if field == "ratio":
        return bool(abs(Fraction(recorded) - here) <= RATIO_TOLERANCE)
    return bool(recorded == here)


class Driver:
    """One rank without a world."""

    def __init__(self, run: RecordedRun, config: RankConfig, parts: Parts, policy: Policy) -> None:
        self.run = run
        self.scheduler = parts.make_scheduler(config, run.config["max_total_tokens"], 0, policy)
        self.requests = {request.rid: request for request in run.requests}
        self.place = {request.rid: i for i, request in enumerate(run.requests)}
        self.due: dict[int, list[RecordedRequest]] = defaultdict(list)
        for request in run.requests:
            self.due[request.at_iteration].append(request)
        self.replies: list[Reply] = []
        self.sweep_had_batch = False

    def visit(self, iteration: int) -> dict[str, Any]:
        """One iteration; the fields of ``RecordedVisit`` as they are here."""
        scheduler = self.scheduler
        scheduler.iteration = iteration
        scheduler.apply(new_request(request) for request in self.due.pop(iteration, ()))
        batch, decision = scheduler.schedule(iteration)
        slot = scheduler.slots.current(iteration)
        pool, tree = scheduler.kv.pool, scheduler.kv.tree
        found = {
            "mode": decision.mode,
            "pieces": decision.pieces,
            "retracted": decision.retracted,
            "aborted": tuple(end.rid for end in scheduler.journal.of(Ended)),
            "chunked": decision.chunked_rid,
            "waiting": tuple(r.rid for r in scheduler.waiting),
            "running": tuple(r.rid for r in slot.running),
            "full": slot.batch_is_full,
            "ratio": scheduler.ratio.value,
            "free": pool.free_tokens,
            "ev": tree.evictable_tokens,
        }
        due = scheduler.slots.to_harvest(iteration)
        launched = due.launched if due.in_flight else None
        scheduler.absorb(iteration, None if launched is None else self.sampled(iteration, launched))
        self.end_of_sweep(iteration, batch)
        self.replies += scheduler.journal.take_replies()
        scheduler.journal.flush()
        return {**found, "free2": pool.free_tokens, "ev2": tree.evictable_tokens}

    def sampled(self, iteration: int, batch: LaunchedBatch) -> tuple[int, ...]:
        """The recorded tokens of a batch, one a row; that of a middle chunk is thrown away."""
        tokens = []
        for piece, request in zip(batch.forward.pieces, batch.requests):
            if not piece.is_last_chunk:
                tokens.append(0)
                continue
            samples, n = self.requests[request.rid].samples, len(request.output_ids)
            if n >= len(samples):
                what = f"output token {n + 1} of {request.rid!a}"
                problem = f"holds {len(samples)} tokens, but visit {iteration} harvests {what}"
                raise self.run.wrong(f"requests[{self.place[request.rid]}].samples", problem)
            tokens.append(samples[n])
        return tuple(tokens)

    def end_of_sweep(self, iteration: int, batch: LaunchedBatch | None) -> None:
        """Idle housekeeping after a round of all slots without a batch (protocol.md 1.3, step 12)."""
        self.sweep_had_batch |= batch is not None
        if (iteration + 1) % len(self.scheduler.slots) == 0:
            if not self.sweep_had_batch:
                self.scheduler.on_idle()
            self.sweep_had_batch = False

    def note(self) -> str:
        """Requests that this scheduler refused at their arrival: a recording that serves one differs at once."""
        refused = [reply for reply in [*self.replies, *self.scheduler.journal.due_replies] if reply.status == "refused"]
        return f"{refused[0].rid} was refused here: {refused[0].reason}" if refused else ""


def new_request(request: RecordedRequest) -> NewRequest:
    return NewRequest(
        request.rid,
        pack(request.prompt),
        request.max_new_tokens,
        request.stop_token_ids,
        ignore_eos=request.ignore_eos,
        return_logprob=request.return_logprob,
    )


__all__ = ["Difference", "RecordedVisit", "config_of", "first_difference"]
