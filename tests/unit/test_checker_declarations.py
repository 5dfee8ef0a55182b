"""Declared calls: they cost nothing, show only what means the same everywhere, and single instances are wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppsim.core.agreed import agree
from ppsim.core.agreed_call import agreed_call, declaration, parse, render
from ppsim.core.checker import Checker, watch_calls
from ppsim.core.config import RankConfig
from ppsim.core.memory.pool import Pool
from ppsim.core.messages import AbortReq, NewRequest
from ppsim.core.parts import build_rank
from ppsim.core.schedule.request import Request


class Shop:
    """A few declared methods."""

    def __init__(self) -> None:
        self.stock = [1, 2, 3]

    @agreed_call("INV-23", "count", "len(labels)", "price.numerator", result=("result.1",), state=("len(stock)",))
    def sell(self, count: int, labels: tuple[str, ...] = ("a", "b"), *, price: Fraction = Fraction(1, 2)) -> Any:
        del self.stock[:count]
        return object(), (count, *labels)

    @agreed_call("INV-26")
    def close(self) -> None:
        raise RuntimeError("the door is stuck")

    def undeclared(self) -> None:
        pass


class CornerShop(Shop):
    def sell(self, count: int, labels: tuple[str, ...] = ("a", "b"), *, price: Fraction = Fraction(1, 2)) -> Any:
        return super().sell(count, labels, price=price)


def watched_shop(shop: Shop) -> Checker:
    checker = Checker(10, 4, lambda: 6)
    watch_calls(checker, [shop])
    return checker


def texts(checker: Checker) -> list[tuple[str, str]]:
    return [(call.name, call.text) for call in checker.window]


def test_a_declaration_leaves_the_very_same_function() -> None:
    def method(self: object, count: int) -> int:
        return count

    assert agreed_call("INV-23", "count")(method) is method


def test_a_call_is_recorded_with_parameters_result_and_state_before_and_after() -> None:
    shop = Shop()
    checker = watched_shop(shop)
    assert shop.sell(2)[1] == (2, "a", "b")
    shop.sell(1, labels=("x",), price=Fraction(5, 7))
    assert texts(checker) == [
        ("Shop.sell", "called(count=2, len(labels)=2, price.numerator=1) [len(stock)=3]"),
        ("Shop.sell", "returned(result.1=[2, 'a', 'b']) [len(stock)=1]"),
        ("Shop.sell", "called(count=1, len(labels)=1, price.numerator=5) [len(stock)=1]"),
        ("Shop.sell", "returned(result.1=[1, 'x']) [len(stock)=0]"),
    ]
    assert {(call.iteration, call.slot, call.invariant) for call in checker.window} == {(6, 2, "INV-23")}


def test_only_the_given_instance_is_wrapped() -> None:
    shop, other = Shop(), Shop()
    checker = watched_shop(shop)
    other.sell(1)
    shop.undeclared()
    assert texts(checker) == []
    assert not vars(other).keys() - {"stock"}
    assert vars(shop).keys() == {"stock", "sell", "close"}


def test_an_exception_leaves_the_second_entry_out_and_goes_through() -> None:
    shop = Shop()
    checker = watched_shop(shop)
    with pytest.raises(RuntimeError, match="the door is stuck"):
        shop.close()
    assert texts(checker) == [("Shop.close", "called()")]


def test_an_override_inherits_the_declaration() -> None:
    assert declaration(CornerShop, "sell") is declaration(Shop, "sell") is not None
    shop = CornerShop()
    checker = watched_shop(shop)
    shop.sell(1)
    assert [name for name, _ in texts(checker)] == ["CornerShop.sell", "CornerShop.sell"]


@pytest.mark.parametrize(
    ("params", "result", "problem"),
    [
        (("price",), (), "'price' names no parameter"),
        (("self.stock",), (), "'self.stock' names no parameter"),
        (("count",), ("count",), "start with 'result'"),
        (("count + 1",), (), "cannot read"),
        (("len(count",), (), "cannot read"),
        (("",), (), "cannot read"),
    ],
)
def test_a_wrong_expression_is_refused_where_it_is_written(
    params: tuple[str, ...], result: tuple[str, ...], problem: str
) -> None:
    def method(self: object, count: int) -> int:
        return count

    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        agreed_call("INV-23", *params, result=result)(method)


def test_a_number_in_a_path_is_a_place_in_a_tuple() -> None:
    assert parse("result.1.0").value(("a", ("b", "c"))) == "b"
    assert parse("len(result.1)").value(("a", ("b", "c"))) == 2


# --- what may be shown -----------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


PLAIN = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.sampled_from(Colour)
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=12)


def canonical(value: object) -> object:
    """Equality that tells True from 1, which Python's does not."""
    return tuple(canonical(v) for v in value) if isinstance(value, tuple) else (type(value).__name__, value)


