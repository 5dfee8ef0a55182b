"""``ppsim compare``: pipeline against tensor against context parallelism, with the same GPUs and the same link.

    base   one group of ``tp_size`` GPUs (a node), the whole model, one stage: GPU multiple 1
    PP     a stage a group: hidden states cross the link once a seam
    TP     all GPUs in one group: every all-reduce of every layer crosses the link
    CP     the groups share the tokens of a chunk: keys and values of new tokens cross the link once a layer (estimate)

Every figure is at a stated bandwidth of what joins the groups: one link, or the NICs of nodes (``compare_links``);
inside a group the GPUs' own link holds. Prefill is in ``compare_field``, decode in ``compare_decode``. A speed-up is
over the base and is divided by the GPU multiple: that is the efficiency. Each way takes the best of its own chunk
settings. What the ranking depends on most is the link, so the answer is the bandwidth at which it changes, found by
bisection, and not a percentage at an unknown one (published.md E2: +30.5 % of that report is no prediction).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ppsim.plan.compare_decode import DecodeComparison, Progress, compare_decode
from ppsim.plan.compare_field import ASSUMED_EFFICIENCY, Field, Standing
from ppsim.plan.compare_links import Joint
from ppsim.plan.compare_question import Question
from ppsim.plan.crossing import REACH_GB_PER_S, Gains, crossing

__all__ = ("Comparison", "Crossover", "Question", "Standing", "compare", "crossing")

DRAWN_GB_PER_S = (5.0, 1000.0)  # the axis of the picture, where nothing that it has to show lies beyond
NUM_DRAWN = 15  # points of a curve, at even distances of the axis


@dataclass(frozen=True, slots=True)
class Crossover:
    """Where ``way`` overtakes ``rival``; None: nowhere within the reach, and ``ahead`` is in front throughout."""

    way: str
    rival: str
    by: str
    gb_per_s: float | None
    ahead: str = ""


@dataclass(slots=True)
class Comparison:
    """Everything that ``ppsim compare`` prints. ``curves`` are the standings of the plot."""

    question: Question
    base: Standing
    gpu_multiple: int
    standings: list[Standing]
    curves: list[Standing]
    crossovers: list[Crossover]
    cannot_run: dict[str, str]  # way -> why it is not among the standings
    does_not_fit: dict[str, str]  # way or "base" -> which stage lacks how much memory
    speedup_gb_per_s: float | None = None
    notes: list[str] = field(default_factory=list)
    joint: Joint | None = None
    decode: DecodeComparison | None = None
    is_cut: bool = False  # Ctrl-C: decode has the ways that were simulated before it


def compare(q: Question, progress: Progress | None = None, fast: bool | None = None) -> Comparison:
    """Standings, curves and crossovers. Raises UsageError or ScenarioError for what cannot be.

    ``progress`` is called with the ways of decode that are done, and how many there are. Ctrl-C meanwhile ends it with
    what there is. ``fast``: whether one rank stands for all in the runs of ``Decode.num_served``; None: where it can.
    """
    field_ = Field(q)
    asked = q.link_gb_per_s or q.nic_gb_per_s or field_.known_links()
    by_way = {way: field_.standings(way, asked) for way in field_.ways}
    crossed = crossovers(field_)
    drawn = drawn_links(q, crossed)
    found = Comparison(
        q,
        field_.base,
        field_.multiple,
        [by_way[way][i] for i in range(len(asked)) for way in field_.ways],
        [s for way in field_.ways for s in field_.standings(way, drawn)],
        crossed,
        field_.cannot_run,
        field_.does_not_fit(),
        joint=field_.joint,
    )
    if q.decode is not None:
        found.decode = compare_decode(field_, asked, progress, fast)
        found.is_cut = found.decode.is_cut
    if q.speedup is not None and "tp" in field_.ways:
        base, wanted = field_.base.input_tokens_per_s, q.speedup
        found.speedup_gb_per_s = crossing(
            lambda links: [f.input_tokens_per_s / base - wanted for _, f in field_.throughputs("tp", links)]
        )
    found.notes = notes(field_, bool(q.link_gb_per_s or q.nic_gb_per_s))
    return found


def drawn_links(q: Question, crossed: Sequence[Crossover]) -> tuple[float, ...]:
    """Bandwidths of the curves: an axis that reaches every crossover and every link that was given, and these."""
    shown = sorted({*q.link_gb_per_s, *q.nic_gb_per_s, *(c.gb_per_s for c in crossed if c.gb_per_s is not None)})
    low = min([DRAWN_GB_PER_S[0], *(b / 1.5 for b in shown[:1])])
    high = max([DRAWN_GB_PER_S[1], *(b * 1.5 for b in shown[-1:])])
    num = round(NUM_DRAWN * np.log(high / low) / np.log(DRAWN_GB_PER_S[1] / DRAWN_GB_PER_S[0]))
    return tuple(sorted({*(float(b) for b in np.geomspace(low, high, num)), *shown}))


def crossovers(field_: Field) -> list[Crossover]:
    """Where each way overtakes each other one, by throughput and by TTFT."""
    out = []
    for way, rival in (("tp", "pp"), ("cp", "pp"), ("tp", "cp")):
        if way not in field_.ways or rival not in field_.ways:
            continue
        for by in ("throughput", "ttft"):
            gains = ahead_by(field_, way, rival, by)
            found = crossing(gains)
            front = way if gains(REACH_GB_PER_S[1:])[0] > 0 else rival
            out.append(Crossover(way, rival, by, found, "" if found else front))
    return out


def ahead_by(field_: Field, way: str, rival: str, by: str) -> Gains:
    """How far ``way`` is ahead of ``rival`` at each bandwidth."""

    def throughput(links: Sequence[float]) -> list[float]:
        mine, other = field_.throughputs(way, links), field_.throughputs(rival, links)
        return [a.input_tokens_per_s / b.input_tokens_per_s - 1.0 for (_, a), (_, b) in zip(mine, other)]

    def ttft(links: Sequence[float]) -> list[float]:
        mine, other = field_.ttfts(way, links), field_.ttfts(rival, links)
        return [b.ttft_s / a.ttft_s - 1.0 for (_, a), (_, b) in zip(mine, other)]

    return throughput if by == "throughput" else ttft


def notes(field_: Field, link_given: bool) -> list[str]:
    """What the figures rest on."""
    out = ["efficiency = speed-up over the base, divided by the GPU multiple"]
    if field_.assumed_efficiency:
        out.append(
            f"{ASSUMED_EFFICIENCY} of the peak is assumed for {field_.gpu.key}; nothing measured is known for it"
        )
    if not link_given and len(field_.known_links()) > 1:
        out.append(f"the network of {field_.gpu.key} is not published: no single figure is a prediction, give the link")
    out.append("cp is an estimate: nothing measured stands behind it, and every rank holds all weights of its stage")
    out.append(field_.joint.describe())
    if field_.joint.nodes or field_.q.decode is not None:
        out.append(overheads_note(field_))
    if field_.q.decode is not None:
        out.append("decode: hosts cost nothing, no launch line's limits are modelled; cp gains nothing in decode")
    return out


def overheads_note(field_: Field) -> str:
    """Which overheads hold, and where they are from."""
    values = field_.joint.overheads.values(published=True)
    if not any(values.values()):
        return "overheads are 0: what has few tokens, decode above all, is a lower bound"
    given = [name for name in values if getattr(field_.joint.overheads, name) is not None]
    told = ", ".join(
        f"{name.removesuffix('_us')} {value:g} us{' (given)' * (name in given)}" for name, value in values.items()
    )
    where = "everywhere" if field_.joint.nodes else "decode alone"
    return (
        f"overheads, {where}: {told}; what is not given is published: layers by vLLM and SGLang on an H100 at half of "
        "its bandwidth (Hazy Research, 2025), all-reduce by NCCL's tuning table for small messages"
    )
