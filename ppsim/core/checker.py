"""Rank consensus checker: the first call that differs between ranks, named at the next comparison (protocol.md 8).

Rule: the checker looks and never steers. With it the ranks take the same decisions in the same iterations; it has a
lane of its own, sends one message a window the way the hidden states go (``comparison.py``), and waits for nothing that
the protocol does not wait for anyway. Without it nothing is wrapped.

    every call of a declared method   two entries in the rank's log: called, returned (``agreed_call.py``)
    end of every N-th iteration       a rank takes MIN and MAX of the digests upstream, adds its own, passes them on
    last stage                        MIN < MAX: the first differing call of the window, all renderings, fail-stop

Stages are chained, each tensor-parallel replica on its own; the replicas of the first stage start from what its leader
has, so that every rank is compared with rank 0 and the leaders never wait for a replica.

The logs ride along: one for each distinct digest, so one as long as the ranks agree. The last stage can therefore name
the call in the very iteration in which the window ends, at most N - 1 iterations after the call. A digest covers the
calls as a tuple of tuples: no text can move from one call into the next without changing it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from ppsim.core.agreed_call import AgreedCall, declaration, show
from ppsim.core.config import RankConfig
from ppsim.core.effects import Work
from ppsim.core.messages import Call


class Checker:
    """The calls of one rank. ``window`` is compared next; ``earlier`` keeps what a report after a crash may need."""

    def __init__(self, interval: int, num_slots: int, iteration: Callable[[], int]) -> None:
        self.interval = interval
        self.num_slots = num_slots
        self.num_kept = interval + 2 * num_slots  # iterations; the ranks are at most pp_size of them apart
        self.iteration = iteration
        self.window: list[Call] = []
        self.earlier: deque[Call] = deque()
        self.works: deque[tuple[int, Work]] = deque()  # (iteration in which to commit it, handle)

    @property
    def log(self) -> tuple[Call, ...]:
        """All calls that are still kept, oldest first, starting with an iteration's first call."""
        return (*self.earlier, *self.window)

    def record(self, invariant: str, name: str, text: str) -> None:
        iteration = self.iteration()
        self.window.append(Call(iteration, iteration % self.num_slots, invariant, name, text))

    def close(self) -> tuple[Call, ...]:
        """End the window and return its calls."""
        calls, self.window = tuple(self.window), []
        self.earlier.extend(calls)
        oldest = self.iteration() - self.num_kept
        while self.earlier and self.earlier[0].iteration < oldest:
            self.earlier.popleft()
        return calls


def watch_calls(checker: Checker, owners: Iterable[object]) -> int:
    """Wrap every declared method of these instances, and of nothing else; the number of wrapped methods."""
    num_wrapped = 0
    for owner in owners:
        for name in dir(type(owner)):
            declared = declaration(type(owner), name)
            if declared is not None:
                setattr(owner, name, watched(checker, owner, name, declared))
                num_wrapped += 1
    return num_wrapped


def part_name(owner: type) -> str:
    """What a part is called in reports: the core's own class, whatever subclass stands in for it."""
    return next((base for base in owner.__mro__ if base.__module__.startswith("ppsim.core.")), owner).__name__


def watched(checker: Checker, owner: object, name: str, declared: AgreedCall) -> Callable[..., Any]:
    """A bound method that leaves a log entry before and after. An exception leaves the second one out."""
    method = getattr(owner, name)
    title = f"{part_name(type(owner))}.{name}"
    invariant, params, results, state = declared.invariant, declared.params, declared.result, declared.state

    def record(what: str) -> None:
        before = show(state, lambda _: owner)
        checker.record(invariant, title, f"{what} [{before}]" if before else what)

    def call(*args: object, **kwargs: object) -> object:
        values = declared.bind(args, kwargs)
        record(f"called({show(params, values.__getitem__)})")
        result = method(*args, **kwargs)
        record(f"returned({show(results, lambda _: result)})")
        return result

    return call


def start_checker(config: RankConfig, owners: Iterable[object], iteration: Callable[[], int]) -> Checker | None:
    """The checker of a rank, over the calls of ``owners``; None where it is off or there is nobody to compare with.

    ``iteration``: the one in which the rank is now.
    """
    if not config.consensus_check_interval or config.pp_size * config.tp_replicas == 1:
        return None
    checker = Checker(config.consensus_check_interval, config.num_slots, iteration)
    watch_calls(checker, owners)
    return checker
