"""Records that are made many times in each visit of a slot, some for every token: effects, messages, pieces.

Rule: nobody writes to one. The type check holds that, as of a frozen dataclass. When it runs such a record is a plain
one, because to freeze it costs as much as all else that happens to it: a frozen dataclass sets each field through a
call (1.1 us for three fields, against 0.25 us). Records that are seldom made are frozen dataclasses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots, equal and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
