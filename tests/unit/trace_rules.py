"""The rules of the trace event format, as its description has them, and of Perfetto where it is stricter.

``problems`` knows nothing of ppsim. It takes a parsed file and says everything that is against a rule:

    file      an object with traceEvents; displayTimeUnit is ms or ns
    event     ph is known; name is text; pid and tid are integers; ts is a number, not negative, at most 3 decimals
    X         dur is a number, not negative
    B, E      on each thread nested, in order of time, each B with its E
    i         s is g, p or t
    C         args has names with numbers, the same names whenever the counter of that name and process comes again
    M         a known name, args with the value it needs
    s, t, f   one s, then t, then one f, with the same cat, name and id, in order of time, each inside a slice of its
              own thread, t and f bound to it by bp "e"
    slices    on a thread one beside the other, or one wholly inside the other
    names     every process and thread with a slice has a name; a tid belongs to one process only
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

METADATA = {
    "process_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}
KNOWN = set("BEXiCMstf")


def nanoseconds(value: float) -> int:
    return round(value * 1000)


def is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) != float("inf")
    )


def problems(file: Any) -> list[str]:
    """Sentences, one a broken rule; empty for a good file."""
    if not isinstance(file, dict) or not isinstance(file.get("traceEvents"), list):
        return ["the file is no object with traceEvents"]
    told = []
    if file.get("displayTimeUnit") not in ("ms", "ns"):
        told.append(f"displayTimeUnit {file.get('displayTimeUnit')!r}")
    events = file["traceEvents"]
    for i, event in enumerate(events):
        told += [f"event {i}: {problem}" for problem in of_event(event)]
    if told:
        return told  # what follows leans on it
    slices = slices_of(events, told)
    nesting(slices, told)
    flows(events, slices, told)
    counters(events, told)
    named(events, slices, told)
    return told


def of_event(event: Any) -> list[str]:
    """What is wrong with one event by itself."""
    if not isinstance(event, dict):
        return ["is no object"]
    phase = event.get("ph")
    if phase not in KNOWN:
        return [f"ph {phase!r}"]
    told = []
    if not isinstance(event.get("name"), str) and phase != "E":
        told.append("name is no text")
    told += [f"{key} is no integer" for key in ("pid", "tid") if type(event.get(key)) is not int]
    ts = event.get("ts")
    if phase != "M" and (not is_number(ts) or ts < 0):
        told.append(f"ts {ts!r}")
    elif phase != "M" and abs(ts * 1000 - round(ts * 1000)) > 1e-3 * max(1.0, ts * 1e-9):
        told.append(f"ts {ts!r} has more than nanoseconds")
    if phase == "X" and (not is_number(event.get("dur")) or event["dur"] < 0):
        told.append(f"dur {event.get('dur')!r}")
    if phase == "i" and event.get("s") not in ("g", "p", "t"):
        told.append(f"s {event.get('s')!r}")
    args = event.get("args", {})
    if not isinstance(args, dict):
        return [*told, "args is no object"]
    if phase == "C" and not (args and all(is_number(value) for value in args.values())):
        told.append(f"args of a counter {args!r}")
    if phase == "M":
        value = METADATA.get(event.get("name", ""))
        kind = int if value == "sort_index" else str
        if value is None or not isinstance(args.get(value), kind):
            told.append(f"metadata {event.get('name')!r} with {args!r}")
    if phase in "stf":
        told += [f"{key} is missing" for key in ("id", "cat") if key not in event]
        if phase != "s" and event.get("bp") != "e":
            told.append("bp is not e")
    return told


Slices = dict[tuple[int, int], list[tuple[int, int]]]


def slices_of(events: list[Any], told: list[str]) -> Slices:
    """[start, end] in ns of all slices, by process and thread; B and E are put together here."""
    slices: Slices = defaultdict(list)
    opened: dict[tuple[int, int], list[int]] = defaultdict(list)
    latest: dict[tuple[int, int], int] = defaultdict(int)
    for event in events:
        where = (event["pid"], event["tid"])
        if event["ph"] == "X":
            start = nanoseconds(event["ts"])
            slices[where].append((start, start + nanoseconds(event["dur"])))
        elif event["ph"] in "BE":
            at = nanoseconds(event["ts"])
            if at < latest[where]:
                told.append(f"thread {where}: {event['ph']} goes back in time")
            latest[where] = at
            if event["ph"] == "B":
                opened[where].append(at)
            elif opened[where]:
                slices[where].append((opened[where].pop(), at))
            else:
                told.append(f"thread {where}: E without B")
    told += [f"thread {where}: {len(left)} B without E" for where, left in opened.items() if left]
    return slices


def nesting(slices: Slices, told: list[str]) -> None:
    for where, mine in slices.items():
        stack: list[tuple[int, int]] = []
        for start, end in sorted(mine, key=lambda s: (s[0], -s[1])):
            while stack and stack[-1][1] <= start:
                stack.pop()
            if stack and end > stack[-1][1]:
                told.append(f"thread {where}: [{start}, {end}] overlaps {list(stack[-1])}")
            stack.append((start, end))


def flows(events: list[Any], slices: Slices, told: list[str]) -> None:
    chains: dict[tuple[str, str, Any], list[Any]] = defaultdict(list)
    for event in events:
        if event["ph"] in "stf":
            chains[event["cat"], event["name"], event["id"]].append(event)
            at = nanoseconds(event["ts"])
            around = slices.get((event["pid"], event["tid"]), [])
            if not any(start <= at <= end for start, end in around):
                told.append(f"flow {event['id']}: {event['ph']} at {at} ns is in no slice of its thread")
    for key, chain in chains.items():
        ordered = sorted(chain, key=lambda e: nanoseconds(e["ts"]))
        phases = "".join(event["ph"] for event in ordered)
        if not (len(phases) >= 2 and phases[0] == "s" and phases[-1] == "f" and set(phases[1:-1]) <= {"t"}):
            told.append(f"flow {key}: phases {phases}")


def counters(events: list[Any], told: list[str]) -> None:
    keys: dict[tuple[int, str], set[str]] = {}
    for event in events:
        if event["ph"] == "C":
            mine = keys.setdefault((event["pid"], event["name"]), set(event["args"]))
            if mine != set(event["args"]):
                told.append(f"counter {event['name']} of process {event['pid']}: {sorted(event['args'])}")


def named(events: list[Any], slices: Slices, told: list[str]) -> None:
    names = {(e["name"], e["pid"], e["tid"] if e["name"].startswith("thread") else 0) for e in events if e["ph"] == "M"}
    owners: dict[int, set[int]] = defaultdict(set)
    for pid, tid in slices:
        owners[tid].add(pid)
        if ("process_name", pid, 0) not in names:
            told.append(f"process {pid} has no name")
        if ("thread_name", pid, tid) not in names:
            told.append(f"thread {tid} of process {pid} has no name")
    told += [f"tid {tid} belongs to processes {sorted(pids)}" for tid, pids in owners.items() if len(pids) > 1]
