"""What arrives in a generated experiment: requests, aborts and flushes, all in logical time."""

from __future__ import annotations

from typing import Any

from ppsim.fuzz.draws import Draws


def workload(draw: Draws, on: set[str]) -> dict[str, Any]:
    """Requests, aborts and flushes, all in logical time."""
    num_requests = draw.number(3, 8) if "retraction" in on else draw.number(1, 6)
    requests = [request(draw, on, i) for i in range(num_requests)]
    if "starved" in on:
        starve(draw, requests)
    elif "retraction" in on and draw.flag():  # all cross the border of a page at once
        for other in requests:
            other.update(prompt=min(requests[0]["prompt"], 4), at_iteration=requests[0]["at_iteration"])
    for _ in range(draw.number(1, 2) if "again" in on else 0):
        requests.append(again(draw, on, requests))
    found: dict[str, Any] = {"source": "requests", "block_tokens": 16, "requests": requests}
    aborts = [abort(draw, requests) for _ in range(draw.number(1, 3))] if "aborts" in on else []
    if "abort_all" in on and draw.flag():
        aborts.append({"abort_all": True, "at_iteration": draw.number(0, 24)})
    if aborts:
        found["aborts"] = aborts
    if "flush" in on:
        first = min(int(r["at_iteration"]) for r in requests)  # right behind it only its prompt is in flight
        at = {"flush": draw.number(0, 60), "early flush": first + draw.number(1, 2)}
        found["flushes"] = [{"rid": rid, "at_iteration": iteration} for rid, iteration in at.items()]
    if "clients" in on and len({r["rid"] for r in requests}) == len(requests):
        found["concurrency"] = draw.number(1, 3)  # whoever is free sends the next one
        for r in requests:
            del r["at_iteration"]
    return found


def abort(draw: Draws, requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Soon after the request has arrived, mostly; or of a request that nobody knows."""
    target = draw.number(0, len(requests))
    rid, came = name(target), 0
    if target < len(requests):
        rid, came = requests[target]["rid"], requests[target]["at_iteration"]
    return {"rid": rid, "at_iteration": came + draw.one_of((0, 1, 2, 3, 4, 5, 6, 8, 11, 16, 24, 32))}


def again(draw: Draws, on: set[str], requests: list[dict[str, Any]]) -> dict[str, Any]:
    """Another request with an id that was used before: mostly when that one has ended, and else it is refused."""
    before = draw.one_of(requests)
    last = max(r["at_iteration"] for r in requests if r["rid"] == before["rid"])
    found = request(draw, on, 0) | {"rid": before["rid"], "at_iteration": last + draw.one_of((1, 6, 12, 24, 40, 60))}
    found.pop("stop_after", None)  # what is sampled is a function of id and position
    return found | {key: before[key] for key in ("stop_after",) if key in before}


def name(index: int) -> str:
    """Ids of which some begin with another one, as an abort by prefix would find them (protocol.md 7.1)."""
    return f"R{index % 3}" + "x" * (index // 3)


def starve(draw: Draws, requests: list[dict[str, Any]]) -> None:
    """Short prompts that decode for long, then a long prompt: they take the memory that its chunks count on."""
    requests += [{"rid": name(len(requests) + i)} for i in range(3)]
    for other in requests[:-1]:
        other.update(prompt=draw.number(1, 4), output=draw.number(16, 30), at_iteration=draw.number(0, 1))
    requests[-1].update(prompt=draw.number(60, 100), output=draw.number(1, 4), at_iteration=draw.number(2, 5))


def request(draw: Draws, on: set[str], index: int) -> dict[str, Any]:
    """One request; its arrival is early, late, or at once with all others."""
    output = draw.number(8, 30) if "retraction" in on else draw.number(1, 30 if "long_outputs" in on else 8)
    longest = 2400 if "big_batches" in on else 120 if "long_prompts" in on else 48
    if "retraction" in on:  # short prompts grow into each other; one long one is cut while they do
        longest = draw.one_of((6, 6, 12, 80))
    found: dict[str, Any] = {
        "rid": name(index),
        "at_iteration": draw.number(0, 2 if "bursts" in on else 30 if "gaps" in on else 12),
        "prompt": draw.number(1, longest),
        "output": output,
    }
    if "prefixes" in on and ("hicache" in on or draw.flag()):
        last = 3 if "many_prefixes" in on else 1
        found["prefix_blocks"] = [draw.number(0, last) for _ in range(draw.number(1, 2))]
    if "stops" in on and draw.flag():
        found["stop_after"] = draw.number(1, output)
    if "grammar" in on and draw.flag():
        found["grammar"] = "json"
    if "priorities" in on and draw.flag():
        found["priority"] = draw.number(-1, 2)
    if "skip_rule" in on and draw.number(0, 3) == 0:
        found["return_logprob"] = True
    if "ignore_eos" in on and draw.flag():
        found["ignore_eos"] = True
    return found
