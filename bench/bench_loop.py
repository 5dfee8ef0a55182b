"""What the shape of the loop costs, in virtual time: the tables of docs/results/loop.md.

    python bench/bench_loop.py

Virtual time needs no clock, so these numbers are the same on every machine. A test
holds the quick tables against the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ppsim.recording import Recording
from ppsim.recording.summary import summarize
from ppsim.scenario.load import load_scenario, put, validate
from ppsim.world import simulate

MS = 1_000_000
STAGE_MS = 10
LATE, EARLY = "after_harvest", "after_launch"


def recording_of(keys: dict[str, Any]) -> Recording:
    raw: dict[str, Any] = {}
    for key, value in keys.items():
        put(raw, key, value)
    result = simulate(validate(raw))
    assert result.verdict.kind == "pass", result.verdict.message
    return result.recording


def steady_decode(pp_size: int, depth: int, rounds: int, **keys: Any) -> Recording:
    """One request in each slot, every stage 10 ms for any batch, free links."""
    rows = [{"rid": f"R{n}", "prompt": 1, "output": rounds, "ignore_eos": True} for n in range(pp_size + depth)]
    return recording_of(
        {
            "cluster.pp_size": pp_size,
            "cluster.pp_async_batch_depth": depth,
            "scheduler.pp_max_micro_batch_size": 1,
            "scheduler.chunked_prefill_size": 1,
            "scheduler.max_total_tokens": 4096,
            "cost.source": "unit",
            "cost.unit_ms": float(STAGE_MS),
            "workload.source": "requests",
            "workload.requests": rows,
            "run.check": False,
            **keys,
        }
    )


def iteration_ms(pp_size: int, depth: int, **keys: Any) -> float:
    """Mean time between forward passes of the first rank over whole cycles of the steady state."""
    num_slots, cycle = pp_size + depth, pp_size + depth - 1
    recording = steady_decode(pp_size, depth, 5 + cycle, **keys)
    starts = {s.iteration: s.start_ns for s in recording.spans[0]}
    first = 4 * num_slots
    return (starts[first + cycle * num_slots] - starts[first]) / (cycle * num_slots * MS)


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]


def host_time_table() -> list[str]:
    """Depth and early hidden states against host time h per harvested batch."""

    def rows() -> Iterable[list[object]]:
        for pp_size in (2, 4, 8):
            for h in (0, 1, 2, 5):
                host = {"host.process_us": h * 1000.0}
                late = [iteration_ms(pp_size, depth, **host) for depth in (0, 1, 2)]
                link = {**host, "links.order": "link"}
                apart = iteration_ms(pp_size, 0, **link)
                early = iteration_ms(pp_size, 0, **link, **{"scheduler.hidden_send": EARLY})
                gains = [f"{100 * (late[0] / other - 1):.1f} %" for other in (late[1], apart, early)]
                yield [pp_size, h, *(f"{ms:.3f}" for ms in (*late, apart, early)), *gains]

    head = [
        "pp",
        "h (ms)",
        "depth 0",
        "depth 1",
        "depth 2",
        "depth 0, an order for each link",
        "the same, early hidden states",
        "depth 1 gains",
        "links gain",
        "early gains",
    ]
    return markdown(head, rows())


def order_table() -> list[str]:
    """Payloads behind each other in one stream, or not, with overlap; and what receives cost without it."""

    def rows() -> Iterable[list[object]]:
        for pp_size, depth, slots in ((3, 1, (1, 9, 9, 9)), (3, 2, (1, 1, 9, 9, 9)), (4, 2, (1, 1, 1, 9, 9, 9))):
            bound = max(sum(slots), pp_size * max(slots))
            unequal = {"cost.slot_ms": [float(ms) for ms in slots]}
            found = [
                iteration_ms(pp_size, depth, **unequal, **{"links.order": order, "cluster.comm_overlap": overlap})
                * len(slots)
                for order, overlap in (("none", True), ("stream", True), ("stream", False))
            ]
            slower = f"{100 * (found[1] / bound - 1):.0f} %"
            yield [pp_size, depth, ", ".join(map(str, slots)), bound, *(f"{ms:.1f}" for ms in found), slower]

    head = ["pp", "depth", "slot times (ms)", "max(sum, pp max)", "no order", "one stream", "one stream, no overlap"]
    return markdown([*head, "one stream over the bound"], rows())


def stream_table() -> list[str]:
    """Forward and send, with and without a communication stream and a static buffer (pp 2, depth 1)."""

    def period_ms(forward_ms: int, send_ms: int, overlap: bool, graph: bool) -> float:
        keys = {
            "cost.unit_ms": float(forward_ms),
            "cluster.comm_overlap": overlap,
            "cluster.cuda_graph": graph,
            "model.hidden_size": send_ms * MS // 2,
            "links.bandwidth_gb_per_s": 1.0,
        }
        return iteration_ms(2, 1, **keys)

    def rows() -> Iterable[list[object]]:
        for forward_ms, send_ms in ((2, 5), (4, 1)):
            for overlap in (False, True):
                times = [f"{period_ms(forward_ms, send_ms, overlap, graph):.3f}" for graph in (False, True)]
                yield [forward_ms, send_ms, "on" if overlap else "off", *times]

    head = ["forward (ms)", "send (ms)", "communication overlap", "eager: period (ms)", "graph: period (ms)"]
    return markdown(head, rows())


def serving_table() -> list[str]:
    """The main job with 1 ms of host time: 40 requests of the shipped trace, mean of four arrival rates."""

    def rows() -> Iterable[list[object]]:
        for depth in (0, 1, 2):
            for hidden_send in (LATE, EARLY):
                found = [served(depth, hidden_send, scale) for scale in (0.2, 0.25, 0.3, 0.4)]
                ttft, tpot, bubble = (sum(column) / len(found) for column in zip(*found, strict=True))
                spread = max(f[1] for f in found) - min(f[1] for f in found)
                yield [depth, hidden_send, f"{ttft:.3f}", f"{tpot:.1f}", f"{spread:.1f}", f"{100 * bubble:.1f} %"]

    head = ["depth", "hidden states leave", "mean TTFT (s)", "mean TPOT (ms)", "spread of TPOT (ms)", "bubble"]
    return markdown(head, rows())


def served(depth: int, hidden_send: str, time_scale: float) -> tuple[float, float, float]:
    """Mean TTFT (s), mean TPOT (ms) and bubble of one run."""
    sets = [
        "workload.num_requests=40",
        f"workload.time_scale={time_scale}",
        "host.process_us=1000.0",
        f"cluster.pp_async_batch_depth={depth}",
        f"scheduler.hidden_send={hidden_send}",
    ]
    result = simulate(load_scenario("mooncake", sets))
    s = summarize(result.recording, result.verdict)
    return s["ttft_s"]["mean"], 1000 * s["tpot_s"]["mean"], s["bubble_ratio"]


TABLES = {"host time": host_time_table, "order of sends": order_table, "streams": stream_table}
"""Quick ones; the page is held against them."""


def main() -> None:
    for name, table in {**TABLES, "serving": serving_table}.items():
        print(f"\n{name}: {(table.__doc__ or '').splitlines()[0]}\n")
        print("\n".join(table()))


if __name__ == "__main__":
    main()
