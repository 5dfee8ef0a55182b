"""What a log says went wrong, as facts with ranks and times: watchdogs, exceptions, kills, stacks, hangs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ppsim.sglang.batch_lines import BatchLine
from ppsim.sglang.stamps import gap_s, rank_name, ranks_of, seconds_of
from ppsim.sglang.windows import Window

WATCHDOG = re.compile(r"[Ww]atchdog timeout \((?:self\.)?(?P<name>\w*watchdog_timeout)=(?P<seconds>\d+(?:\.\d+)?)")
EXCEPTION = re.compile(r"hit an exception")
FRAME = re.compile(r"^\s*File \"(?P<file>[^\"]+)\", line \d+, in (?P<name>[\w<>]+)")
CALL = re.compile(r"(?P<name>[A-Za-z_]\w*)\(")
ENDING = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit))\b:?\s*(?P<text>.*)$")
KILL = re.compile(r"(?P<what>SIGQUIT received|Received sigquit|kill_process_tree called)|^\s*(?P<killed>Killed)\s*$")
STACK = re.compile(r"^\s{2,}(?P<name>[A-Za-z_<][\w<>.]*) \((?P<file>[^()]+?)(?::\d+)?\)\s*$")
POOL = re.compile(r"(?P<name>available_size|evictable_size)\(\)=(?P<value>\d{1,15})")
MEANINGS = (
    (re.compile(r"_report_leak\(\s*[\"'](?P<what>\w+)"), "the idle check reports a leak of the {what}"),
    (re.compile(r"retract_decode\("), "retraction fails"),
    (re.compile(r"out of memory|OutOfMemory", re.IGNORECASE), "the device is out of memory"),
    (re.compile(r"[Tt]imed? ?out"), "a wait timed out"),
)
NCCL = re.compile(
    r"Watchdog caught collective operation timeout: WorkNCCL\((?P<fields>(?:[^()]|\([^()]*\))*)\)"
    r"(?: ran for (?P<ms>\d{1,15}) milliseconds)?"
)
NCCL_RANK = re.compile(r"\[(?:PG [^\]]*?)?Rank (?P<rank>\d{1,9})\]")
VLLM_RANK = re.compile(r"rank (?P<rank>\d{1,9}) in world size (?P<size>\d{1,9}) is assigned as (?P<roles>.{3,200})")
MAX_TRACE = 200


@dataclass(slots=True)
class Finding:
    """``ranks`` as written; ``details`` are numbers and names behind the sentence."""

    kind: str
    text: str
    line: int
    ranks: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)


def find_all(rows: Sequence[str], batches: Sequence[BatchLine], windows: Sequence[Window]) -> list[Finding]:
    """All findings, in order of the text."""
    found = [
        *watchdogs(rows),
        *collectives(rows),
        *assigned(rows),
        *exceptions(rows, batches),
        *stacks(rows),
        *pools(rows),
        *idle(windows),
    ]
    found += kills(rows, found)
    found.sort(key=lambda finding: finding.line)
    return found


def watchdogs(rows: Sequence[str]) -> list[Finding]:
    by_limit: dict[tuple[str, str], Finding] = {}
    for row, text in enumerate(rows):
        fired = WATCHDOG.search(text) if "atchdog" in text else None
        if fired is None:
            continue
        key = (fired["name"], fired["seconds"])
        limit = float(fired["seconds"][:20])
        fresh = Finding("watchdog", "", row + 1, details={fired["name"]: limit})
        finding = by_limit.setdefault(key, fresh)
        rank = rank_name(ranks_of(text[: fired.start()]))
        if rank not in finding.ranks:
            finding.ranks.append(rank)
        where = ", ".join(sorted(name for name in finding.ranks if name)) or "an unnamed rank"
        finding.text = f"{fired['name']} of {limit:g} s passed on {where}"
    return list(by_limit.values())


def collectives(rows: Sequence[str]) -> list[Finding]:
    """Lines of PyTorch's NCCL watchdog: which collective of which rank did not end."""
    found = []
    for row, text in enumerate(rows):
        hit = NCCL.search(text) if "WorkNCCL(" in text else None
        if hit is None:
            continue
        fields = dict(part.strip().split("=", 1) for part in hit["fields"].split(",") if "=" in part)
        rank = NCCL_RANK.search(text)
        who = f"rank {rank['rank']}" if rank else "an unnamed rank"
        after = f" after {int(hit['ms']) / 1000:g} s" if hit["ms"] else ""
        sentence = f"{fields.get('OpType', 'a collective')} {fields.get('SeqNum', '')} on {who} timed out{after}"
        found.append(Finding("nccl_watchdog", sentence, row + 1, [who] if rank else [], dict(fields)))
    return found


