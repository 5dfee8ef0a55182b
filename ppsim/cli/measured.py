"""Measured prefill chunks from whatever a user has: CSV, JSON lines, a server log, or a recorded run.

Which of these a file is, is told by its content and never by its name: a recording names its schema, JSON lines begin
with a brace, CSV with a header that names a time, and anything else is a log.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.errors import UsageError

if TYPE_CHECKING:
    from ppsim.cost.samples import DecodeStep, Sample
    from ppsim.recording.record import Recording

EXECUTOR_FIELDS = ("mode", "iteration", "duration_ns")


@dataclass(slots=True)
class Measured:
    """``what`` says whose time a sample is: of the model, or of one stage. ``about`` goes into the JSON as it is."""

    kind: str
    what: str
    samples: list[Sample]
    missing: str = "the file has no samples"  # what to say where there are none
    about: dict[str, Any] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    decode: list[DecodeStep] = field(default_factory=list)


def read_measured(name: str) -> Measured:
    """Samples of a file, standard input (-), a run folder or a run's name. Raises UsageError with what is lacking."""
    from ppsim.parsing import readable
    from ppsim.workload.trace import unpacked

    path = Path(name)
    if name == "-":
        content, name = sys.stdin.buffer.read(), "standard input"
    elif not is_file(name):
        return of_run(name, path)
    else:
        content = path.read_bytes()
    text, remark = readable(unpacked(name, content))
    found = read_text(text, name, path)
    found.remarks += [f"{name}: {remark}"] if remark else []
    return found


def read_text(text: str, name: str, path: Path) -> Measured:
    """Samples of a text that ``path`` holds; ``name`` is used in messages."""
    refuse_other_kinds(text, name)
    first = next((row for row in text.split("\n", 50) if row.strip()), "").strip()
    if first.startswith("{"):
        record = loaded(first)
        if record is None:
            return of_log(text)
        if "ppsim-recording" in record.values():
            if path.name == "-":
                raise UsageError("standard input holds a recording; expected the name of its file or folder")
            return of_run(name, path)
        if all(key in record for key in EXECUTOR_FIELDS):
            return of_executor_lines(text, name)
        return of_rows(text, name, "JSON lines")
    return of_rows(text, name, "CSV") if is_header(first) else of_log(text)


OTHER_KINDS = {
    "traceEvents": "a Chrome or torch trace: its kernels are not read; give a server log or a table of chunk times",
    "mean_ttft_ms": "the result of a serving benchmark: it has times of requests and none of single chunks",
    "input_lens": "the result of a serving benchmark: it has times of requests and none of single chunks",
}


def refuse_other_kinds(text: str, name: str) -> None:
    """Raises UsageError for JSON of a kind that is known and has no chunk times, with what it is."""
    if not text.lstrip("\ufeff \r\n\t").startswith(("{", "[")):
        return
    for key, what in OTHER_KINDS.items():
        if f'"{key}"' in text:
            raise UsageError(f"{name}: {what}")


def is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (OSError, ValueError):  # longer than any file name, or with a null byte
        return False


def loaded(row: str) -> dict[str, Any] | None:
    try:
        record = json.loads(row)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def is_header(row: str) -> bool:
    from ppsim.cost.samples import NEW_NAMES, ROW_NAMES, TIME_NAMES

    names = [cell.strip().strip('"').lower() for cell in row.split(",")]
    return any(name in known for known in (TIME_NAMES, NEW_NAMES, ROW_NAMES) for name in names)


def of_rows(text: str, name: str, kind: str) -> Measured:
    from ppsim.cost.samples import parse_rows

    rows = parse_rows(text, name)
    if not rows.samples and not rows.steps:
        raise UsageError(f"{name}: holds no sample; expected one line a chunk: prefix, new_tokens, time_ms")
    measured = Measured(kind, "model", list(rows.samples), "no line is a prefill chunk", decode=list(rows.steps))
    if rows.unused:
        measured.remarks.append(f"columns that are not used: {', '.join(rows.unused)}")
    return measured


