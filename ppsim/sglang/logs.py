"""Server logs as people have them, in; measurements, counts and findings, out.

Every line that looks like a batch is counted once, as complete, short, cut or damaged, and the report always says how
many were cut and damaged. What the numbers mean is decided in ``batch_lines.py`` and ``samples.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ppsim.sglang.batch_lines import BatchLine, find_batches, last_filled
from ppsim.sglang.benches import BenchTable, find_progress, find_tables
from ppsim.sglang.chunk_tables import find_chunk_tables
from ppsim.sglang.findings import Finding, find_all
from ppsim.sglang.log_digest import digest
from ppsim.sglang.profiles import LoggedFit, Profile, find_fits, find_profiles
from ppsim.sglang.samples import Chain, DecodeSample, Sample, measure
from ppsim.sglang.stamps import Ranks, clean, rank_name, ranks_of
from ppsim.sglang.started import cut_value, read_started
from ppsim.sglang.understood import understood
from ppsim.sglang.windows import Window, find_windows

MAX_LAST = 2000
MAX_SHOWN = 120


@dataclass(frozen=True, slots=True)
class Broken:
    """A line that was counted and not used. ``kind``: prefill, decode, prefill_rank, retract, window or unknown."""

    kind: str
    line: int
    reason: str
    text: str


@dataclass(slots=True)
class LogReport:
    """All that a log gives. Lists are in order of the text; lines are counted from 1."""

    num_lines: int = 0
    batches: list[BatchLine] = field(default_factory=list)
    cut: list[Broken] = field(default_factory=list)
    damaged: list[Broken] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    decode_samples: list[DecodeSample] = field(default_factory=list)
    unused: dict[str, int] = field(default_factory=dict)
    chains: list[Chain] = field(default_factory=list)
    num_prefill_batches: int = 0
    windows: list[Window] = field(default_factory=list)
    tables: list[BenchTable] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)
    fits: list[LoggedFit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)  # rows of tables without a sample, and why
    server: dict[str, Any] = field(default_factory=dict)
    rank_table: dict[int, Ranks] = field(default_factory=dict)
    ranks: list[Ranks] = field(default_factory=list)
    prompt_tokens: int | None = None
    num_replies: int = 0
    cut_value: str = ""
    not_understood: list[tuple[int, str]] = field(default_factory=list)  # lines that gave nothing: number, beginning

    def of(self, kind: str, state: str = "complete") -> list[BatchLine]:
        return [line for line in self.batches if line.kind == kind and line.state == state]

    @property
    def num_prefill(self) -> int:
        """Complete prefill batch lines."""
        return len(self.of("prefill"))

    @property
    def num_decode(self) -> int:
        """Complete decode batch lines."""
        return len(self.of("decode"))

    @property
    def num_retract(self) -> int:
        return len(self.of("retract"))

    @property
    def num_short(self) -> int:
        return sum(line.state == "short" for line in self.batches)

    @property
    def tput(self) -> str:
        """What input throughput means in this log: own, prev, none, undecided, or mixed."""
        meanings = [line.meaning for line in self.batches if line.kind == "prefill" and line.fields]
        stated = sorted({meaning for meaning in meanings if meaning != "none"})
        return "none" if not stated else stated[0] if len(stated) == 1 else "mixed"

    @property
    def pp_ranks(self) -> list[int]:
        """Pipeline ranks that logged something."""
        return sorted({number for ranks in self.ranks for kind, number in ranks if kind == "PP"})

    def counts(self) -> dict[str, int]:
        return {
            "lines": self.num_lines,
            "prefill": self.num_prefill,
            "prefill_short": len(self.of("prefill", "short")),
            "prefill_rank": len(self.of("prefill_rank")),
            "decode": self.num_decode,
            "decode_short": len(self.of("decode", "short")),
            "retract": self.num_retract,
            "windows": len(self.windows),
            "cut": len(self.cut),
            "damaged": len(self.damaged),
        }

    def summary(self) -> str:
        """One sentence with the counts, cut and damaged always; what is missing for a fit, if nothing is usable."""
        told = {name: count for name, count in self.counts().items() if count or name in ("lines", "cut", "damaged")}
        counts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in told.items())
        text = f"{counts}; input throughput: {self.tput}; {len(self.samples)} prefill and "
        text += f"{len(self.decode_samples)} decode samples"
        if not self.samples and self.unused:
            text += " (" + "; ".join(f"{count} x {reason}" for reason, count in sorted(self.unused.items())) + ")"
        return text

    def told(self) -> list[str]:
        """One sentence for each thing that was read besides samples: start-up values, ranks, windows, tables, findings,
        and files of other kinds that are recognised and not used."""
        found = [f"line {finding.line}: {finding.kind}: {finding.text}" for finding in self.findings]
        found += [f"line {broken.line}: cut: {broken.reason}" for broken in self.cut]
        found += [f"line {broken.line}: damaged: {broken.reason}" for broken in self.damaged]
        found += [self.cut_value] if self.cut_value else []
        found += digest(self.batches, self.profiles)
        if self.server:
            found.append("start: " + ", ".join(f"{name} {value}" for name, value in self.server.items()))
        if self.rank_table:
            ranks = [f"{number} is {rank_name(tags) or 'unnamed'}" for number, tags in sorted(self.rank_table.items())]
            found.append("ranks: " + ", ".join(ranks))
        for w in self.windows:
            length = "of unknown length" if w.length_s is None else f"of {w.length_s:g} s"
            found.append(
                f"line {w.line}: window {length}, engine {w.engine}: {w.prompt_per_s:g} prompt and "
                f"{w.generation_per_s:g} output tokens/s, {w.num_running} running, {w.num_waiting} waiting, "
                f"KV {w.kv_usage:.1%}"
            )
        for table in self.tables:
            values = [f"{name} {value:g}" for name, value in table.values.items()]
            values += [f"{name} {word}" for name, word in table.words.items()]
            found.append(f"line {table.line}: {table.title}{' (cut)' if table.cut else ''}: {', '.join(values)}")
        for fit in self.fits:
            found.append(f"line {fit.line}: fitted curve: a {fit.a_ms:g}, b {fit.b_ms:g}, c {fit.c_ms:g} ms")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {
            "counts": self.counts(),
            "throughput_means": self.tput,
            "prefill_batches": self.num_prefill_batches,
            "samples": [asdict(sample) for sample in self.samples],
            "decode_samples": [asdict(sample) for sample in self.decode_samples],
            "unused": self.unused,
            "chains": [asdict(chain) for chain in self.chains],
            "cut": [asdict(broken) for broken in self.cut],
            "damaged": [asdict(broken) for broken in self.damaged],
            "windows": [{**asdict(w), "prompt_tokens": w.prompt_tokens} for w in self.windows],
            "tables": [{**asdict(table), "ttft_usable": table.ttft_usable} for table in self.tables],
            "profiles": [{**asdict(profile), "chunk_size": profile.chunk_size} for profile in self.profiles],
            "fits": [asdict(fit) for fit in self.fits],
            "findings": [asdict(finding) for finding in self.findings],
            "remarks": self.remarks,
            "server": self.server,
            "ranks": [rank_name(ranks) for ranks in self.ranks],
            "replies": self.num_replies,
            "not_understood": [{"line": line, "text": text} for line, text in self.not_understood],
            "summary": self.summary(),
        }


def read_log(text: str) -> LogReport:
    """Read a log. Never raises for bad text: what cannot be read is counted and named."""
    rows = [clean(row.rstrip("\r")) for row in text.split("\n")]
    report = LogReport(num_lines=sum(bool(row.strip()) for row in rows))
    last = last_filled(rows)
    report.batches, used = find_batches(rows)
    measured = measure(report.batches, [row + 1 for row, text in enumerate(rows) if "HTTP/1." in text])
    report.samples, report.decode_samples = measured.samples, measured.decode_samples
    report.unused, report.chains, report.num_prefill_batches = measured.unused, measured.chains, measured.num_batches
    report.windows, cut, damaged = find_windows(rows, last)
    for line in report.batches:
        if line.state in ("cut", "damaged"):
            broken = Broken(line.kind, line.line, line.reason, line.text[:80])
            (report.cut if line.state == "cut" else report.damaged).append(broken)
    report.cut += [Broken("window", line, "the text ends inside this line", row[:80]) for line, row in cut]
    report.damaged += [Broken("window", line, "its fields cannot be read", row[:80]) for line, row in damaged]
    if last >= 0 and last not in used and not cut:
        report.cut += cut_by_shape(rows, last, report)
    report.tables = find_tables(rows)
    report.profiles, report.fits = find_profiles(rows), find_fits(rows)
    progress, report.prompt_tokens = find_progress(rows)
    report.samples += [sample for profile in report.profiles for sample in profile.samples()]
    of_tables, report.remarks = find_chunk_tables(rows)
    report.samples += of_tables + progress
    report.findings = find_all(rows, report.batches, report.windows)
    report.server, report.rank_table = read_started(rows, text)
    report.cut_value = cut_value(rows)
    report.ranks = seen_ranks(rows)
    known, report.num_replies = understood(rows, used, report.batches)
    ends = {broken.line - 1 for broken in report.cut}
    report.not_understood = [
        (row + 1, text.strip()[:MAX_SHOWN])
        for row, text in enumerate(rows)
        if text.strip() and row not in known and row not in ends
    ]
    if report.prompt_tokens is None:
        prompts = [chain.prompt_tokens for chain in report.chains if chain.prompt_tokens is not None]
        report.prompt_tokens = max(prompts, default=None)
    return report


def cut_by_shape(rows: Sequence[str], last: int, report: LogReport) -> list[Broken]:
    """The last line is the beginning of a batch line seen before, digits aside, or may have been one."""
    text = rows[last].strip()
    if not 4 <= len(text) <= MAX_LAST:
        return []
    pieces = re.split(r"\d+", text)
    pattern = re.compile(r"\d+".join(re.escape(piece) for piece in pieces))
    kinds = {line.line - 1: line.kind for line in report.batches} | {w.line - 1: "window" for w in report.windows}
    found = []
    for row in range(last):
        shape = pattern.match(rows[row].strip())
        if shape is not None and shape.end() < len(rows[row].strip().rstrip(", ")):
            found.append(kinds.get(row, ""))
    names = sorted({kind for kind in found if kind})
    if not names:
        return []
    kind = names[0] if len(names) == 1 and "" not in found else "unknown"
    return [Broken(kind, last + 1, "the text ends inside this line", text[:80])]


def seen_ranks(rows: Sequence[str]) -> list[Ranks]:
    """Every combination of rank tags in front of a line, in order of appearance."""
    seen: dict[Ranks, None] = {}
    for row in rows:
        if "[" in row:
            ranks = ranks_of(row[:600])
            if ranks:
                seen.setdefault(ranks, None)
    return list(seen)
