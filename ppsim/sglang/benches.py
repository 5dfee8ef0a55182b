"""Result tables of benchmarks, and running totals of chunks (measured tables of chunk times: ``chunk_tables.py``).

A name keeps its unit (``mean_ttft_ms``); a table that ends without its closing rule is cut, a row
without its value is left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ppsim.sglang.samples import Sample
from ppsim.sglang.stamps import seconds_of

TITLE = re.compile(r"^\s*=+ (?P<title>[A-Za-z][\w ]*Benchmark[\w ]*) =+\s*$")
RULE = re.compile(r"^\s*=+\s*$")
SECTION = re.compile(r"^\s*-+\s*(?P<name>[A-Za-z][\w ().-]*?)-*\s*$")
ROW = re.compile(r"^\s*(?P<name>[A-Za-z][^:\n]{0,60}?):\s*(?P<value>\S.*?)?\s*$")
ONE_BATCH = re.compile(
    r"^\s*(?P<name>batch size|latency|ttft|\(?(?:input|output)[a-z +()]* throughput): "
    r"(?P<value>\d+(?:\.\d+)?)(?: \S+)?\s*$"
)
PROGRESS = re.compile(
    r"Seq (?P<seq>\d{1,15}) - chunk prefilled (?P<total>\d{1,15}) \(remain (?P<remain>\d{1,15}) tokens\)"
)
NUMBER = re.compile(r"^-?\d+(?:\.\d+)?$")


@dataclass(slots=True)
class BenchTable:
    """Numbers by name; words (backend, ``inf``, ``not set``) by name apart."""

    title: str
    line: int
    values: dict[str, float] = field(default_factory=dict)
    words: dict[str, str] = field(default_factory=dict)
    cut: bool = False

    @property
    def ttft_usable(self) -> bool:
        """False where the client did not stream: then TTFT is the end-to-end time though more than one token came."""
        ttft, e2e = self.values.get("mean_ttft_ms"), self.values.get("mean_e2e_latency_ms")
        if ttft is None:
            return False
        made, requests = self.values.get("total_generated_tokens", 0.0), self.values.get("successful_requests", 0.0)
        several = made > requests
        return not (several and e2e is not None and e2e > 0 and ttft >= 0.99 * e2e)


def find_tables(rows: Sequence[str]) -> list[BenchTable]:
    """Every benchmark result, in order of the text."""
    tables: list[BenchTable] = []
    row = 0
    while row < len(rows):
        title = TITLE.match(rows[row]) if "=" in rows[row] else None
        if title:
            table, row = read_table(rows, row, title["title"])
            tables.append(table)
            continue
        one = ONE_BATCH.match(rows[row]) if ": " in rows[row] else None
        if one and one["name"] == "batch size":
            table, row = read_one_batch(rows, row)
            tables.append(table)
            continue
        row += 1
    return tables


def read_table(rows: Sequence[str], row: int, title: str) -> tuple[BenchTable, int]:
    table = BenchTable(title, row + 1, cut=True)
    row += 1
    while row < len(rows):
        text = rows[row]
        if RULE.match(text):
            table.cut = False
            return table, row + 1
        found = ROW.match(text)
        if found and found["value"]:
            put(table, normal(found["name"]), found["value"])
        elif not found and not SECTION.match(text) and text.strip():
            return table, row
        row += 1
    return table, row


def table_rows(rows: Sequence[str]) -> list[int]:
    """Rows (from 0) that benchmark results take."""
    found: list[int] = []
    row = 0
    while row < len(rows):
        title = TITLE.match(rows[row]) if "=" in rows[row] else None
        one = ONE_BATCH.match(rows[row]) if ": " in rows[row] else None
        end = row + 1
        if title:
            end = read_table(rows, row, title["title"])[1]
        elif one and one["name"] == "batch size":
            end = read_one_batch(rows, row)[1]
        if title or end > row + 1:
            found += range(row, end)
        row = end
    return found


def put(table: BenchTable, name: str, value: str) -> None:
    if NUMBER.match(value) and len(value) < 25:
        table.values[name] = float(value)
    else:
        table.words[name] = value


def read_one_batch(rows: Sequence[str], row: int) -> tuple[BenchTable, int]:
    """The block that SGLang's one-batch benchmark prints for each batch size."""
    table = BenchTable("one batch", row + 1)
    units = {"latency": "latency_s", "ttft": "ttft_s", "batch size": "batch_size"}
    while row < len(rows):
        found = ONE_BATCH.match(rows[row])
        if found is None or (found["name"] == "batch size" and table.values):
            break
        name = units.get(found["name"], normal(found["name"]) + "_tok_s")
        table.values[name] = float(found["value"][:25])
        row += 1
    return table, row


def normal(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


# -- progress of chunks --------------------------------------------------------------------------------------


def find_progress(rows: Sequence[str]) -> tuple[list[Sample], int | None]:
    """Samples of running totals: a chunk runs from the line before it, whichever sequence that was. And the prompt."""
    samples: list[Sample] = []
    totals: dict[str, int] = {}
    prompts: list[int] = []
    before: float | None = None
    for row, text in enumerate(rows):
        found = PROGRESS.search(text) if "chunk prefilled" in text else None
        if found is None:
            continue
        time, total = seconds_of(text[: found.start()]), int(found["total"])
        prompts.append(total + int(found["remain"]))
        past = totals.get(found["seq"])
        if past is not None and total > past and before is not None and time is not None and time > before:
            samples.append(Sample(past, total - past, time - before, "progress", row + 1, f"seq {found['seq']}"))
        totals[found["seq"]] = total
        before = time
    same = bool(prompts) and min(prompts) == max(prompts)
    return samples, prompts[0] if same else None
