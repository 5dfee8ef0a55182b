"""How anything looks at a rank while it runs: before the world answers an effect, and after. One way, in both worlds.

Rule: an observer changes nothing that a rank decides. It may keep records; it may raise, and so end the run. A world
calls ``befores[type(effect)]`` once when the rank has yielded the effect, however often it has to try to answer it, and
``afters[type(effect)]`` once with the reply; in the order in which they were hung there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from types import GeneratorType
from typing import Any, Protocol, TypeAlias, get_args

from ppsim.core.effects import Effect
from ppsim.core.messages import NewRequest
from ppsim.core.observations import CopyKey
from ppsim.core.rank import Rank

EFFECTS: tuple[type[Effect], ...] = get_args(Effect)

Before: TypeAlias = Callable[[Any], None]
"""Is given the effect."""
After: TypeAlias = Callable[[Any, Any], None]
"""Is given the effect and the reply."""


class Observers:
    """Those who look at one rank."""

    def __init__(self) -> None:
        self.befores: dict[type[Effect], tuple[Before, ...]] = dict.fromkeys(EFFECTS, ())
        self.afters: dict[type[Effect], tuple[After, ...]] = dict.fromkeys(EFFECTS, ())

    def before(self, look: Before, *effects: type[Effect]) -> None:
        """Hang an observer; without ``effects`` it sees all of them."""
        for effect in effects or EFFECTS:
            self.befores[effect] += (look,)

    def after(self, look: After, *effects: type[Effect]) -> None:
        """The same for what comes after the reply."""
        for effect in effects or EFFECTS:
            self.afters[effect] += (look,)


class Seat(Protocol):
    """A rank as those who judge it see it: itself, and what only its world can say of it."""

    @property
    def rank(self) -> Rank: ...

    @property
    def rank_id(self) -> int: ...

    @property
    def now(self) -> int:
        """The rank's clock (ns): virtual in a simulation, real on a machine."""
        ...

    @property
    def observers(self) -> Observers: ...

    @property
    def stored(self) -> Mapping[str, Sequence[int | None]]:
        """By request: the statuses of all ranks that the last look into the consensus store found (first rank).

        Missing: nobody here can know.
        """
        ...

    def phase(self) -> str:
        """The phase in which the loop stands (``phase_of``)."""
        ...

    def iteration_of(self, rank_id: int) -> int | None:
        """The iteration in which another rank is at this moment; None: it has ended, or nobody here can know."""
        ...

    def transfer_of(self, rid: str) -> int | None:
        """KVPoll of the rank's own transfer of a request that it has finished sending or given pages for; else None."""
        ...

    def copy(self, key: CopyKey) -> tuple[int, int] | None:
        """When the rank's own copy between two tiers begins and ends (ns of its clock); None: it was never begun."""
        ...

    def fetched(self, key: CopyKey) -> int | None:
        """Prompt tokens of which storage had the KV, as this rank's own fetch has found it; None: unknown here."""
        ...

    @property
    def launched_ns(self) -> int | None:
        """When the forward pass launched last begins on the device (ns of its clock); None: nobody here can know."""
        ...

    def other_side(self, rid: str) -> str:
        """How far the other pipeline is with a request: "absent", or KVPoll in small letters; empty: nobody knows."""
        ...

    def status_of(self, rank_id: int, rid: str) -> int | None:
        """KVPoll of any rank's own sender of a request at this moment; None where nobody here can know."""
        ...

    def landed(self, rid: str) -> Sequence[tuple[int, Sequence[tuple[int, int]]]] | None:
        """Decode rank: for each prefill rank that writes to it the token ranges that are here; None: unknown here."""
        ...

    def first_sampled(self, request: NewRequest) -> int | None:
        """Decode rank: the first token, as the prefill side's last stage has sampled it; None: unknown here."""
        ...

    def content(self, payload: object) -> int:
        """What is in the reply to a launch, or in the payload of a message: equal numbers for equal contents."""
        ...

    def sender_failed_ns(self, rid: str) -> int | None:
        """Prefill role: when the rank's own transfer of a request failed (ns of its clock); None: not as far as known.

        A world may let ranks run ahead of what they do not look at, so it may come to know of it later than the rank's
        clock says.
        """
        ...

    def sampled(self, reply: object) -> tuple[int, ...]:
        """The tokens behind the reply to a launch on the last stage, one a row."""
        ...


def phase_of(loop: Generator[Any, Any, Any]) -> str:
    """Name of the phase in which an event loop stands, for reports.

    The loop knows it, and not the generator that it waits for: that may be a part of the phase.
    """
    if not isinstance(loop, GeneratorType):
        return "ended"
    steps, frame = loop.gi_yieldfrom, loop.gi_frame
    if not isinstance(steps, GeneratorType) or frame is None:
        return loop.__name__
    phase = frame.f_locals.get("phase")
    return str(getattr(phase, "__name__", steps.__name__))


def last_phase(r: Seat) -> str:
    """The phase with which an iteration of a rank ends: where it stood when what is told too late has happened."""
    return r.rank.plan[-1].__name__ if r.rank.plan else ""


def phase_of_error(error: BaseException) -> str:
    """Name of the phase in which an event loop stood when an error unwound it; empty where no loop was running."""
    while error.__cause__ is not None:  # SimPy raises another one from it
        error = error.__cause__
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_name != "event_loop_pp":
        trace = trace.tb_next
    if trace is None:
        return ""
    phase = trace.tb_frame.f_locals.get("phase")
    inner = trace.tb_next.tb_frame.f_code.co_name if trace.tb_next is not None else ""
    return str(getattr(phase, "__name__", inner)) if inner else ""  # else the loop itself has raised it
