"""What the rules of SGLang's scheduler and the order of receives change in figures: docs/results/rules.md.

    python bench/bench_rules.py > docs/results/rules.md

Virtual time: the numbers are the same on every machine. The column "before" was measured once, with the same scenarios
and settings at commit 542fe17, where the scheduler had rules of its own and receives were on no stream.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppsim.recording.summary import summarize
from ppsim.scenario import load_scenario
from ppsim.world import simulate

BEFORE = Path(__file__).parent / "rules_before.json"

CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mooncake": ("mooncake", ()),
    "mooncake, KV of 150,000 tokens": ("mooncake", ("scheduler.max_total_tokens=150000",)),
    "pd_mooncake": ("pd_mooncake", ()),
    "hicache": ("hicache", ()),
    "p22_decode_starvation": ("questions/p22_decode_starvation", ()),
    "p17_chunk_size_under_load": ("questions/p17_chunk_size_under_load", ()),
    "prompts of 3,000 at 4/s, KV of 8,000": (
        "mooncake",
        (
            "workload.source=generated",
            "workload.num_requests=200",
            "workload.rate_per_s=4",
            "workload.input_length={value=3000}",
            "workload.output_length={value=256}",
            "scheduler.max_total_tokens=8000",
            "scheduler.page_size=1",
        ),
    ),
    "160 at once, answers of 2,000": (
        "mooncake",
        (
            "workload.source=generated",
            "workload.num_requests=160",
            "workload.arrival=burst",
            "workload.input_length={value=500}",
            "workload.output_length={value=2000}",
            "scheduler.max_total_tokens=120000",
        ),
    ),
}

RUNS = (("before", None), ("sglang", "sglang"), ("mended", "mended"))


def figures(name: str, rules: str) -> dict[str, Any]:
    """The figures of one case under a set of rules."""
    scenario, settings = CASES[name]
    result = simulate(load_scenario(scenario, (*settings, f"scheduler.rules={rules}")))
    return of_summary(summarize(result.recording, result.verdict))


def of_summary(summary: dict[str, Any]) -> dict[str, Any]:
    """What is compared, from ``summary.json``; ``rules_told`` are the sentences on what a rule left empty."""
    return {
        "bubble": summary["bubble_ratio"],
        "makespan_s": summary["makespan_s"],
        "ttft_mean_s": summary["ttft_s"]["mean"],
        "ttft_p99_s": summary["ttft_s"]["p99"],
        "tpot_mean_s": summary["tpot_s"]["mean"],
        "tpot_p99_s": summary["tpot_s"]["p99"],
        "hit_rate": summary["cache_hit_rate"],
        "retractions": summary["num_retracted"],
        "aborted": summary["num_aborted"],
        "told": summary.get("rules_told", []),
    }


def row(name: str, rules: str, f: dict[str, Any]) -> str:
    cells = [
        name if rules == "before" else "",
        rules,
        f"{100 * f['bubble']:.1f} %",
        f"{f['makespan_s']:.2f}",
        f"{f['ttft_mean_s']:.3f} / {f['ttft_p99_s']:.3f}",
        f"{1000 * f['tpot_mean_s']:.2f} / {1000 * f['tpot_p99_s']:.2f}",
        f"{100 * f['hit_rate']:.1f} %",
        str(f["retractions"]),
        str(f["aborted"]),
    ]
    return "| " + " | ".join(cells) + " |"


HEAD = """# What the rules changed

The scheduler decides as SGLang's own does (`scheduler.rules = "sglang"`, the default), or as SGLang's would without the
rules that hurt (`"mended"`); [batches.md](../batches.md) has the rules, [streams.md](../streams.md) what the streams
carry. "Before" is the project at commit 542fe17, with rules of its own and no receive on any stream. Everything is
virtual time. Made by `python bench/bench_rules.py > docs/results/rules.md`.

| scenario | rules | bubble | makespan s | TTFT mean / p99, s | TPOT mean / p99, ms | hit rate | retractions | aborted |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""


def main() -> None:
    before = json.loads(BEFORE.read_text(encoding="utf-8"))
    print(HEAD)
    told: list[str] = []
    for name in CASES:
        for label, rules in RUNS:
            found = before[name] if rules is None else figures(name, rules)
            print(row(name, label, found))
            told += [f"- {name}, `{label}`: {sentence}." for sentence in found["told"]]
    print("\n## What the runs themselves say\n")
    print("\n".join(told))


if __name__ == "__main__":
    main()
