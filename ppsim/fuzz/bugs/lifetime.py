"""Bugs of launched batches, of KV in flight and of features. Invariants 5, 6, 63, 64 (59, 60: ``abort.py``)."""

from __future__ import annotations

from ppsim.core.effects import Effects
from ppsim.core.loop import Loop
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.plugin import planted
from ppsim.plugin.plans import behind, does, instead, named


@planted("harvest_put_off", breaks="INV-05", profile="plain", source="protocol.md 1.4")
class HarvestPutOff(Loop):
    """A harvest that comes at a bad moment is put off to the next visit, on all ranks alike."""

    def plan(self) -> Plan:
        steps = super().plan()
        for name in ("harvest", "absorb_outputs"):
            for phase in named(steps, name):
                steps = instead(steps, name, self.put_off(phase))
        return steps

    def put_off(self, phase: Phase) -> Phase:
        def run(rank: Rank) -> Effects[None]:
            slot = rank.scheduler.slots.to_harvest(rank.iteration)
            was_in_flight = slot.in_flight
            if rank.iteration % 5 == 4:
                slot.in_flight = False
            yield from phase(rank)
            if rank.iteration % 5 == 4:
                slot.in_flight = was_in_flight

        run.__name__ = phase.__name__
        return run


@planted("harvest_left_out", breaks="INV-06", profile="plain", source="protocol.md 12, invariant 6")
class HarvestLeftOut(Loop):
    """Now and then nobody harvests, and the slot is scheduled again over the batch in it."""

    def plan(self) -> Plan:
        steps = super().plan()
        for phase in named(steps, "harvest"):
            steps = instead(steps, "harvest", self.left_out(phase))
        return steps

    def left_out(self, phase: Phase) -> Phase:
        def harvest(rank: Rank) -> Effects[None]:
            if rank.iteration % 5 != 4:
                yield from phase(rank)

        return harvest


@planted("cache_off_on_one_rank", breaks="INV-63", profile="plain", source="protocol.md 12, invariant 63")
class CacheOffOnOneRank(Loop):
    """The last rank switches its radix cache off after an exception of its own."""

    def plan(self) -> Plan:
        steps = super().plan()

        def switch_off(rank: Rank) -> None:
            if rank.config.is_last and rank.iteration == 3 and not rank.config.is_first:
                rank.scheduler.kv.enable_radix_cache = False

        return behind(steps, "apply_inputs", does(switch_off))


@planted("pages_freed_at_the_last_launch", breaks="INV-64", profile="plain", source="bugs.md I10")
class PagesFreedAtTheLastLaunch(Loop):
    """A request's own pages go back to the pool when its last token is launched, not when it is harvested."""

    def plan(self) -> Plan:
        steps = super().plan()

        def free_early(rank: Rank) -> None:
            kv = rank.scheduler.kv
            for request in rank.batch.requests if rank.batch is not None else ():
                last = (
                    request.spec.max_new_tokens - len(request.output_ids) <= 1 and request.inflight_middle_chunks == 0
                )
                if last and request is not rank.scheduler.chunked:
                    shared = request.cached_len // kv.pool.page_size
                    kv.pool.release(request.pages[shared:])
                    request.pages, request.kv_len = request.pages[:shared], request.cached_len

        return behind(steps, "launch_batch", does(free_early))