@given(VALUES, VALUES)
def test_two_values_are_shown_alike_exactly_where_they_are_equal(a: object, b: object) -> None:
    assert (render(a) == render(b)) == (canonical(a) == canonical(b))


def test_token_bytes_are_shown_by_length_and_digest() -> None:
    assert render(b"abcd").startswith("<4 bytes ")
    assert render(b"abcd") != render(b"abce")
    assert len(render(bytes(10**6))) < 40


def test_frozen_records_are_shown_by_their_fields() -> None:
    assert render(AbortReq("R1", reason="late")) == "AbortReq(rid='R1', abort_all=False, reason='late')"
    assert render(agree(("a",), "vote")) == "Agreed(value=['a'], origin='vote')"
    assert render(AbortReq("R1")) != render(AbortReq("R2"))


@dataclass
class Changeable:
    size: int


@pytest.mark.parametrize("thing", [object(), Pool(8, 1), Changeable(3), 0.5, {"a": 1}, {1, 2}])
def test_what_has_an_identity_or_no_order_is_refused_rather_than_shown_with_an_address(thing: object) -> None:
    with pytest.raises(TypeError, match=f"a {type(thing).__name__} cannot be compared between ranks"):
        render((1, thing))


def test_a_request_is_no_value_but_its_fields_are() -> None:
    request = Request(NewRequest("R1", b"\0\0\0\0", 1))
    with pytest.raises(TypeError, match="a Request cannot be compared"):
        render(request)
    assert render(parse("request.rid").value(request)) == "'R1'"


# --- off and on ------------------------------------------------------------------------------------------------


def owners_of(config: RankConfig) -> list[object]:
    rank = build_rank(config)
    rank.start(agree(64, "test"))
    scheduler = rank.scheduler
    return [scheduler, scheduler.role, scheduler.kv, scheduler.kv.tree, scheduler.kv.pool]


@pytest.mark.parametrize("role", ["plain", "prefill", "decode"])
def test_nothing_is_wrapped_where_the_checker_is_off_or_there_is_nobody_to_compare_with(role: str) -> None:
    off = RankConfig(0, 2, role=role)
    alone = RankConfig(0, 1, consensus_check_interval=5)
    for config in (off, alone):
        for owner in owners_of(config):
            wrapped = [name for name in vars(owner) if declaration(type(owner), name)]
            assert not wrapped


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("plain", {"schedule", "absorb", "apply", "alloc", "release", "share", "match", "insert", "evict", "finish"}),
        ("prefill", {"schedule", "apply_bootstrap", "apply_release"}),
        ("decode", {"schedule", "apply_prealloc", "apply_transferred", "apply_retract"}),
    ],
)
def test_cache_pool_scheduler_and_role_are_watched_where_it_is_on(role: str, expected: set[str]) -> None:
    owners = owners_of(RankConfig(0, 2, role=role, consensus_check_interval=5))
    wrapped = {name for owner in owners for name in vars(owner) if declaration(type(owner), name)}
    assert expected <= wrapped
    replicas = owners_of(RankConfig(0, 1, tp_replicas=2, consensus_check_interval=5))
    assert "alloc" in vars(replicas[-1])
