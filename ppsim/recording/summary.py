"""A recording in numbers: the JSON object that ``ppsim run --json`` prints and ``summary.json`` keeps.

Rule: integers in, one division at the end, so that equal recordings give equal bytes. Definitions:

    ttft        first token's reply minus arrival; from_read counts from the moment the first rank read the request
    tpot        (last token's reply - first token's reply) / (tokens - 1), for requests with two tokens or more
    e2e         terminal reply minus arrival, of finished requests
    percentile  linear between the two nearest order statistics, as numpy's default
    makespan    first arrival to the last reply or the end of the last forward pass, whichever is later
    window      start of the first forward pass to the end of the last, over all ranks
    busy, idle  of a stage: union of its forward passes inside the window, and the rest of the window
    bubble      idle over window; of the run: summed over the ranks
    throughput  prompt tokens of finished requests, and delivered tokens, over the makespan

What has no value (a percentile of nothing) is null; a rate over an empty makespan is 0. NaN never appears.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from ppsim.recording.digest import digests_of
from ppsim.recording.record import Recording
from ppsim.recording.schema import Span, TimedReply, Verdict
from ppsim.recording.shares import SHARES, admissions, ttft_shares
from ppsim.recording.stalls import stalls, stalls_json

NS_PER_S = 1_000_000_000
starts = attrgetter("start_ns")


@dataclass(slots=True)
class Life:
    """What the records say of one request; times in ns, None where it never came to that."""

    rid: str
    num_prompt_tokens: int = 0
    arrived_ns: int | None = None
    read_ns: int | None = None
    token_ns: list[int] = field(default_factory=list)
    ended_ns: int | None = None
    status: str = "open"  # open | finished | aborted | refused


def summarize(recording: Recording, verdict: Verdict) -> dict[str, Any]:
    """The summary, ready for JSON. Of records that were not kept (``run.keep``) it was counted on the way."""
    counted = recording.counted(verdict)
    if counted is not None:
        return counted
    digests = digests_of(recording)
    lives = request_lives(recording)
    shares = ttft_shares(recording, lives)
    finished = [life for life in lives if life.status == "finished"]
    window = forward_window(recording)
    makespan_ns = makespan(recording, window)
    stages = [stage_times(recording, pp_rank, window) for pp_rank in range(recording.pp_size)]
    prompt_tokens = sum(life.num_prompt_tokens for life in finished)
    output_tokens = sum(len(life.token_ns) for life in lives)
    return {
        "verdict": verdict.kind,
        "name": recording.name,
        "world": recording.world,
        "seed": recording.seed,
        "digest": digests.run,
        "num_requests": len(lives),
        "num_finished": len(finished),
        "num_aborted": sum(life.status == "aborted" for life in lives),
        "num_refused": sum(life.status == "refused" for life in lives),
        "num_retracted": sum(len(d.retracted) for d in recording.decisions[0]),
        "num_iterations": num_iterations(recording),
        "makespan_s": makespan_ns / NS_PER_S,
        "bubble_ratio": bubble_ratio(stages),
        "ttft_s": statistics(first_token_times(lives)),
        "ttft_from_read_s": statistics(
            life.token_ns[0] - life.read_ns for life in lives if life.token_ns and life.read_ns is not None
        ),
        "tpot_s": statistics(*token_intervals(lives)),
        "e2e_s": statistics(
            life.ended_ns - life.arrived_ns
            for life in finished
            if life.ended_ns is not None and life.arrived_ns is not None
        ),
        "input_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "input_tokens_per_s": rate(prompt_tokens, makespan_ns),
        "output_tokens_per_s": rate(output_tokens, makespan_ns),
        **cache_use(recording if recording.peer is None else recording.peer, lives),
        **tier_use(recording if recording.peer is None else recording.peer),
        **in_flight(recording, lives),
        **stalls_json(stalls(recording)),
        "stages": [stage.as_json() for stage in stages],
        "decision_digests": list(digests.decisions),
        "warnings": recording.warnings,
        **disaggregated(recording, verdict, shares),
    }


def disaggregated(recording: Recording, verdict: Verdict, shares: Sequence[Mapping[str, int]]) -> dict[str, Any]:
    """What only a disaggregated run has: where TTFT goes, what an admission costs, and the prefill side's summary."""
    if not recording.marks and recording.peer is None:  # a side of two that has not come to a mark yet is one still
        return {}
    prefill = recording if recording.peer is None else recording.peer
    votes = admissions(prefill)
    found: dict[str, Any] = {
        "ttft_shares_s": {name: statistics(share[name] for share in shares) for name in SHARES},
        "admission_iterations": statistics(vote.iterations * NS_PER_S for vote in votes),
        "admission_s": statistics(vote.first_rank_ns for vote in votes),
        "admission_all_ranks_s": statistics(vote.all_ranks_ns for vote in votes),
    }
    if recording.peer is not None:
        found["prefill"] = summarize(recording.peer, verdict)
    return found