def of_log(text: str) -> Measured:
    """Samples of a log whose prefix is known; of several ways to measure, the one with most samples."""
    from ppsim.cost.samples import DecodeStep, Sample
    from ppsim.sglang.logs import read_log

    report = read_log(text)
    groups: dict[tuple[str, str], list[Sample]] = {}
    relative = 0
    for sample in report.samples:
        if not sample.prefix_known:
            relative += 1
            continue
        stage = " ".join(tag for tag in sample.rank.split() if tag.startswith("PP")) if sample.source == "gpu" else ""
        groups.setdefault((sample.source, stage), []).append(
            Sample(sample.prefix, sample.new_tokens, sample.duration_s * 1e3)
        )
    chosen = max(groups, key=lambda key: len(groups[key]), default=("", ""))
    pipelined = len(report.pp_ranks) > 1 or bool(chosen[1]) or chosen[0] == "profile"
    measured = Measured("log", "one stage" if pipelined else "model", groups.get(chosen, []))
    measured.decode = [DecodeStep(s.num_reqs, s.num_tokens, s.step_s * 1e3) for s in report.decode_samples]
    measured.missing = f"no usable line: none of {report.num_lines} gives the time of a chunk after a known prefix"
    measured.about = {"counts": report.counts(), "throughput_means": report.tput, "summary": report.summary()}
    measured.remarks.append(report.summary())
    measured.remarks += report.remarks + report.told()
    if relative:
        measured.remarks.append(f"{relative} samples left out: only differences between their prefixes are known")
    for key, samples in groups.items():
        if key != chosen:
            measured.remarks.append(f"{len(samples)} samples measured by {' '.join(key).strip()} are not in this fit")
    return measured


def of_executor_lines(text: str, name: str) -> Measured:
    """The executor's own samples: stages of one iteration add up to the model."""
    rows = []
    for number, row in enumerate(text.splitlines(), 1):
        record = loaded(row) if row.strip() else {}
        if record is None:
            raise UsageError(f"{name}:{number}: is not a JSON object")
        if record.get("mode") in ("extend", "decode"):
            rows.append((number, record))
    return summed(rows, name)


def summed(rows: list[tuple[int, dict[str, Any]]], name: str) -> Measured:
    """Forwards of one iteration on all stages are one of the model. A decode step reads its rows' own tokens, too."""
    from ppsim.cost.samples import DecodeStep, Sample

    stages: dict[int, dict[int, dict[str, Any]]] = {}
    for number, record in rows:
        try:
            counts = {key: int(record[key]) for key in ("prefix_len", "new_tokens", "duration_ns")}
            counts["num_rows"] = int(record.get("num_rows", 1))
            stages.setdefault(int(record["iteration"]), {})[int(record["rank"])] = {**counts, "mode": record["mode"]}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"{name}:{number}: expected prefix_len, new_tokens, duration_ns, rank: {error}") from None
    num_stages = max((len(found) for found in stages.values()), default=0)
    measured = Measured("recording", "model", [], about={"num_stages": num_stages})
    for found in stages.values():
        one = next(iter(found.values()))
        time_ms = sum(stage["duration_ns"] for stage in found.values()) / 1e6
        if len(found) == num_stages and one["mode"] == "extend":
            measured.samples.append(Sample(one["prefix_len"], one["new_tokens"], time_ms))
        elif len(found) == num_stages and one["num_rows"] > 0:
            measured.decode.append(DecodeStep(one["num_rows"], one["prefix_len"] + one["new_tokens"], time_ms))
    measured.missing = "no prefill batch of one piece was recorded on all stages"
    if num_stages > 1:
        measured.remarks.append(f"times of {num_stages} stages are added: the coefficients are the model's")
    return measured


def of_run(name: str, path: Path) -> Measured:
    """A recorded run: its prefill batches of one piece, each as long as its forwards on all stages."""
    from executor.calibrate import forward_samples
    from ppsim.recording.folder import open_run

    if not path.exists() and "/" in name:
        raise UsageError(f"{name}: no such file or run")
    recording: Recording = open_run(name)
    rows = [
        (0, {**fields_of(sample), "rank": recording.pp_rank(rank)})
        for rank in range(0, recording.num_ranks, recording.tp_replicas)
        for sample in forward_samples(recording, rank)
        if sample.mode in ("extend", "decode")
    ]
    measured = summed(rows, name)
    measured.about["world"] = recording.world
    return measured


def fields_of(sample: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(sample)
