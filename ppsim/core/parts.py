"""What a rank is built from (design decision 8): the right class for each part, or a subclass in its place.

A rank is put together here and nowhere else. Whoever wants another one subclasses the class
that holds the rule and overrides a method of it; ``Parts(cache=MyCache)`` puts it in place, all else stays as it is.

    part        what it holds                                                           file
    rank        the state of a rank; which clock it watches, where its layers begin     rank.py
    endpoint    who may send what to whom, typed inboxes                                channels.py
    loop        the list of phases                                                      loop.py
    exchange    the ring of outputs                                                     exchange.py
    voting      the two passes of a vote                                                votes.py
    chain       what the first stage decides for all                                    chain.py
    scheduler   which batch a slot runs; inputs, aborts, harvest                        scheduler.py, intake.py
    slots       the slot ring, a rank's logical clock                                   slots.py
    kv          KV between requests, tree and pool                                      kv.py
    pool        pages and their holders                                                 pool.py
    cache       the prefix tree                                                         prefix.py
    tiers       the prefix tree where it has a host tier                                hicache.py
    plain, prefill, decode   the queues around the scheduler                            roles.py, prefill.py, decode.py
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from ppsim.core.chain import Chain
from ppsim.core.channels import Endpoint
from ppsim.core.config import RankConfig
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.disagg.roles import Role
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.memory.hicache import HiRadixCache
from ppsim.core.memory.kv import KVCache
from ppsim.core.memory.pool import Pool
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.core.schedule.journal import Journal
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import SlotRing
from ppsim.core.surroundings import Surroundings
from ppsim.core.votes import Voting


@dataclass(frozen=True, slots=True)
class Parts:
    """The class of each part. The defaults are the protocol."""

    rank: type[Rank] = Rank
    endpoint: type[Endpoint] = Endpoint
    loop: type[Loop] = Loop
    exchange: type[Exchange] = Exchange
    voting: type[Voting] = Voting
    chain: type[Chain] = Chain
    scheduler: type[Scheduler] = Scheduler
    slots: type[SlotRing] = SlotRing
    kv: type[KVCache] = KVCache
    pool: type[Pool] = Pool
    tiers: type[HiRadixCache] = HiRadixCache
    cache: type[RadixCache] = RadixCache
    prefill: type[PrefillRole] = PrefillRole
    decode: type[DecodeRole] = DecodeRole
    plain: type[Role] = Role

    def kv_cache(self, config: RankConfig, num_tokens: int, host_tokens: int, policy: Policy) -> KVCache:
        """An empty KV cache of ``num_tokens``, with a host tier of ``host_tokens`` where the configuration has one."""
        pool = self.pool(num_tokens, config.page_size)
        if config.hicache_write_policy:
            return self.kv(config, pool, self.tiers(pool, policy, host_tokens, config.hicache_write_policy))
        return self.kv(config, pool, self.cache(pool, policy))

    def make_scheduler(
        self, config: RankConfig, num_tokens: int, host_tokens: int, policy: Policy, journal: Journal | None = None
    ) -> Scheduler:
        """A scheduler over empty queues. Capacities in tokens, the same on all ranks."""
        slots = self.slots(config.pp_size, config.pp_async_batch_depth)
        scheduler = self.scheduler(
            config, self.kv_cache(config, num_tokens, host_tokens, policy), slots, policy, journal
        )
        roles: dict[str, type[Role]] = {"prefill": self.prefill, "decode": self.decode}
        scheduler.role = roles.get(config.role, self.plain)(scheduler)
        return scheduler


RIGHT = Parts()


def place_of(part: type) -> type | None:
    """The right class that this one is to stand in for: the narrowest that it subclasses; None: a part of no rank.

    Raises TypeError for one class that would be two parts: only one of them could be had.
    """
    fits = [getattr(RIGHT, field.name) for field in fields(Parts) if issubclass(part, getattr(RIGHT, field.name))]
    narrowest = [one for one in fits if not any(other is not one and issubclass(other, one) for other in fits)]
    if len(narrowest) > 1:
        names = " and ".join(one.__name__ for one in narrowest)
        raise TypeError(f"{part.__name__} subclasses {names}: write a class for each (see: docs/plugins.md)")
    return narrowest[0] if narrowest else None


def parts_with(changed: Iterable[type]) -> Parts:
    """The right parts, but for these subclasses of them; the methods of an earlier one go first.

    A subclass of the prefix tree serves with and without a host tier, one of Role in every role. Raises TypeError for a
    class that is a part of no rank or two of them, and for classes that have no common subclass.
    """
    given = tuple(dict.fromkeys(changed))
    for part in given:
        if place_of(part) is None:
            raise TypeError(f"{part.__name__} subclasses no part of a rank (see: docs/plugins.md)")
    return Parts(**{field.name: stand_in(getattr(RIGHT, field.name), given) for field in fields(Parts)})


def stand_in(right: type, given: tuple[type, ...]) -> type:
    """One class that serves as ``right`` and has the methods of all that are meant for its place."""
    bases = [part for part in given if issubclass(right, place_of(part) or object) and part not in right.__mro__]
    if not bases:
        return right
    if len(bases) == 1 and issubclass(bases[0], right):
        return bases[0]
    bases.append(right)  # behind all of them: also behind a change of what it subclasses itself
    own = {"__module__": bases[0].__module__}  # it is no class of the core, although it is made here
    return type("And".join(part.__name__ for part in bases), tuple(bases), own)


def build_rank(config: RankConfig, parts: Parts = RIGHT, policy: Policy | None = None) -> Rank:
    """A rank that has not started yet."""
    policy = policy or Policy(config.pp_rank, config.tp_rank)
    rank = parts.rank(config, policy, parts.endpoint(config), parts.make_scheduler)
    loop = parts.loop(rank.config, parts.exchange(), parts.voting(), parts.chain())
    rank.plan, rank.at_end = loop.plan(), loop.at_end()
    return rank


@dataclass(frozen=True, slots=True)
class Change:
    """What a run does otherwise than the protocol: parts, a policy, a world. Without arguments: nothing."""

    parts: Parts = RIGHT
    policy: type[Policy] = Policy
    surroundings: type[Surroundings] = Surroundings

    def rank(self, config: RankConfig) -> Rank:
        """A rank with this change, which has not started yet."""
        return build_rank(config, self.parts, self.policy(config.pp_rank, config.tp_rank))


UNCHANGED = Change()

__all__ = ["RIGHT", "UNCHANGED", "Change", "Parts", "build_rank", "parts_with", "place_of"]
