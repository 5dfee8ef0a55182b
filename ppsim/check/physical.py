"""What no device may do to memory, and no pair of servers to time: rules whose facts only a world has.

Each answers with what is wrong, empty where nothing is; the world knows which rank, iteration and request it is about.
"""

from __future__ import annotations

from ppsim.check.describe import Place
from ppsim.check.progress import queue_lines
from ppsim.core.outcome import Verdict
from ppsim.core.rank import Rank
from ppsim.errors import EXIT_LIVENESS


def buffer_given_up(kind: str, dst: int, at_ns: int, *, is_over: bool) -> str:
    """INV-38. ``is_over``: the send of this message has ended, so nobody reads its buffer any more."""
    if is_over:
        return ""
    return f"the buffer of the {kind} message to rank {dst} is given up at {at_ns} ns, before its send is over"


def never_committed(kinds: list[str]) -> str:
    """INV-38 at the end of a run: sends of these kinds of messages that nobody has waited for."""
    return f"the send of a {kinds[0]} message was never committed" if kinds else ""


def graph_buffer_rewritten(start_ns: int, sent_until_ns: int) -> str:
    """INV-39: a forward pass writes its static hidden states while the send of the last ones still reads them."""
    if start_ns >= sent_until_ns:
        return ""
    until = f"while its send lasts until {sent_until_ns} ns"
    return f"the graph's static hidden-state buffer is rewritten at {start_ns} ns {until}"


def sent_before_computed(at_ns: int, computed_ns: int) -> str:
    """INV-65: KV leaves before the forward pass that writes it has ended."""
    if at_ns >= computed_ns:
        return ""
    return f"its transfer begins at {at_ns} ns, but the forward pass that computes it ends at {computed_ns} ns"


def waits_for_ever(first: Rank, phase: str) -> Verdict:
    """INV-70: a first rank has requests, sleeps, and nothing that could move them will ever happen."""
    requests = first.scheduler.requests
    what = f"{len(requests)} requests wait for something that will never happen"
    lines = [f"{what} (nothing is launched, sent or due any more):", *(f"  {q}" for q in queue_lines(first.scheduler))]
    where = Place("INV-70", 0, first.iteration, first.slot, phase, next(iter(requests), ""))
    text = f"{where}: " + "\n".join(lines)
    place = (0, first.iteration, first.slot, where.rid or None, phase)
    return Verdict("fail", EXIT_LIVENESS, text, "INV-70", *place, "every wait on a remote event ends", what)
