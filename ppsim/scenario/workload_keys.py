"""``[workload]``: what arrives, and when."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ppsim.scenario.bounds import MAX_REQUESTS, MAX_ROWS, MAX_TOKENS, Cost, Iteration, NonNegative, Positive, Tokens
from ppsim.scenario.section import Section


class Length(Section):
    """Distribution of a length in tokens.

    ``fixed``: ``value``. ``uniform``: every integer from ``min`` to ``max``. ``lognormal``: arithmetic mean ``mean``,
    standard deviation ``sigma`` of the log, then cut to ``min`` and ``max`` (which moves the mean).
    """

    kind: Literal["fixed", "uniform", "lognormal"] = "fixed"
    value: Tokens = 1024
    mean: Annotated[float, Field(ge=1e-3, le=MAX_TOKENS, allow_inf_nan=False)] = 1024.0
    sigma: Annotated[float, Field(ge=0, le=10)] = 1.0
    min: Tokens = 1
    max: Tokens = 131072


class ScriptedRequest(Section):
    """A request that names the iteration of the first rank in which it is read, or a time; neither: iteration 0.

    ``prefix_blocks``: ids of the leading blocks of ``workload.block_tokens`` tokens each; equal leading ids are a
    shared prefix. The rest of the prompt is the request's own; blocks beyond its end are not used.

    An id may come again, at a later moment: another request of the same name. Where the first is still there the second
    is refused, as SGLang would not know whom it answers.
    """

    rid: Annotated[str, Field(min_length=1)]
    at_iteration: Iteration | None = None
    at_ms: Cost | None = None
    prompt: Tokens
    output: Tokens = 1
    prefix_blocks: tuple[Annotated[int, Field(ge=0, lt=2**63)], ...] = ()
    stop_after: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = (
        0  # the n-th sampled token is the stop token, without it the request has none; 0: never
    )
    ignore_eos: bool = False
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    return_logprob: bool = False
    grammar: str | None = None  # a grammar that every rank compiles before the request may run


class ScriptedAbort(Section):
    """An abort among the inputs of an iteration of the first rank, or at a time. Unknown ids are ignored."""

    rid: str = ""
    abort_all: bool = False
    at_iteration: Iteration | None = None
    at_ms: Cost | None = None
    side: Literal["both", "prefill", "decode"] = "both"  # two pipelines: which of them is told


class ScriptedFlush(Section):
    """A request to empty the radix cache; refused while anything is in flight. Its reply has the id given here."""

    rid: Annotated[str, Field(min_length=1)] = "flush"
    at_iteration: Iteration


class Columns(Section):
    """Names of the columns of a trace in another format; none: told by the format."""

    time: str | None = None
    prompt: str | None = None  # tokens of the prompt
    output: str | None = None  # tokens of the output


class Workload(Section):
    """What arrives, and when."""

    source: Literal["requests", "chunks", "generated", "trace"] = "generated"
    requests: tuple[ScriptedRequest, ...] = ()
    aborts: tuple[ScriptedAbort, ...] = ()
    flushes: tuple[ScriptedFlush, ...] = ()
    num_chunks: Positive = 1  # source "chunks": one prompt of so many full chunks, one output token
    num_requests: NonNegative | None = (
        None  # generated: how many (None: 32; check.py has the most); trace: the first so many (None, 0: all)
    )
    arrival: Literal["poisson", "fixed", "burst"] = "poisson"  # fixed: equal gaps; burst: all at time 0
    rate_per_s: Annotated[float, Field(ge=1e-6, le=1e9)] = 1.0
    input_length: Length = Length()
    output_length: Length = Length(value=64)
    num_prefixes: Annotated[int, Field(ge=0, le=MAX_REQUESTS)] = (
        0  # generated: requests start with one of so many shared prefixes
    )
    prefix_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)] = (
        0  # part of the input_length; a shorter prompt is the prefix alone
    )
    block_tokens: Tokens = 512  # tokens of one hash_id or prefix block
    trace: str | None = None  # a file of any format of docs/workloads.md; None: the shipped generated trace
    time_unit: Literal["ns", "us", "ms", "s"] | None = None  # of a trace's times; None: as its format has it
    columns: Columns = Columns()
    tokenizer: str | None = None  # tokenizer.json (or its folder) that counts a trace's texts; None: estimated, told
    skip_bad_lines: bool = False  # of a trace: go on behind a line that is no request, and name each
    time_scale: Annotated[float, Field(ge=1e-9, le=1e9, allow_inf_nan=False)] = (
        1.0  # arrival times are multiplied by it
    )
    # Clients that send one request after the other, the next when one has ended; 0: requests come when they come.
    concurrency: Annotated[int, Field(ge=0, le=MAX_ROWS)] = 0
    num_sessions: Annotated[int, Field(ge=0, le=MAX_REQUESTS)] = 0  # generated: conversations, instead of num_requests
    num_turns: Positive | None = None  # of a session; None: 1 (generated), all that a trace has
    turn_input_length: Length | None = None  # new tokens of a later turn; None: as input_length
    think_time_ms: Cost = 0.0  # from the end of an answer to the next turn of its session
    think_time: Literal["fixed", "exponential"] = "fixed"  # exponential: think_time_ms is its mean
    ignore_eos: bool = True  # generated, trace. False: each sampled token is the stop token with eos_probability
    eos_probability: Annotated[float, Field(ge=0, le=1)] = 0.0