# --- requests --------------------------------------------------------------------------------------------------


def request_lives(recording: Recording) -> list[Life]:
    """Every request that arrived or was read. Two with one id are two lives: the second is the one that is refused."""
    lives: dict[str, list[Life]] = {}
    for arrival in recording.arrivals:
        life = Life(arrival.rid, arrival.num_prompt_tokens, arrived_ns=arrival.at_ns)
        lives.setdefault(arrival.rid, []).append(life)
    for ingested in recording.ingestions:
        for item in ingested.inputs:
            if item.kind == "new":
                mine = lives.setdefault(item.rid, [])
                unread = next((life for life in mine if life.read_ns is None), None)
                if unread is None:
                    unread = Life(item.rid, item.num_prompt_tokens)
                    mine.append(unread)
                unread.read_ns = ingested.time_ns
    for reply in recording.replies:
        still_open = [life for life in lives.get(reply.rid, ()) if life.status == "open"]
        if still_open:  # a reply about something else (a flush) is no request's
            answer(still_open[-1 if reply.status == "refused" else 0], reply)
    return [life for mine in lives.values() for life in mine]


def answer(life: Life, reply: TimedReply) -> None:
    """What a reply adds. A terminal one repeats the count: tokens that no streamed reply had are delivered with it."""
    seen = len(life.token_ns)
    new = len(reply.token_ids) if reply.status == "token" else max(0, reply.num_output_tokens - seen)
    life.token_ns.extend([reply.time_ns] * new)
    if reply.status != "token":
        life.ended_ns, life.status = reply.time_ns, reply.status


def in_flight(recording: Recording, lives: Iterable[Life]) -> dict[str, Any]:
    """Of a closed loop: how many clients, and how many requests were with the server, between sending and end.

    The mean is over the time from the first sending to the last end. Nothing is said of requests that came by
    themselves.
    """
    if not recording.concurrency:
        return {}
    stays = [(life.arrived_ns, life.ended_ns) for life in lives if life.arrived_ns is not None]
    known = [(begin, end) for begin, end in stays if end is not None]
    changes = sorted([(begin, 1) for begin, _ in known] + [(end, -1) for _, end in known])  # an end before a sending
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    elapsed_ns = changes[-1][0] - changes[0][0] if changes else 0
    mean = sum(end - begin for begin, end in known) / elapsed_ns if elapsed_ns else 0.0
    return {"concurrency": {"clients": recording.concurrency, "mean": mean, "max": most}}


def first_token_times(lives: Iterable[Life]) -> list[int]:
    return [life.token_ns[0] - life.arrived_ns for life in lives if life.token_ns and life.arrived_ns is not None]


def token_intervals(lives: Iterable[Life]) -> tuple[list[int], list[int]]:
    """Numerators and denominators of TPOT: elapsed ns and intervals of each request with at least two tokens."""
    several = [life for life in lives if len(life.token_ns) > 1]
    return [life.token_ns[-1] - life.token_ns[0] for life in several], [len(life.token_ns) - 1 for life in several]


def cache_use(recording: Recording, lives: Iterable[Life]) -> dict[str, Any]:
    """Prompt tokens that the radix cache already held when a request first ran, as the first rank decided.

    An id may come again: its requests run one behind the other, and one that is refused never does.
    """
    of_id: dict[str, list[Life]] = {}
    for life in lives:
        if life.status != "refused":
            of_id.setdefault(life.rid, []).append(life)
    ends: dict[str, list[int]] = {rid: [] for rid, mine in of_id.items() if len(mine) > 1}
    for reply in recording.replies if ends else ():
        if reply.rid in ends and reply.status in ("finished", "aborted"):
            ends[reply.rid].append(reply.iteration)
    seen: set[tuple[str, int]] = set()
    cached = admitted = 0
    for decision in recording.decisions[0]:
        if decision.mode == "decode":  # no prompt is among its pieces
            continue
        for rid, prefix_len, _ in decision.pieces:
            mine = of_id.get(rid)
            nth = bisect_left(ends[rid], decision.iteration) if rid in ends else 0
            if mine is None or nth >= len(mine) or (rid, nth) in seen:
                continue
            prompt = mine[nth].num_prompt_tokens
            if prefix_len < prompt:  # a decode server never runs a prompt
                seen.add((rid, nth))
                cached += prefix_len
                admitted += prompt
    return {"cached_tokens": cached, "cache_hit_rate": cached / admitted if admitted else 0.0}


