"""Questions about the cut: layers to stages, pipeline against tensor parallelism, the published efficiencies."""

from __future__ import annotations

from itertools import pairwise

from ppsim.cost.gpu import load_gpu
from ppsim.cost.memory import best_partition
from ppsim.scenario.layers import model_shape
from ppsim.scenario.rank import gpu_capacity
from ppsim.studies.questions.asked import USUAL, Answers, Figure, Question, Variant

# --- P03 -------------------------------------------------------------------------------------------------------

PP2 = ("cluster.pp_size=2", "cluster.tp_size=2", "cost.decode_c_ms=139.8")
PP4 = ("cluster.pp_size=4", "cluster.tp_size=1", "cost.decode_c_ms=125.4")


def sustained_per_s(a: Answers, label: str) -> float:
    """Requests/s that a full server completes: its places over the time that a request decodes."""
    scenario = a[label].scenario
    tokens = scenario.workload.output_length.value
    return scenario.scheduler.max_running_requests / (tokens * a[label].mean("tpot_s"))


P03 = Question(
    key="P03",
    asked="Is PP always slower than TP on one node?",
    source="NVIDIA/TensorRT-LLM issue 1144",
    scenario="questions/p03_pipeline_or_tensor_parallel",
    variants=(Variant("tp 4"), Variant("pp 2 x tp 2", PP2), Variant("pp 4", PP4)),
    figures=(
        Figure("p90, tp 4", lambda a: a["tp 4"].summary["e2e_s"]["p90"], 6.4, unit="s", fitted="output length"),
        Figure("p90, pp 2 x tp 2", lambda a: a["pp 2 x tp 2"].summary["e2e_s"]["p90"], 10.2, (">", 6.4), USUAL, "s"),
        Figure("requests/s that pp 4 sustains", lambda a: sustained_per_s(a, "pp 4"), sign=("<", 3.0), unit="1/s"),
        Figure("requests/s that tp 4 sustains", lambda a: sustained_per_s(a, "tp 4"), sign=(">", 3.0), unit="1/s"),
    ),
    assumed="weights and cache at 80 % of the A100's bandwidth, 15 us an all-reduce, 512 tokens in, 40 requests",
    fitted="the output length on the p90 of tp 4",
    findings=lambda a: (
        "sustained requests/s: " + ", ".join(f"{v} {sustained_per_s(a, v):.1f}" for v in a),
        "a decode step reads the weights of its stage whatever the batch, so P slots in turn take as long as P batches "
        "do: PP pays in TPOT, and gets it back only where memory for more requests comes with it",
    ),
    why="our p90 of pp 2 x tp 2 is too high. An all-reduce of 40 us instead of the assumed 15, with the length fitted "
    "again, gives 11.1 s; that engine's time for one and its lengths are not known",
)

# --- P04 -------------------------------------------------------------------------------------------------------

BLOCK_TOKENS = 16
BALANCED = "model.layer_partition=[9, 10, 10, 10, 10, 11, 11, 9]"


def blocks(a: Answers, label: str) -> float:
    return gpu_capacity(a[label].scenario).num_tokens / BLOCK_TOKENS


def p04_findings(a: Answers) -> tuple[str, ...]:
    s = a["even"].scenario
    best = best_partition(
        model_shape(s), load_gpu(s.gpu.key or ""), s.cluster.pp_size, s.cluster.tp_size, s.gpu.mem_fraction_static
    )
    stages = gpu_capacity(a["balanced"].scenario).stages
    return (
        f"even split: stage {gpu_capacity(s).limiting.stage} limits; best split by memory {', '.join(map(str, best))}",
        "blocks a stage, balanced: " + ", ".join(f"{at.num_tokens / BLOCK_TOKENS:.0f}" for at in stages),
    )


