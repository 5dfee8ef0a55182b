"""Before iteration 0: agree on what must be the same everywhere (invariants 3 and 22; design decision 4).

Two passes round the ring: MIN of the capacities (KV pool, and host tier where there is one) on the way down, the result
on the way back; inside a stage the leader collects and hands out. The fingerprint of the shared configuration travels
along, so that ranks that were started with different arguments refuse to run instead of drifting apart.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TypeAlias

from ppsim.core.agreed import agree
from ppsim.core.channels import commit_all
from ppsim.core.config import RankConfig
from ppsim.core.digest import digest
from ppsim.core.effects import Effects, Work, observe
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Lane, Start
from ppsim.core.observations import Capacity, HostCapacity
from ppsim.core.rank import Rank

Tokens: TypeAlias = tuple[int, int]
"""Capacity of the KV pool, and of the host tier (0: there is none)."""


def lower(a: Tokens, b: Tokens) -> Tokens:
    return min(a[0], b[0]), min(a[1], b[1])


def fingerprint(config: RankConfig) -> str:
    """Digest of all arguments that the ranks of a run share."""
    given = [argument.name for argument in fields(config) if argument.init]
    shared = {name: str(getattr(config, name)) for name in given if name not in ("pp_rank", "tp_rank")}
    return digest(sorted(shared.items()))


def agree_on_start(rank: Rank) -> Effects[None]:
    """Agree on the capacities and start the scheduler. Raises ProtocolError if the arguments differ."""
    pool = (yield from observe(Capacity(), -1)).value[0]
    host = (yield from observe(HostCapacity(), -1)).value[0] if rank.config.hicache_write_policy else 0
    local = rank.local_tokens = (pool, host)
    works: list[Work] = []
    stage_min = yield from _stage_minimum(rank, local, works)
    agreed = stage_min
    if rank.link.is_leader:
        agreed = yield from _ring_minimum(rank, stage_min, works)
    agreed = yield from _hand_out(rank, agreed, works)
    yield from commit_all(works)
    rank.start(agree(agreed[0], "start ring"), agree(agreed[1], "start ring"))


def _stage_minimum(rank: Rank, local: Tokens, works: list[Work]) -> Effects[Tokens]:
    link = rank.link
    if not link.is_leader:
        works.append((yield from link.send(link.leader, _message(rank, local))))
        return local
    lowest = local
    for replica in link.replicas:
        lowest = lower(lowest, (yield from _receive(rank, replica)))
    return lowest


def _ring_minimum(rank: Rank, stage_min: Tokens, works: list[Work]) -> Effects[Tokens]:
    link, config = rank.link, rank.config
    if config.pp_size == 1:
        return stage_min
    lowest = stage_min
    if not config.is_first:
        lowest = lower(lowest, (yield from _receive(rank, link.prev)))
    works.append((yield from link.send(link.next, _message(rank, lowest))))
    if config.is_last:
        return lowest
    agreed = yield from _receive(rank, link.prev)
    if config.pp_rank < config.pp_size - 2:
        works.append((yield from link.send(link.next, _message(rank, agreed))))
    return agreed


def _hand_out(rank: Rank, agreed: Tokens, works: list[Work]) -> Effects[Tokens]:
    link = rank.link
    if not link.is_leader:
        return (yield from _receive(rank, link.leader))
    for replica in link.replicas:
        works.append((yield from link.send(replica, _message(rank, agreed))))
    return agreed


def _message(rank: Rank, tokens: Tokens) -> Start:
    return Start(rank.link.rank_id, tokens[0], fingerprint(rank.config), host_tokens=tokens[1])


def _receive(rank: Rank, src: int) -> Effects[Tokens]:
    message = yield from rank.link.receive(Start, src, Lane.START, -1, -1)
    mine = fingerprint(rank.config)
    if message.fingerprint != mine:
        raise ProtocolError(
            rank.link.rank_id,
            -1,
            -1,
            f"arguments with fingerprint {mine}",
            message.fingerprint,
            f"rank {src} was started with other arguments",
            "INV-03",
        )
    return message.capacity_tokens, message.host_tokens