def assigned(rows: Sequence[str]) -> list[Finding]:
    """vLLM's assignment of a global rank to its parallel groups."""
    found = []
    for row, text in enumerate(rows):
        hit = VLLM_RANK.search(text) if "is assigned as" in text else None
        if hit:
            sentence = f"rank {hit['rank']} of {hit['size']} is {hit['roles'].strip()}"
            found.append(Finding("rank", sentence, row + 1, [hit["rank"]], {"world_size": int(hit["size"])}))
    return found


def exceptions(rows: Sequence[str], batches: Sequence[BatchLine]) -> list[Finding]:
    found = []
    usage: dict[str, float] = {}
    ahead = iter(batches)
    following = next(ahead, None)
    for row, text in enumerate(rows):
        while following is not None and following.line <= row:
            if "token usage" in following.fields:
                usage[following.rank] = following.get("token usage")
            following = next(ahead, None)
        hit = EXCEPTION.search(text) if "exception" in text else None
        if hit is None:
            continue
        rank = rank_name(ranks_of(text[: hit.start()]))
        trace = trace_after(rows, row)
        frames = [frame["name"] for line in trace if (frame := FRAME.match(line))]
        calls = [call["name"] for line in trace if not FRAME.match(line) for call in CALL.finditer(line)]
        ending = next((end for line in trace if (end := ENDING.match(line))), None)
        meaning = meaning_of("\n".join(trace))
        loop = next((name for name in [*frames, *calls] if name.startswith("event_loop")), "")
        parts = [
            f"exception on {rank or 'an unnamed rank'}",
            f"in {loop}" if loop else "",
            f": {meaning}" if meaning else "",
        ]
        details: dict[str, Any] = {"frames": frames, "calls": calls, "time_s": seconds_of(text[: hit.start()])}
        if ending:
            details |= {"type": ending["type"], "message": ending["text"][:200]}
        full = usage.get(rank)
        if full is not None:
            details["token_usage"] = full
            parts.append(f", token usage {full:.2f}")
        sentence = " ".join(part for part in parts if part).replace(" :", ":").replace(" ,", ",")
        found.append(Finding("exception", sentence, row + 1, [rank] if rank else [], details))
    return found


def trace_after(rows: Sequence[str], row: int) -> list[str]:
    """Lines of the trace that follows: indented, or its last line; a stamp ends it."""
    trace: list[str] = []
    for text in rows[row + 1 : row + 1 + MAX_TRACE]:
        if text.startswith("["):
            break
        trace.append(text)
        if ENDING.match(text):
            break
    return trace


def meaning_of(trace: str) -> str:
    for pattern, sentence in MEANINGS:
        found = pattern.search(trace)
        if found:
            return sentence.format(**found.groupdict())
    return ""


def kills(rows: Sequence[str], found: Sequence[Finding]) -> list[Finding]:
    """Ends of processes, with the seconds since the last exception before them."""
    failed = {finding.line: finding for finding in found if finding.kind == "exception"}
    ends = []
    before: Finding | None = None
    for row, text in enumerate(rows):
        before = failed.get(row + 1, before)
        kill = KILL.search(text) if "ill" in text or "igquit" in text or "SIGQUIT" in text else None
        if kill is None:
            continue
        since = gap_s(before.details["time_s"], seconds_of(text[: kill.start()][-300:])) if before else None
        what = kill["what"] or "Killed"
        late = f", {since:g} s after the exception" if since is not None else ""
        ends.append(Finding("kill", f"{what}{late}", row + 1, details={"after_exception_s": since}))
    return ends


def stacks(rows: Sequence[str]) -> list[Finding]:
    """Dumped stacks, innermost frame first as the dump tool prints them; shown outermost first."""
    found = []
    row = 0
    while row < len(rows):
        frames: list[str] = []
        start = row
        while row < len(rows) and (frame := STACK.match(rows[row])):
            frames.append(frame["name"])
            row += 1
        if len(frames) >= 3:
            path = frames[::-1]
            begin = next((i for i, name in enumerate(path) if name.startswith("event_loop")), 0)
            found.append(
                Finding("stack", "waits in " + " -> ".join(path[begin:]), start + 1, details={"path": path[begin:]})
            )
        row += 0 if frames else 1
    return found


def pools(rows: Sequence[str]) -> list[Finding]:
    found = []
    for row, text in enumerate(rows):
        sizes = {size["name"]: int(size["value"]) for size in POOL.finditer(text)} if "_size()=" in text else {}
        if sizes:
            free = ", ".join(f"{name} {value}" for name, value in sizes.items())
            found.append(Finding("pool", f"KV pool: {free} tokens", row + 1, details=dict(sizes)))
    return found


def idle(windows: Sequence[Window]) -> list[Finding]:
    """Every window without a request: whoever waits, waits for something that never arrived."""
    if not windows or any(w.num_running or w.num_waiting or w.prompt_per_s or w.generation_per_s for w in windows):
        return []
    text = "no request runs or waits in any window: if a client hangs, its request did not reach the engine"
    return [Finding("no_request_running", text, windows[0].line, details={"num_windows": len(windows)})]
