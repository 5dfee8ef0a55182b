"""Records that are made for every token and every launch: frozen to the type check, cheap to make.

Rule: nobody changes a record, and mypy refuses it as for any frozen dataclass. A dataclass that is frozen when it runs
sets each field by ``object.__setattr__``, which makes it four times as dear to create (0.6 us for six fields instead
of 0.13): several of them a token are a tenth of a run. So what is made by the thousand is held by the type check alone.
Equality, hash, ``repr``, ``replace`` and ``match`` are those of a frozen dataclass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen: bool, slots: bool):
        """As ``dataclass``; used as ``@record(frozen=True, slots=True)`` and no other way."""
        if not frozen:
            raise TypeError("a record is frozen: @record(frozen=True, slots=True)")
        return dataclass(slots=slots, unsafe_hash=True)


__all__ = ["record"]
