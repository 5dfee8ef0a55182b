"""From the workload section of a scenario to its arrivals: one function for each source, one way to make a request."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import repeat
from typing import TypeAlias

from ppsim.core.messages import AbortReq, FlushCache, NewRequest
from ppsim.core.tokens import WIDTH, count
from ppsim.errors import ScenarioError
from ppsim.scenario.check import NO_ANSWER
from ppsim.scenario.tree import Scenario
from ppsim.scenario.workload_keys import ScriptedRequest
from ppsim.scenario.workload_keys import Workload as WorkloadKeys
from ppsim.workload.arrivals import EOS_TOKEN_ID, Arrival, Control, Workload, in_order
from ppsim.workload.content import own_block, prompt_tokens
from ppsim.workload.draws import NS_PER_S, Stream, exactly
from ppsim.workload.lines import TraceRow
from ppsim.workload.trace import Reading, Trace, read_trace

NUM_GENERATED = 32
MAX_PROMPT_TOKENS = 2**29  # of all requests together: 2 GB
NS_PER_MS = 1_000_000


def build_workload(scenario: Scenario) -> Workload:
    """All requests of a run. Prompts that no context could hold are kept: refusing them is the scheduler's reply.

    Raises TraceError for a trace that cannot be read.
    """
    concurrency = 0 if scenario.workload.source == "chunks" else scenario.workload.concurrency
    built = SOURCES[scenario.workload.source](scenario)
    return replace(built, controls=controls(scenario), concurrency=concurrency)


def controls(s: Scenario) -> tuple[Control, ...]:
    """Scripted aborts and flushes; they go with any source of requests."""
    found = [
        Control(
            AbortReq(a.rid, a.abort_all),
            None if a.at_ms is None else scaled(s, exactly(a.at_ms) * NS_PER_MS),
            a.at_iteration,
        )
        for a in s.workload.aborts
    ]
    return (*found, *(Control(FlushCache(f.rid), None, f.at_iteration) for f in s.workload.flushes))


class Prompts:
    """Counts the prompt tokens of a workload, before they take memory."""

    def __init__(self) -> None:
        self.num_tokens = self.num_requests = 0

    def add(self, num_tokens: int) -> None:
        """Raises ScenarioError where a run could not hold the prompts that it is to serve."""
        self.num_tokens += num_tokens
        self.num_requests += 1
        if self.num_tokens > MAX_PROMPT_TOKENS:
            raise ScenarioError(
                "workload",
                f"the first {self.num_requests} requests have {self.num_tokens} prompt tokens, a run may hold "
                f"{MAX_PROMPT_TOKENS}",
                "fewer requests (workload.num_requests), or shorter prompts",
            )


def scripted(s: Scenario) -> Workload:
    """Source "requests": exactly what is written."""
    prompts = Prompts()
    for r in s.workload.requests:
        prompts.add(r.prompt)
    return Workload(in_order([scripted_request(s, index, r) for index, r in enumerate(s.workload.requests)]))


def scripted_request(s: Scenario, index: int, r: ScriptedRequest) -> Arrival:
    request = NewRequest(
        rid=r.rid,
        prompt=prompt_tokens(r.prefix_blocks, s.workload.block_tokens, r.prompt, s.model.vocab_size, own_block(index)),
        max_new_tokens=r.output,
        stop_token_ids=(EOS_TOKEN_ID,) if r.stop_after else (),
        ignore_eos=r.ignore_eos,
        return_logprob=r.return_logprob,
        priority=r.priority,
        grammar=r.grammar,
    )
    if s.workload.concurrency:
        return Arrival(request, 0, None, r.output, r.stop_after)
    if r.at_ms is not None:
        return Arrival(request, scaled(s, exactly(r.at_ms) * NS_PER_MS), None, r.output, r.stop_after)
    return Arrival(request, None, r.at_iteration or 0, r.output, r.stop_after)


def chunks(s: Scenario) -> Workload:
    """Source "chunks": request R1 of ``num_chunks`` full chunks and one output token, read in iteration 0."""
    length = s.workload.num_chunks * s.scheduler.chunked_prefill_size
    prompt = prompt_tokens((), s.workload.block_tokens, length, s.model.vocab_size, own_block(0))
    return Workload((Arrival(NewRequest("R1", prompt, max_new_tokens=1), None, 0, 1),))


def generated(s: Scenario) -> Workload:
    """Source "generated"."""
    arrivals: list[Arrival] = []
    prompts = Prompts()
    for arrival, num_tokens in drawn(s):
        prompts.add(num_tokens)
        arrivals.append(arrival)
    return Workload(in_order(arrivals))


def drawn(s: Scenario, *, with_content: bool = True) -> Iterator[tuple[Arrival, int]]:
    """Arrivals one after the other, each with the tokens that its prompt can come to; the turns of a session together.

    Independent streams, so that changing one distribution moves nothing else. Without content the first prompt of each
    session is a blank of its length.
    """
    w = s.workload
    num_requests = NUM_GENERATED if w.num_requests is None else w.num_requests
    input_lengths, output_lengths, prefixes, stops = (
        Stream(s.seed, f"workload.{name}") for name in ("input_length", "output_length", "prefix", "stop")
    )
    sessions = Sessions(s)
    own = 0
    for index, at_ns in enumerate(times(s, w.num_sessions or num_requests)):
        shared = (prefixes.below(w.num_prefixes),) if w.num_prefixes and w.prefix_tokens else ()
        length, output_length = input_lengths.length(w.input_length), output_lengths.length(w.output_length)
        prompt = bytes(length * WIDTH)
        if with_content:
            prompt = prompt_tokens(shared, max(1, w.prefix_tokens), length, s.model.vocab_size, own_block(own))
        before = sampled_request(s, index, prompt, at_ns, output_length, stops)
        own += 1
        if not w.num_sessions:
            yield before, length
            continue
        before = sessions.first_turn(before)
        yield before, length
        for _ in range(1, w.num_turns or 1):
            new, output_length = sessions.turn_length(), output_lengths.length(w.output_length)
            before = sessions.next_turn(before, new, output_length, own_block(own), stops)
            own += 1
            yield before, sessions.num_tokens - output_length


class Sessions:
    """Makes the turns of one session after the other: R3.2 is the second turn of the third."""

    def __init__(self, s: Scenario) -> None:
        self.s = s
        self.lengths, self.think = Stream(s.seed, "workload.turn_input_length"), Stream(s.seed, "workload.think_time")
        self.num_tokens = 0  # that the session can have come to: prompt and output of its turns

    def first_turn(self, arrival: Arrival) -> Arrival:
        request = replace(arrival.request, rid=f"{arrival.request.rid}.1")
        self.num_tokens = count(request.prompt) + request.max_new_tokens
        return replace(arrival, request=request)

    def turn_length(self) -> int:
        w = self.s.workload
        return self.lengths.length(w.turn_input_length or w.input_length)

    def next_turn(self, before: Arrival, new: int, output_length: int, own: int, stops: Stream) -> Arrival:
        """The turn behind another one: ``new`` tokens of its own."""
        w, rid = self.s.workload, before.request.rid
        session, _, turn = rid.rpartition(".")
        prompt = prompt_tokens((), w.block_tokens, new, self.s.model.vocab_size, own)
        made = sampled_request(self.s, 0, prompt, 0, output_length, stops)
        request = replace(made.request, rid=f"{session}.{int(turn) + 1}")
        self.num_tokens += new + output_length
        return replace(made, request=request, at_ns=self.think_ns(), follows=rid)

    def think_ns(self) -> int:
        mean_ns = exactly(self.s.workload.think_time_ms) * NS_PER_MS
        if self.s.workload.think_time == "fixed" or not mean_ns:
            return round(mean_ns)
        return self.think.exponential_ns(float(NS_PER_S / mean_ns))


def times(s: Scenario, num_requests: int = sys.maxsize) -> Iterator[int]:
    """Arrival times in nanoseconds, the first at 0, before time_scale."""
    w = s.workload
    if w.arrival == "burst" or w.concurrency:
        yield from repeat(0, num_requests)
        return
    if w.arrival == "fixed":
        rate = exactly(w.rate_per_s)
        yield from (round(i * NS_PER_S / rate) for i in range(num_requests))
        return
    gaps, at_ns = Stream(s.seed, "workload.arrivals"), 0
    for index in range(num_requests):
        at_ns += gaps.exponential_ns(w.rate_per_s) if index else 0
        yield at_ns


def from_trace(s: Scenario) -> Workload:
    """Source "trace": the requests of a file."""
    trace, rows = trace_rows(s)
    arrivals, prompts = [], Prompts()
    history: dict[int, int] = {}  # by row, the tokens that its session has come to
    for row, arrival in zip(rows, row_arrivals(s, trace, iter(rows)), strict=True):
        before = history.get(row.follows, 0)
        history[row.number] = before + row.input_length + row.output_length
        prompts.add(before + row.input_length)
        arrivals.append(arrival)
    return Workload(in_order(arrivals), (*trace.warnings, *told_of_times(s, trace, rows)))


def trace_rows(s: Scenario) -> tuple[Trace, list[TraceRow]]:
    """The trace, and those of its rows that are served."""
    trace = read_trace(s.workload.trace, s.workload.block_tokens, reading_of(s.workload))
    return trace, chosen_rows(trace, s.workload.num_requests or None)


def row_arrivals(s: Scenario, trace: Trace, rows: Iterator[TraceRow]) -> Iterator[Arrival]:
    """The requests of rows, one after the other. ``rid`` R7 is the seventh data row, whatever the order of arrival, and
    of conversations R7.2 the second turn of the seventh."""
    stops, sessions = Stream(s.seed, "workload.stop"), Sessions(s)
    untimed = times(s)
    for row in rows:
        at_ns = row.at_ns if trace.timed or row.follows >= 0 else next(untimed)
        own = own_block(row.number)
        prompt = prompt_tokens(row.hash_ids or (), trace.block_tokens, row.input_length, s.model.vocab_size, own)
        made = sampled_request(s, row.number, prompt, at_ns, row.output_length, stops)
        yield made if row.place is None else of_conversation(made, row, sessions)


def reading_of(w: WorkloadKeys) -> Reading:
    """How a trace is to be read."""
    c = w.columns
    return Reading(w.block_tokens, w.time_unit, c.time, c.prompt, c.output, w.skip_bad_lines, w.tokenizer, w.num_turns)


def chosen_rows(trace: Trace, num_requests: int | None) -> list[TraceRow]:
    """The first so many rows; of conversations, the first so many of them."""
    rows = list(trace.rows)
    if num_requests is None or not rows or rows[0].place is None:
        return rows[:num_requests]
    return [row for row in rows if row.place is not None and row.place[0] < num_requests]


def of_conversation(made: Arrival, row: TraceRow, sessions: Sessions) -> Arrival:
    assert row.place is not None
    session, turn = row.place
    request = replace(made.request, rid=f"R{session + 1}.{turn + 1}")
    if row.follows < 0:
        return replace(made, request=request)
    return replace(made, request=request, at_ns=sessions.think_ns(), follows=f"R{session + 1}.{turn}")


def told_of_times(s: Scenario, trace: Trace, rows: list[TraceRow]) -> tuple[str, ...]:
    """How requests come where the times of the trace do not say it."""
    w = s.workload
    told: list[str] = []
    if trace.timed and w.concurrency:
        told.append(f"{trace.path}: its times are not used: workload.concurrency {w.concurrency}, so many clients")
    if not trace.timed and not w.concurrency:
        rate = "" if w.arrival == "burst" else f", {w.rate_per_s:g} a second"
        told.append(
            f"{trace.path}: it has no times; its requests come as workload.arrival {w.arrival!r} says{rate} "
            "(or give --concurrency)"
        )
    sessions = any(row.follows >= 0 for row in rows)
    if not sessions:
        unused = [key for key in ("think_time_ms",) if getattr(w, key)]
        told += [f"workload.{key} has no effect: {trace.path} has no conversations of several turns" for key in unused]
    if not any(row.place for row in rows):
        given = [key for key in ("num_turns", "tokenizer") if getattr(w, key) is not None]
        told += [f"workload.{key} has no effect: {trace.path} has no texts" for key in given]
    if sessions and s.disaggregation.role == "prefill":
        raise ScenarioError("workload.num_turns", *NO_ANSWER)
    return tuple(told)


def sampled_request(s: Scenario, index: int, prompt: bytes, at_ns: int, output_length: int, stops: Stream) -> Arrival:
    """A request that runs to ``output_length`` or, without ``ignore_eos``, to a stop token drawn here."""
    w = s.workload
    stop_after = 0 if w.ignore_eos else stops.geometric(w.eos_probability)
    request = NewRequest(
        rid=f"R{index + 1}",
        prompt=prompt,
        max_new_tokens=output_length,
        stop_token_ids=(EOS_TOKEN_ID,),
        ignore_eos=w.ignore_eos,
    )
    at_ns = 0 if w.concurrency else scaled(s, at_ns)
    return Arrival(request, at_ns, None, output_length, stop_after if stop_after <= output_length else 0)


def scaled(s: Scenario, at_ns: int | Fraction) -> int:
    """A time after ``workload.time_scale``, to the nearest nanosecond."""
    scale = s.workload.time_scale
    return round(at_ns if scale == 1 else at_ns * exactly(scale))  # a fraction costs more than all else of a request


Source: TypeAlias = Callable[[Scenario], Workload]
SOURCES: dict[str, Source] = {"requests": scripted, "chunks": chunks, "generated": generated, "trace": from_trace}
