"""Questions about the control plane of disaggregated serving: what a vote costs, and who waits for it."""

from __future__ import annotations

from statistics import median

from ppsim.recording.shares import instants
from ppsim.studies.questions.asked import USUAL, Answers, Figure, Question, Variant
from ppsim.studies.questions.outcome import Outcome

LEADER = 'disaggregation.bootstrap="store"'

# --- P01 -------------------------------------------------------------------------------------------------------

TAU_S = 0.97
TP8 = ("cluster.pp_size=1", f"cost.prefill_c_ms={1000 * TAU_S}")


def p50(o: Outcome) -> float:
    return float(o.summary["ttft_s"]["p50"])


def shares(o: Outcome) -> str:
    """Where the mean TTFT goes."""
    return ", ".join(f"{name} {share['mean']:.1f}" for name, share in o.summary["ttft_shares_s"].items())


def p01_findings(a: Answers) -> tuple[str, ...]:
    ring, leader = a["pp 8, ring votes"], a["pp 8, leader"]
    return (
        f"mean TTFT of pp 8 by share, in s: {shares(ring)}",
        f"admission takes {ring.summary['admission_iterations']['p50']:.0f} iterations with ring votes and "
        f"{leader.summary['admission_iterations']['p50']:.0f} with a leader, whose median TTFT is {p50(leader):.1f} s",
        "what stays is the way through the stages, and the last chunk's KV, which each stage sends when the token has "
        f"come round: together 2 P tau = {16 * TAU_S:.1f} s; the vote adds P + 1 iterations",
    )


P01 = Question(
    key="P01",
    asked="Why is PP8 prefill 13 times slower to the first token than TP8 on the same nodes?",
    source="sgl-project/sglang issue 34815",
    scenario="questions/p01_first_token_floor_pp8",
    variants=(Variant("pp 8, ring votes"), Variant("pp 8, leader", (LEADER,)), Variant("tp 8", TP8)),
    figures=(
        Figure("median TTFT, tp 8", lambda a: p50(a["tp 8"]), 2.33, unit="s", fitted="tau"),
        Figure("median TTFT, pp 8", lambda a: p50(a["pp 8, ring votes"]), 31.1, (">", 2.33), USUAL, "s"),
        Figure(
            "pp 8 over tp 8", lambda a: p50(a["pp 8, ring votes"]) / p50(a["tp 8"]), 13.4, (">", 1.0), USUAL, "times"
        ),
        Figure(
            "leader over ring votes",
            lambda a: p50(a["pp 8, leader"]) / p50(a["pp 8, ring votes"]),
            sign=("<", 1.0),
            unit="times",
        ),
    ),
    assumed="2048 uncached tokens a request, 0.66 requests/s (1.35K tokens/s), every batch takes tau on a stage",
    fitted="tau on the TTFT of tp 8",
    findings=p01_findings,
)

# --- P02 -------------------------------------------------------------------------------------------------------


def spans_s(o: Outcome, begin: str, end: str) -> list[float]:
    """Seconds between two marks of each request, ascending."""
    return sorted((m[end] - m[begin]) / 1e9 for m in instants(o.recording).values())


def near(values: list[float], middle: float) -> int:
    """How many lie within 1 % of a value."""
    return sum(abs(v - middle) <= 0.01 * middle for v in values)


