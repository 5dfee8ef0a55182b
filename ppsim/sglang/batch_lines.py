"""Batch lines of a server log: found, joined, split into fields, and called complete, short, cut or damaged.

A complete line has the fields that every version prints. A short one was shortened by whoever told the story; a cut one
ends the text in its middle; a damaged one cannot be read although the text goes on. Only complete lines give numbers to
others, and every line that looks like a batch is in exactly one of the four.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ppsim.sglang.stamps import Ranks, rank_name, ranks_of, seconds_of

State = Literal["complete", "short", "cut", "damaged"]
Kind = Literal["prefill", "decode", "prefill_rank", "retract"]
Meaning = Literal["own", "prev", "none", "undecided"]

START = re.compile(
    r"(?P<kind>Prefill|Decode)(?P<rank> rank)? batch(?: \[(?P<iteration>\d+)\])?(?: [a-z_]+=[\w.-]+)?(?:[.,](?= |$)|$)"
    r"|(?P<old>new fill batch)\.(?= |$)"
    r"|(?P<retract>Decode out of memory happened|KV cache pool is full(?:\. Retract requests?)?|Retract requests?\b)"
)
FIELD = re.compile(
    r"\s*(?P<name>[#A-Za-z][^:,]{0,60}?)\s*:\s*(?P<value>[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|True|False|None|inf|nan)(?P<rest>.*)$",
    re.DOTALL,
)
REST = re.compile(
    r"%?\s*(?:(?:tok|tokens?)/s(?:ec)?|ms|s)?\s*(?:(?:\u2190|<-|->|=>|\u2192|#|//).*|\(.*\).*|->.*)?$", re.DOTALL
)
BUBBLE = re.compile(r"\bbubble_ms=(\d+(?:\.\d+)?)")
ELLIPSIS = ("...", "\u2026", "[...]")
NAMES = {
    "#seq": "#new-seq",
    "#new_token": "#new-token",
    "#cached_token": "#cached-token",
    "#running_req": "#running-req",
    "#remaining_req": "#queue-req",
    "full token usage": "token usage",
    "#full token": "#token",
    "input throughput (token/s)": "input throughput",
    "gen throughput (token/s)": "gen throughput",
    "#retracted_reqs": "#retracted-req",
    "#retracted_req": "#retracted-req",
}
NEEDED: dict[str, tuple[str, ...]] = {
    "prefill": ("#new-seq", "#new-token", "#cached-token", "token usage"),
    "decode": ("#running-req", "#token", "token usage"),
    "prefill_rank": ("#new-token", "#cached-token"),
    "retract": ("#retracted-req",),
}
TWO_DECIMALS = ("(token/s)", "usage")
TAILS = ("bubble-ms",)  # behind the last field, where a rank had to wait
MAX_JOIN = 8
LOOK = 200  # characters that tell a batch line from a sentence about batches


@dataclass(slots=True)
class BatchLine:
    """``fields``: by the current name where versions differ. ``time_s``: see stamps. ``line``: counted from 1."""

    kind: Kind
    state: State
    line: int
    text: str
    time_s: float | None = None
    ranks: Ranks = ()
    iteration: int | None = None
    fields: dict[str, float] = field(default_factory=dict)
    names: tuple[str, ...] = ()  # as written, in order
    reason: str = ""
    old_form: bool = False

    @property
    def rank(self) -> str:
        return rank_name(self.ranks)

    @property
    def meaning(self) -> Meaning:
        """What the input throughput of a prefill line divides: its own tokens, those of the line before, or unclear."""
        if "input throughput" not in self.fields:
            return "own" if "#pending-token" in self.fields else "none"
        if "#pending-token" in self.fields:
            return "own"
        graph = next((i for i, name in enumerate(self.names) if name.endswith(" graph")), None)
        rate = next(i for i, name in enumerate(self.names) if name.startswith("input throughput"))
        return "undecided" if graph is not None and graph < rate else "prev"

    def get(self, name: str) -> float:
        return self.fields.get(name, 0.0)

    def count(self, name: str) -> int:
        return int(self.fields.get(name, 0.0))


def find_batches(rows: Sequence[str]) -> tuple[list[BatchLine], frozenset[int]]:
    """Every line of the rows that looks like a batch or a retraction, and the rows that they take."""
    found: list[BatchLine] = []
    used: list[int] = []
    last = last_filled(rows)
    row = 0
    while row < len(rows):
        starts = (
            list(START.finditer(rows[row]))
            if " batch" in rows[row] or "etract" in rows[row] or "Decode" in rows[row]
            else []
        )
        starts = [start for start in starts if plausible(rows[row], start, row == last)]
        if not starts:
            row += 1
            continue
        end = row
        for i, start in enumerate(starts):
            begin = starts[i - 1].end() if i else 0
            if i + 1 < len(starts):
                stop = next_stamp(rows[row], start.end(), starts[i + 1].start())
                found.append(
                    read_body(rows[row][begin : start.start()], start, rows[row][start.end() : stop], row, False)
                )
            else:
                body, end = join(rows, row, start.end())
                found.append(read_body(rows[row][begin : start.start()], start, body, row, end == last))
        used += range(row, end + 1)
        row = end + 1
    if used and used[-1] == last:
        against_siblings(found, ended=last + 1 < len(rows))
    return found, frozenset(used)


def plausible(text: str, start: re.Match[str], is_last: bool) -> bool:
    """A sentence about batches is none: fields must follow, or the text must end."""
    rest = text[start.end() : start.end() + LOOK].strip(" ,.")
    if start["retract"]:
        return "#retract" in rest or (is_last and rest[:1] in ("", "#"))
    if not rest:
        return is_last or text.rstrip().endswith((",", "."))
    return rest.startswith(("#", "...", "\u2026")) or FIELD.match(rest) is not None


def last_filled(rows: Sequence[str]) -> int:
    return next((i for i in range(len(rows) - 1, -1, -1) if rows[i].strip()), -1)


def next_stamp(text: str, begin: int, end: int) -> int:
    """Where the prefix of a glued line begins: at its bracket."""
    bracket = text.rfind("[", begin, end)
    return bracket if bracket >= 0 else end


def join(rows: Sequence[str], row: int, begin: int) -> tuple[str, int]:
    """The rest of the line and of the lines that it was wrapped into: they have fields and no stamp."""
    body, end = rows[row][begin:], row
    while end + 1 < len(rows) and end - row < MAX_JOIN:
        after = rows[end + 1].strip()
        if not after or BRACKETED.match(after) or START.search(after):
            break
        parts, bad = split(body)[0], split(body)[2]
        if not bad and parts and body.rstrip().endswith(",") and continues(after):
            body, end = f"{body.rstrip()} {after}", end + 1
        elif bad and mends(body, after):
            body, end = body + rows[end + 1].rstrip() if mends_tightly(body, after) else f"{body} {after}", end + 1
        else:
            break
    return body, end


BRACKETED = re.compile(r"\[|\d{4}-\d{2}-\d{2}|[A-Z]+:\s")


def continues(after: str) -> bool:
    first = split(after)
    return (
        bool(first[0]) and first[2] <= 1 and FIELD.match(after) is not None and not after.startswith(("INFO", "File"))
    )


def mends(body: str, after: str) -> bool:
    return mends_tightly(body, after) or split(f"{body} {after}")[2] == 0


def mends_tightly(body: str, after: str) -> bool:
    return split(body + after)[2] == 0


def split(body: str) -> tuple[list[tuple[str, float]], bool, int]:
    """Fields of a body, whether parts were left out, and how many pieces cannot be read."""
    fields: list[tuple[str, float]] = []
    shortened, bad = False, 0
    for piece in pieces_of(body):
        text = piece.strip()
        if text in ELLIPSIS:
            shortened = True
            continue
        text = text.lstrip(". ")
        if not text:
            continue
        found = FIELD.match(text)
        if found is None or not REST.match(found["rest"].strip()):
            bad += 1
            continue
        fields.append((found["name"].strip(), number(found["value"])))
        bubble = BUBBLE.search(found["rest"])
        if bubble:
            fields.append(("bubble-ms", float(bubble[1])))
    return fields, shortened, bad


def number(text: str) -> float:
    words = {"True": 1.0, "False": 0.0, "None": 0.0}
    return words[text] if text in words else float(text)


def pieces_of(body: str) -> list[str]:
    """Split at commas outside brackets; the oldest form has dots instead."""
    if "," not in body:
        return re.split(r"\.\s+(?=[#a-z])", body.strip().rstrip("."))
    if "(" not in body:
        return body.split(",")
    pieces, depth, start = [], 0, 0
    for found in re.finditer(r"[(),]", body):
        char = found.group()
        depth = max(0, depth + (char == "(") - (char == ")"))
        if char == "," and depth == 0:
            pieces.append(body[start : found.start()])
            start = found.end()
    pieces.append(body[start:])
    return pieces


def read_body(prefix: str, start: re.Match[str], body: str, row: int, is_last: bool) -> BatchLine:
    fields, shortened, bad = split(body)
    kind: Kind = "retract" if start["retract"] else "prefill"
    if start["kind"]:
        kind = "decode" if start["kind"] == "Decode" else "prefill_rank" if start["rank"] else "prefill"
    line = BatchLine(
        kind,
        "complete",
        row + 1,
        (start.group() + body).strip(),
        seconds_of(prefix[-300:]),
        ranks_of(prefix),
        int(start["iteration"]) if start["iteration"] and len(start["iteration"]) < 16 else None,
        names=tuple(name for name, _ in fields),
        old_form=bool(start["old"]),
    )
    for name, value in fields:
        known = NAMES.get(name, name)
        if known in line.fields and known not in ("bubble-ms",):
            bad += 1
        line.fields[known] = value
    judge(line, body, shortened, bad, is_last)
    return line


def judge(line: BatchLine, body: str, shortened: bool, bad: int, is_last: bool) -> None:
    """Put the line in one of the four states."""
    needed = [name for name in NEEDED[line.kind] if not (line.old_form and name == "token usage")]
    missing = [name for name in needed if name not in line.fields]
    impossible = [name for name, value in line.fields.items() if value != value or value < 0 or value == float("inf")]
    if impossible:
        line.state, line.reason = "damaged", f"{impossible[0]} is {line.fields[impossible[0]]:g}"
    elif bad and is_last and bad == 1 and ends_badly(body):
        line.state, line.reason = "cut", "the text ends inside this line"
    elif bad:
        line.state, line.reason = "damaged", f"{bad} of its fields cannot be read"
    elif not line.fields:
        line.state, line.reason = (
            ("cut", "the text ends inside this line") if is_last else ("damaged", "no field follows")
        )
    elif missing or shortened:
        line.state, line.reason = "short", f"without {', '.join(missing)}" if missing else "fields were left out"
    if line.state in ("cut", "damaged"):
        line.fields = {}


def ends_badly(body: str) -> bool:
    pieces = [piece for piece in pieces_of(body) if piece.strip()]
    return bool(pieces) and split("," + pieces[-1])[2] > 0  # a comma: a dot at the end is part of a number


def against_siblings(found: list[BatchLine], *, ended: bool) -> None:
    """The last line of a text may break off between two fields, or inside a number: its siblings show it.

    ``ended``: a line feed follows it. A line that ended, or that ends behind a bracket, is whole where what its
    siblings have more is an optional tail.
    """
    if not found or not found[-1].fields:
        return
    line = found[-1]
    siblings = [other for other in found[:-1] if other.kind == line.kind and other.state == "complete"]
    if not line.names:
        return
    longer = [
        other
        for other in siblings
        if other.names[: len(line.names)] == line.names and len(other.names) > len(line.names)
    ]
    whole = (ended or line.text.endswith(")")) and all(
        is_optional(name, siblings) for other in longer for name in other.names[len(line.names) :]
    )
    name = line.names[-1]
    digits = re.search(r":\s*-?\d+(\.\d*)?\s*,?\s*$", line.text)
    halved = digits is not None and any(part in name for part in TWO_DECIMALS) and len(digits[1] or ".") < 3
    if (longer and not whole) or (halved and "(token/s)" in name) or (halved and siblings):
        line.state, line.reason, line.fields = "cut", "the text ends inside this line", {}


def is_optional(name: str, siblings: Sequence[BatchLine]) -> bool:
    """Printed behind the fields only where there is something to say, or missing in another whole line too."""
    return name in TAILS or any(name not in other.names for other in siblings)
