"""How a run ended, and where its ranks stood if it failed: what the judge of both worlds says, and a recording encodes.

The verdict is that of a run. What a vote comes to is a conclusion (``messages.Conclusion``).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

VerdictKind: TypeAlias = Literal["pass", "fail", "unknown"]


class Stand(NamedTuple):
    """Where a rank stood when a run failed."""

    rank: int
    iteration: int
    slot: int | None  # None: not known
    doing: str
    waits_for: int | None  # another rank of its pipeline; None: nobody
    since_ns: int | None  # when its last effect was over, on the clock of the spans; None: not known


class Verdict(NamedTuple):
    """How a run ended. ``message`` is the whole text for the user; the other fields say the same one by one.

    ``invariant`` is None where no numbered rule is broken (a limit was reached, a plug-in raised); ``rid`` is None
    where the failure is about no single request. ``expected``: what should have been; ``came``: what was.
    """

    kind: VerdictKind
    exit_code: int
    message: str = ""
    invariant: str | None = None
    rank: int | None = None
    iteration: int | None = None
    slot: int | None = None
    rid: str | None = None
    phase: str | None = None
    expected: str | None = None
    came: str | None = None


PASS = Verdict("pass", 0)
