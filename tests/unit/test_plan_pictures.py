"""Law: the pictures of ``compare`` and ``tune`` show what was computed, and say what they do not show."""

from __future__ import annotations

from collections.abc import Iterator
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ppsim.cli.compare import pictures
from ppsim.plan.compare import DRAWN_GB_PER_S, Comparison, Question, compare
from ppsim.plan.tuning import HeatMap
from ppsim.report import canvas
from ppsim.report.crossover import Picture, plot_crossovers, ticks
from ppsim.report.heatmap import FAR, legend, plot_heat_maps
from tests.unit.pixels import pixels_of

SMALL = Question("llama-3.1-70b", "h100", 4, 2000, link_gb_per_s=(2.0, 100.0))


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(SMALL)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The matplotlib figures behind the pictures that are made."""
    made: list[Any] = []
    real = canvas.encoded
    for module in ("crossover", "heatmap"):
        keep = lambda figure, path: made.append(figure) or real(figure, path)  # noqa: E731
        monkeypatch.setattr(f"ppsim.report.{module}.encoded", keep)
    return made


# --- compare -----------------------------------------------------------------------------------------------------


def test_the_axis_reaches_every_crossover_and_every_link_that_was_given(found: Comparison) -> None:
    crossings = [c.gb_per_s for c in found.crossovers if c.gb_per_s is not None]
    assert max(crossings) > DRAWN_GB_PER_S[1]  # TP overtakes PP far to the right of the usual axis
    for panel in pictures(found):
        for curve in panel.curves:
            assert curve.gb_per_s[0] < min(*crossings, 2.0)
            assert curve.gb_per_s[-1] > max(crossings)
    shown = [[mark.gb_per_s for mark in panel.marks] for panel in pictures(found)]
    assert shown == [
        [c.gb_per_s for c in found.crossovers if c.by == by and c.gb_per_s] for by in ("throughput", "ttft")
    ]


def test_curves_meet_at_their_mark_and_pass_through_the_standings_that_are_printed(found: Comparison) -> None:
    printed = {(s.way, s.link_gb_per_s): (s.speedup, s.ttft_speedup) for s in found.standings}
    for nth, panel in enumerate(pictures(found)):
        heights = {c.way: dict(zip(c.gb_per_s, c.speedups, strict=True)) for c in panel.curves}
        for (way, gb_per_s), value in printed.items():
            assert heights[way][gb_per_s] == value[nth]
        by = ("throughput", "ttft")[nth]
        for c in (c for c in found.crossovers if c.by == by and c.gb_per_s is not None):
            assert heights[c.way][c.gb_per_s] == pytest.approx(heights[c.rival][c.gb_per_s], rel=1e-3)
            assert any(m.gb_per_s == c.gb_per_s and m.speedup == heights[c.way][c.gb_per_s] for m in panel.marks)


def test_a_given_link_is_a_line_with_its_figure_and_a_ring_on_each_curve(
    found: Comparison, figures: list[Any], tmp_path: Path
) -> None:
    panels = pictures(found)
    plot_crossovers(panels, "title", tmp_path / "a.png")
    for axes, panel in zip(figures[0].axes, panels):
        says = [text.get_text() for text in axes.texts]
        assert {"given: 2 GB/s", "given: 100 GB/s"} <= set(says)
        rings = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_mfc() == "white"]
        wanted = [(b, dict(zip(c.gb_per_s, c.speedups))[b]) for b in (2.0, 100.0) for c in panel.curves]
        assert sorted(rings) == sorted(wanted)
        drawn = [line for line in axes.lines if len(line.get_xdata()) > 4]
        for line, curve in zip(drawn, panel.curves, strict=True):
            assert tuple(line.get_xdata()) == curve.gb_per_s
            assert tuple(line.get_ydata()) == curve.speedups


def test_a_base_that_does_not_fit_is_said_above_the_picture(figures: list[Any], tmp_path: Path) -> None:
    """One H100 has no room for the 140 GB of 70 billion weights, four have."""
    small, large = compare(Question("llama-3.1-70b", "h100", 8, 2000, tp_size=1)), compare(SMALL)
    for nth, (found, fits) in enumerate(((small, False), (large, "base" not in large.does_not_fit))):
        plot_crossovers(pictures(found), "title", tmp_path / "a.png")
        assert (pictures(found)[0].base_fits, figures[nth].get_suptitle() == "title") == (fits, fits)
    base = "one group of GPUs (pp 1 x tp 1)"
    told = f"title\nthe base, {base}, does not fit into memory: speed-ups are over the time that it would take"
    assert figures[0].get_suptitle() == told
    assert figures[0].axes[0].get_ylabel() == f"speed-up over {base}"
    assert figures[0].axes[0].get_xlabel().endswith("logarithmic scale")


@pytest.mark.parametrize(("low", "high"), [(5.0, 1000.0), (0.07, 1.5e4), (1.4, 13500.0), (3.0, 1000.0)])
def test_ticks_of_a_logarithmic_axis_are_plain_numbers_within_it(low: float, high: float) -> None:
    places = ticks(low, high)
    assert 3 <= len(places) <= 9
    assert all(low <= place <= high for place in places)
    assert all("e" not in f"{place:g}" for place in places)


def test_nothing_is_given_where_nothing_was_given(figures: list[Any], tmp_path: Path, found: Comparison) -> None:
    bare = [Picture(p.title, p.curves, p.marks, p.gpu_multiple) for p in pictures(found)]
    plot_crossovers(bare, "title", tmp_path / "a.png")
    assert not [t for axes in figures[0].axes for t in axes.texts if t.get_text().startswith("given")]


# --- tune --------------------------------------------------------------------------------------------------------


def heat_map(**changes: Any) -> HeatMap:
    fields: dict[str, Any] = {
        "title": "t",
        "row_name": "r",
        "column_name": "c",
        "rows": ("1", "2"),
        "columns": ("a", "b", "c"),
        "values": ((2.0, 2.2, None), (nan, 3.0, 8.0)),
        "unit": "TTFT, s",
        "lower_is_better": True,
        "best": (0, 0),
        "blank": "32 GPUs cannot be split so",
    }
    return HeatMap(**{**fields, **changes})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (((2.0, 1.0, 1.0), (1.0, 3.0, 8.0)), ""),
        (((2.0, None, 1.0), (1.0, 3.0, 8.0)), "\n(hatched: cannot run)"),
        (((2.0, nan, 1.0), (1.0, 3.0, 8.0)), "\n(white: 32 GPUs cannot be split so)"),
        (((2.0, nan, 1.0), (None, 3.0, 8.0)), "\n(hatched: cannot run; white: 32 GPUs cannot be split so)"),
    ],
)
def test_a_heat_map_says_what_its_white_and_its_hatched_cells_are(values: Any, says: str) -> None:
    assert legend(heat_map(values=values)) == says
    assert legend(heat_map(values=values, blank="")) == says.replace("32 GPUs cannot be split so", "does not exist")


@pytest.mark.parametrize("lower", [True, False])
def test_the_colour_of_every_cell_is_that_of_its_distance_from_the_best(
    lower: bool, figures: list[Any], tmp_path: Path
) -> None:
    import matplotlib

    panel = heat_map(lower_is_better=lower, best=None)
    plot_heat_maps([panel], "title", tmp_path / "a.png")
    pixels = pixels_of(tmp_path / "a.png")
    axes = figures[0].axes[0]
    best = 2.0 if lower else 8.0
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            x, y = axes.transData.transform((j - 0.4, i - 0.4))  # a corner of the cell, beside its number
            drawn = pixels[len(pixels) - 1 - int(y), int(x)].astype(float)
            if value is None:
                continue  # hatched
            if value != value:
                assert (drawn == 255).all()
                continue
            loss = value / best - 1 if lower else best / value - 1
            wanted = np.array(matplotlib.colormaps["YlGnBu_r"](min(loss / FAR, 1.0))[:3]) * 255
            assert np.abs(drawn - wanted).max() <= 1.0


def test_thousands_are_named_and_the_same_search_gives_the_same_bytes(figures: list[Any], tmp_path: Path) -> None:
    panel = heat_map(values=((36_825.0, 1.0, 2.0), (3.0, 4.0, 5.0)), lower_is_better=False, unit="tokens/s")
    for name in ("a", "b"):
        for ending in ("png", "svg", "pdf"):
            plot_heat_maps([panel], "title", tmp_path / f"{name}.{ending}")
    assert figures[0].axes[0].get_title(loc="left").startswith("tokens/s, k: thousands\n")
    for ending in ("png", "svg", "pdf"):
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
