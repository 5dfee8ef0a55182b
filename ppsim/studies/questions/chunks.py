"""Questions about chunks: does cutting help, how large, what does the last one cost."""

from __future__ import annotations

from ppsim.cost.coefficients import Coefficients
from ppsim.cost.fit import fit_samples
from ppsim.cost.plan import Pipeline, from_sizes, treat_tail
from ppsim.cost.samples import Sample
from ppsim.studies.questions.asked import USUAL, Answers, Figure, Question, Variant

# --- P08 -------------------------------------------------------------------------------------------------------

SIZES = {"no chunks": -1, "32K": 32768, "12K": 12288, "8K": 8192, "4K": 4096, "2K": 2048}
NUM_GPUS = 4


def one_batch(label: str) -> str:
    return f"one batch in flight, {label}"


def per_gpu(answers: Answers, label: str) -> float:
    """Input tokens/s of one of the four GPUs."""
    return answers[label].input_tokens_per_s / NUM_GPUS


def p08_findings(a: Answers) -> tuple[str, ...]:
    best = max(SIZES, key=lambda label: per_gpu(a, label))
    table = ", ".join(f"{label} {per_gpu(a, label):,.0f}" for label in SIZES)
    gain = per_gpu(a, best) / per_gpu(a, one_batch("no chunks"))
    return (
        f"with as many batches in flight as stages, tokens/s a GPU: {table}",
        f"the optimum is then {best}, {gain:.2f} times the best of one batch in flight",
    )


P08 = Question(
    key="P08",
    asked="Does chunking help under PP?",
    source="vllm-project/vllm issue 41682",
    scenario="questions/p08_chunks_without_microbatches",
    variants=(
        *(
            Variant(one_batch(label), ("cluster.pp_size=1", f"scheduler.chunked_prefill_size={size}"))
            for label, size in SIZES.items()
            if size not in (8192, 2048)
        ),
        *(Variant(label, (f"scheduler.chunked_prefill_size={size}",)) for label, size in SIZES.items()),
    ),
    figures=(
        Figure(
            "no chunks, one batch in flight",
            lambda a: per_gpu(a, one_batch("no chunks")),
            1678.0,
            unit="tokens/s/GPU",
            fitted="b",
        ),
        Figure(
            "4K, one batch in flight", lambda a: per_gpu(a, one_batch("4K")), 1347.0, unit="tokens/s/GPU", fitted="c"
        ),
        Figure(
            "12K, one batch in flight",
            lambda a: per_gpu(a, one_batch("12K")),
            1536.0,
            ("<", 1678.0),
            USUAL,
            "tokens/s/GPU",
        ),
        Figure(
            "32K, one batch in flight",
            lambda a: per_gpu(a, one_batch("32K")),
            1500.0,
            ("<", 1678.0),
            USUAL,
            "tokens/s/GPU",
        ),
        Figure(
            "4K over no chunks, batches in flight as stages",
            lambda a: per_gpu(a, "4K") / per_gpu(a, "no chunks"),
            sign=(">", 1.0),
            unit="times",
        ),
    ),
    assumed="a / b of the model's roofline; four prompts at once; free links",
    fitted="b on no chunks, c on 4K",
    findings=p08_findings,
)

# --- P12 -------------------------------------------------------------------------------------------------------

P12 = Question(
    key="P12",
    asked="Dynamic chunks: what gain?",
    source="vllm-project/vllm-ascend PR 7896",
    scenario="questions/p12_dynamic_chunks",
    variants=(
        Variant("fixed"),
        Variant("dynamic", ("scheduler.enable_dynamic_chunking=true",)),
        Variant(
            "dynamic, smooth 1",
            ("scheduler.enable_dynamic_chunking=true", "scheduler.dynamic_chunking_smooth_factor=1.0"),
        ),
        Variant("four stages, fixed", ("cluster.pp_size=4",)),
        Variant("four stages, dynamic", ("cluster.pp_size=4", "scheduler.enable_dynamic_chunking=true")),
    ),
    figures=(
        Figure("TTFT, fixed chunks of 32K", lambda a: a["fixed"].ttft_s("R1"), 61.4, unit="s", fitted="scale"),
        Figure("TTFT, dynamic chunks", lambda a: a["dynamic"].ttft_s("R1"), 53.5, ("<", 61.4), USUAL, "s"),
    ),
    assumed="two stages; the ratios of c, b and a of the model's roofline; smooth factor 0.75",
    fitted="one factor on c, b and a",
    findings=lambda a: (
        f"with smooth factor 1: {a['dynamic, smooth 1'].ttft_s('R1'):.1f} s",
        "the gain grows with the stages, on four TTFT would fall to "
        f"{a['four stages, dynamic'].ttft_s('R1') / a['four stages, fixed'].ttft_s('R1'):.2f} of that of fixed chunks",
    ),
)

