"""What stands before a message: time, ranks, and whatever a terminal, a container or a colleague put in front.

The bracket holds date and time (or one of them, or neither) and then ranks in changing order; a rank tag is capitals
and a number. Times are seconds since the start of the year 1; only differences mean anything, and a stamp without a
date or a year gives differences within a day or a year.
"""

from __future__ import annotations

import re
from datetime import datetime

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|(?<=\d)\[0m|(?<=\w)\[\d{1,2}m(?=\d{4}-)")
QUOTE_MARK = re.compile(r"^(?:>[ \t]?)+")
BRACKET = re.compile(r"\[([^\[\]\n]{1,120})\]")
DATE_TIME = re.compile(
    r"(?:(?P<year>\d{4})-)?(?P<month>\d{2})-(?P<day>\d{2})[ T]"
    r"(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})(?P<part>[.,]\d+)?"
)
TIME = re.compile(r"(?<![\d:-])(?P<hour>\d{2}):(?P<minute>\d{2}):(?P<second>\d{2})(?P<part>[.,]\d+)?")
RANK = re.compile(r"(?<![A-Za-z0-9_])([A-Z][A-Z_]*[A-Z])(\d{1,5})(?![\w.])")
RANK_ORDER = ("DP", "PP", "ATTN_DP", "ATTN_CP", "ATTN_TP", "CP", "MOE_DP", "TP", "EP", "MOE_EP", "MOE_TP")

Ranks = tuple[tuple[str, int], ...]


def clean(line: str) -> str:
    """A line without colour codes and quote marks."""
    if "\x1b" in line or "[0m" in line:
        line = ANSI.sub("", line)
    return QUOTE_MARK.sub("", line) if line.startswith(">") else line


def seconds_of(text: str) -> float | None:
    """The last date and time in the text, or the last time of day, in seconds; None without one."""
    dated = list(DATE_TIME.finditer(text))
    if not dated:
        timed = list(TIME.finditer(text))
        return of_day(timed[-1]) if timed else None
    found = dated[-1]
    try:
        day = datetime(int(found["year"] or 1), int(found["month"]), int(found["day"])).toordinal()
    except ValueError:
        return None
    return day * 86400.0 + of_day(found)


def of_day(found: re.Match[str]) -> float:
    part = found["part"]
    fraction = float("0." + part[1:]) if part else 0.0
    return int(found["hour"]) * 3600.0 + int(found["minute"]) * 60.0 + int(found["second"]) + fraction


def ranks_of(text: str) -> Ranks:
    """Rank tags of all brackets, in a fixed order of kinds; where two name the same kind the later one holds."""
    order = {kind: i for i, kind in enumerate(RANK_ORDER)}
    found = {kind: int(number) for bracket in BRACKET.findall(text[-600:]) for kind, number in RANK.findall(bracket)}
    return tuple(sorted(found.items(), key=lambda tag: (order.get(tag[0], len(order)), tag[0])))


def rank_name(ranks: Ranks) -> str:
    return " ".join(f"{kind}{number}" for kind, number in ranks)


def gap_s(before: float | None, after: float | None) -> float | None:
    """Seconds between two stamps; None where one is missing or time runs backwards."""
    if before is None or after is None or after < before:
        return None
    return after - before
