"""Recordings made by hand, small enough to work out every number on paper."""

from __future__ import annotations

from ppsim.core.effects import Decision, Harvest, Reply
from ppsim.core.messages import AbortReq, NewRequest, Shutdown
from ppsim.core.tokens import pack
from ppsim.recording import Recording

S = 1_000_000_000
UNIT_NS = S


def decision(iteration: int, slot: int, *pieces: tuple[str, int, int], state: str = "s", mode: str = "") -> Decision:
    """A decision whose mode follows from its pieces unless given."""
    return Decision(iteration, slot, mode or ("extend" if pieces else "empty"), pieces, (), None, state)


def harvest(iteration: int, slot: int, harvested: int | None, *delivered: tuple[str, int], free: int = 100) -> Harvest:
    """A harvest with token id 7 for every delivered token."""
    return Harvest(iteration, slot, harvested, delivered, (), (7,) * len(delivered), free, 0)


def pipeline(pp_size: int, num_chunks: int, unit_ns: int = UNIT_NS) -> Recording:
    """One prompt of ``num_chunks`` chunks of 10 tokens through equal stages, links free: the textbook diagonal.

    Stage r runs chunk m in [(r + m) u, (r + m + 1) u), so the last one ends at (P + M - 1) u and the bubble is
    (P-1)/(P-1+M) of the P (P + M - 1) u rank-seconds.
    """
    recording = Recording(pp_size, name="by-hand", seed=3)
    recording.arrival("R1", 0, 10 * num_chunks, 1)
    recording.ingested(0, (NewRequest("R1", pack(range(10 * num_chunks)), 1),), 0)
    for rank in range(pp_size):
        for m in range(num_chunks):
            recording.decision(rank, decision(m, m % pp_size, ("R1", 10 * m, 10)))
            recording.harvest(rank, harvest(m, (m + 1) % pp_size, None))
            recording.span(rank, "forward", m % pp_size, m, (rank + m) * unit_ns, (rank + m + 1) * unit_ns)
    recording.reply((pp_size + num_chunks - 1) * unit_ns, Reply("R1", "finished", (7,), 1))
    return recording


def two_requests() -> Recording:
    """pp_size 2. "a" gets tokens at 3 s, 5 s, 9 s after its arrival at 1 s; "b" is aborted at 4 s without a token.

    "c" is refused when it is read, "d" has arrived and was never read. Rank 1 disagrees once, in iteration 2.
    """
    r = Recording(2, name="two requests", seed=11)
    r.arrival("a", 1 * S, 20, 3)
    r.arrival("b", 2 * S, 30, 8)
    r.arrival("c", 2 * S, 9000, 8)
    r.arrival("d", 9 * S, 5, 1)
    r.ingested(0, (NewRequest("a", pack(range(20)), 3, stop_token_ids=(2, 3)),), 1 * S + S // 2)
    r.ingested(1, (NewRequest("b", pack(range(30)), 8), NewRequest("c", pack([1] * 9000), 8)), 2 * S)
    r.ingested(2, (AbortReq("b", reason="client left"),), 4 * S)
    r.ingested(3, (), 5 * S)
    r.ingested(4, (Shutdown(),), 10 * S)
    r.decision(0, decision(0, 0, ("a", 16, 4)))
    r.harvest(0, harvest(0, 1, None))
    r.span(0, "forward", 0, 0, 2 * S, 3 * S)
    r.span(0, "send", 0, 0, 3 * S, 4 * S)
    r.decision(0, decision(1, 1, ("b", 0, 30)))
    r.reply(2 * S, Reply("c", "refused", reason="prompt of 9000 tokens is longer than the context"))
    r.harvest(0, harvest(1, 0, 0, ("a", 1)))
    r.reply(4 * S, Reply("a", "token", (7,), 1))
    r.decision(0, decision(2, 0, ("a", 20, 1), mode="decode"))
    r.reply(4 * S, Reply("b", "aborted", reason="client left"))
    r.harvest(0, harvest(2, 1, 1))
    r.span(0, "forward", 0, 2, 4 * S, 5 * S)
    r.reply(6 * S, Reply("a", "token", (7,), 2))
    r.decision(0, decision(3, 1))
    r.reply(10 * S, Reply("a", "finished", (7,), 3))
    r.observed(0, 2, "poll", ("a", "b"), (1, 0))
    r.observed(0, 2, "poll", ("a",), (2,))
    r.observed(0, 3, "poll", ("a",), (3,))
    r.decision(1, decision(0, 0, ("a", 16, 4)))
    r.harvest(1, harvest(0, 1, None))
    r.span(1, "forward", 0, 0, 4 * S, 8 * S)
    r.decision(1, decision(1, 1, ("b", 0, 30)))
    r.harvest(1, harvest(1, 0, 0, ("a", 1)))
    r.decision(1, decision(2, 0, ("a", 20, 2), mode="decode"))
    r.harvest(1, harvest(2, 1, 1))
    r.decision(1, decision(3, 1))
    r.sampled(0, 0, (7,))
    r.sampled(2, 0, (7,))
    r.warn("links.send = rendezvous without links.order: sends are not ordered")
    return r
