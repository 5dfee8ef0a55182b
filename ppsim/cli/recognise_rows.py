"""What a file of rows is: a request trace, measured chunks, a table of unknown columns, a scenario or a GPU in TOML."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from ppsim.cli.measured import loaded
from ppsim.cli.read_report import Told, counted
from ppsim.errors import PpsimError

IDENTIFIER = re.compile(r"^[A-Za-z_#][\w ()/%.#²-]{0,60}$")
NO_TIMES = "it has times of requests and none of single chunks, so no fit takes it"
FORMS = {
    "Mooncake": "Mooncake's form",
    "Azure": "Azure's form",
    "BurstGPT": "BurstGPT's form",
    "bench_serving": "the lengths of its requests",
    "AIPerf": "records of AIPerf",
    "AIPerf inputs": "inputs of AIPerf",
    "ShareGPT": "ShareGPT's conversations",
}


def of_trace(told: Told, text: str) -> bool:
    """A request trace of any kind that a workload reads, the result of a benchmark with its requests among them."""
    from ppsim.workload.trace import kind_of_content

    content = text.encode("utf-8", errors="replace")
    kind = kind_of_content(content)
    if not kind:
        return False
    if kind == "bench_serving":
        runs(told, content)
    request_trace(told, content, kind)
    return True


def runs(told: Told, content: bytes) -> None:
    """The fields of the runs of a benchmark whose requests are a trace too."""
    from ppsim.sglang.foreign import bench_kind
    from ppsim.workload.lines import BadLines
    from ppsim.workload.trace import rows_of_text

    lines = rows_of_text(told.file, content, BadLines(skip=True))
    records = [record for line in lines if (record := loaded(line.text)) is not None]
    if bench_kind(records[0]):
        benchmark(told, bench_kind(records[0]), records)


def request_trace(told: Told, content: bytes, kind: str) -> None:
    from ppsim.workload.lines import BadLines
    from ppsim.workload.trace import Reading, trace_of

    form = FORMS.get(kind, kind)
    told.kind = f"{told.kind}; as a request trace {form}" if told.kind else f"request trace, {form}"
    told.give("ppsim run SCENARIO --trace {}")
    bad = BadLines(skip=True)
    try:
        trace = trace_of(told.file, content, Reading(skip_bad_lines=True), bad)
    except PpsimError as error:
        told.read.append(str(error))
        return
    rows = trace.rows
    span = (max(row.at_ns for row in rows) - min(row.at_ns for row in rows)) / 1e9
    when = f"in {span:g} s" if trace.timed else "without times"
    prompts, outputs = sum(row.input_length for row in rows), sum(row.output_length for row in rows)
    told.read.append(f"{counted(len(rows), 'request')} {when}, {prompts} prompt and {outputs} output tokens")
    told.read += [note for note in trace.warnings if note not in bad.told(told.file, len(rows))]
    told.unread = [(error.line, error.problem) for error in bad.errors]
    told.data |= {"requests": len(rows)}


def measured_rows(told: Told, text: str) -> bool:
    """Samples of chunks or decode steps, or the executor's own lines."""
    from ppsim.cli.measured import EXECUTOR_FIELDS, is_header, of_executor_lines, of_rows

    first = next(row for row in text.split("\n") if row.strip()).strip()
    record = loaded(first)
    names = ",".join(map(str, record)) if record else first
    executor = record is not None and all(key in record for key in EXECUTOR_FIELDS)
    if not executor and not is_header(names):
        return False
    told.kind = "measured chunks" if not executor else "measured forwards of ppsim exec"
    try:
        measured = of_executor_lines(text, told.file) if executor else of_rows(text, told.file, "table")
    except PpsimError as error:
        told.read.append(str(error))
        return True
    told.read += [counted(len(measured.samples), "prefill sample"), counted(len(measured.decode), "decode step")]
    told.read += measured.remarks
    told.data = {"samples": len(measured.samples), "decode_samples": len(measured.decode)}
    told.give("ppsim fit {}")
    return True


def of_csv(told: Told, text: str) -> bool:
    """A table with a head, of any delimiter."""
    from ppsim.workload.table import DELIMITERS

    if of_trace(told, text):
        return True
    rows = [row for row in text.split("\n") if row.strip()][:20]
    for delimiter in DELIMITERS:
        cells = [row.split(delimiter) for row in rows]
        names = [cell.strip().strip('"') for cell in cells[0]]
        if len(names) < 2 or len(set(map(len, cells))) > 1 or not all(map(IDENTIFIER.match, names)):
            continue
        if delimiter == "," and measured_rows(told, text):
            return True
        if len(rows) < 2 or not any(re.fullmatch(r"\s*-?\d[\d.eE+-]*\s*", cell) for cell in cells[1]):
            continue
        told.kind = "CSV of unknown columns"
        told.read.append(f"columns: {', '.join(names)}")
        told.unread = unread_rows(text)[1:]
        told.give("ppsim run SCENARIO --trace {} --column time=.. --column prompt=..", "if a row is a request")
        told.give("ppsim fit {}", "if a row is a chunk: name its columns prefix, new_tokens and time_ms")
        return True
    return False


def of_toml(told: Told, text: str) -> bool:
    """A scenario, or a GPU of one's own."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return False
    from ppsim.scenario.load import validate
    from ppsim.scenario.tree import Scenario

    sections = [key for key, value in data.items() if key in Scenario.model_fields and isinstance(value, dict)]
    if not sections:
        return False
    if sections == ["gpu"] and set(data) == {"gpu"}:
        told.give("ppsim layers --model MODEL --gpu {}")
    told.kind = "scenario of ppsim"
    told.read.append(f"sections: {', '.join(sections)}")
    told.give("ppsim run {}")
    try:
        validate(data)
    except PpsimError as error:
        told.read.append(f"not taken: {error}")
    return True


def benchmark(told: Told, kind: str, records: list[dict[str, Any]]) -> None:
    from ppsim.sglang.foreign import bench_sentence

    told.kind = kind
    told.read += [f"run {number}: {bench_sentence(record)}" for number, record in enumerate(records, 1)]
    told.read.append(NO_TIMES)
    told.data["runs"] = records


def unread_rows(text: str) -> list[tuple[int, str]]:
    return [(row, line.strip()[:120]) for row, line in enumerate(text.split("\n"), 1) if line.strip()]
