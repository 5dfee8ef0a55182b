"""What a benchmark wrote, as a trace: the requests that it sent.

    vLLM, SGLang bench_serving    one object a run: "input_lens", "output_lens", and where newer ones say it
                                  "start_times" in seconds. Without them the requests have no times
    AIPerf profile_export.jsonl   one object a request: metadata.request_start_ns (of a clock), lengths in metrics

The times that the server took are not used: they are what a run of ours is to be compared with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from ppsim.workload.lines import Line, TraceRow, shown
from ppsim.workload.times import number_ns


@dataclass(slots=True)
class Results:
    """Reads records of results; counts on the way what is told at the end."""

    name: str
    num_failed: int = 0
    num_warm_up: int = 0
    num_later_turns: int = 0
    num_untimed: int = 0
    runs: int = 0
    of_the_run: str = ""

    def run(self, line: Line, record: Mapping[str, Any], first: int) -> list[TraceRow]:
        """All requests of a run of bench_serving."""
        inputs = numbers(line, "input_lens", record.get("input_lens"))
        outputs = numbers(line, "output_lens", record.get("output_lens"))
        if len(outputs) != len(inputs):
            raise line.error("output_lens", f"has {len(outputs)} entries, input_lens {len(inputs)}")
        starts = record.get("start_times")
        if starts is not None and (not isinstance(starts, list) or len(starts) != len(inputs)):
            raise line.error("start_times", f"expected {len(inputs)} times, got {shown(starts)}")
        self.runs += 1
        self.num_untimed += len(inputs) if starts is None else 0
        said = [f"{key} {record[key]}" for key in ("max_concurrency", "request_rate") if record.get(key) is not None]
        self.of_the_run = self.of_the_run or ", ".join(said)
        errors = record.get("errors")
        if isinstance(errors, list):
            self.num_failed += sum(bool(error) for error in errors)
        rows = []
        for i, (prompt, output) in enumerate(zip(inputs, outputs)):
            at_ns = 0 if starts is None else moment_of(line, "start_times", starts[i], "s")
            length = line.length("input_lens", prompt)
            if output < 0:
                raise line.error("output_lens", f"expected a number of tokens, got {output}")
            answer = line.length("output_lens", output) if output else 1
            rows.append(TraceRow(first + i, line.number, at_ns, length, answer, None, not output))
        return rows

    def request(self, line: Line, record: Mapping[str, Any], first: int) -> list[TraceRow]:
        """A record of AIPerf; none for a request of the warm-up."""
        about, metrics = record.get("metadata"), record.get("metrics")
        if not isinstance(about, dict) or not isinstance(metrics, dict):
            raise line.error("metadata" if not isinstance(about, dict) else "metrics", "expected an object")
        if str(about.get("benchmark_phase", "profiling")).lower() == "warmup":
            self.num_warm_up += 1
            return []
        failed = record.get("error") is not None
        prompt = metric(line, metrics, "input_sequence_length", "error_isl")
        output = metric(line, metrics, "output_sequence_length", "output_token_count")
        if prompt is None:
            raise line.error("metrics.input_sequence_length", "is missing: how long the prompt was is not known")
        if output is None and not failed:
            raise line.error("metrics.output_sequence_length", "is missing, and the request has not failed")
        self.num_failed += failed
        turn = about.get("turn_index") or 0
        self.num_later_turns += isinstance(turn, int) and turn > 0
        at_ns = moment_of(line, "metadata.request_start_ns", about.get("request_start_ns"), "ns")
        length = line.length("metrics.input_sequence_length", prompt)
        answer = line.length("metrics.output_sequence_length", output) if output else 1
        return [TraceRow(first, line.number, at_ns, length, answer, None, not output)]

    def told(self) -> tuple[str, ...]:
        told = []
        if self.runs > 1:
            told.append(f"{self.name}: {self.runs} runs of a benchmark, one behind the other")
        if self.of_the_run:
            told.append(f"{self.name}: the benchmark ran with {self.of_the_run} (--concurrency, workload.rate_per_s)")
        if self.num_warm_up:
            told.append(f"{self.name}: {self.num_warm_up} requests of the warm-up are left out")
        if self.num_failed:
            told.append(f"{self.name}: {self.num_failed} requests failed in the benchmark; here they are served")
        if self.num_later_turns:
            told.append(
                f"{self.name}: {self.num_later_turns} later turns of sessions come at their times as prompts of their "
                "own: nothing is cached between them"
            )
        return tuple(told)


def numbers(line: Line, key: str, value: object) -> list[int]:
    if not isinstance(value, list) or not value:
        raise line.error(key, f"expected the lengths of the requests, got {shown(value)}")
    for i, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int):
            raise line.error(key, f"entry {i}: expected an integer, got {shown(item)}")
    return value


def metric(line: Line, metrics: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        found = metrics.get(name)
        value = found.get("value") if isinstance(found, dict) else found
        if value is None:
            continue
        if isinstance(value, Decimal) and value == int(value):
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise line.error(f"metrics.{name}", f"expected an integer, got {shown(value)}")
        return value
    return None


def moment_of(line: Line, key: str, value: object, unit: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise line.error(key, f"expected a number, got {shown(value)}")
    return number_ns(line, key, f"{value:f}" if isinstance(value, Decimal) else str(value), unit)
