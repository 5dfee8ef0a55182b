"""What a rank may look at and ask for: two closed sets, as their tables say."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from ppsim.core import actions, observations
from ppsim.core.actions import ACTIONS, Compile
from ppsim.core.effects import AwaitLocal, Observe, act, await_local, observe
from ppsim.core.observations import OBSERVATIONS, Compiled, Copied, Copies, CopyKey


def rows(doc: str | None) -> list[list[str]]:
    """The cells of the table in a module's docstring, without its head."""
    lines = [line.strip() for line in (doc or "").splitlines() if line.startswith("    ")]
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines][1:]


def test_the_table_of_observations_names_each_with_its_word_and_its_keys() -> None:
    told = {row[0]: (row[1], row[2]) for row in rows(observations.__doc__)}
    kinds = {"Rids": "rids", "tuple[CopyKey, ...]": "copies"}
    keys = {kind: kinds[str(f.type)] for kind in OBSERVATIONS for f in fields(kind)}
    assert told == {kind.__name__: (kind.word, keys.get(kind, "-")) for kind in OBSERVATIONS}
    assert len({kind.word for kind in OBSERVATIONS}) == len(OBSERVATIONS)


def test_the_table_of_acts_names_each_with_its_arguments() -> None:
    told = {row[0]: row[1] for row in rows(actions.__doc__)}
    assert told == {kind.__name__: ", ".join(f.name for f in fields(kind)) for kind in ACTIONS}


@pytest.mark.parametrize("kind", [*OBSERVATIONS, *ACTIONS, Compiled, Copied], ids=lambda kind: kind.__name__)
def test_each_is_frozen(kind: type) -> None:
    assert is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_recordings_and_reports_call_them_by_their_words() -> None:
    key = CopyKey("write", "R:1#2", 3)
    seen = Observe(Copies((key,)), 7)
    assert (seen.what, seen.keys) == ("hicache", ("write:R:1#2#3",))
    awaited = AwaitLocal(Copied(key), 7)
    assert (awaited.what, awaited.key) == ("hicache", "write:R:1#2#3")


def test_a_copy_knows_its_owner_whatever_is_in_the_name_and_also_in_another_process() -> None:
    key = CopyKey("fetch", "a:b#c", 1)
    again = pickle.loads(pickle.dumps(key))
    assert (again, again.kind, again.owner, again.number) == ("fetch:a:b#c#1", "fetch", "a:b#c", 1)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            lambda: observe("clock_ms", 3),
            "'clock_ms' is nothing that a rank may look at: Capacity, HostCapacity, ",
        ),
        (lambda: await_local(Compile("R", "json"), 3), "is nothing that a rank may wait for: Compiled, Copied "),
        (
            lambda: act(Compiled("R")),
            r"Compiled\(key='R'\) is nothing that a rank may ask for: Compile, ",
        ),
    ],
)
def test_what_is_in_no_set_is_refused_with_what_is(asked: Callable[[], Any], told: str) -> None:
    """A plug-in that was written for another release names things that are not there any more."""
    with pytest.raises(TypeError, match=told):
        next(asked())