P02 = Question(
    key="P02",
    asked="Where do 7.8 s between ready and admitted go at PP16?",
    source="sgl-project/sglang issue 38206",
    scenario="questions/p02_admission_at_pp16",
    variants=(Variant("ring votes"), Variant("leader", (LEADER,))),
    figures=(
        Figure(
            "ready to admitted, median",
            lambda a: median(spans_s(a["ring votes"], "ready", "admitted")),
            7.814,
            unit="s",
            fitted="tau",
        ),
        Figure(
            "requests that wait so long within 1 %",
            lambda a: near(spans_s(a["ring votes"], "ready", "admitted"), 7.814),
            13.0,
            fitted="gap between requests",
        ),
        Figure("TTFT, mean", lambda a: a["ring votes"].mean("ttft_s"), 26.969, (">", 7.814), USUAL, "s"),
        Figure(
            "admitted to first forward, median",
            lambda a: median(spans_s(a["ring votes"], "admitted", "started")),
            3.928,
            (">", 0.0),
            USUAL,
            "s",
        ),
        Figure(
            "ready to admitted with a leader, median",
            lambda a: median(spans_s(a["leader"], "ready", "admitted")),
            sign=("<", 7.814),
            unit="s",
        ),
    ),
    assumed="one chunk of equal time a request, 1 ms of host time an iteration, free links",
    fitted="tau on the wait for consensus, the gap between requests on those that do not wait",
    findings=lambda a: (
        f"the wait is {a['ring votes'].summary['admission_iterations']['p50']:.0f} iterations of the first rank, all "
        f"but one behind a forward pass of 0.488 s; mean TTFT by share, in s: {shares(a['ring votes'])}",
        f"with a leader the wait is {1000 * median(spans_s(a['leader'], 'ready', 'admitted')):.1f} ms, and the mean "
        f"TTFT {a['leader'].mean('ttft_s'):.1f} s: the queue in front of the stages takes most of it over",
    ),
    why="behind admission a request waits tau for each one admitted in front of it: 7.5 tau = 3.7 s in the median "
    "where all 16 are admitted at once, reported are 8 tau. Ours come 5 ms apart, as the fitted 13 of 16 asks, and "
    "some find nobody in front; how theirs came, and how long they were, was not given",
)

# --- P21 -------------------------------------------------------------------------------------------------------

WAITS_S = (4240.0, 3204.0, 2126.0, 0.08)


def waits(o: Outcome) -> list[float]:
    """What each rank would wait for the last one in an iteration of the steady state, in seconds."""
    begins = [o.begin_s(rank) for rank in range(o.scenario.cluster.pp_size)]
    middle = sorted(begins[-1])[len(begins[-1]) // 2]
    return [begins[-1][middle] - mine[middle] for mine in begins]


def slower(a: Answers, label: str) -> float:
    """Throughput over that of votes that nobody waits for."""
    return a[label].input_tokens_per_s / a["ring votes"].input_tokens_per_s


def wait_figure(k: int) -> Figure:
    """Wait of a rank over that of the next one."""

    def ours(a: Answers) -> float:
        mine = waits(a["ring votes"])
        return mine[k] / mine[k + 1]

    reported = WAITS_S[k] / WAITS_S[k + 1]
    return Figure(f"wait of rank {k} over that of rank {k + 1}", ours, reported, (">", 1.0), USUAL, "times")


P21 = Question(
    key="P21",
    asked="What does a blocking agreement cost?",
    source="NVIDIA/TensorRT-LLM PR 16634 and diagnostics",
    scenario="questions/p21_blocking_agreement",
    variants=(
        Variant("ring votes"),
        Variant("leader", (LEADER,)),
        Variant("blocking", ("cluster.pp_size=1", "cost.unit_ms=400.0", LEADER)),
    ),
    figures=(
        Figure(
            "throughput, blocking over votes", lambda a: slower(a, "blocking"), 817 / 1573, ("<", 1.0), USUAL, "times"
        ),
        Figure(
            "throughput, leader over ring votes",
            lambda a: slower(a, "leader"),
            1548.84 / 1573,
            tolerance=USUAL,
            unit="times",
        ),
        wait_figure(0),
        wait_figure(1),
    ),
    assumed="an agreement in every iteration, one chunk a request, equal stages",
    findings=lambda a: (
        "waits for the last rank, ranks 0 to 3, in stage times: "
        + ", ".join(f"{w / 0.1:.0f}" for w in waits(a["ring votes"])),
        "votes that nobody waits for cost no throughput, on the ring as with a leader",
    ),
    why="a rank waits for the stages behind it, 3 : 2 : 1 : 0, and with an agreement in every iteration only one batch "
    "is under way: a quarter of the throughput, and with one in every k-th k / (k + 3) of it, half for every third. "
    "Reported are half, seen from the other side, and 4 : 3 : 2 : 0, one stage time more on the last rank; how often "
    "they agreed is not known",
)

CONTROL = (P01, P02, P21)
