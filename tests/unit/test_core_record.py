"""A record is a frozen dataclass to the type check and to whoever compares, hashes, prints or matches it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ppsim.core.record import record
from ppsim.core.schedule.batch import ForwardBatch, Mode, Piece
from ppsim.core.schedule.journal import Delivered, Retracted, Unfit


@record
class Cheap:
    rid: str
    n: int = 1
    seen: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Frozen:
    rid: str
    n: int = 1
    seen: object = field(default=None, compare=False, repr=False)


SOURCE = """from ppsim.core.record import record
@record
class Token:
    n: int
token = Token(1)
token.n = 2
Token('1')
"""
VALUES = [("a", 1, None), ("a", 1, [2]), ("a", 2, None), ("b", 1, None)]


@pytest.mark.parametrize("a", VALUES)
@pytest.mark.parametrize("b", VALUES)
def test_it_compares_hashes_and_prints_as_its_frozen_twin(
    a: tuple[str, int, object], b: tuple[str, int, object]
) -> None:
    assert (Cheap(*a) == Cheap(*b)) is (Frozen(*a) == Frozen(*b))
    assert hash(Cheap(*a)) == hash(Frozen(*a))
    assert repr(Cheap(*a)) == repr(Frozen(*a)).replace("Frozen", "Cheap")
    assert replace(Cheap(*a), n=7) == Cheap(a[0], 7)
    match Cheap(*a):
        case Cheap(rid, n):
            assert (rid, n) == a[:2]


def test_records_of_two_kinds_are_never_equal() -> None:
    assert Retracted("a") != Unfit("a")
    assert Delivered("a", 1, 2) != ("a", 1, 2)


def test_it_has_no_room_for_a_field_that_it_does_not_declare() -> None:
    with pytest.raises(AttributeError):
        Delivered("a", 1, 2).note = ""  # type: ignore[attr-defined]


def test_the_type_check_refuses_to_change_one(tmp_path: Path) -> None:
    """What holds a record is mypy alone: so mypy must hold it."""
    api = pytest.importorskip("mypy.api")
    (tmp_path / "change.py").write_text(SOURCE, encoding="utf-8")
    told, _, status = api.run(["--follow-imports=silent", str(tmp_path / "change.py")])
    assert status == 1, told
    assert 'change.py:6: error: Property "n" defined in "Token" is read-only' in told
    assert 'change.py:7: error: Argument 1 to "Token" has incompatible type "str"' in told
    assert told.count("error:") == 2


def test_a_piece_is_known_by_what_it_covers_and_not_by_the_request_behind_it() -> None:
    class Row:
        pages: list[int] = []

        def input_ids(self, start: int, stop: int) -> list[int]:
            return []

    assert Piece("a", 0, 4, True, False, Row()) == Piece("a", 0, 4, True, False, Row())
    assert replace(ForwardBatch(1, 0, Mode.DECODE, (), 1, False, False), slot=2).slot == 2
