"""Which lines of a log gave something, so that the rest can be counted and shown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ppsim.sglang import benches, chunk_tables, findings, profiles, started, windows
from ppsim.sglang.batch_lines import BatchLine

REPLY = re.compile(r"\bHTTP/1\.\d\"?\s+\d{3}\b|\"[A-Z]+ /\S* HTTP/1\.\d\"")
FAULTS = (findings.WATCHDOG, findings.NCCL, findings.VLLM_RANK, findings.EXCEPTION, findings.KILL, findings.POOL)
MAX_LINE = 20_000
MAX_DUMP = 400


def understood(rows: Sequence[str], batches: frozenset[int], found: Sequence[BatchLine]) -> tuple[set[int], int]:
    """Rows (from 0) that were read as something, and how many of them are replies to clients. ``batches``: the rows of
    batch lines, which count whatever state they are in: a cut or damaged one is told by itself."""
    used = set(batches) | {line.line - 1 for line in found}
    used |= set(benches.table_rows(rows)) | set(chunk_tables.table_rows(rows)) | set(profiles.profile_rows(rows))
    used |= {row for row, text in enumerate(rows) if started.says_something(text)}
    used |= set(dump_rows(rows))
    replies = 0
    row = 0
    while row < len(rows):
        text = rows[row][:MAX_LINE]
        if REPLY.search(text):
            replies += 1
            used.add(row)
        elif windows.START.search(text) or benches.PROGRESS.search(text):
            used.add(row)
        elif any(pattern.search(text) for pattern in FAULTS) or findings.STACK.match(text):
            used.add(row)
            if findings.EXCEPTION.search(text):
                used |= set(range(row + 1, row + 1 + len(findings.trace_after(rows, row))))
        row += 1
    return used, replies


def dump_rows(rows: Sequence[str]) -> list[int]:
    """Rows (from 0) of a dump of arguments that a terminal wrapped: as long as its brackets are open."""
    found: list[int] = []
    depth = 0
    for row, text in enumerate(rows):
        if depth == 0 and "ServerArgs(" not in text:
            continue
        if depth and (not text.strip() or text.startswith("[") or row - found[0] > MAX_DUMP):
            depth = 0
            continue
        body = text if depth else text[text.index("ServerArgs(") :]
        depth = max(0, depth + body.count("(") - body.count(")"))
        found.append(row)
    return found
