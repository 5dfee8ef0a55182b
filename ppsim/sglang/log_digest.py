"""A log in a few sentences: how much was computed, how full the pool was, when nothing happened, what was retracted."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ppsim.sglang.batch_lines import BatchLine
from ppsim.sglang.profiles import Profile
from ppsim.sglang.stamps import gap_s

STALL_FACTOR = 10.0  # a pause so much longer than the usual one, and than MIN_STALL_S, is told
MIN_STALL_S = 5.0


def digest(batches: Sequence[BatchLine], profiles: Sequence[Profile]) -> list[str]:
    """Sentences about complete lines, a kind each; lines of several ranks for one batch are counted each."""
    found = [
        sentence(what, [line for line in batches if line.kind == kind and line.state == "complete"])
        for kind, what in (("prefill", "prefill lines"), ("prefill_rank", "rank lines"), ("decode", "decode lines"))
    ]
    found += [retractions([line for line in batches if line.kind == "retract" and line.state == "complete"])]
    found += stalls(batches)
    for profile in profiles:
        cut = f", {profile.num_cut} numbers cut" if profile.num_cut else ""
        of = f" of {profile.declared}" if profile.declared != len(profile.latencies_ms) else ""
        where = f" on {profile.rank}" if profile.rank else ""
        found.append(f"line {profile.line}: profile{where}: {len(profile.latencies_ms)}{of} times{cut}")
    return [text for text in found if text]


def sentence(what: str, lines: Sequence[BatchLine]) -> str:
    """Sums and ranges of the fields that the lines have."""
    if not lines:
        return ""
    parts = []
    for name, words in (("#new-token", "new tokens"), ("#cached-token", "cached tokens")):
        if any(name in line.fields for line in lines):
            parts.append(f"{sum(line.count(name) for line in lines)} {words}")
    for name, words in (("#running-req", "running"), ("#queue-req", "waiting"), ("#pending-token", "tokens waiting")):
        if any(name in line.fields for line in lines):
            parts.append(f"at most {max(line.count(name) for line in lines)} {words}")
    for name, words in (("token usage", "token usage"), ("gen throughput", "output tokens/s"), ("gpu-ms", "GPU ms")):
        values = [line.get(name) for line in lines if name in line.fields]
        if values:
            parts.append(f"{words} {min(values):g} to {max(values):g}")
    return f"{what}: {', '.join(parts)}"


def retractions(lines: Sequence[BatchLine]) -> str:
    if not lines:
        return ""
    requests = sum(line.count("#retracted-req") for line in lines)
    return f"retractions: {requests} requests in {len(lines)} lines, first in line {lines[0].line}"


def stalls(batches: Sequence[BatchLine]) -> list[str]:
    """Pauses between lines of one rank, far longer than its usual ones, while requests ran or waited."""
    before: dict[str, BatchLine] = {}
    gaps: dict[str, list[tuple[float, BatchLine]]] = {}
    for line in batches:
        earlier = before.get(line.rank)
        gap = gap_s(earlier.time_s, line.time_s) if earlier is not None else None
        if gap is not None and earlier is not None and busy(earlier):
            gaps.setdefault(line.rank, []).append((gap, line))
        before[line.rank] = line
    found = []
    for rank, pauses in gaps.items():
        usual = median(gap for gap, _ in pauses)
        for gap, line in pauses:
            if gap >= MIN_STALL_S and gap > STALL_FACTOR * usual:
                where = f" on {rank}" if rank else ""
                found.append(
                    f"line {line.line}: stall: nothing was logged{where} for {gap:g} s while requests were there"
                )
    return found


def busy(line: BatchLine) -> bool:
    return line.count("#queue-req") + line.count("#pending-token") > 0 or line.count("#running-req") > 0
