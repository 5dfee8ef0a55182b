"""Launch lines as people write them, in; typed values, out.

``read_launch`` never guesses silently: what is unknown, unresolved, abbreviated, old or out of order is listed with its
line. What a value means for a run is decided in ``scenario.py``; what combinations SGLang refuses, in ``advice.py``.
"""

from __future__ import annotations

from ppsim.errors import UsageError
from ppsim.sglang.advice import advise
from ppsim.sglang.arguments import read_application, read_draft
from ppsim.sglang.commands import Reader
from ppsim.sglang.dumps import drafts_of_words, json_words, load_json, read_calls, read_json
from ppsim.sglang.positions import advise_positions
from ppsim.sglang.programs import no_server
from ppsim.sglang.result import Given, LaunchLine, Note, UnknownFlag, Unresolved
from ppsim.sglang.scenario import priced, to_launch_line, to_scenario
from ppsim.sglang.source import from_values

__all__ = [
    "Given",
    "LaunchLine",
    "Note",
    "UnknownFlag",
    "Unresolved",
    "priced",
    "read_launch",
    "to_launch_line",
    "to_scenario",
]

MAX_TEXT = 1_000_000


def read_launch(text: str) -> list[LaunchLine]:
    """Every server that the text starts, in order of the text.

    Raises UsageError if the text starts none: empty, far too long, or without any flag, program, dump or description
    that is known. A value that cannot be read does not raise: it is in ``errors`` of its line, with the place.
    """
    if len(text) > MAX_TEXT:
        raise UsageError(
            f"launch line: the text has {len(text)} characters, more than {MAX_TEXT}; expected a command and what "
            "surrounds it. Is it a log? Then use: ppsim fit FILE"
        )
    if not text.strip():
        raise UsageError("launch line: the text is empty; expected a command such as: sglang serve --model-path MODEL")
    found = read_any(text)
    if not found:
        count = text.count("\n") + 1
        instead = no_server(text)
        raise UsageError(
            f"launch line: no server is started in these {count} lines{instead}; expected a program such as "
            "sglang.launch_server, sglang serve or vllm serve, or flags such as --pp-size 4, or a ServerArgs(...) dump"
        )
    for line in found:
        advise(line)
        advise_positions(line)
        if line.source is None:
            line.source = from_values(line.engine, {name: given.value for name, given in line.values.items()})
    return found


def read_any(text: str) -> list[LaunchLine]:
    data = load_json(text)
    if data is not None:
        words = json_words(data)
        if words:
            return [read_draft(draft) for draft in drafts_of_words(words)]
        return read_json(data)
    calls = [line for line in read_calls(text) if line.values]
    if calls:
        return calls
    rows = text.replace("\r\n", "\n").split("\n")
    reader = Reader(rows)
    drafts = reader.read()
    if reader.listed_env:  # a container's variables hold for its command wherever the file lists them
        reader = Reader(rows, late=reader.listed_env)
        drafts = reader.read()
    lines = [line for line in map(read_draft, drafts) if line.program or line.values or line.unresolved]
    if lines:
        return lines
    application = read_application(reader.variables.values)
    return [application] if application else []