P04 = Question(
    key="P04",
    asked="How much does the layer split change capacity?",
    source="vllm-project/vllm PR 6920",
    scenario="questions/p04_layer_split_capacity",
    variants=(Variant("even"), Variant("balanced", (BALANCED,))),
    figures=(
        Figure("KV blocks, even", lambda a: blocks(a, "even"), 1476.0, unit="blocks", fitted="memory"),
        Figure(
            "KV blocks, fewer layers at the ends",
            lambda a: blocks(a, "balanced"),
            3078.0,
            (">", 1476.0),
            USUAL,
            "blocks",
        ),
        Figure(
            "time, even over balanced",
            lambda a: a["even"].makespan_s / a["balanced"].makespan_s,
            244.53 / 167.68,
            (">", 1.0),
            USUAL,
            "times",
        ),
    ),
    assumed="57 requests of 950 tokens in and 32 out; half of the peak arithmetic rate",
    fitted="the usable memory on the blocks of the even split",
    findings=p04_findings,
)

# --- P05 -------------------------------------------------------------------------------------------------------

DEEPSEEK: tuple[str, ...] = ()
QWEN = ('model.key="qwen3-235b-a22b-fp8"', "cluster.tp_size=4")
CHUNK = "scheduler.chunked_prefill_size={}"
SPLITS = {
    "61 layers, remainder last": (DEEPSEEK, "[15,15,15,16]"),
    "61 layers, remainder third": (DEEPSEEK, "[15,15,16,15]"),
    "61 layers, remainder first": (DEEPSEEK, "[16,15,15,15]"),
    "94 layers, remainder last": (QWEN, "[23,23,24,24]"),
    "94 layers, remainder in the middle": (QWEN, "[23,24,24,23]"),
}


def p05_label(split: str, chunk: int) -> str:
    return f"{split}, {chunk}"


def p05_ratio(a: Answers, layers: str, other: str, chunk: int = 4096) -> float:
    last, there = (p05_label(f"{layers}, remainder {place}", chunk) for place in ("last", other))
    return a[last].ttft_s("R1") / a[there].ttft_s("R1")


def p05_findings(a: Answers) -> tuple[str, ...]:
    runs = {v: a[p05_label(v, 4096)] for v in SPLITS}
    tokens = [gpu_capacity(runs[v].scenario).num_tokens for v in list(SPLITS)[:2]]
    others = " and ".join(f"{p05_ratio(a, '94 layers', 'in the middle', c):.4f} with {c}" for c in (6144, 8192))
    return (
        "TTFT and bubble, chunks of 4096: "
        + "; ".join(f"{v} {o.ttft_s('R1'):.2f} s, {o.summary['bubble_ratio']:.3f}" for v, o in runs.items()),
        "the first stage decides: the late chunks are the long ones, and a large first stage holds up each of them. "
        f"Behind it the place hardly matters, last over middle is {others}, where a short last chunk turns the sign",
        f"KV tokens with the remainder last and third: {tokens[0]:,} and {tokens[1]:,}",
    )


P05 = Question(
    key="P05",
    asked="Where should the remainder layers go?",
    source="vllm-project/vllm PR 46217",
    scenario="questions/p05_remainder_layers",
    variants=tuple(
        Variant(
            p05_label(label, chunk),
            (*model, f"model.layer_partition={split}", CHUNK.format(chunk)),
        )
        for label, (model, split) in SPLITS.items()
        for chunk in (4096, 6144, 8192)
    ),
    figures=(
        Figure(
            "TTFT, last over third stage, 61 layers",
            lambda a: p05_ratio(a, "61 layers", "third"),
            sign=("<", 1.0),
            unit="times",
        ),
        Figure(
            "TTFT, last over first stage, 61 layers",
            lambda a: p05_ratio(a, "61 layers", "first"),
            sign=("<", 1.0),
            unit="times",
        ),
        Figure(
            "TTFT, last over middle stages, 94 layers",
            lambda a: p05_ratio(a, "94 layers", "in the middle"),
            sign=("<", 1.0),
            unit="times",
        ),
    ),
    assumed="prompts of 128K on H20, chunks of 4096, the efficiency of the paper scenarios",
    findings=p05_findings,
    why="no size was stated; ours is 0.1 to 0.3 % against the middle, 5 % against the first stage",
)

# --- P19 -------------------------------------------------------------------------------------------------------

TP4 = ("cluster.pp_size=1", "cluster.tp_size=4")
TPOT_S, OUTPUT, INPUT = 0.01438, 921, 7373
RATES = (0.29, 0.8, 1.2, 1.35, 1.5, 3.757, 6.0)  # requests/s; 0.29 is 4 concurrent, 3.757 what was reported at 128


def at(pool: str, rate: float) -> str:
    return f"{pool}, {rate:g}/s"


