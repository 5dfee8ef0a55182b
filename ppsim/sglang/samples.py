"""Usable measurements in a log: (prefix, new tokens, duration) of prefill batches, step times of decode.

The throughput of a line is tokens over the time from one log call to the next. It times one batch only if nothing else
happened in between, so a prefill sample needs: the neighbouring line of the same rank is a complete prefill line, no
decode line lies between, and work was left after the earlier of the two (otherwise idle time is inside). Which
neighbour and whose tokens depends on the version (``BatchLine.meaning``). Prefixes come from ``prefixes.py``. Lines of
several TP ranks or stages for one batch are one observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from ppsim.sglang.batch_lines import BatchLine
from ppsim.sglang.prefixes import (
    Place,
    by_rank,
    full_chunk,
    left_over,
    place_chunks,
    place_rank_lines,
    replicas,
    usable,
)
from ppsim.sglang.stamps import Ranks, rank_name

Source = Literal["own", "prev", "gpu", "profile", "table", "progress"]
IDLE_FACTOR = 5.0  # a rate so far below the median of its rank holds an idle gap
AGREE = 0.05  # an unclear meaning is used only where both readings agree this well


@dataclass(frozen=True, slots=True)
class Sample:
    """One prefill chunk. ``prefix_known`` is False where only differences between the prefixes of a chain are known."""

    prefix: int
    new_tokens: int
    duration_s: float
    source: Source
    line: int
    rank: str = ""
    prefix_known: bool = True


@dataclass(frozen=True, slots=True)
class DecodeSample:
    """One decode step of ``num_reqs`` requests over ``num_tokens`` tokens of KV."""

    num_reqs: int
    num_tokens: int
    step_s: float
    line: int
    rank: str = ""


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive chunks of one prompt on one rank. ``prompt_tokens`` where the log gives it away."""

    rank: str
    first_line: int
    num_chunks: int
    prompt_tokens: int | None


@dataclass(slots=True)
class Measured:
    """``unused``: why prefill lines gave no sample, with how many."""

    samples: list[Sample] = field(default_factory=list)
    decode_samples: list[DecodeSample] = field(default_factory=list)
    chains: list[Chain] = field(default_factory=list)
    unused: dict[str, int] = field(default_factory=dict)
    num_batches: int = 0

    def skip(self, reason: str) -> None:
        self.unused[reason] = self.unused.get(reason, 0) + 1


def measure(lines: Sequence[BatchLine], replies: Sequence[int] = ()) -> Measured:
    """All measurements of the batch lines of a log, in order of the text. ``replies``: lines on which a client was
    answered, ascending; a prompt may have ended there."""
    measured = Measured()
    streams = by_rank(lines)
    groups: dict[Ranks, list[tuple[Ranks, list[Sample]]]] = {}
    placed: dict[Ranks, list[Place | None]] = {}
    for ranks, stream in streams.items():
        places = placed[ranks] = place_chunks(stream, replies)
        measured.chains += chains_of(rank_name(ranks), stream, places)
        samples = drop_idle(prefill_samples(stream, places, measured), measured)
        groups.setdefault(replicas(ranks), []).append((ranks, samples))
        measured.decode_samples += decode_samples(stream)
    for members in groups.values():
        measured.samples += one_each([samples for _, samples in sorted(members, key=lambda member: member[0])])
    measured.samples += gpu_samples(lines, place_rank_lines(lines, placed), measured)
    measured.samples.sort(key=lambda sample: sample.line)
    measured.decode_samples.sort(key=lambda sample: sample.line)
    measured.num_batches = count_batches(streams)
    return measured


# -- chains ---------------------------------------------------------------------------------------------------


def chains_of(rank: str, stream: Sequence[BatchLine], places: Sequence[Place | None]) -> list[Chain]:
    chains: list[Chain] = []
    start = 0
    for i in range(len(stream) + 1):
        place = places[i] if i < len(stream) else None
        goes_on = i > start and place is not None and places[i - 1] is not None and not place.first and place.clear
        if goes_on and place is not None and place.prefix > (places[i - 1] or place).prefix:
            continue
        if i > start and places[start] is not None:
            chains.append(Chain(rank, stream[start].line, i - start, prompt_of(stream[start], places[start])))
        start = i
    return chains


def prompt_of(line: BatchLine, place: Place | None) -> int | None:
    """Length of the prompt whose first chunk this is: what it computed, what was cached, and what still waits."""
    alone = line.count("#queue-req") == 0 and line.count("#new-seq") == 1
    if place is None or not place.known or not alone or "#pending-token" not in line.fields:
        return None
    return place.prefix + line.count("#new-token") + line.count("#pending-token")


# -- durations -----------------------------------------------------------------------------------------------


def prefill_samples(stream: Sequence[BatchLine], places: Sequence[Place | None], measured: Measured) -> list[Sample]:
    found = []
    full = full_chunk(stream)
    for i, line in enumerate(stream):
        place = places[i]
        if place is None:
            continue
        duration, why = duration_of(stream, i, full)
        if duration is not None and line.count("#new-seq") != 1:
            duration, why = None, "several requests in one batch"
        if duration is not None and not place.clear:
            duration, why = None, "the prefix is not known"
        if duration is None:
            measured.skip(why)
            continue
        source: Source = "prev" if line.meaning == "prev" else "own"
        found.append(
            Sample(place.prefix, line.count("#new-token"), duration, source, line.line, line.rank, place.known)
        )
    return found


