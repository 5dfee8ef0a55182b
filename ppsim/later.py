"""A module that is loaded when something of it is first used, so that a command that never does so starts without it.

The file that uses one says so where its imports are:

    if TYPE_CHECKING:
        import numpy as np
    else:
        np = later("numpy")
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands for the module ``name``. What was asked for once is an ordinary attribute from then on."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(import_module(self.__name__), attribute)
        setattr(self, attribute, value)
        return value

    def __repr__(self) -> str:
        return f"<module {self.__name__!r}, loaded when it is used>"


def later(name: str) -> Any:
    """The module ``name``, not yet loaded. Raises ImportError at its first use where there is none."""
    return Later(name)
