"""What a file is, told from its content and never from its name; the readers themselves are elsewhere."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from ppsim.cli.measured import loaded
from ppsim.cli.told import Told, counted
from ppsim.errors import PpsimError

IDENTIFIER = re.compile(r"^[A-Za-z_#][\w ()/%.#²-]{0,60}$")
NO_TIMES = "it has times of requests and none of single chunks, so no fit takes it"
MODEL_FIELDS = ("model_type", "architectures", "num_hidden_layers", "text_config")
FORMS = {
    "Mooncake": "Mooncake's form",
    "Azure": "Azure's form",
    "BurstGPT": "BurstGPT's form",
    "bench_serving": "the lengths of its requests",
    "AIPerf": "records of AIPerf",
    "AIPerf inputs": "inputs of AIPerf",
    "ShareGPT": "ShareGPT's conversations",
}
MODEL_COMMANDS = ("ppsim layers --model {}", "ppsim chunks --model {}", "ppsim compare --model {}")


def recognise(name: str, content: bytes | None = None) -> Told:
    """What the file or run folder ``name`` is; ``content``: its bytes, where they are at hand. Never raises for what a
    file holds."""
    told = Told(name)
    path = Path(name)
    if content is None and path.is_dir():
        return folder(told, path)
    if content is None:
        content = path.read_bytes()
    try:
        text = text_of(name, content, told)
    except PpsimError as error:
        told.read.append(str(error))
        return told
    told.num_lines = sum(bool(row.strip()) for row in text.split("\n"))
    if not text.strip():
        told.kind = "empty file"
    elif "\0" in text:
        told.read.append("it has zero bytes: no text")
    elif not (text.lstrip()[0] in "{[" and of_json(told, text)) and not of_toml(told, text) and not of_csv(told, text):
        of_text(told, text)
    if not told.kind and not told.unread:
        told.unread = unread_rows(text)
    return told


def text_of(name: str, content: bytes, told: Told | None = None) -> str:
    """Unpacked and decoded; ``told`` hears of bytes that are no text. Raises TraceError for a packed file that cannot
    be unpacked."""
    from ppsim.parsing import readable
    from ppsim.workload.trace import unpacked

    text, remark = readable(unpacked(name, content))
    if remark and told is not None:
        told.read.append(remark)
    return text.replace("\r\n", "\n")


def unread_rows(text: str) -> list[tuple[int, str]]:
    return [(row, line.strip()[:120]) for row, line in enumerate(text.split("\n"), 1) if line.strip()]


def folder(told: Told, path: Path) -> Told:
    if (path / "recording.jsonl").is_file():
        told.kind = "run folder of ppsim"
        told.give("ppsim show {}")
        told.give("ppsim fit {}", "times of its forwards")
    elif (path / "config.json").is_file():
        inner = recognise(str(path / "config.json"))
        inner.file, inner.kind = told.file, f"folder of a model: {inner.kind}"
        return inner
    else:
        told.read.append("a folder without recording.jsonl or config.json; give the files in it")
    return told


# --- JSON ----------------------------------------------------------------------------------------------------------


def of_json(told: Told, text: str) -> bool:
    """True if the text is JSON, or lines of it, of any kind."""
    if of_trace(told, text):
        return True
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        return json_lines(told, text, error)
    if isinstance(data, dict):
        one_object(told, data, text)
    elif isinstance(data, list) and not array(told, data, text):
        told.read.append(f"a JSON array of {counted(len(data), 'element')}" + first_keys(data))
    if not told.kind:
        told.kind = "JSON of an unknown kind"
        told.unread = unread_rows(text)
    return True


def first_keys(data: list[Any]) -> str:
    return f"; the first has {', '.join(map(str, data[0]))}" if data and isinstance(data[0], dict) else ""


def one_object(told: Told, data: dict[str, Any], text: str) -> None:
    from ppsim.sglang import foreign

    bench = foreign.bench_kind(data)
    events = foreign.chrome_events(data)
    if events is not None:
        chrome(told, data, events)
    elif bench:
        benchmark(told, bench, [data])
    elif data.get("format") == "ppsim-recording":
        told.kind = "recording of ppsim"
        told.give("ppsim show {}")
    elif str(data.get("format", "")).startswith("ppsim"):
        told.kind = f"file of ppsim, format {data['format']}"
        told.give("ppsim replay {}", "where it is a saved failure")
    elif any(field in data for field in MODEL_FIELDS):
        model(told, data)
    elif is_decisions(data):
        decisions(told, 1)
    elif not (one_row(told, text) or launches(told, text)):
        told.read.append("its keys: " + ", ".join(map(str, list(data)[:40])))


def one_row(told: Told, text: str) -> bool:
    """A file of measured rows that has one line only."""
    return "\n" not in text.strip() and measured_rows(told, text)


def is_decisions(record: dict[str, Any]) -> bool:
    return all(key in record for key in ("config", "steps", "requests"))


def decisions(told: Told, num_runs: int) -> None:
    told.kind = "recorded decisions of an engine"
    told.read.append(counted(num_runs, "run"))
    told.give("ppsim conform {}")


def array(told: Told, data: list[Any], text: str) -> bool:
    from ppsim.sglang import foreign

    events = foreign.chrome_events(data)
    if events is not None:
        chrome(told, data, events)
    elif data and isinstance(data[0], dict) and foreign.bench_kind(data[0]):
        benchmark(told, foreign.bench_kind(data[0]), [row for row in data if isinstance(row, dict)])
    else:
        return launches(told, text)
    return True


def chrome(told: Told, data: Any, events: list[Any]) -> None:
    from ppsim.sglang.foreign import is_torch, trace_sentences

    told.kind = "trace of torch.profiler" if is_torch(data) else "Chrome trace"
    told.read += trace_sentences(data, events)
    told.read.append("no command computes with it: open it in Perfetto; for costs give ppsim fit a server log")
    told.data["num_events"] = len(events)


def benchmark(told: Told, kind: str, records: list[dict[str, Any]]) -> None:
    from ppsim.sglang.foreign import bench_sentence

    told.kind = kind
    told.read += [f"run {number}: {bench_sentence(record)}" for number, record in enumerate(records, 1)]
    told.read.append(NO_TIMES)
    told.data["runs"] = records


def model(told: Told, data: dict[str, Any]) -> None:
    from ppsim.cost.config_json import from_config

    told.kind = "config.json of a model"
    try:
        shape = from_config(data, told.file)
    except PpsimError as error:
        told.read.append(f"not taken: {error}")
        return
    told.read.append(f"{counted(shape.num_layers, 'layer')}, hidden size {shape.hidden_size}")
    told.read += list(shape.notes)
    for command in MODEL_COMMANDS:
        told.give(command)
    told.give('ppsim run SCENARIO --set model.key="{}"')


def json_lines(told: Told, text: str, error: Exception) -> bool:
    """Lines of objects; also an object that breaks off, where its beginning says what it was meant to be."""
    from ppsim.sglang import foreign

    rows = [(number, row) for number, row in enumerate(text.split("\n"), 1) if row.strip()]
    first = loaded(rows[0][1].strip())
    if first is None:
        beginning = text[:100_000]
        if '"traceEvents"' not in beginning and not (text.lstrip()[0] == "[" and '"ph"' in beginning):
            return False
        if open_array(told, text):
            return True
        told.kind = "Chrome or torch trace, cut or damaged"
        told.read.append(f"it is no whole JSON: {error}")
        told.unread = unread_rows(text)
        return True
    records = [(number, loaded(row.strip())) for number, row in rows]
    bench = foreign.bench_kind(first)
    if bench:
        benchmark(told, bench, [record for _, record in records if record is not None])
        told.unread = [(number, text.split("\n")[number - 1][:120]) for number, record in records if record is None]
    elif first.get("format") == "ppsim-recording":
        told.kind = "recording of ppsim"
        told.give("ppsim show {}")
    elif is_decisions(first):
        decisions(told, len(records))
    elif not measured_rows(told, text):
        told.kind = "JSON lines of an unknown kind"
        told.read.append("the first line has " + ", ".join(map(str, first)))
        told.unread = unread_rows(text)
        told.give("ppsim run SCENARIO --trace {} --column time=.. --column prompt=..", "if it has requests")
    return True


def open_array(told: Told, text: str) -> bool:
    """Events of a Chrome trace whose last bracket is not there, which the format allows."""
    from ppsim.sglang.foreign import chrome_events

    try:
        events = chrome_events(json.loads(text.rstrip().removesuffix(",") + "]"))
    except (ValueError, RecursionError):
        return False
    if events is None:
        return False
    chrome(told, events, events)
    return True


# --- rows ----------------------------------------------------------------------------------------------------------


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


# --- text ----------------------------------------------------------------------------------------------------------


def launches(told: Told, text: str) -> bool:
    """True if the text starts a server."""
    from ppsim.sglang.launch import read_launch

    try:
        found = read_launch(text)
    except PpsimError:
        return False
    told.kind = "launch line"
    for line in found:
        given = ", ".join(f"{name} {value.value}" for name, value in line.values.items())
        told.read.append(f"line {line.line}: {line.engine} is started with {given or 'defaults'}")
        told.read += [f"error: {note}" for note in line.errors] + [f"warning: {note}" for note in line.warnings]
        told.unread += [(flag.line, " ".join((flag.spelling, *flag.values))) for flag in line.unknown_flags]
        told.unread += [(hole.line, f"{hole.name or 'outside the flags'}: {hole.text}") for hole in line.unresolved]
    told.data["servers"] = len(found)
    told.give("ppsim import {}")
    return True


def of_text(told: Told, text: str) -> None:
    """A server log, a table in prose, a launch line, or several of these in one text."""
    from ppsim.sglang.logs import read_log

    report = read_log(text)
    kinds = log_kinds(report)
    told.data = {"log": report.to_dict()} if kinds else {}
    if kinds:
        told.read.append(report.summary())
        told.read += report.told() + report.remarks
        if report.num_replies:
            told.read.append(f"replies to clients: {report.num_replies}")
        if report.samples or report.decode_samples:
            told.give("ppsim fit {}")
    if (not kinds or starts_server(text)) and launches(told, text):
        kinds.append("launch line")
    told.kind = ", ".join(kinds)
    if kinds != ["launch line"]:
        told.unread = sorted(report.not_understood + told.unread)
    if not kinds and is_python(text):
        told.kind, told.unread = "Python source", []
        told.give("ppsim run SCENARIO --plugin {}", "if it holds a Policy or planted bugs")
    if told.kind and not told.give_to:
        told.read.append("no chunk and no step in it has a time that can be told, so no fit takes it")


def is_python(text: str) -> bool:
    import ast

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Import, ast.ImportFrom)) for node in tree.body)


def starts_server(text: str) -> bool:
    from ppsim.sglang.programs import has_program

    return "ServerArgs(" in text or has_program(text)


def log_kinds(report: Any) -> list[str]:
    """What a log has, each in a few words."""
    engine = {"vllm": "vLLM server log", "sglang": "SGLang server log"}
    found = []
    if report.batches:
        found.append(engine["sglang"])
    if report.windows or any(broken.kind == "window" for broken in report.cut + report.damaged):
        found.append(engine["vllm"])
    if any(sample.source == "progress" for sample in report.samples):
        found.append("log of chunk totals")
    if report.profiles or report.fits:
        found.append("profile of dynamic chunking")
    if report.tables:
        found.append("printed benchmark result")
    if any(sample.source == "table" for sample in report.samples) or report.remarks:
        found.append("table of chunk times")
    if not found and (report.server or report.rank_table):
        found.append("start of a server log")
    if not found and report.findings:
        found.append("log with findings")
    return found