def duration_of(stream: Sequence[BatchLine], i: int, full: int) -> tuple[float | None, str]:
    """Seconds of the batch of line i, or why there are none."""
    line = stream[i]
    meaning = line.meaning
    if "input throughput" not in line.fields:
        return None, "no throughput in the line"
    before, after = (stream[i - 1] if i else None), (stream[i + 1] if i + 1 < len(stream) else None)
    own, why_own = between(before, line, line, full)
    prev, why_prev = between(line, after, line, full)
    if meaning == "own":
        return own, why_own
    if meaning == "prev":
        return prev, why_prev
    if own is None or prev is None or abs(own - prev) > AGREE * max(own, prev):
        return None, "whose throughput it is cannot be told"
    return own, ""


def between(
    earlier: BatchLine | None, later: BatchLine | None, whose: BatchLine, full: int
) -> tuple[float | None, str]:
    """Seconds between two log calls, from the rate of the later one and the tokens of ``whose``."""
    if earlier is None or later is None:
        return None, "no neighbouring line of the same rank"
    if not usable(earlier) or not usable(later):
        return None, "the neighbouring line is no complete prefill line"
    rate, tokens = later.get("input throughput"), whose.count("#new-token")
    if rate <= 0 or tokens <= 0:
        return None, "no rate or no token"
    if not busy_after(earlier, full):
        return None, "idle time may lie between the lines"
    return tokens / rate, ""


def busy_after(line: BatchLine, full: int) -> bool:
    """Prefill went on at once after this batch: something waited, or the chunk was full and nothing decoded."""
    if left_over(line) > 0:
        return True
    if "#pending-token" in line.fields:
        return False
    return full > 0 and line.count("#new-token") == full and line.count("#running-req") == 0


def drop_idle(samples: list[Sample], measured: Measured) -> list[Sample]:
    """Without the samples whose rate is far below that of their rank."""
    if len(samples) < 3:
        return samples
    usual = median(sample.new_tokens / sample.duration_s for sample in samples)
    kept = []
    for sample in samples:
        if sample.new_tokens / sample.duration_s * IDLE_FACTOR < usual:
            measured.skip("the rate is that of an idle gap")
        else:
            kept.append(sample)
    return kept


def one_each(streams: list[list[Sample]]) -> list[Sample]:
    """Each observation once: what another rank of the group already gave, the n-th time it comes, is left out."""
    given: dict[tuple[int, int], int] = {}
    kept: list[Sample] = []
    for samples in streams:
        seen: dict[tuple[int, int], int] = {}
        for sample in samples:
            key = (sample.prefix, sample.new_tokens)
            seen[key] = seen.get(key, 0) + 1
            if seen[key] > given.get(key, 0):
                given[key] = seen[key]
                kept.append(sample)
    return kept


def gpu_samples(lines: Sequence[BatchLine], places: dict[int, Place], measured: Measured) -> list[Sample]:
    """Times that a rank measured itself: each stage is an observation of its own, its TP ranks are one."""
    found: dict[Ranks, dict[Ranks, list[Sample]]] = {}
    for line in lines:
        if line.kind != "prefill_rank" or line.state != "complete" or line.get("gpu-ms") <= 0:
            continue
        place = places[line.line]
        if line.count("#chunks") > 1 or not place.alone:
            measured.skip("several requests in one batch")
            continue
        if not place.clear:
            measured.skip("the prefix is not known")
            continue
        stage = tuple(tag for tag in line.ranks if tag[0] in ("DP", "PP", "ATTN_DP"))
        sample = Sample(
            place.prefix, line.count("#new-token"), line.get("gpu-ms") / 1e3, "gpu", line.line, line.rank, place.known
        )
        found.setdefault(stage, {}).setdefault(line.ranks, []).append(sample)
    return [sample for ranks in found.values() for sample in one_each([ranks[key] for key in sorted(ranks)])]


def decode_samples(stream: Sequence[BatchLine]) -> list[DecodeSample]:
    """Step times where the line before it on the same rank is a decode line of as many requests."""
    found = []
    for before, line in pairwise(stream):
        pair = all(one.kind == "decode" and one.state == "complete" for one in (before, line))
        reqs, rate = line.count("#running-req"), line.get("gen throughput")
        if not pair or rate <= 0 or reqs <= 0 or before.count("#running-req") != reqs:
            continue
        per_step = line.get("accept len") or 1.0
        found.append(DecodeSample(reqs, line.count("#token"), reqs * per_step / rate, line.line, line.rank))
    if len(found) < 3:
        return found
    usual = median(sample.step_s for sample in found)
    return [sample for sample in found if sample.step_s < IDLE_FACTOR * usual]


def count_batches(streams: dict[Ranks, list[BatchLine]]) -> int:
    """Prefill batches behind the complete lines: in a group of replicas the most that any one rank logged of each."""
    most: dict[tuple[Ranks, tuple[float, ...]], int] = {}
    for ranks, stream in streams.items():
        own: dict[tuple[float, ...], int] = {}
        for line in stream:
            if usable(line):
                key = tuple(line.get(name) for name in ("#new-seq", "#new-token", "#cached-token", "#pending-token"))
                own[key] = own.get(key, 0) + 1
        for key, count in own.items():
            group = (replicas(ranks), key)
            most[group] = max(most.get(group, 0), count)
    return sum(most.values())
