"""The order in which waiting requests are tried (protocol.md 4.2 step 5).

``fcfs`` keeps the order of the queue, requests of a higher ``priority`` first. ``lpm`` sorts by matched prefix, longest
first, for good; with more than 128 waiting requests it falls back to fcfs. The whole prompt is looked up for that,
which splits nodes and refreshes recency accordingly; only the key of the sort leaves the last token out.

A request that shares 32 or more leading tokens with an earlier waiting one, and hits at most 32 itself, goes last: once
the earlier one has run, it will hit.
"""

from __future__ import annotations

from operator import attrgetter

from ppsim.core.config import RankConfig
from ppsim.core.memory.kv import KVCache
from ppsim.core.schedule.request import Request

MAX_LPM_QUEUE = 128
CHECK_THRESHOLD = 32  # tokens; IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD
DEPRIORITIZE_THRESHOLD = 32  # tokens; IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD

priority_of = attrgetter("spec.priority")


def waiting_order(config: RankConfig, waiting: list[Request], kv: KVCache) -> list[Request]:
    """The queue in the order of the schedule policy. The matches of lpm split nodes and refresh recency."""
    if config.schedule_policy != "lpm" or not config.enable_radix_cache or len(waiting) > MAX_LPM_QUEUE:
        if not any(map(priority_of, waiting)):
            return waiting
        return sorted(waiting, key=lambda r: -r.spec.priority)
    heads: dict[bytes, str] = {}
    rank: dict[str, int] = {}
    for request in waiting:
        found = kv.match_whole(request)
        hit = found.num_tokens
        rank[request.rid] = -min(hit + found.host_tokens, request.seq_len - 1)
        if hit > CHECK_THRESHOLD or request.seq_len < DEPRIORITIZE_THRESHOLD:
            continue
        head = request.tokens(DEPRIORITIZE_THRESHOLD)
        if head in heads:
            rank[request.rid] = 1  # behind everything that hits nothing
        else:
            heads[head] = request.rid
    return sorted(waiting, key=lambda r: rank[r.rid])
