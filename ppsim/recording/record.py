"""The recording of a run, in memory: what the worlds call while they run.

Rule: an append and nothing more. Text, digests and statistics are made when the run is over. One list for each rank,
never one list for all: the order in which a world happens to serve its ranks is not a fact about the run (design
decision 11), and the executor has no such order at all.

Ranks that decide alike share one object: a replica's equal record is replaced by the first rank's. That is a quarter
of the memory at pp_size 4, and makes "all ranks agree" cheap to write and to check.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from ppsim.core.effects import Decision, Harvest, Reply
from ppsim.core.messages import Input, NewRequest
from ppsim.core.tokens import TokenBytes
from ppsim.recording.schema import (
    Arrival,
    Came,
    Ingested,
    Left,
    Mark,
    Message,
    Observed,
    Origin,
    Refused,
    Sampled,
    Span,
    Stand,
    Stored,
    TimedReply,
    Verdict,
    input_record,
)

T = TypeVar("T", Decision, Harvest)


class Recording:
    """Records of one run. ``rank`` counts pp_rank * tp_replicas + tp_rank; ``world`` is "sim" or "exec"."""

    def __init__(
        self, pp_size: int, *, tp_replicas: int = 1, name: str = "", seed: int = 0, world: str = "sim"
    ) -> None:
        self.pp_size = pp_size
        self.tp_replicas = tp_replicas
        self.name = name
        self.seed = seed
        self.world = world
        num_ranks = pp_size * tp_replicas
        self.decisions: list[list[Decision]] = [[] for _ in range(num_ranks)]
        self.harvests: list[list[Harvest]] = [[] for _ in range(num_ranks)]
        self.observations: list[list[Observed]] = [[] for _ in range(num_ranks)]
        self.spans: list[list[Span]] = [[] for _ in range(num_ranks)]
        self.visits: list[list[int]] = [[] for _ in range(num_ranks)]  # ns at which a rank decided iteration 0, 1, ...
        self.messages: dict[tuple[int, int, str], list[Message]] = {}  # by sender, receiver and kind, in order
        self.arrivals: list[Arrival] = []
        self.ingestions: list[Ingested] = []
        self.replies: list[TimedReply] = []
        self.samples: list[Sampled] = []
        self.stores: list[Stored] = []  # statuses behind what the first rank read from the consensus store
        self.warnings: list[str] = []
        self.marks: list[Mark] = []  # in order of time; disaggregation only
        self.stands: list[Stand] = []  # of a run that failed: one a rank
        self.concurrency = 0  # clients of a closed loop; 0: requests came when they came
        self.origin = Origin()
        self.keeps_prompts = False  # whether prompts are kept whole; else the scenario makes them again
        self.prompts: dict[str, TokenBytes] = {}  # by digest
        self.refusals: list[Refused] = []
        self.left: list[list[Left]] = [[] for _ in range(num_ranks)]  # real ranks: halves of messages, each its own
        self.came: list[list[Came]] = [[] for _ in range(num_ranks)]
        self.cuts: list[str] = []  # of what was read: files that end before their rank did, a sentence each
        self.peer: Recording | None = None  # two pipelines: of the decode side, the prefill side
        self.keep = "all"  # "file", "summary": its records are gone from memory (``stream.py``)

    @property
    def num_ranks(self) -> int:
        return self.pp_size * self.tp_replicas

    def pp_rank(self, rank: int) -> int:
        """The stage of a rank."""
        return rank // self.tp_replicas

    def decision(self, rank: int, decision: Decision) -> None:
        """A rank's scheduling decision, in iteration order."""
        self.decisions[rank].append(shared(self.decisions, rank, decision))

    def harvest(self, rank: int, harvest: Harvest) -> None:
        """What a rank post-processed, in iteration order."""
        self.harvests[rank].append(shared(self.harvests, rank, harvest))

    def observed(self, rank: int, iteration: int, what: str, keys: tuple[str, ...], values: tuple[int, ...]) -> None:
        """The answer to an ``Observe`` of a rank; its place within the iteration is counted here."""
        mine = self.observations[rank]
        nth = mine[-1].nth + 1 if mine and mine[-1].iteration == iteration else 0
        mine.append(Observed(iteration, nth, what, keys, values))

    def stored(self, iteration: int, rid: str, statuses: Sequence[int | None]) -> None:
        """The consensus store held these statuses of ``rid`` when the first rank looked."""
        self.stores.append(Stored(iteration, rid, tuple([None if s is None else int(s) for s in statuses])))

    def span(self, rank: int, stream: str, slot: int, iteration: int, start_ns: int, end_ns: int) -> None:
        """A stream of a rank was busy in [start_ns, end_ns), at whatever time the world tells."""
        self.spans[rank].append(Span(stream, slot, iteration, start_ns, end_ns))

    def message(
        self, src: int, dst: int, kind: str, iteration: int, leaves_ns: int, sent_ns: int, arrival_ns: int
    ) -> None:
        """Hidden states or outputs were received."""
        self.messages.setdefault((src, dst, kind), []).append(Message(iteration, leaves_ns, sent_ns, arrival_ns))

    def arrival(self, rid: str, at_ns: int, num_prompt_tokens: int, num_output_tokens: int) -> None:
        """A client's request reached the server, read or not."""
        self.arrivals.append(Arrival(rid, at_ns, num_prompt_tokens, num_output_tokens))

    def ingested(self, iteration: int, inputs: Sequence[Input], time_ns: int) -> None:
        """The first rank read these inputs. Nothing is recorded where there were none."""
        if inputs:
            records = tuple(input_record(item) for item in inputs)
            for item, record in zip(inputs, records) if self.keeps_prompts else ():
                if isinstance(item, NewRequest) and record.prompt_digest:
                    self.prompt(record.prompt_digest, item.prompt)
            self.ingestions.append(Ingested(iteration, time_ns, records, tuple(inputs)))

    def prompt(self, digest: str, tokens: TokenBytes) -> None:
        """A prompt, kept once."""
        self.prompts.setdefault(digest, tokens)

    def visited(self, rank: int, time_ns: int) -> None:
        """A rank decides its next iteration."""
        self.visits[rank].append(time_ns)

    def has_left(self, rank: int, left: Left) -> None:
        """A rank's send of device data is over."""
        self.left[rank].append(left)

    def has_come(self, rank: int, came: Came) -> None:
        """A rank has received device data."""
        self.came[rank].append(came)

    def reply(self, time_ns: int, reply: Reply) -> None:
        """A reply left the first rank. It belongs to the iteration that the first rank decided last."""
        mine = self.decisions[0]
        iteration = mine[-1].iteration if mine else -1
        self.replies.append(
            TimedReply(
                time_ns, iteration, reply.rid, reply.status, reply.token_ids, reply.num_output_tokens, reply.reason
            )
        )

    def sampled(self, iteration: int, slot: int, token_ids: tuple[int, ...]) -> None:
        """Tokens that the last rank sampled for the batch launched in ``iteration``."""
        self.samples.append(Sampled(iteration, slot, token_ids))

    def flush(self) -> None:
        """What was recorded so far should be where it cannot be lost. A recording in memory alone has no such place."""

    def close(self) -> None:
        """The rank has ended by itself: nothing follows."""

    def refused_requests(self) -> tuple[int, int, str]:
        """How many requests were refused, of how many that arrived, and the first of them with the reason."""
        arrived = {a.rid for a in self.arrivals}
        refused = [r for r in self.replies if r.status == "refused" and r.rid in arrived]
        return len(refused), len(self.arrivals), f"{refused[0].rid}: {refused[0].reason}" if refused else ""

    def counted(self, verdict: Verdict) -> dict[str, Any] | None:
        """The summary, where records were counted as they came and not kept."""
        return None

    def written(self) -> Iterator[str] | None:
        """The lines of the file, where they were written as they came."""
        return None

    def absorb(self, rank: int, part: Recording) -> None:
        """Take over what ``part``, made by the process of one rank, holds about ``rank``; from rank 0 also the rest.

        Ranks are absorbed in order, 0 first, so that equal records become one object again.
        """
        for decision in part.decisions[rank]:
            self.decision(rank, decision)
        for harvest in part.harvests[rank]:
            self.harvest(rank, harvest)
        self.observations[rank].extend(part.observations[rank])
        self.spans[rank].extend(part.spans[rank])
        self.visits[rank].extend(part.visits[rank])
        for key, messages in part.messages.items():
            self.messages.setdefault(key, []).extend(messages)
        self.left[rank].extend(part.left[rank])
        self.came[rank].extend(part.came[rank])
        self.cuts.extend(part.cuts)
        if rank == 0:
            self.prompts.update(part.prompts)
            self.refusals.extend(part.refusals)
            self.arrivals.extend(part.arrivals)
            self.ingestions.extend(part.ingestions)
            self.replies.extend(part.replies)
            self.stores.extend(part.stores)
            self.marks.extend(part.marks)
        self.samples.extend(part.samples)
        for message in part.warnings:
            self.warn(message)

    def join_messages(self) -> None:
        """Make messages of what left one rank and came to another; what is still on its way makes none."""
        departures = {
            (src, left.dst, left.kind, left.iteration): left for src, mine in enumerate(self.left) for left in mine
        }
        for dst, mine in enumerate(self.came):
            for came in mine:
                left = departures.get((came.src, dst, came.kind, came.iteration))
                if left is not None:
                    leaves_ns = min(left.leaves_ns, came.arrival_ns)
                    sent_ns = max(leaves_ns, min(left.sent_ns, came.arrival_ns))
                    self.message(came.src, dst, came.kind, came.iteration, leaves_ns, sent_ns, came.arrival_ns)
        self.left = [[] for _ in range(self.num_ranks)]
        self.came = [[] for _ in range(self.num_ranks)]

    def warn_of_ignored_aborts(self, num_ignored: int) -> None:
        """Aborts that found nobody did nothing and were counted, alike on all ranks; the user is told once."""
        if num_ignored:
            self.warn(f"aborts that were ignored, for requests that are unknown or had ended: {num_ignored}")

    def warn(self, message: str) -> None:
        """Something the user should know although the run went on; shown once in the summary."""
        if message not in self.warnings:
            self.warnings.append(message)


def shared(lists: list[list[T]], rank: int, record: T) -> T:
    """The first rank's record at the same place where it is equal, else the record itself."""
    place = len(lists[rank])
    first = lists[0]
    if rank and place < len(first) and first[place] == record:
        return first[place]
    return record