def p50(a: Answers, pool: str, rate: float) -> float:
    return float(a[at(pool, rate)].summary["ttft_s"]["p50"])


def tokens_per_s(a: Answers, pool: str, concurrency: int) -> float:
    """Little's law: a request is there for its TTFT and its decode."""
    return concurrency * (INPUT + OUTPUT) / (p50(a, pool, 0.29) + OUTPUT * TPOT_S)


def capacity_per_s(a: Answers, pool: str) -> float:
    """Requests/s of a prefill pool that never runs dry."""
    return a[at(pool, 6.0)].input_tokens_per_s / INPUT


def overtakes(a: Answers) -> tuple[float, float] | None:
    """(rate, concurrency) at which the median TTFTs cross, linear between the rates of the table."""
    gaps = [(rate, p50(a, "PP4", rate) - p50(a, "TP4", rate)) for rate in RATES]
    for (low, before), (high, behind) in pairwise(gaps):
        if before > 0 >= behind:
            rate = low + (high - low) * before / (before - behind)
            return rate, rate * (p50(a, "PP4", low) + OUTPUT * TPOT_S)
    return None


def p19_findings(a: Answers) -> tuple[str, ...]:
    found = overtakes(a)
    pools = f"PP4 {capacity_per_s(a, 'PP4'):.2f}, TP4 {capacity_per_s(a, 'TP4'):.2f} requests/s"
    crossed = "never" if found is None else f"from {found[0]:.2f} requests/s on, about {found[1]:.0f} concurrent"
    return (
        f"PP4 overtakes TP4 in the median TTFT, and so in throughput, {crossed}",
        f"what the pools can do: {pools}",
    )


P19 = Question(
    key="P19",
    asked="PP4 against TP4 prefill feeding the same decode pool",
    source="ROCm/ATOM PR 1552 and recipes/mesh/GLM-5.2.md",
    scenario="questions/p19_pp4_against_tp4_prefill",
    variants=tuple(
        Variant(at(pool, rate), (f"workload.rate_per_s={rate}", *overrides))
        for pool, overrides in (("PP4", ()), ("TP4", TP4))
        for rate in RATES
    ),
    figures=(
        Figure("median TTFT, PP4, 4 concurrent", lambda a: 1000 * p50(a, "PP4", 0.29), 704.0, unit="ms", fitted="b"),
        Figure(
            "median TTFT, TP4, 4 concurrent",
            lambda a: 1000 * p50(a, "TP4", 0.29),
            484.0,
            unit="ms",
            fitted="all-reduce",
        ),
        Figure(
            "tokens/s at 4 concurrent, PP4 over TP4",
            lambda a: tokens_per_s(a, "PP4", 4) / tokens_per_s(a, "TP4", 4),
            2317 / 2344,
            ("<", 1.0),
            0.02,
            "times",
        ),
        Figure(
            "median TTFT, PP4, 128 concurrent",
            lambda a: 1000 * p50(a, "PP4", 3.757),
            1501.0,
            tolerance=USUAL,
            unit="ms",
        ),
        Figure(
            "most tokens/s of PP4, reported at 256 concurrent",
            lambda a: capacity_per_s(a, "PP4") * (INPUT + OUTPUT),
            45836.0,
            tolerance=USUAL,
            unit="tokens/s",
        ),
        Figure(
            "capacity, PP4 over TP4",
            lambda a: capacity_per_s(a, "PP4") / capacity_per_s(a, "TP4"),
            sign=(">", 1.0),
            unit="times",
        ),
    ),
    assumed="the same decode pool, TPOT as reported; all time proportional to the tokens; one chunk a prompt",
    fitted="the time of a token on PP4's TTFT, the all-reduce on TP4's",
    findings=p19_findings,
    why="at 128 concurrent our median TTFT is lower (1.05 to 1.31 s over eight seeds): 128 clients that start together "
    "queue in their first wave, which Poisson arrivals do not have; their mean of 2.25 s is far above their median",
)

# --- P31 -------------------------------------------------------------------------------------------------------

PROMPTS = ", ".join(f'{{rid="R{i + 1}", at_iteration=0, prompt=131072, output=1}}' for i in range(16))
STREAM = (f"workload.requests=[{PROMPTS}]", "run.check=false")


