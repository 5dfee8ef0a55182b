"""Questions about the loop and its policies: batches in flight, sends, whose turn it is."""

from __future__ import annotations

from ppsim.studies.questions.asked import ROUGH, USUAL, Answers, Figure, Question, Variant

# --- P09 -------------------------------------------------------------------------------------------------------

BEFORE = ("cluster.pp_size=1", "scheduler.pp_max_micro_batch_size=128")
BUDGET_16K = (
    "scheduler.chunked_prefill_size=16384",
    "scheduler.max_prefill_tokens=16384",
    'workload.output_length={kind="fixed", value=2}',
)

P09 = Question(
    key="P09",
    asked="What does a rearranged loop (decode every pp steps, chunks in consecutive steps) bring?",
    source="vllm-project/vllm PR 42187",
    scenario="questions/p09_loop_designs",
    variants=(
        Variant("one batch in flight", BEFORE),
        Variant("slots"),
        Variant("slots, one more", ("cluster.pp_async_batch_depth=1",)),
        Variant("one batch in flight, 16K", (*BEFORE, *BUDGET_16K)),
        Variant("slots, 16K", BUDGET_16K),
    ),
    figures=(
        Figure(
            "throughput, slots over one batch in flight",
            lambda a: a["one batch in flight"].makespan_s / a["slots"].makespan_s,
            1.24,
            unit="times",
            fitted="row",
        ),
        Figure(
            "TTFT, one batch in flight over slots",
            lambda a: a["one batch in flight"].mean("ttft_s") / a["slots"].mean("ttft_s"),
            2.34,
            (">", 1.0),
            USUAL,
            "times",
        ),
    ),
    assumed="weights read in 36 ms a step, 10 us a prompt token, chunk 8192, one wave of 128 clients",
    fitted="the time a row adds to a decode step",
    findings=lambda a: (
        "with chunks of 16K TTFT is "
        f"{a['one batch in flight, 16K'].mean('ttft_s') / a['slots, 16K'].mean('ttft_s'):.2f} times lower: the fewer "
        "batches a wave has, the more of it is filling the pipeline",
        "a slot more than stages gives these 128 requests "
        f"{a['slots'].makespan_s / a['slots, one more'].makespan_s:.2f} times the throughput: they only spread thinner",
    ),
    why="a prompt of a wave of M = 16 batches waits for (M + 1) / 2 batches of four stages before and (M + 7) / 2 of "
    "one after, which is 2.96 times; reported are 2.34. Which token budget the runs had is not known, 16K would fit",
)

# --- P10 -------------------------------------------------------------------------------------------------------

FREE_HOST = ("host.schedule_us=0.0", "host.process_us=0.0")
QUEUE = (
    "cost.unit_ms=27.9",
    "workload.num_requests=40",
    'workload.output_length={kind="fixed", value=4}',
    "scheduler.max_running_requests=40",
    "scheduler.pp_max_micro_batch_size=10",
    "scheduler.prefill_max_requests=1",
)
BUSY_HOST = ("host.schedule_us=22700.0", "host.process_us=22700.0")
STAGES = 4


