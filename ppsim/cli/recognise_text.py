"""What a text for people is: a server log, a launch line, a table in prose, Python source, or several of these."""

from __future__ import annotations

from typing import Any

from ppsim.cli.read_report import Told
from ppsim.errors import PpsimError


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
