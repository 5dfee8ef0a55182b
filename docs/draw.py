"""Draw the pictures of the concept pages: ``python docs/draw.py [NAME...]``, over the public interface alone.

Pictures of runs are ``ppsim plot``'s, the two curves are of runs' figures. ``docs/images/pictures.toml`` keeps the
digest of every run that was drawn; a test makes the runs again and compares, so a picture of another scheduler is found
whatever version of matplotlib drew it.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import ppsim

IMAGES = Path(__file__).resolve().parent / "images"
DIGESTS = IMAGES / "pictures.toml"
STUCK = {"send": "rendezvous", "num_chunks": 8}
DYNAMIC = {"name": "dynamic", "enable_dynamic_chunking": True, "dynamic_chunking_smooth_factor": 0.85}
SKIP = {"num_chunks": 8, "latency_us": 200_000}
# Llama 70B on H20, four stages of two GPUs, one prompt of 128K tokens: the server of docs/examples/launch.sh.
LONG: dict[str, Any] = {
    "name": "fixed",
    "cluster": {"pp_size": 4, "tp_size": 2},
    "scheduler": {"chunked_prefill_size": 8192, "page_size": 64, "context_length": 135168},
    "model": {"key": "llama-3.1-70b"},
    "gpu": {"key": "h20"},
    "cost": {"source": "roofline", "efficiency": 0.9033},
    "workload": {"source": "requests", "requests": [{"rid": "R1", "prompt": 131072}]},
}
STAGES, BATCHES = (2, 4, 8, 16), (1, 2, 4, 8, 16, 32, 64)

# Of a picture: kind, scenario, keys; for ``chunks`` the scenario beside it.
RUNS: dict[str, tuple[str, str, dict[str, Any], str | None]] = {
    "pipeline.png": ("gantt", "unit", {}, None),
    "slots.png": ("gantt", "unit", {"num_chunks": 8}, None),
    "ring.png": ("channels", "unit", {"latency_us": 200_000}, None),
    "deadlock.png": ("gantt", "unit", STUCK, None),
    "skip_off.png": ("channels", "unit", SKIP, None),
    "skip_on.png": ("channels", "unit", {**SKIP, "skip_pure_chunked_output_comm": True}, None),
    "chunks.png": ("chunks", "long", DYNAMIC, "long"),
}


@cache
def run(scenario: str, keys: tuple[tuple[str, Any], ...] = ()) -> ppsim.Run:
    return ppsim.simulate(LONG if scenario == "long" else scenario, **dict(keys))


def of_run(name: str) -> bytes:
    """A picture of a run, as ``ppsim plot`` draws it."""
    kind, scenario, keys, other = RUNS[name]
    drawn = run(scenario, tuple(keys.items())).plot(kind, against=run(other) if other else None)
    return drawn.content


def digests(name: str) -> list[str]:
    """Of the runs that a picture is made from."""
    if name in RUNS:
        _, scenario, keys, other = RUNS[name]
        made = [run(scenario, tuple(keys.items())), *([run(other)] if other else [])]
    else:
        made = CURVES[name][1]()
    return [one.digest for one in made]


def bubbles() -> list[ppsim.Run]:
    return [run("unit", (("pp_size", p), ("num_chunks", m))) for p in STAGES for m in BATCHES]


def bubble_curve() -> bytes:
    """Dots are runs, lines the closed form."""
    figure, axes = canvas("Bubble = (P - 1) / (M + P - 1): fill the pipeline, or leave it idle")
    made = iter(bubbles())
    for p, mark in zip(STAGES, "osD^", strict=True):
        axes.plot(BATCHES, [100 * (p - 1) / (m + p - 1) for m in BATCHES], color=COLOURS[p], linewidth=1.2)
        simulated = [100 * next(made).summary["bubble_ratio"] for _ in BATCHES]
        axes.plot(BATCHES, simulated, mark, color=COLOURS[p], label=f"P = {p}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(BATCHES, [str(m) for m in BATCHES])
    axes.set_xlabel("M, equal batches, logarithmic scale (dots: simulated, lines: formula)")
    axes.set_ylabel("bubble, % of the time of all stages")
    axes.set_ylim(0, 100)
    axes.legend(frameon=False)
    return png(figure)


def admissions() -> list[ppsim.Run]:
    return [run("pd_busy_votes", (("pp_size", p), ("bootstrap", how))) for how in ("vote", "store") for p in STAGES]


def agreement_curve() -> bytes:
    """How many visits of the first rank a ready request waits, by stages and way."""
    figure, axes = canvas("Until a ready request may run: votes cost a turn of the ring, a store does not")
    made = iter(admissions())
    for how, mark, colour in (("vote: two passes", "o-", COLOURS[2]), ("store and leader", "s-", COLOURS[8])):
        visits = [next(made).summary["admission_iterations"]["p50"] for _ in STAGES]
        axes.plot(STAGES, visits, mark, color=colour, label=how)
    axes.set_xticks(STAGES, [str(p) for p in STAGES])
    axes.set_xlabel("P, stages of the prefill server")
    axes.set_ylabel("visits of the first rank")
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    return png(figure)


COLOURS = {2: "#0072b2", 4: "#e69f00", 8: "#009e73", 16: "#cc79a7"}  # told apart by colour-blind people too
CURVES: dict[str, tuple[Callable[[], bytes], Callable[[], list[ppsim.Run]]]] = {
    "bubble.png": (bubble_curve, bubbles),
    "agreement.png": (agreement_curve, admissions),
}
NAMES = (*RUNS, *CURVES)


def canvas(title: str) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(title, fontsize=11, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    return figure, axes


def png(figure: Any) -> bytes:
    from io import BytesIO

    out = BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def main() -> None:
    known = tomllib.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}
    for name in sys.argv[1:] or NAMES:
        content = of_run(name) if name in RUNS else CURVES[name][0]()
        (IMAGES / name).write_bytes(content)
        known[name] = digests(name)
        print(f"{name}: {len(content) / 1024:.0f} KiB")
    text = "# The runs behind the pictures of docs/draw.py, by their digests.\n"
    text += "".join(f'"{name}" = {known[name]}\n'.replace("'", '"') for name in sorted(known))
    DIGESTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