# --- P14 -------------------------------------------------------------------------------------------------------

FIRST = (2048, 3072, 4096, 5632, 8192)
SMOOTH = (0.0, 0.65, 0.85, 1.0)
MIN_TAIL = 1024


def p14_label(first: int, smooth: float) -> str:
    return f"{first}, {smooth}"


def merged_s(a: Answers, label: str) -> float:
    """TTFT with the last chunk merged: the recurrence, which equals the run of a single prompt with free links."""
    outcome = a[label]
    c = outcome.scenario.cost
    cost = Coefficients(c_ms=c.prefill_c_ms, b_ms=c.prefill_b_ms_per_token, a_ms=c.prefill_a_ms_per_token2)
    plan = treat_tail(from_sizes("run", outcome.chunk_sizes("R1")), MIN_TAIL)
    return Pipeline.of([1] * outcome.scenario.cluster.pp_size).ttft_ms(plan, cost) / 1000


def p14_findings(a: Answers) -> tuple[str, ...]:
    times = {(f, s): a[p14_label(f, s)].ttft_s("R1") for f in FIRST for s in SMOOTH}
    first, smooth = min(times, key=lambda at: times[at])
    worst = max(times.values())
    best = times[first, smooth]
    return (
        f"best of the sweep: first chunk {first} with smooth factor {smooth}, {1000 * best:.0f} ms; the worst setting "
        f"takes {worst / best:.2f} times as long",
        f"merged into the chunk before it, the tail of (4096, 0.65) is gone and TTFT is "
        f"{1000 * merged_s(a, p14_label(4096, 0.65)):.0f} ms",
        f"3072 with 0.65: {1000 * times[3072, 0.65]:.0f} ms",
    )


P14 = Question(
    key="P14",
    asked="How to choose first chunk and smoothing for 16k prompts?",
    source="sgl-project/sglang PR 23621",
    scenario="questions/p14_first_chunk_and_smoothing",
    variants=tuple(
        Variant(
            p14_label(first, smooth),
            (
                f"scheduler.chunked_prefill_size={first}",
                f"scheduler.dynamic_chunking_smooth_factor={smooth}",
            ),
        )
        for first in FIRST
        for smooth in SMOOTH
    ),
    figures=(
        Figure(
            "last chunk of (4096, 0.65)",
            lambda a: a[p14_label(4096, 0.65)].chunk_sizes("R1")[-1],
            192.0,
            unit="tokens",
            fitted="a / b",
        ),
        Figure(
            "TTFT of (4096, 0.65) over fixed 4096: the tail offsets the gain",
            lambda a: a[p14_label(4096, 0.65)].ttft_s("R1") / a[p14_label(4096, 0.0)].ttft_s("R1"),
            1.0,
            tolerance=0.03,
            unit="times",
        ),
        Figure(
            "TTFT without the tail over with it",
            lambda a: merged_s(a, p14_label(4096, 0.65)) / a[p14_label(4096, 0.65)].ttft_s("R1"),
            sign=("<", 1.0),
            unit="times",
        ),
    ),
    assumed="four stages; b of the profile in sglang PR 17198; 25 ms of overhead a pass and stage (published.md E2)",
    fitted="a / b on the length of the last chunk",
    findings=p14_findings,
)

# --- P15 -------------------------------------------------------------------------------------------------------

K = 1024
MEASURED = tuple(
    Sample(prefix * K, K, ms)
    for prefix, ms in (
        (0, 128.4),
        (1, 123.0),
        (7, 123.5),
        (15, 123.4),
        (31, 124.4),
        (47, 139.2),
        (63, 172.1),
        (79, 205.5),
        (95, 237.9),
    )
)
"""Chunk times of tt-metal PR 56690."""


def worst_error(with_floor: bool) -> float:
    """Largest relative error of a fit over the measured chunks."""
    cost = fit_samples(MEASURED, ("c", "gamma"), with_floor=with_floor).coefficients
    return max(abs(float(cost.ms(s.prefix_len, s.new_tokens)) / s.time_ms - 1.0) for s in MEASURED)


