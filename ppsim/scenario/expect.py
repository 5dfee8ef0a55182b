"""``[expect]``: what must come out of a run, as keys of the scenario (docs/expect.md).

Rule: no run depends on it. Neither world reads it; what came out is held against it afterwards (``expect_judged.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from ppsim.core.outcome import VerdictKind
from ppsim.scenario.section import Section

NUM_RULES = 90
RULE_NAMES = tuple(f"INV-{number:02}" for number in range(1, NUM_RULES + 1))  # ppsim list invariants

# --- the names of figures ----------------------------------------------------------------------------------------
# A name is the place of a number in the summary (ppsim/recording/summary.py), joined with "_", its unit last. A time
# may be given in another unit: makespan_ms. In front of the prefill side's figures of two pipelines stands "prefill_".

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
STATISTICS = ("mean", "p50", "p90", "p99")
TIMES = ("ttft", "ttft_from_read", "tpot", "e2e", "admission", "admission_all_ranks")
SHARES = ("queueing", "control", "compute", "transfer", "release")  # of TTFT, in two pipelines
TIERS = ("load", "write", "prefetch")

REQUEST_COUNTS = ("num_requests", "num_finished", "num_aborted", "num_refused", "input_tokens", "output_tokens")
DECISION_COUNTS = ("num_retracted", "num_iterations", "cached_tokens", "num_deferred_visits", "num_empty_pieces")
FIGURES = frozenset(
    (
        *REQUEST_COUNTS,
        *DECISION_COUNTS,
        "makespan_s",
        "bubble_ratio",
        "cache_hit_rate",
        "input_tokens_per_s",
        "output_tokens_per_s",
        *(f"{time}_{statistic}_s" for time in TIMES for statistic in STATISTICS),
        *(f"ttft_shares_{share}_{statistic}_s" for share in SHARES for statistic in STATISTICS),
        *(f"admission_iterations_{statistic}" for statistic in STATISTICS),
        *(f"tier_copies_{tier}_{figure}" for tier in TIERS for figure in ("num", "busy_s")),
        *(f"concurrency_{figure}" for figure in ("clients", "mean", "max")),
        *(f"stages_N_{figure}" for figure in ("busy_s", "idle_s", "bubble_ratio")),
    )
)
STAGE = re.compile(r"stages_(\d+)_")
PEER = "prefill_"


def in_seconds(name: str) -> tuple[str, int]:
    """The name under which the summary has a figure, and how many of the given unit make one of the summary's."""
    rest, _, unit = name.rpartition("_")
    return (f"{rest}_s", UNITS[unit]) if unit in UNITS and not rest.endswith("_per") else (name, 1)


def is_figure(name: str) -> bool:
    """Whether a summary can have a figure of this name."""
    plain, _ = in_seconds(name.removeprefix(PEER))
    return STAGE.sub("stages_N_", plain, count=1) in FIGURES


def nearest_figure(name: str) -> str:
    """What may have been meant, in the unit that was given, as a question; else where the names are."""
    rest, _, unit = name.rpartition("_")
    unit = unit if unit in UNITS else "s"
    stage = STAGE.search(name)
    plain = STAGE.sub("stages_N_", rest if name.endswith(f"_{unit}") else name, count=1)
    short = {
        f.removesuffix("_s"): f"{f.removesuffix('_s')}_{unit}" if f.endswith("_s") and "_per_" not in f else f
        for f in sorted(FIGURES)
    }
    near = [f"{plain}_p50"] if f"{plain}_p50" in short else get_close_matches(plain, short, n=1)
    if not near:
        near = [f for f in short if f.startswith(f"{plain}_")][:1]
    if not near:
        return "docs/expect.md has the names"
    return f"did you mean {short[near[0]].replace('stages_N_', stage[0] if stage else 'stages_0_')!r}?"


# --- the keys ----------------------------------------------------------------------------------------------------


class ExpectedFigure(Section):
    """A number, and how far off it may be, in the unit that ends the figure's name."""

    value: Annotated[float, Field(allow_inf_nan=False)]
    tolerance: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0  # 0: the number itself


def as_figure(given: Any) -> Any:
    """A bare number is a value without tolerance."""
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return {"value": given} if is_number else given


class Outcome(Section):
    """How a run ends. ``rule``, ``rank``, ``iteration`` and ``rid`` are those that the verdict names; None: any."""

    verdict: VerdictKind = "pass"
    rule: str | None = None  # ppsim list invariants
    rank: Annotated[int, Field(ge=0)] | None = None  # rank_id: pp_rank * tp_replicas + tp_rank
    iteration: Annotated[int, Field(ge=0)] | None = None
    rid: str | None = None
    figures: dict[str, Annotated[ExpectedFigure, BeforeValidator(as_figure)]] = {}  # by name (docs/expect.md)

    def __hash__(self) -> int:
        return hash(self.model_dump_json())


class Expect(Outcome):
    """What must come out of this scenario, and (``bugs``, by name) with one planted bug more than it has."""

    bugs: dict[str, Outcome] = {}
    changed: tuple[str, ...] = ()  # what has been changed since this was written: nothing is judged then

    __hash__ = Outcome.__hash__

    def outcomes(self) -> Iterator[tuple[str, Outcome]]:
        """Each with the key that it stands under."""
        yield "expect", self
        yield from ((f"expect.bugs.{name}", outcome) for name, outcome in self.bugs.items())
