"""Whole experiments, drawn: configuration, workload, aborts, observations, faults, and who answers the choices.

Sizes are small on purpose: nearly every bug of a pipeline shows with three ranks, a handful of requests and a pool of a
few pages, and small runs are fast to run and to shrink. What is drawn is always a valid scenario: a pool holds each of
its requests alone, whatever the others take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppsim.core.digest import digest
from ppsim.fuzz.arrivals import workload
from ppsim.fuzz.draws import Draws, HypothesisDraws, SeededDraws
from ppsim.fuzz.experiment import Chooser, Experiment
from ppsim.fuzz.machine import TINY_CHUNK, machine, stream_choices
from ppsim.fuzz.pair import two_sides
from ppsim.fuzz.profiles import Profile
from ppsim.fuzz.surroundings import chance, copies, num_ranks, once, surroundings, tiers

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

MAX_ITERATIONS = 3000
RARE = (
    "retraction",
    "starved",
    "no_radix",
    "all_slots",
    "prefill_limits",
    "turns",
    "tiny_chunks",
    "gaps",
    "few_rows",
    "uneven_pools",
    "flush",
    "again",
    "big_batches",
    "clients",
)
"""Features that keep others from showing; on in one example of four."""


def generated(profile: Profile, seed: int, number: int, index: int) -> Experiment:
    """Example ``index`` of round ``number`` of a campaign: a function of these four, in any process, in any order."""
    return drawn(SeededDraws(int(digest(seed, number, index), 16)), profile)


def drawn(draw: Draws, profile: Profile) -> Experiment:
    """One experiment of a profile, with a random subset of its features."""
    on = {name for name in profile.features if draw.flag() and (name not in RARE or draw.flag())}
    on |= set(profile.always)
    if "hicache" in on:  # nothing is copied where nothing is shared, and nothing evicted where memory is plenty
        on |= {"prefixes", "tight_pool"}
    if on & {"retraction", "starved"}:  # nothing is retracted where memory is plenty
        on |= {"tight_pool", "bursts"}
    if on & {"retraction", "starved", "tiny_chunks"}:  # these have a chunk size and lengths of their own
        on.discard("big_batches")
    role = draw.one_of(profile.roles)
    work = workload(draw, on)
    if "concurrency" in work and role in ("decode", "pd"):  # one after the other, each through votes and transfers
        del work["requests"][3:]
    raw = {"name": "fuzz", "workload": work, **machine(draw, on, role, work["requests"])}
    surroundings(draw, on, role, raw)
    chance(draw, on, raw)
    if "hicache" in on and role != "decode":
        tiers(draw, on, raw)
    limit = patience(raw)  # who stands still from the last iterations on is seen to, before the run is given up
    raw["run"] = {"max_iterations": MAX_ITERATIONS + limit, "invariants": True, "max_wait_iterations": limit}
    raw["run"] |= {"max_retractions": most_retractions(raw), "max_wait_ms": patience_ms(raw)}
    if role == "pd":
        two_sides(draw, on, raw)
    if "hicache" in raw and "listed" in on:
        sides = raw.get("disaggregation", {}).get("decode_pp_size", 0) * raw["cluster"]["tp_replicas"]
        facts = raw.setdefault("observations", {})
        facts["listed"] = once([*facts.get("listed", []), copies(draw, raw, num_ranks(raw) + sides)])
    if "streams" in on:
        stream_choices(draw, role, raw)
    return Experiment(raw, chooser=chooser(draw))


def chooser(draw: Draws) -> Chooser:
    """Who answers what the scenario leaves open: nobody, chance, chance for all orders too, or a few surprises."""
    kind = draw.one_of(("tape", "seeded", "seeded", "shuffled", "pct"))
    if kind == "tape":
        return Chooser()
    seed = draw.number(0, 10**6)
    if kind != "pct":
        return Chooser(kind, seed)
    return Chooser(kind, seed, draw.number(1, 4), draw.one_of((20, 100, 500)))


def patience(raw: dict[str, Any]) -> int:
    """Iterations that a request may stand still: all others may have to run to their end first, one after the other.

    Each takes its chunks and a round of L visits for each token; a retraction may repeat all of it. What a rank sees
    late comes within 20 iterations, and a vote takes two rounds. Copies between cache tiers may hold a prompt up.
    """
    num_slots = int(raw["cluster"]["pp_size"] + raw["cluster"]["pp_async_batch_depth"])
    chunk = raw["scheduler"]["chunked_prefill_size"]
    requests = raw["workload"]["requests"]
    if chunk == TINY_CHUNK:  # beside decodes a chunk may get a single token
        chunk = 1
    visits = sum(int((1 if chunk < 0 else -(-r["prompt"] // chunk)) + r["output"]) for r in requests)
    copies = 200 if "hicache" in raw else 0
    return min(60 + copies + 4 * num_slots * (visits + 2), MAX_ITERATIONS - 1)


def most_retractions(raw: dict[str, Any]) -> int:
    """How often one request may be put out of memory: twice for each of them, and a few times for its own growth.

    The least advanced goes first, so the others get through meanwhile.
    """
    return 4 + 2 * len(raw["workload"]["requests"])


def patience_ms(raw: dict[str, Any]) -> float:
    """Milliseconds that a request may wait: for all iterations of all requests, all limits, all KV on a slow wire.

    An iteration takes up to about 2 ms a stage. At the 0.002 GB/s of the slowest wire a token takes about 1 ms for each
    rank that sends it, and there are at most 8.
    """
    requests = raw["workload"]["requests"]
    iterations = 60 + 4 * num_ranks(raw) * sum(2 + r["prompt"] + r["output"] for r in requests)
    tokens = sum(r["prompt"] + r["output"] + 64 for r in requests)
    limits_ms = 2000.0  # a lease, the limits of a handshake and of a transfer, pauses, skewed clocks
    return limits_ms + 2.0 * float(iterations) + 10.0 * float(tokens)


def strategy(profile: Profile) -> SearchStrategy[Experiment]:
    """The experiments of a profile for ``@given``: Hypothesis draws each number, and shrinks it towards the first."""
    from hypothesis.strategies import composite

    @composite
    def experiments(draw: DrawFn) -> Experiment:
        return drawn(HypothesisDraws(draw), profile)

    return experiments()