def num_iterations(recording: Recording) -> int:
    """Iterations of the first rank: one more than the last it decided in."""
    mine = recording.decisions[0]
    return mine[-1].iteration + 1 if mine else 0


# --- time ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Busy time of a stage's ranks inside the window of the run, in rank-ns."""

    pp_rank: int
    busy_ns: int
    window_ns: int  # summed over the stage's ranks
    num_replicas: int

    def as_json(self) -> dict[str, Any]:
        idle_ns = self.window_ns - self.busy_ns
        return {
            "pp_rank": self.pp_rank,
            "busy_s": self.busy_ns / (NS_PER_S * self.num_replicas),
            "idle_s": idle_ns / (NS_PER_S * self.num_replicas),
            "bubble_ratio": idle_ns / self.window_ns if self.window_ns else 0.0,
        }


TIER_STREAMS = ("load", "write", "prefetch")


def tier_use(recording: Recording) -> dict[str, Any]:
    """Copies between device, host memory and storage: how many on a rank, and how long its link was busy at most."""
    found: dict[str, dict[str, float]] = {}
    for stream in TIER_STREAMS:
        lengths = [[span.end_ns - span.start_ns for span in mine if span.stream == stream] for mine in recording.spans]
        if any(lengths):
            found[stream] = {"num": max(map(len, lengths)), "busy_s": max(map(sum, lengths)) / NS_PER_S}
    return {"tier_copies": found} if found else {}


def forward_window(recording: Recording) -> tuple[int, int]:
    """[first forward start, last forward end) over all ranks in ns; (0, 0) if nothing ran."""
    forwards = [span for spans in recording.spans for span in spans if span.stream == "forward"]
    if not forwards:
        return 0, 0
    return min([span.start_ns for span in forwards]), max([span.end_ns for span in forwards])


def stage_times(recording: Recording, pp_rank: int, window: tuple[int, int] | None = None) -> StageTimes:
    """``window``: that of the run (``forward_window``), where it is known."""
    start, end = window or forward_window(recording)
    replicas = range(pp_rank * recording.tp_replicas, (pp_rank + 1) * recording.tp_replicas)
    busy = sum(covered_ns(recording.spans[rank]) for rank in replicas)
    return StageTimes(pp_rank, busy, (end - start) * recording.tp_replicas, recording.tp_replicas)


def covered_ns(spans: Iterable[Span]) -> int:
    """Length of the union of the forward spans: two that overlap are not counted twice."""
    covered = reached = 0
    for span in sorted([span for span in spans if span.stream == "forward"], key=starts):
        start, end = span.start_ns, span.end_ns
        if covered and start < reached:
            start = reached
        if end > start:
            covered += end - start
            reached = end
    return covered


def bubble_ratio(stages: Sequence[StageTimes]) -> float:
    window = sum(stage.window_ns for stage in stages)
    busy = sum(stage.busy_ns for stage in stages)
    return (window - busy) / window if window else 0.0


def makespan(recording: Recording, window: tuple[int, int] | None = None) -> int:
    """First arrival to the last reply or forward end, in ns; without arrivals from the first forward start."""
    start, end = window or forward_window(recording)
    begins = [arrival.at_ns for arrival in recording.arrivals] or [start]
    ends = [reply.time_ns for reply in recording.replies[-1:]] + [end]
    return max(0, max(ends) - min(begins))


# --- numbers ---------------------------------------------------------------------------------------------------


def rate(count: int, elapsed_ns: int) -> float:
    """Per second; 0 where no time passed."""
    return count * NS_PER_S / elapsed_ns if elapsed_ns else 0.0


def statistics(elapsed_ns: Iterable[int], divisors: Iterable[int] | None = None) -> dict[str, float | None]:
    """Mean, p50, p90 and p99 in seconds of elapsed[i] / divisors[i] (1 without divisors)."""
    elapsed = list(elapsed_ns)
    seconds = sorted(e / (NS_PER_S * d) for e, d in zip(elapsed, divisors or [1] * len(elapsed)))
    if not seconds:
        return {"mean": None, "p50": None, "p90": None, "p99": None}
    mean = sum(elapsed) / (NS_PER_S * len(elapsed)) if divisors is None else sum(seconds) / len(seconds)
    return {"mean": mean, **{f"p{q}": percentile(seconds, q) for q in (50, 90, 99)}}


def percentile(ordered: Sequence[float], q: int) -> float:
    """Linear between order statistics: position q/100 * (n - 1). ``ordered`` ascends and is not empty."""
    low, rest = divmod(q * (len(ordered) - 1), 100)
    if not rest:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * rest / 100
