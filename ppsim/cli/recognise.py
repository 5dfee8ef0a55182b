"""What a file is, told from its content and never from its name; the readers themselves are elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ppsim.cli.measured import loaded
from ppsim.cli.read_report import Told, counted
from ppsim.cli.recognise_rows import benchmark, measured_rows, of_csv, of_toml, of_trace, unread_rows
from ppsim.cli.recognise_text import launches, of_text
from ppsim.errors import PpsimError

MODEL_FIELDS = ("model_type", "architectures", "num_hidden_layers", "text_config")
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


def folder(told: Told, path: Path) -> Told:
    if any((path / name).is_file() for name in ("recording.jsonl", "recording.jsonl.gz")):
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