P15 = Question(
    key="P15",
    asked="Cost per chunk grows with the prefix - by how much?",
    source="tenstorrent/tt-metal PR 56690",
    scenario="questions/p15_prefix_cost_floor",
    variants=(Variant("with floor"),),
    figures=(
        Figure("131,072 tokens", lambda a: a["with floor"].ttft_s("R1"), 23.40, tolerance=USUAL, unit="s"),
        Figure(
            "chunk at prefix 79K", lambda a: 1000 * a["with floor"].forward_s(0)[79], 205.5, unit="ms", fitted="gamma"
        ),
        Figure("worst error of a fit without a floor", lambda a: worst_error(False), sign=(">", 0.10)),
        Figure("worst error of a fit with one", lambda a: worst_error(True), sign=("<", 0.05)),
    ),
    assumed="one stage; chunks of one size tell c and gamma apart, not a and b",
    fitted="floor, c and gamma on nine chunk times, the total is predicted",
    findings=lambda a: (
        "with chunks of one size a quadratic cost is linear in the prefix; without a floor it misses by up to "
        f"{worst_error(False):.0%}, and it would shrink chunks from the first one on, where this machine is flat",
    ),
)

# --- P17 -------------------------------------------------------------------------------------------------------

P17_SIZES = {"4K": 4096, "8K": 8192, "16K": 16384, "32K": 32768}


P17 = Question(
    key="P17",
    asked="Larger chunk: better throughput, same TTFT?",
    source="sgl-project/sglang issue 29358",
    scenario="questions/p17_chunk_size_under_load",
    variants=tuple(Variant(label, (f"scheduler.chunked_prefill_size={size}",)) for label, size in P17_SIZES.items()),
    figures=(
        Figure("duration, 16K", lambda a: a["16K"].makespan_s, 160.76, unit="s", fitted="decode step"),
        Figure("TTFT mean, 16K", lambda a: a["16K"].mean("ttft_s"), 34.55, tolerance=USUAL, unit="s"),
        Figure("TTFT mean, 32K", lambda a: a["32K"].mean("ttft_s"), 33.66, ("<", 34.55), USUAL, "s"),
        Figure(
            "TTFT mean, 32K over 16K",
            lambda a: a["32K"].mean("ttft_s") / a["16K"].mean("ttft_s"),
            33.66 / 34.55,
            ("<", 1.0),
            USUAL,
            "times",
        ),
        Figure(
            "duration, 32K over 16K",
            lambda a: a["32K"].makespan_s / a["16K"].makespan_s,
            144.96 / 160.76,
            ("<", 1.0),
            USUAL,
            "times",
        ),
    ),
    assumed="one wave of ten prompts, computed one after the other; no attention term",
    fitted="b and c on the two input throughputs, the decode step on the first duration",
    findings=lambda a: (
        "TTFT mean and duration by chunk: "
        + ", ".join(f"{s} {a[s].mean('ttft_s'):.1f} s and {a[s].makespan_s:.0f} s" for s in P17_SIZES),
    ),
    why="prompts in a queue that is computed 17 % faster have their first tokens 15 % earlier; reported are 3 %. The "
    "second run is another version with a longer warm-up, which may be in its first tokens",
)

# --- P28 -------------------------------------------------------------------------------------------------------

MIX = (
    "workload.requests=[]",
    'workload.source="generated"',
    "workload.num_requests=64",
    "scheduler.page_size=64",
    'workload.arrival="burst"',
    'workload.input_length={kind="uniform", min=1000, max=16000}',
    'workload.output_length={kind="fixed", value=1}',
)
PACKED, LOOSE = "64 prompts, packed", "64 prompts, one request a pass"
ONE_A_BATCH = "scheduler.prefill_max_requests=1"

P28 = Question(
    key="P28",
    asked="Fill of the last chunk",
    source="sgl-project/sglang PR 23048, issue 22984",
    scenario="questions/p28_last_chunk_packing",
    variants=(
        Variant("packed"),
        Variant("one request a pass", (ONE_A_BATCH,)),
        Variant(PACKED, MIX),
        Variant(LOOSE, (*MIX, ONE_A_BATCH)),
    ),
    figures=(
        Figure("passes without packing", lambda a: a["one request a pass"].num_batches("extend"), 4.0, ("=", 4.0), 0.0),
        Figure("passes with packing", lambda a: a["packed"].num_batches("extend"), 3.0, ("=", 3.0), 0.0),
    ),
    assumed="20 ms a pass, 0.02 ms a token",
    findings=lambda a: (
        "64 prompts of 1,000 to 16,000 tokens: "
        f"{a[PACKED].num_batches('extend')} passes instead of {a[LOOSE].num_batches('extend')}, throughput "
        f"{a[PACKED].input_tokens_per_s / a[LOOSE].input_tokens_per_s:.2f} times",
    ),
)

CHUNKS = (P08, P12, P14, P15, P17, P28)
