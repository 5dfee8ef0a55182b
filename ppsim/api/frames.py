"""The tables of a run. Units stand last in a column's name; ``_ns`` columns are exact integers, ``<NA>`` if never."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ppsim.errors import UsageError
from ppsim.recording import Recording
from ppsim.recording.summary import Life, request_lives

if TYPE_CHECKING:
    from types import ModuleType

    import pandas as pd

NS_PER_S = 1e9

# Column -> (type in pandas, what it says). Int64 and Float64 may be <NA>.
Columns = dict[str, tuple[str, str]]

REQUESTS: Columns = {
    "rid": ("object", "id of the request"),
    "status": ("object", "finished, aborted, refused; open: it has not ended"),
    "num_prompt_tokens": ("int64", "tokens of the prompt"),
    "num_output_tokens": ("int64", "tokens that the client got"),
    "num_cached_tokens": ("Int64", "prompt tokens that the radix cache held when it first ran; <NA>: it never ran"),
    "arrived_ns": ("Int64", "the client sent it"),
    "read_ns": ("Int64", "the first rank read it"),
    "first_token_ns": ("Int64", "its first token left"),
    "ended_ns": ("Int64", "its last reply left"),
    "ttft_s": ("Float64", "first token minus arrival"),
    "tpot_s": ("Float64", "time per output token after the first; <NA> with fewer than two"),
    "e2e_s": ("Float64", "end minus arrival, of finished requests"),
}
BATCHES: Columns = {
    "rank": ("int64", "rank: pp_rank * tp_replicas + tp_rank"),
    "pp_rank": ("int64", "stage of the rank"),
    "iteration": ("int64", "iteration of the rank in which it was launched"),
    "slot": ("int64", "microbatch slot"),
    "mode": ("object", "extend, decode or mixed"),
    "num_requests": ("int64", "requests in it"),
    "num_tokens": ("int64", "tokens that it computes"),
    "num_context_tokens": ("int64", "tokens before them, whose KV it reads"),
    "num_retracted": ("int64", "requests put back for want of memory in this visit"),
    "start_ns": ("Int64", "its forward pass began on this rank"),
    "end_ns": ("Int64", "its forward pass was over"),
    "duration_ms": ("Float64", "the time between"),
}
SPANS: Columns = {
    "rank": ("int64", "rank: pp_rank * tp_replicas + tp_rank"),
    "pp_rank": ("int64", "stage of the rank"),
    "stream": ("object", "forward; kv: to the decode side; write, load, prefetch: between cache tiers"),
    "slot": ("int64", "microbatch slot"),
    "iteration": ("int64", "iteration in which it was launched"),
    "start_ns": ("int64", "busy from"),
    "end_ns": ("int64", "busy until"),
    "duration_ms": ("float64", "the time between"),
}


def load_pandas() -> ModuleType:
    """pandas. Raises UsageError where it is not installed."""
    try:
        import pandas
    except ImportError:
        raise UsageError("tables need pandas, which is not installed: pip install 'ppsim[data]'") from None
    return pandas


def frame(columns: Columns, rows: Iterable[tuple[Any, ...]]) -> pd.DataFrame:
    """A data frame of rows, each column of its type, also where there is no row at all."""
    pandas = load_pandas()
    by_column = list(zip(*rows)) or [()] * len(columns)
    series = {
        name: pandas.Series(list(values), dtype=kind) for (name, (kind, _)), values in zip(columns.items(), by_column)
    }
    made: pd.DataFrame = pandas.DataFrame(series, columns=list(columns))
    return made


def seconds(later_ns: int | None, earlier_ns: int | None) -> float | None:
    return None if later_ns is None or earlier_ns is None else (later_ns - earlier_ns) / NS_PER_S


# --- requests ------------------------------------------------------------------------------------------------------


def requests(recording: Recording) -> pd.DataFrame:
    """A row a request: those that arrived, in their order, then those that name an iteration, as they were read."""
    prefill = recording if recording.peer is None else recording.peer
    first_runs = first_prefixes(prefill)
    return frame(REQUESTS, (request_row(life, first_runs.get(life.rid)) for life in request_lives(recording)))


def first_prefixes(recording: Recording) -> dict[str, int]:
    """Tokens before each request's first piece."""
    found: dict[str, int] = {}
    for decision in recording.decisions[0]:
        for rid, prefix_len, _ in decision.pieces:
            found.setdefault(rid, prefix_len)
    return found


def request_row(life: Life, cached: int | None) -> tuple[Any, ...]:
    tokens = life.token_ns
    first = tokens[0] if tokens else None
    return (
        life.rid,
        life.status,
        life.num_prompt_tokens,
        len(tokens),
        None if life.status == "refused" else cached,
        life.arrived_ns,
        life.read_ns,
        first,
        life.ended_ns,
        seconds(first, life.arrived_ns),
        (tokens[-1] - tokens[0]) / (NS_PER_S * (len(tokens) - 1)) if len(tokens) > 1 else None,
        seconds(life.ended_ns, life.arrived_ns) if life.status == "finished" else None,
    )


# --- batches and spans ---------------------------------------------------------------------------------------------


def batches(recording: Recording, rank: int) -> pd.DataFrame:
    """A row a batch of a rank. Raises UsageError for a rank that the run does not have."""
    if not 0 <= rank < recording.num_ranks:
        raise UsageError(f"rank {rank}: this run has ranks 0 to {recording.num_ranks - 1}")
    return frame(BATCHES, batch_rows(recording, rank))


def batch_rows(recording: Recording, rank: int) -> Iterator[tuple[Any, ...]]:
    forwards = {span.iteration: span for span in recording.spans[rank] if span.stream == "forward"}
    for decision in recording.decisions[rank]:
        if not decision.pieces:
            continue
        span = forwards.get(decision.iteration)
        yield (
            rank,
            recording.pp_rank(rank),
            decision.iteration,
            decision.slot,
            decision.mode,
            len(decision.pieces),
            sum(new for _, _, new in decision.pieces),
            sum(prefix for _, prefix, _ in decision.pieces),
            len(decision.retracted),
            None if span is None else span.start_ns,
            None if span is None else span.end_ns,
            None if span is None else (span.end_ns - span.start_ns) / 1e6,
        )


def spans(recording: Recording) -> pd.DataFrame:
    """A row a span, rank by rank."""
    return frame(
        SPANS,
        (
            (
                rank,
                recording.pp_rank(rank),
                s.stream,
                s.slot,
                s.iteration,
                s.start_ns,
                s.end_ns,
                (s.end_ns - s.start_ns) / 1e6,
            )
            for rank in range(recording.num_ranks)
            for s in recording.spans[rank]
        ),
    )
