"""The figures of a summary, counted while a run goes on: what ``summary.summarize`` reads from all records at once.

Rule: records are taken in the order of their iterations, whatever batches they come in, and nothing is kept of a
request that has ended. So memory grows with the requests that are under way, and with nothing else. What the words
mean is defined in ``summary.py``; a test holds the two against each other, figure by figure.

    from           what is counted
    arrival        a request; the first arrival begins the makespan
    ingested       when it was read
    decision       retractions, cached tokens of its first batch, closed slots, the chain of digests
    reply          first and last token, how it ended; the last one may end the makespan
    span           busy time of a rank, the window of the run
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ppsim.core.effects import Decision, Harvest
from ppsim.recording.digest import Chain, decision_digest, harvest_digest
from ppsim.recording.quantiles import MAX_RELATIVE_ERROR, Quantiles
from ppsim.recording.record import Recording
from ppsim.recording.schema import Arrival, Ingested, Span, TimedReply, Verdict
from ppsim.recording.stalls import StallCounter, stalls_json
from ppsim.recording.summary import NS_PER_S, StageTimes, bubble_ratio, rate, statistics


class Logical(Protocol):
    """A record that belongs to an iteration of the first rank."""

    @property
    def iteration(self) -> int: ...


R = TypeVar("R", bound=Logical)
MAX_CLOSINGS = 1000
"""Closed slots that are named; further ones are counted."""


@dataclass(slots=True)
class UnderWay:
    """A request that has no terminal reply yet."""

    num_prompt_tokens: int
    arrived_ns: int | None
    read_ns: int | None = None
    first_ns: int = -1  # its first token
    last_ns: int = -1
    num_tokens: int = 0
    has_run: bool = False  # its first batch has been decided


@dataclass(slots=True)
class Busy:
    """Forward passes of a rank: the length of their union, and how far it reaches."""

    start_ns: int | None = None
    covered_ns: int = 0
    reached_ns: int = 0
    end_ns: int = 0

    def take(self, spans: Sequence[Span]) -> None:
        """Spans that begin no earlier than those before."""
        for start, end in sorted((span.start_ns, span.end_ns) for span in spans if span.stream == "forward"):
            if self.start_ns is None:
                self.start_ns = start
            begin = max(start, self.reached_ns) if self.covered_ns else start
            if end > begin:
                self.covered_ns += end - begin
                self.reached_ns = end
            if end > self.end_ns:
                self.end_ns = end


class InFlight:
    """Of a closed loop: requests between sending and end, as ``summary.in_flight`` has them."""

    def __init__(self) -> None:
        self.sent: deque[int] = deque()  # times that no end has come to yet
        self.now = self.most = 0
        self.first_ns: int | None = None
        self.last_ns = self.total_ns = 0

    def ended(self, stay: tuple[int, int]) -> None:
        """In order of their ends: an end at the instant of a sending comes first."""
        begin, end = stay
        while self.sent and self.sent[0] < end:
            self.sent.popleft()
            self.now += 1
            self.most = max(self.most, self.now)
        self.now -= 1
        self.first_ns = begin if self.first_ns is None else min(self.first_ns, begin)
        self.last_ns = max(self.last_ns, end)
        self.total_ns += end - begin

    def as_json(self, num_clients: int) -> dict[str, Any]:
        elapsed_ns = 0 if self.first_ns is None else self.last_ns - self.first_ns
        mean = self.total_ns / elapsed_ns if elapsed_ns else 0.0
        return {"concurrency": {"clients": num_clients, "mean": mean, "max": self.most}}


class Tally:
    """Of one pipeline without replicas, whose ranks decide alike: the decisions are those of the first rank."""

    def __init__(self, num_ranks: int) -> None:
        self.under_way: dict[str, UnderWay] = {}
        self.same_id: dict[str, deque[UnderWay]] = {}  # of an id that has come again: those behind the first
        self.unread: dict[str, deque[UnderWay]] = {}
        self.ended = dict.fromkeys(("finished", "aborted", "refused"), 0)
        self.num_requests = self.num_retracted = self.num_iterations = 0
        self.first_refused = ""
        self.input_tokens = self.output_tokens = 0
        self.cached_tokens = self.admitted_tokens = 0
        self.ttft, self.from_read, self.tpot, self.e2e = Quantiles(), Quantiles(), Quantiles(), Quantiles()
        self.first_arrival_ns: int | None = None
        self.last_reply_ns = 0
        self.busy = [Busy() for _ in range(num_ranks)]
        self.in_flight = InFlight()
        self.stalls = StallCounter(MAX_CLOSINGS)
        self.decisions = Chain[Decision](decision_digest)
        self.harvests = Chain[Harvest](harvest_digest)

    # --- records ---------------------------------------------------------------------------------------------

    def take(self, r: Recording) -> None:
        """Count what a recording holds: whole iterations, behind those that it held before."""
        for arrival in r.arrivals:
            self._arrived(arrival)
        ingestions, replies = Queue(r.ingestions), Queue(r.replies)
        for decision in r.decisions[0]:
            for ingested in ingestions.up_to(decision.iteration):
                self._read(ingested)
            self._decided(decision)
            self._answered(replies.up_to(decision.iteration))
        for ingested in ingestions.rest():  # an iteration that was not decided any more
            self._read(ingested)
        self._answered(replies.rest())
        if r.replies:
            self.last_reply_ns = r.replies[-1].time_ns
        self.decisions.take(r.decisions[0])
        self.harvests.take(r.harvests[0])
        self.stalls.take(r.decisions[0])
        for busy, spans in zip(self.busy, r.spans, strict=True):
            busy.take(spans)

    def _arrived(self, arrival: Arrival) -> None:
        if self.first_arrival_ns is None or arrival.at_ns < self.first_arrival_ns:
            self.first_arrival_ns = arrival.at_ns
        self.in_flight.sent.append(arrival.at_ns)
        self._new(arrival.rid, arrival.num_prompt_tokens, arrival.at_ns)

    def _new(self, rid: str, num_prompt_tokens: int, at_ns: int | None) -> UnderWay:
        self.num_requests += 1
        made = UnderWay(num_prompt_tokens, at_ns)
        if self.under_way.setdefault(rid, made) is not made:
            self.same_id.setdefault(rid, deque()).append(made)
        if at_ns is not None:
            self.unread.setdefault(rid, deque()).append(made)
        return made

    def _read(self, ingested: Ingested) -> None:
        for item in ingested.inputs:
            if item.kind == "new":
                waiting = self.unread.get(item.rid)
                mine = waiting.popleft() if waiting else self._new(item.rid, item.num_prompt_tokens, None)
                if waiting is not None and not waiting:
                    del self.unread[item.rid]
                mine.read_ns = ingested.time_ns

    def _decided(self, decision: Decision) -> None:
        self.num_iterations = decision.iteration + 1
        self.num_retracted += len(decision.retracted)
        if decision.mode == "decode":  # no prompt is among its pieces
            return
        for rid, prefix_len, _ in decision.pieces:
            mine = self.under_way[rid]
            if not mine.has_run and prefix_len < mine.num_prompt_tokens:
                mine.has_run = True
                self.cached_tokens += prefix_len
                self.admitted_tokens += mine.num_prompt_tokens

    def _answered(self, replies: Iterable[TimedReply]) -> None:
        under_way = self.under_way
        for time_ns, _, rid, status, token_ids, num_output_tokens, reason in replies:
            mine = under_way.get(rid)
            if mine is None:  # about something else: a flush
                continue
            if status == "token":
                if mine.first_ns < 0 and token_ids:
                    mine.first_ns = time_ns
                mine.num_tokens += len(token_ids)
                mine.last_ns = time_ns
                continue
            behind = self.same_id.get(rid)
            if behind and status == "refused":
                mine = behind.pop()
            elif behind:
                under_way[rid] = behind.popleft()
            else:
                del under_way[rid]
            if behind is not None and not behind:
                del self.same_id[rid]
            new = max(0, num_output_tokens - mine.num_tokens)
            if new:
                mine.first_ns = time_ns if mine.first_ns < 0 else mine.first_ns
                mine.last_ns = time_ns
                mine.num_tokens += new
            self._ended(mine, status, time_ns)
            if status == "refused" and not self.first_refused:
                self.first_refused = f"{rid}: {reason}"

    def _ended(self, mine: UnderWay, status: str, time_ns: int) -> None:
        self.ended[status] += 1
        self._count_tokens(mine)
        if mine.arrived_ns is not None:
            self.in_flight.ended((mine.arrived_ns, time_ns))
        if status == "finished":
            self.input_tokens += mine.num_prompt_tokens
            if mine.arrived_ns is not None:
                self.e2e.add(time_ns - mine.arrived_ns)

    def _count_tokens(self, mine: UnderWay) -> None:
        self.output_tokens += mine.num_tokens
        if mine.num_tokens and mine.arrived_ns is not None:
            self.ttft.add(mine.first_ns - mine.arrived_ns)
        if mine.num_tokens and mine.read_ns is not None:
            self.from_read.add(mine.first_ns - mine.read_ns)
        if mine.num_tokens > 1:
            self.tpot.add(mine.last_ns - mine.first_ns, mine.num_tokens - 1)

    # --- figures ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The run is over: what is still under way counts as far as it came."""
        for mine in self.under_way.values():
            self._count_tokens(mine)
        for behind in self.same_id.values():
            for mine in behind:
                self._count_tokens(mine)
        self.under_way, self.same_id, self.unread = {}, {}, {}

    def makespan_ns(self, window: tuple[int, int]) -> int:
        start = window[0] if self.first_arrival_ns is None else self.first_arrival_ns
        return max(0, max(self.last_reply_ns, window[1]) - start)

    def as_json(self, recording: Recording, verdict: Verdict) -> dict[str, Any]:
        """The summary, as ``summary.summarize`` makes it of kept records; the run's own digest needs its replies."""
        begun = [busy for busy in self.busy if busy.start_ns is not None]
        window = (
            (min([busy.start_ns or 0 for busy in begun]), max([busy.end_ns for busy in begun])) if begun else (0, 0)
        )
        stages = [StageTimes(k, busy.covered_ns, window[1] - window[0], 1) for k, busy in enumerate(self.busy)]
        makespan_ns = self.makespan_ns(window)
        decisions = self.decisions.link.hex()
        timed = {"ttft_s": self.ttft, "ttft_from_read_s": self.from_read, "tpot_s": self.tpot, "e2e_s": self.e2e}
        return {
            "verdict": verdict.kind,
            "name": recording.name,
            "world": recording.world,
            "seed": recording.seed,
            "digest": None,
            "num_requests": self.num_requests,
            **{f"num_{status}": num for status, num in self.ended.items()},
            "num_retracted": self.num_retracted,
            "num_iterations": self.num_iterations,
            "makespan_s": makespan_ns / NS_PER_S,
            "bubble_ratio": bubble_ratio(stages),
            **{name: figures_of(found, are_quotients=found is self.tpot) for name, found in timed.items()},
            "percentiles": percentiles_of(timed.values()),
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "input_tokens_per_s": rate(self.input_tokens, makespan_ns),
            "output_tokens_per_s": rate(self.output_tokens, makespan_ns),
            "cached_tokens": self.cached_tokens,
            "cache_hit_rate": self.cached_tokens / self.admitted_tokens if self.admitted_tokens else 0.0,
            **(self.in_flight.as_json(recording.concurrency) if recording.concurrency else {}),
            **stalls_json(self.stalls.found()),
            "stages": [stage.as_json() for stage in stages],
            "decision_digests": [decisions] * len(self.busy),
            "warnings": recording.warnings,
        }


def figures_of(found: Quantiles, *, are_quotients: bool) -> dict[str, float | None]:
    if not found.is_exact:
        return found.statistics()
    return statistics(found.elapsed, found.divisors if are_quotients else None)


def percentiles_of(found: Iterable[Quantiles]) -> str:
    """How near the percentiles of a summary are."""
    exact = all(quantiles.is_exact for quantiles in found)
    return "exact" if exact else f"within {100 * MAX_RELATIVE_ERROR:.2f} %"


class Queue(Generic[R]):
    """Records in the order of their iterations, taken from the front."""

    def __init__(self, records: Sequence[R]) -> None:
        self.records, self.place = records, 0

    def up_to(self, iteration: int) -> Sequence[R]:
        begin = end = self.place
        records, num = self.records, len(self.records)
        while end < num and records[end].iteration <= iteration:
            end += 1
        self.place = end
        return records[begin:end]

    def rest(self) -> Sequence[R]:
        return self.records[self.place :]
