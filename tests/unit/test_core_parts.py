"""How a rank is put together from parts: who stands in for whom, in which order, and that nothing else changes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from ppsim.core.agreed import agree
from ppsim.core.checker import part_name
from ppsim.core.config import RankConfig
from ppsim.core.disagg.decode import DecodeRole
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.disagg.roles import Role
from ppsim.core.effects import Reply
from ppsim.core.loop import Loop
from ppsim.core.memory.hicache import HiRadixCache
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.messages import NewRequest
from ppsim.core.parts import RIGHT, Change, Parts, build_rank, parts_with, place_of
from ppsim.core.policy import Policy
from ppsim.core.rank import Rank
from ppsim.core.schedule.intake import Intake
from ppsim.core.schedule.request import Request
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot, SlotRing
from ppsim.core.surroundings import Surroundings
from ppsim.core.tokens import pack
from ppsim.errors import UsageError
from ppsim.plugin.loader import check_class
from ppsim.recording.digest import run_digest
from tests.worlds.making import UNIT, changed, requests, run
from tests.worlds.pd_making import PAIR

NAMES = [field.name for field in fields(Parts)]
ROLES: dict[str, type[Role]] = {"plain": Role, "prefill": PrefillRole, "decode": DecodeRole}


def started(parts: Parts, *, host_tokens: int = 0, **config: Any) -> Rank:
    """A rank of these parts with 64 tokens of KV."""
    rank = build_rank(RankConfig(0, 1, **config), parts)
    rank.start(agree(64, "test"), agree(host_tokens, "test"))
    return rank


def request(num_tokens: int = 4, output: int = 3) -> NewRequest:
    return NewRequest("R1", pack([1] * num_tokens), output)


# --- which place -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_subclass_of_a_part_takes_its_place_and_no_other(name: str) -> None:
    right = getattr(RIGHT, name)
    mine = type("Mine", (right,), {})
    lower = type("Lower", (mine,), {})
    assert [place_of(part) for part in (right, mine, lower)] == [right] * 3
    parts = parts_with([mine])
    assert getattr(parts, name) is mine
    others = [other for other in NAMES if not issubclass(getattr(RIGHT, other), right)]
    assert {other: getattr(parts, other) for other in others} == {other: getattr(RIGHT, other) for other in others}


@pytest.mark.parametrize("alien", [int, Policy, Surroundings, Intake, RankConfig])
def test_a_class_that_is_a_part_of_no_rank_is_refused_by_name(alien: type) -> None:
    """``Intake`` is what the scheduler subclasses: what it alone has could not stand in for a whole scheduler."""
    assert place_of(alien) is None
    mine = type("Mine", (alien,), {})
    with pytest.raises(TypeError, match=r"^Mine subclasses no part of a rank \(see: docs/plugins\.md\)$"):
        parts_with([Loop, mine])


@pytest.mark.parametrize(("one", "other"), [(Loop, SlotRing), (PrefillRole, DecodeRole), (RadixCache, Rank)])
def test_a_class_that_would_be_two_parts_is_refused(one: type, other: type) -> None:
    both = type("Both", (one, other), {})
    with pytest.raises(TypeError, match=r"^Both subclasses \w+ and \w+: write a class for each"):
        parts_with([both])
    with pytest.raises(UsageError, match=r"Both subclasses .*write a class for each"):
        check_class("file.py", both)


# --- several for one place -------------------------------------------------------------------------------------------


class Later(SlotRing):
    """Looks one iteration ahead."""

    def current(self, iteration: int) -> Slot:
        return super().current(iteration + 1)


class Twice(SlotRing):
    """Goes at double speed."""

    def current(self, iteration: int) -> Slot:
        return super().current(2 * iteration)


def test_of_two_changes_of_a_method_the_first_goes_first_and_both_hold() -> None:
    visited = {
        order: parts_with(order).slots(11, 0).current(3).index for order in ((Later, Twice), (Twice, Later), (Later,))
    }
    assert visited == {(Later, Twice): 2 * (3 + 1), (Twice, Later): 2 * 3 + 1, (Later,): 3 + 1}


def test_the_same_class_twice_and_the_right_class_itself_change_nothing() -> None:
    assert parts_with([Later, Later]) == parts_with([Later])
    assert parts_with(getattr(RIGHT, name) for name in NAMES) == RIGHT == Parts()
    assert parts_with([RadixCache, Later]) == parts_with([Later])


def test_classes_without_a_common_subclass_are_refused() -> None:
    below = type("Below", (Later,), {})
    with pytest.raises(TypeError):
        parts_with([Later, below])
    assert parts_with([below, Later]).slots(11, 0).current(3).index == 4


# --- one class for several places ------------------------------------------------------------------------------------


class Backwards(RadixCache):
    """The oldest is the newest, and nothing is ever evicted."""

    def stamp(self) -> int:
        return -self.clock

    def evict(self, num_pages: int) -> list[int]:
        return []


@pytest.mark.parametrize("write_policy", ["", "write_through", "write_back"])
def test_a_change_of_the_prefix_tree_holds_with_and_without_a_host_tier(write_policy: str) -> None:
    kv = started(parts_with([Backwards]), hicache_write_policy=write_policy, host_tokens=32).scheduler.kv
    assert isinstance(kv.tree, Backwards)
    assert (kv.tiers is not None) == bool(write_policy)
    if kv.tiers is not None:
        assert kv.tiers.host.capacity_tokens == 32
    pages = kv.pool.alloc(60)
    kv.tree.insert(pack(list(range(60))), pages)
    kv.pool.release(pages)
    (node,) = kv.tree.root.children.values()
    assert node.last_access < 0
    assert kv.tree.evict(60) == []
    assert part_name(type(kv.tree)) == ("HiRadixCache" if write_policy else "RadixCache")


def test_a_change_of_the_host_tier_is_not_asked_where_there_is_none() -> None:
    mine = type("Mine", (HiRadixCache,), {})
    assert type(started(parts_with([mine])).scheduler.kv.tree) is RadixCache
    assert type(started(parts_with([mine]), hicache_write_policy="write_through").scheduler.kv.tree) is mine


class Refuses(Role):
    """Serves nobody whose prompt is odd, and has a queue of its own."""

    def why_never(self, request: Request) -> str:
        return "odd" if request.prompt_len % 2 else super().why_never(request)

    def queues(self) -> dict[str, list[Request]]:
        return {**super().queues(), "mine": []}


@pytest.mark.parametrize("role", ROLES)
def test_a_change_of_the_role_holds_in_every_role_on_top_of_its_own_rules(role: str) -> None:
    scheduler = started(parts_with([Refuses]), role=role, num_reserved_decode_tokens=2).scheduler
    assert isinstance(scheduler.role, Refuses)
    assert isinstance(scheduler.role, ROLES[role])
    assert list(scheduler.role.queues()) == [*started(RIGHT, role=role).scheduler.role.queues(), "mine"]
    scheduler.apply([request(5)])
    assert [(reply.status, reply.reason) for reply in scheduler.journal.of(Reply)] == [("refused", "odd")]
    scheduler.apply([request(4)])
    assert len(scheduler.journal.of(Reply)) == 1
    assert list(scheduler.requests) == ["R1"]


class MoreTokens(Role):
    """Ten tokens more than the role would make."""

    def adapted(self, spec: NewRequest) -> NewRequest:
        spec = super().adapted(spec)
        return replace(spec, max_new_tokens=spec.max_new_tokens + 10)


class FewBuffers(PrefillRole):
    """One metadata buffer."""

    def __init__(self, scheduler: Intake) -> None:
        super().__init__(scheduler)
        self.num_buffers = 1


@pytest.mark.parametrize("order", [(MoreTokens, FewBuffers), (FewBuffers, MoreTokens)])
def test_a_change_of_one_role_and_one_of_all_roles_both_hold_in_either_order(order: tuple[type, ...]) -> None:
    """Both go before the right role, also the one that does not subclass it."""
    scheduler = started(parts_with(order), role="prefill").scheduler
    assert scheduler.role.num_buffers == 1
    scheduler.apply([request(output=3)])
    assert scheduler.requests["R1"].spec.max_new_tokens == 1 + 10  # a prefill server makes one token
    plain = started(parts_with(order)).scheduler
    plain.apply([request(output=3)])
    assert plain.requests["R1"].spec.max_new_tokens == 3 + 10


@pytest.mark.parametrize("order", [(Backwards, HiRadixCache), (HiRadixCache, Backwards)])
def test_a_change_of_the_tree_and_one_of_the_tiers_both_hold_in_either_order(order: tuple[type, ...]) -> None:
    given = [type("Tiers", (HiRadixCache,), {}) if part is HiRadixCache else part for part in order]
    tiers = started(parts_with(given), hicache_write_policy="write_through").scheduler.kv.tree
    assert all(isinstance(tiers, part) for part in given)
    assert tiers.evict(60) == []
    assert type(tiers).evict is Backwards.evict


# --- nothing else changes --------------------------------------------------------------------------------------------

LOAD = {
    "scheduler.pp_max_micro_batch_size": 4,
    "scheduler.max_total_tokens": 60,
    "scheduler.clip_max_new_tokens": 2,
    "run.invariants": True,
    "workload.requests": requests(6, prompt=9, output=9),
    "workload.aborts": [{"rid": "R2", "at_iteration": 6}],
}
SERVERS: dict[str, dict[str, Any]] = {
    "plain": {**UNIT, **LOAD},
    "tiers": {**UNIT, **LOAD, "hicache.enabled": True, "hicache.host_tokens": 64},
    "prefill": {**UNIT, **LOAD, "disaggregation.role": "prefill", "disaggregation.bootstrap": "vote"},
    "decode": {**UNIT, **LOAD, "disaggregation.role": "decode", "disaggregation.num_reserved_decode_tokens": 2},
    "pd": {**PAIR, "workload.requests": requests(6, prompt=9, output=9), "run.invariants": True},
}


@pytest.mark.parametrize("server", SERVERS)
def test_the_default_parts_and_subclasses_that_override_nothing_are_the_protocol(server: str) -> None:
    right = run({}, SERVERS[server])
    assert right.verdict.kind == "pass", right.verdict.message
    idle = {name: type(f"Idle{name}", (getattr(RIGHT, name),), {}) for name in NAMES}
    same = changed(*idle.values(), type("IdlePolicy", (Policy,), {}), type("IdleWorld", (Surroundings,), {}))
    for change in (Change(), Change(Parts()), same):
        result = run({}, SERVERS[server], change=change)
        assert result.verdict == right.verdict
        assert run_digest(result.recording) == run_digest(right.recording)
        assert result.recording.replies == right.recording.replies
        if right.recording.peer is not None:
            assert result.recording.peer is not None
            assert run_digest(result.recording.peer) == run_digest(right.recording.peer)
    rank = result.setting.ranks[0].rank  # the last one: it did run with the subclasses
    assert type(rank) is idle["rank"]
    assert isinstance(rank.scheduler, idle["scheduler"])
    assert isinstance(rank.scheduler.kv.tree, idle["cache"])
    assert type(rank.policy).__name__ == "IdlePolicy"
    assert type(result.setting.surroundings).__name__ == "IdleWorld"


def test_one_change_makes_a_policy_for_each_rank_that_knows_where_it_is() -> None:
    change = changed(type("Mine", (Policy,), {}), type("Also", (Scheduler,), {}))
    ranks = [change.rank(RankConfig(p, 2, tp_replicas=2, tp_rank=t)) for p in range(2) for t in range(2)]
    assert [(rank.policy.pp_rank, rank.policy.tp_rank) for rank in ranks] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {type(rank.policy).__name__ for rank in ranks} == {"Mine"}
    for rank in ranks:
        rank.start(agree(64, "test"))
    assert {type(rank.scheduler).__name__ for rank in ranks} == {"Also"}
    assert len({id(rank.policy) for rank in ranks}) == 4
    assert all(rank.scheduler.policy is rank.policy for rank in ranks)
