"""What came into a run from outside, by logical time: the bridge between the worlds (design decision 5).

Rule: only client inputs, local observations, sampled tokens and refused memory bring in anything that the protocol
does not determine. Fed with these, the other world makes the same decisions, record by record.

    inputs       by iteration of the first rank         sampled    by (iteration, slot) of the launch, one a row
    observed     of each rank by (iteration, nth look)  refusals   by request

Prompts are in the recording, or are what the scenario makes (``Known``); a later turn of a session is the turn before,
its answer as it was delivered, and new tokens. Each is held against the digest that was recorded with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ppsim.core.messages import AbortReq, FlushCache, Input, NewRequest, Shutdown
from ppsim.core.outcome import Stand
from ppsim.core.tokens import TokenBytes, pack
from ppsim.errors import UsageError
from ppsim.recording.record import Recording
from ppsim.recording.schema import INPUT_KINDS, Ingested, InputRecord, Observed, prompt_digest

BEFORE_INPUTS = ("ingest", "client")  # in the words of either world for what a rank was doing
TYPES = {kind: cls for cls, kind in INPUT_KINDS.items()}


@dataclass(frozen=True, slots=True)
class Known:
    """Prompts that a workload makes. ``heads``: whole ones, by digest. ``turns``: by id the turn before, new tokens."""

    heads: Mapping[str, TokenBytes]
    turns: Mapping[str, tuple[str, TokenBytes]]


NOTHING = Known({}, {})


@dataclass(frozen=True, slots=True)
class Inputs:
    """All of it. ``last_iteration``: the highest that any rank is known to have begun; the first rank has read it."""

    inputs: Mapping[int, tuple[Input, ...]]
    observed: Sequence[Mapping[tuple[int, int], Observed]]
    sampled: Mapping[tuple[int, int], tuple[int, ...]]
    refusals: Mapping[str, tuple[int, int]]  # (num_failing, behind)
    num_decisions: Sequence[int]  # of each rank
    last_iteration: int
    delivered: Mapping[tuple[str, int], int]  # (request, n): its n-th token, by what ranks post-processed
    stored: Mapping[int, Mapping[str, tuple[int | None, ...]]]  # iteration, request: statuses in the consensus store

    @property
    def num_requests(self) -> int:
        return sum(isinstance(item, NewRequest) for items in self.inputs.values() for item in items)


def inputs_of(recording: Recording, known: Known = NOTHING) -> Inputs:
    """Raises UsageError for a prompt that can't be made again, and for an input that is none."""
    prompts = Prompts(recording, known)
    inputs: dict[int, tuple[Input, ...]] = {}
    for read in recording.ingestions:  # ``live``: of a run of this process
        items = read.live or tuple(prompts.input(read, item) for item in read.inputs)
        inputs[read.iteration] = inputs.get(read.iteration, ()) + items
    observed = [{(o.iteration, o.nth): o for o in mine} for mine in recording.observations]
    begun = [record.iteration for mine in recording.decisions for record in mine[-1:]]
    begun += [o.iteration for mine in recording.observations for o in mine[-1:]]
    begun += [read.iteration for read in recording.ingestions[-1:]] + [s.iteration for s in recording.samples[-1:]]
    begun += [stand.iteration for stand in recording.stands if has_read(stand)]
    return Inputs(
        inputs,
        observed,
        {(s.iteration, s.slot): s.token_ids for s in recording.samples},
        {r.rid: (r.num_failing, r.behind) for r in recording.refusals},
        [len(mine) for mine in recording.decisions],
        max(begun, default=-1),
        delivered_of(recording),
        stored_of(recording),
    )


def stored_of(recording: Recording) -> dict[int, dict[str, tuple[int | None, ...]]]:
    """Statuses of all ranks behind each look into the consensus store; an older recording has none."""
    found: dict[int, dict[str, tuple[int | None, ...]]] = {}
    for stored in recording.stores:
        found.setdefault(stored.iteration, {})[stored.rid] = stored.statuses
    return found


def has_read(stand: Stand) -> bool:
    """Whether a rank that ended in the middle of an iteration had read its inputs; nothing is recorded of no inputs."""
    return not any(word in stand.doing for word in BEFORE_INPUTS)


def delivered_of(recording: Recording) -> dict[tuple[str, int], int]:
    """Tokens by request and position. An id may come again, then its last request's."""
    found: dict[tuple[str, int], int] = {}
    for mine in recording.harvests:
        for harvest in mine:
            found.update(zip(harvest.delivered, harvest.token_ids))
    return found


class Prompts:
    """Makes the inputs of a recording whole again."""

    def __init__(self, recording: Recording, known: Known) -> None:
        self.turns = known.turns
        self.by_digest = {**known.heads, **recording.prompts}
        self.latest: dict[str, TokenBytes] = {}  # by request
        self.answers: dict[str, list[int]] = {}
        for reply in recording.replies:
            self.answers.setdefault(reply.rid, []).extend(reply.token_ids)

    def input(self, read: Ingested, item: InputRecord) -> Input:
        """One recorded input as it was."""
        cls = TYPES.get(item.kind)
        if cls is None:
            raise UsageError(
                f"iteration {read.iteration}: an input of kind {item.kind!r}; there are: {', '.join(TYPES)}"
            )
        values: dict[str, Any] = dict(item.fields)
        if cls is not Shutdown:
            values["rid"] = item.rid
        if cls is NewRequest:
            values["prompt"] = self.latest[item.rid] = self.prompt(read, item)
        names = {field.name for field in fields(cls)}
        if set(values) != names:
            raise UsageError(
                f"iteration {read.iteration}: {item.kind} {item.rid} has the fields {', '.join(sorted(values))}, "
                f"expected {', '.join(sorted(names))}"
            )
        made: NewRequest | AbortReq | FlushCache | Shutdown = cls(**values)
        return made

    def prompt(self, read: Ingested, item: InputRecord) -> TokenBytes:
        if not item.prompt_digest:
            return b""
        found = self.by_digest.get(item.prompt_digest)
        if found is None and item.rid in self.turns:
            before, new = self.turns[item.rid]
            found = self.latest.get(before, b"") + pack(self.answers.get(before, ())) + new
        if found is None or prompt_digest(found) != item.prompt_digest:
            raise UsageError(
                f"the prompt of request {item.rid} ({item.num_prompt_tokens} tokens with digest {item.prompt_digest}, "
                f"read in iteration {read.iteration}) is not in the recording, and the scenario beside it makes "
                f"{'another one' if found is not None else 'none of that digest'}: was config.toml or a trace changed?"
            )
        return found