def deep(depth: int, num_requests: int) -> Variant:
    places = -(-num_requests // (STAGES + depth))
    return Variant(
        f"depth {depth}, {num_requests} requests",
        (
            f"cluster.pp_async_batch_depth={depth}",
            f"workload.num_requests={num_requests}",
            f"scheduler.max_running_requests={num_requests}",
            f"scheduler.pp_max_micro_batch_size={places}",
        ),
    )


def times(a: Answers, label: str) -> float:
    """Throughput over that of the loop as it is."""
    return a[label].output_tokens_per_s / a["as it is"].output_tokens_per_s


def periods(a: Answers, label: str) -> tuple[float, float]:
    """Milliseconds between two steps of a stage: measured as a round over its slots, and max(t + h/P, h + t/P)."""
    scenario = a[label].scenario
    t, h = scenario.cost.unit_ms, (scenario.host.schedule_us + scenario.host.process_us) / 1000
    return 1000 * a[label].token_gap_s("R1") / STAGES, max(t + h / STAGES, h + t / STAGES)


def p10_findings(a: Answers) -> tuple[str, ...]:
    pairs = [periods(a, label) for label in ("as it is", "host off the path", "queue", "queue, host off the path")]
    law = ", ".join(f"{measured:.2f} (law {law:.2f})" for measured, law in pairs)
    return (
        "with host time h and stage time t a step takes max(t + h / P, h + t / P) at depth 0; in ms: " + law,
        "slots beyond the stages do not shorten a token's way: the throughput of the same 8 requests is "
        f"{times(a, 'depth 1, 8 requests'):.2f} and {times(a, 'depth 2, 8 requests'):.2f} times that of depth 0 at "
        f"depth 1 and 2; with as many more requests as slots it is {times(a, 'depth 1, 10 requests'):.2f} and "
        f"{times(a, 'depth 2, 12 requests'):.2f} times",
        "asynchronous send and receive (TTFT 29.37 instead of 31.26 s, TPOT 110.2 instead of 111.7 ms): see P11",
    )


P10 = Question(
    key="P10",
    asked="How much does asynchronous scheduling give?",
    source="vllm-project/vllm PR 32618; vllm-project/vllm-ascend PR 7136, 7143",
    scenario="questions/p10_async_scheduling",
    variants=(
        Variant("as it is"),
        Variant("host off the path", FREE_HOST),
        *(deep(depth, num) for depth, num in ((1, 8), (2, 8), (1, 10), (2, 12))),
        Variant("queue", (*QUEUE, *BUSY_HOST)),
        Variant("queue, host off the path", (*QUEUE, *FREE_HOST)),
    ),
    figures=(
        Figure("throughput, pp 4", lambda a: times(a, "host off the path"), 1.308, unit="times", fitted="host time"),
        Figure(
            "TPOT, pp 4",
            lambda a: a["as it is"].mean("tpot_s") / a["host off the path"].mean("tpot_s"),
            1.318,
            (">", 1.0),
            USUAL,
            "times",
        ),
        Figure(
            "TPOT, tp 4 x pp 4",
            lambda a: a["queue"].token_gap_s("R1") / a["queue, host off the path"].token_gap_s("R1"),
            209.6 / 111.7,
            unit="times",
            fitted="host time",
        ),
        Figure(
            "TTFT, tp 4 x pp 4",
            lambda a: a["queue, host off the path"].mean("ttft_s") / a["queue"].mean("ttft_s"),
            31.26 / 54.15,
            ("<", 1.0),
            USUAL,
            "times",
        ),
    ),
    assumed="a step takes a stage 5.33 ms (27.9 ms in the second thread), prefill and decode alike; half of the host's "
    "time before the launch and half after the harvest",
    fitted="the host's time of a step: on the throughput of the first thread, on TPOT of the second",
    findings=p10_findings,
)

# --- P11 -------------------------------------------------------------------------------------------------------

BANDWIDTHS = (20.0, 5.0, 1.6, 1.0)
OVERLAPPED = ('links.send="eager"', "cluster.comm_overlap=true")


def blocking(gb_per_s: float) -> str:
    return f"blocking, {gb_per_s:g} GB/s"


def overlapped(gb_per_s: float) -> str:
    return f"overlapped, {gb_per_s:g} GB/s"


def gain(a: Answers, gb_per_s: float, what: str) -> float:
    return 1.0 - a[overlapped(gb_per_s)].mean(what) / a[blocking(gb_per_s)].mean(what)


def send_share(a: Answers, gb_per_s: float) -> float:
    """Time of a send over that of the stage, for a full prefill batch."""
    s = a[blocking(gb_per_s)].scenario
    tokens = s.scheduler.chunked_prefill_size
    send_s = tokens * s.model.hidden_size * s.model.dtype_bytes / (gb_per_s * 1e9)
    return send_s / max(a[blocking(gb_per_s)].forward_s(0))


P11 = Question(
    key="P11",
    asked="How much does asynchronous send give?",
    source="vllm-project/vllm PR 31561",
    scenario="questions/p11_async_send",
    variants=tuple(
        variant
        for bw in BANDWIDTHS
        for variant in (
            Variant(blocking(bw), (f"links.bandwidth_gb_per_s={bw}",)),
            Variant(overlapped(bw), (f"links.bandwidth_gb_per_s={bw}", *OVERLAPPED)),
        )
    ),
    figures=(
        Figure("end to end, 1.6 GB/s", lambda a: gain(a, 1.6, "e2e_s"), 0.04, unit="of it", fitted="bandwidth"),
        Figure("TTFT, 1.6 GB/s", lambda a: gain(a, 1.6, "ttft_s"), sign=(">", 0.0), unit="of it"),
        Figure(
            "gain at 1 GB/s over gain at 20 GB/s",
            lambda a: gain(a, 1.0, "e2e_s") / gain(a, 20.0, "e2e_s"),
            sign=(">", 1.0),
            unit="times",
        ),
    ),
    assumed="GSM8K prompts of 60 to 180 tokens; 10 ms a prefill and 16 ms a decode step, 0.1 ms a token or row",
    fitted="the bandwidth of a link on the gain",
    findings=lambda a: (
        "gain by send time over stage time of a full batch: "
        + ", ".join(f"{send_share(a, bw):.1%} gives {gain(a, bw, 'e2e_s'):.1%}" for bw in BANDWIDTHS),
    ),
    why="only a lower bound was reported (more than 4 %), and the link is not known",
)

# --- P22 -------------------------------------------------------------------------------------------------------

ARRIVALS_S = 90.0
LIMITS = (0, 1, 4, 16)


def limited(limit: int) -> str:
    return f"at most {limit} prefills in a row" if limit else "no limit"


def s_per_decode(a: Answers, limit: int) -> float:
    """Seconds of the time with arrivals for each decode batch in it."""
    return ARRIVALS_S / len(a[limited(limit)].starts_s("decode", before_s=ARRIVALS_S))


P22 = Question(
    key="P22",
    asked="How to bound decode starvation?",
    source="sgl-project/sglang issue 32549, PR 32775",
    scenario="questions/p22_decode_starvation",
    variants=tuple(Variant(limited(n), (f"scheduler.max_consecutive_prefills={n}",)) for n in LIMITS),
    figures=(
        Figure(
            "prefill batches in 15 minutes",
            lambda a: len(a["no limit"].starts_s("extend", before_s=ARRIVALS_S)) * 900 / ARRIVALS_S,
            2863.0,
            fitted="b",
        ),
        Figure(
            "seconds for each decode batch, no limit", lambda a: s_per_decode(a, 0), 900 / 37, (">", 5.0), ROUGH, "s"
        ),
        Figure("longest gap, limit 4", lambda a: a[limited(4)].longest_gap_s("decode"), sign=("<", 5.0), unit="s"),
    ),
    assumed="lengths uniform from 3K to 6K, no shared prefixes, 30 ms a decode step, memory for everybody",
    fitted="b on the number of prefill batches",
    findings=lambda a: (
        "limit N: longest gap between decode batches, mean TTFT: "
        + "; ".join(
            f"{limited(n)} {a[limited(n)].longest_gap_s('decode'):.1f} s, {a[limited(n)].mean('ttft_s'):.1f} s"
            for n in LIMITS
        ),
    ),
)

# --- P23 -------------------------------------------------------------------------------------------------------

LETS_DECODE = "scheduler.prefill_decode_interval=1"


def after(chunks: int) -> str:
    return f"1 after {chunks}" if chunks else "strict order"


P23 = Question(
    key="P23",
    asked="Short request behind a giant one",
    source="ROCm/ATOM PR 1835",
    scenario="questions/p23_short_behind_giant",
    variants=(
        Variant(after(0)),
        *(Variant(after(k), (f"scheduler.max_consecutive_chunks={k}", LETS_DECODE)) for k in (1, 2, 4, 8)),
    ),
    figures=(
        Figure("TTFT of the short one, strict order", lambda a: a[after(0)].ttft_s("S1"), 82.4, unit="s", fitted="b"),
        Figure("launches of the long one", lambda a: len(a[after(0)].launches("L1")), 37.0, ("=", 37.0), 0.0),
        Figure("TTFT of the short one, 1 after 1", lambda a: a[after(1)].ttft_s("S1"), 1.9, ("<", 82.4), ROUGH, "s"),
        Figure(
            "end of the long one, 1 after 1 minus strict order",
            lambda a: a[after(1)].ttft_s("L1") - a[after(0)].ttft_s("L1"),
            0.6,
            (">", 0.0),
            USUAL,
            "s",
        ),
    ),
    assumed="a / b = 7e-5; 8 output tokens of 20 ms; one stage",
    fitted="b on the wait in strict order",
    findings=lambda a: (
        "TTFT of the short one by policy: "
        + ", ".join(f"{after(k)} {a[after(k)].ttft_s('S1'):.2f} s" for k in (0, 1, 2, 4, 8)),
        "the long one loses the decode steps that are let in between and nothing else: its last chunk is half empty, "
        "and the short prompt takes no more room than that",
    ),
    why="what the long one loses is the decode steps of the short one: ours are 7 of 20 ms, theirs are not known",
)

# --- P26 -------------------------------------------------------------------------------------------------------

SPLITS = ("one batch of 4", "2 + 2")
ROWS = {"r = 0": 0.0, "r = f / 4": 2.0}


def p26_label(cost: str, places: int) -> str:
    return f"{cost}, {SPLITS[0] if places == 4 else SPLITS[1]}"


def p26_ratio(a: Answers, cost: str) -> float:
    """Round of one batch of four over that of two of two."""
    return a[p26_label(cost, 4)].token_gap_s("R1") / a[p26_label(cost, 2)].token_gap_s("R1")


P26 = Question(
    key="P26",
    asked="Does splitting a small decode batch help at all?",
    source="RBLN-SW/vllm-rbln PR 900",
    scenario="questions/p26_split_decode_batch",
    variants=tuple(
        Variant(
            p26_label(cost, places),
            (f"scheduler.pp_max_micro_batch_size={places}", f"cost.decode_row_ms={row_ms}"),
        )
        for cost, row_ms in ROWS.items()
        for places in (4, 2)
    ),
    figures=(
        Figure("round of 4 over 2 + 2, rows are free", lambda a: p26_ratio(a, "r = 0"), 1.0, ("=", 1.0), 0.0, "times"),
        Figure(
            "round of 4 over 2 + 2, (f + 4r) / (f + 2r)",
            lambda a: p26_ratio(a, "r = f / 4"),
            4 / 3,
            (">", 1.0),
            1e-9,
            "times",
        ),
    ),
    assumed="f = 4 ms and r = 0 or 1 ms a stage",
    findings=lambda a: (
        "tokens/s in the steady state, r = f / 4: "
        + ", ".join(f"{split} {4 / a[f'r = f / 4, {split}'].token_gap_s('R1'):.0f}" for split in SPLITS),
    ),
)

LOOPS = (P09, P10, P11, P22, P23, P26)
