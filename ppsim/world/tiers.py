"""Copies between device, host memory and storage as one rank sees them: when each is over, and what storage has.

    write   device -> host    after the forward passes that were launched before it
    load    host -> device    after the writes that were started before it, and after forward passes that may still
                              write to its pages (a duplicate's pages are free before its chunk is harvested)
    fetch   storage -> host   what this rank finds there may be shorter than what others find

Each kind has a link of its own, in order, at the bandwidth of ``[hicache]``. A launch waits on the device for loads,
and for write-backs whose pages it may overwrite. A copy is observed once it is over *and* its fact has come
(``observations``: iterations of this rank), so that ranks see the same copy in different iterations.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from typing import TYPE_CHECKING, assert_never

from ppsim.core.actions import Copy, FetchStored, LoadBack, WriteBack, WriteThrough
from ppsim.core.errors import InvariantViolation
from ppsim.core.observations import CopyKey
from ppsim.scenario.hicache import token_kv_bytes

if TYPE_CHECKING:
    from ppsim.world.run_setting import SimulatedSeat

NOT_DONE = -1


class Tiers:
    """Of one rank. All instants in nanoseconds of its host clock."""

    def __init__(self, r: SimulatedSeat) -> None:
        h = r.scenario.hicache
        self.r = r
        self.token_bytes = token_kv_bytes(r.scenario, r.rank.config.pp_rank)
        self.gb_per_s = {
            "write": h.device_host_gb_per_s,
            "load": h.device_host_gb_per_s,
            "prefetch": h.storage_gb_per_s,
        }
        self.storage_latency_ns = round(h.storage_latency_us * 1000)
        self.stored = {hit.rid: hit.tokens[r.rank_id] for hit in h.storage_hits}
        self.link_free = dict.fromkeys(self.gb_per_s, 0)
        self.num_empty = 0  # empty visits in a row
        self.num_still = 0  # those that took no time
        self.visited_ns = 0  # instant of the last visit
        self.fence_ns = 0  # a launch starts no earlier
        self.swapped_ns = 0  # end of the passes that may still write to pages that were given up
        self.begins: dict[CopyKey, int] = {}
        self.ends: dict[CopyKey, int] = {}
        self.hits: dict[CopyKey, int] = {}

    def start(self, copy: Copy) -> None:
        """Start a copy."""
        r, key = self.r, copy.key
        match copy:
            case WriteThrough(num_tokens=num_tokens) | WriteBack(num_tokens=num_tokens):
                kind, earliest = "write", r.streams.forward_free
            case LoadBack(num_tokens=num_tokens):
                kind, earliest = "load", max(self.link_free["write"], self.swapped_ns)
            case FetchStored(key, start, stop):
                kind, earliest = "prefetch", r.now
                num_tokens = self._hit(key, start, stop)
            case _:
                assert_never(copy)
        begins = max(r.now, self.link_free[kind], earliest)
        if kind == "prefetch":
            begins += self.storage_latency_ns
        self.begins[key] = begins
        end = self.link_free[kind] = self.ends[key] = begins + self._wire_ns(kind, num_tokens)
        if isinstance(copy, LoadBack | WriteBack):
            self.fence_ns = max(self.fence_ns, end)
        r.setting.recording.span(r.rank_id, kind, r.rank.slot, r.rank.iteration, begins, end)
        r.setting.facts.copy(r.rank_id, r.rank.iteration, kind, key)

    def swapped(self) -> None:
        """A duplicate's pages are free now; passes that are launched already may still write to them."""
        self.swapped_ns = self.r.streams.forward_free

    def _hit(self, key: CopyKey, start: int, stop: int) -> int:
        """Tokens that are read of what storage has on this rank; the hit length is of the whole prompt."""
        page = self.r.rank.config.page_size
        hit = min(self.stored.get(key.owner, 0) // page * page, stop)
        self.hits[key] = hit
        return max(0, hit - start)

    def _wire_ns(self, kind: str, num_tokens: int) -> int:
        """1 GB/s is a byte a nanosecond."""
        rate = Fraction(str(self.gb_per_s[kind]))
        return 0 if rate == 0 else -(-num_tokens * self.token_bytes * rate.denominator // rate.numerator)

    # --- looking -----------------------------------------------------------------------------------------------

    def finished(self, key: CopyKey, iteration: int) -> int:
        """Whether this rank sees the end of its own copy."""
        r = self.r
        is_seen = not r.setting.facts.iterations_until(r.rank_id, iteration, "copy", key)
        return int(key in self.ends and is_seen and self.ends[key] <= r.now)

    def agreed_hit(self, key: CopyKey) -> int:
        """On the first rank: the least that any rank has found, as the others' reports have arrived by now."""
        hits = []
        for peer in self.r.setting.ranks:
            assert peer.tiers is not None
            hits.append(peer.tiers.reported(key, self.r))
        return NOT_DONE if NOT_DONE in hits else min(hits)

    def reported(self, key: CopyKey, reader: SimulatedSeat) -> int:
        """What the reader knows of this rank's fetch. Of another rank it knows what happened before this instant."""
        r, facts = self.r, self.r.setting.facts
        if reader is r:
            return self.hits[key] if self.finished(key, r.rank.iteration) else NOT_DONE
        horizon = reader.now - r.setting.store_lag_ns
        iteration = bisect_left(r.iteration_starts, horizon) - 1
        is_over = key in self.ends and self.ends[key] < horizon
        if iteration < 0 or not is_over or facts.iterations_until(r.rank_id, iteration, "copy", key):
            return NOT_DONE
        return self.hits[key]

    def await_end(self, key: CopyKey) -> None:
        """The host blocks until the copy is over. Raises InvariantViolation for one that this rank has not begun."""
        if key not in self.ends:
            rank = self.r.rank
            text = f"the ack of {key} is to be consumed, but this rank has not begun the copy"
            raise InvariantViolation("INV-81", self.r.rank_id, rank.iteration, rank.slot, key.owner, text)
        self.r.now = max(self.r.now, self.ends[key])

    # --- sleeping ------------------------------------------------------------------------------------------------

    def visited(self, launched: bool) -> None:
        """A visit has come to its decision."""
        self.num_empty = 0 if launched else self.num_empty + 1
        self.num_still = 0 if launched or self.r.now > self.visited_ns else self.num_still + 1
        self.visited_ns = self.r.now

    def nothing_else_to_do(self) -> bool:
        """A whole sweep found nothing to launch, and only the end of a copy or an input can change that."""
        scheduler = self.r.rank.scheduler
        return self.num_empty >= len(scheduler.slots) and scheduler.waits_for_tiers

    def time_stands_still(self) -> bool:
        """A copy is under way beside what iterations bring (a compile, a handshake), and iterations take no time.

        That is so without host costs: the end of the copy would never come. All votes have gone round by then.
        """
        scheduler, config = self.r.rank.scheduler, self.r.rank.config
        is_still = self.r.now == self.visited_ns and self.num_still > 2 * (config.num_slots + config.pp_size)
        return is_still and scheduler.slots.drained and bool(scheduler.kv.outstanding)

    def wake_up_ns(self) -> int:
        """First rank, with nothing to do but to wait for copies: when looking again can help."""
        r, lag_ns = self.r, self.r.setting.store_lag_ns
        ends = [self.ends[key] for key in r.rank.scheduler.kv.outstanding if key in self.ends]
        for peer in r.setting.ranks:
            if peer is not r and peer.tiers is not None:
                keys = [fetch.key for fetch in r.rank.scheduler.kv.fetches_under_way]
                ends += [peer.tiers.ends[key] + lag_ns + 1 for key in keys if key in peer.tiers.ends]
        ends = [end for end in ends if end > r.now]
        poll_ns = round(r.scenario.host.idle_poll_us * 1000) or 1000
        arrival = r.setting.client.next_ns()
        target = min(ends, default=r.now + poll_ns)
        return target if arrival is None else min(target, max(arrival, r.now))
