"""Pure reducers of agreement, and the states they are about (protocol.md 6.1, 6.3, 6.4).

    ring vote    good sets by intersection, bad sets by union, both in queue order; bad wins
    min store    missing means Bootstrapping, otherwise the minimum over the ranks; so one Failed is Failed

Order matters as much as membership: an agreed set that is walked in hash order admits differently on two ranks
(bugs.md B16).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum


class KVPoll(IntEnum):
    """State of a KV transfer on one rank. Progress is monotonic; Failed is terminal."""

    FAILED = 0
    BOOTSTRAPPING = 1
    WAITING_FOR_INPUT = 2
    TRANSFERRING = 3
    SUCCESS = 4


Rids = tuple[str, ...]


def intersect(upstream: Rids, local: Rids) -> Rids:
    """What both sides have seen, in the order of upstream."""
    return tuple(rid for rid in upstream if rid in local)


def unite(upstream: Rids, local: Rids) -> Rids:
    """What either side has seen, upstream first."""
    return upstream + tuple(rid for rid in local if rid not in upstream)


def store_minimum(statuses: Sequence[int | None]) -> int:
    """Decision of the store for one request from each rank's replicated status."""
    if any(status is None for status in statuses):
        return KVPoll.BOOTSTRAPPING
    return min(status for status in statuses if status is not None)