def paper(name: str) -> str:
    return f"paper/{name}"


def speedup(a: Answers, one: str, many: str) -> float:
    """Throughput of sixteen prompts back to back over that of one prompt without a pipeline."""
    return a[one].makespan_s / (a[many].makespan_s / 16)


def efficiency(a: Answers, one: str, many: str) -> float:
    """Per cent of the speed-up that the multiple of GPUs would allow."""
    return 100.0 * speedup(a, one, many) / a[many].scenario.cluster.pp_size


P31 = Question(
    key="P31",
    asked="Headline figures of the published chunked-pipeline report (as cited by users)",
    source="vllm-project/vllm issue 41685; LMSYS, Pipeline Parallelism in SGLang",
    scenario="questions/p31_headline_figures",
    variants=(
        Variant("deepseek pp1", (), paper("deepseek_v31_h20_pp1")),
        Variant("deepseek pp4, 12K dynamic"),
        Variant("deepseek pp4, 12K fixed", ("scheduler.enable_dynamic_chunking=false",)),
        Variant("deepseek pp4, one prompt", (), paper("deepseek_v31_h20_pp4")),
        Variant("qwen pp1", (), paper("qwen3_235b_h20_pp1")),
        Variant("qwen pp8, dynamic", STREAM, paper("qwen3_235b_h20_pp8")),
        Variant("qwen pp8, 6K fixed", STREAM, paper("qwen3_235b_h20_pp8_fixed_6144")),
        Variant("qwen pp8, one prompt", (), paper("qwen3_235b_h20_pp8")),
    ),
    figures=(
        Figure("TTFT, Qwen PP1", lambda a: a["qwen pp1"].ttft_s("R1"), 55.5, unit="s", fitted="efficiency"),
        Figure("TTFT, Qwen PP8", lambda a: a["qwen pp8, one prompt"].ttft_s("R1"), 10.5, ("<", 55.5), 0.05, "s"),
        Figure("TTFT, DeepSeek PP1", lambda a: a["deepseek pp1"].ttft_s("R1"), 48.5, tolerance=0.05, unit="s"),
        Figure(
            "TTFT, DeepSeek PP4", lambda a: a["deepseek pp4, one prompt"].ttft_s("R1"), 15.5, ("<", 48.5), USUAL, "s"
        ),
        Figure(
            "DeepSeek PP4 dynamic over PP1",
            lambda a: speedup(a, "deepseek pp1", "deepseek pp4, 12K dynamic"),
            3.31,
            (">", 1.0),
            USUAL,
            "times",
        ),
        Figure(
            "efficiency of it",
            lambda a: efficiency(a, "deepseek pp1", "deepseek pp4, 12K dynamic"),
            82.8,
            ("<", 100.0),
            USUAL,
            "%",
        ),
        Figure(
            "dynamic over fixed 12K, DeepSeek PP4",
            lambda a: a["deepseek pp4, 12K fixed"].makespan_s / a["deepseek pp4, 12K dynamic"].makespan_s,
            1.305 / 1.184,
            (">", 1.0),
            USUAL,
            "times",
        ),
        Figure(
            "Qwen PP8 dynamic over PP1",
            lambda a: speedup(a, "qwen pp1", "qwen pp8, dynamic"),
            6.14,
            (">", 1.0),
            USUAL,
            "times",
        ),
        Figure(
            "efficiency of it", lambda a: efficiency(a, "qwen pp1", "qwen pp8, dynamic"), 76.9, ("<", 100.0), USUAL, "%"
        ),
        Figure(
            "efficiency, Qwen PP8, 6K fixed",
            lambda a: efficiency(a, "qwen pp1", "qwen pp8, 6K fixed"),
            69.6,
            ("<", 100.0),
            USUAL,
            "%",
        ),
    ),
    assumed="lengths in units of 1024; what the paper scenarios say",
    fitted="one efficiency constant on Qwen PP1",
    findings=lambda a: (
        "+30.5 % and +18.4 % over tp 32 are no predictions: the bandwidth of that cluster's network was not published "
        "(see: ppsim paper)",
        "the TTFTs are those of prompts of 128K; the report as cited says 1M",
    ),
)

LAYERS = (P03, P04, P05, P19, P31)
