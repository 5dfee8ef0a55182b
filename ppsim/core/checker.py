"""Rank consensus checker: the first call that differs between ranks, named at the next comparison (protocol.md 8).

Rule: the checker looks and never steers. With it the ranks take the same decisions in the same iterations; it has a
lane of its own, sends one message a window the way the hidden states go, and waits for nothing that the protocol does
not wait for anyway. Without it nothing is wrapped.

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
from typing import TYPE_CHECKING, Any

from ppsim.core.agreed_call import AgreedCall, declaration, show
from ppsim.core.digest import digest
from ppsim.core.effects import Effects, Work, commit
from ppsim.core.errors import CallsDiffer
from ppsim.core.messages import Call, CallLog, Check, Lane

if TYPE_CHECKING:
    from ppsim.core.rank import Rank


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


def start_checker(rank: Rank) -> Checker | None:
    """The checker of a rank whose scheduler exists; None where it is off or there is nobody to compare with."""
    config, scheduler = rank.config, rank.scheduler
    if not config.consensus_check_interval or config.pp_size * config.tp_replicas == 1:
        return None
    checker = Checker(config.consensus_check_interval, config.num_slots, lambda: rank.iteration)
    watch_calls(checker, (scheduler, scheduler.role, scheduler.kv, scheduler.kv.tree, scheduler.kv.pool))
    return checker


# --- comparing -------------------------------------------------------------------------------------------------


def compare(rank: Rank) -> Effects[None]:
    """End of an iteration: forget what was sent long ago, and compare if a window ends here."""
    checker = rank.checker
    if checker is None:
        return
    while checker.works and checker.works[0][0] <= rank.iteration:
        yield from commit(checker.works.popleft()[1])
    if (rank.iteration + 1) % checker.interval == 0:
        yield from _pass_on(rank, checker)


def conclude(rank: Rank) -> Effects[None]:
    """End of the run: compare the rest, and leave no send behind."""
    checker = rank.checker
    if checker is None:
        return
    yield from _pass_on(rank, checker)
    while checker.works:
        yield from commit(checker.works.popleft()[1])


def _pass_on(rank: Rank, checker: Checker) -> Effects[None]:
    """MIN and MAX of the digests of all ranks upstream and of this one."""
    link, config = rank.link, rank.config
    me = link.rank_id
    calls = checker.close()
    mine = digest(calls)
    lowest = highest = mine
    logs: tuple[CallLog, ...] = (CallLog((me,), mine, calls),)
    if me > 0:
        upstream = link.leader if config.is_first else link.prev
        message = yield from link.receive(Check, upstream, Lane.CHECK, rank.iteration, rank.slot)
        lowest, highest = min(message.lowest, mine), max(message.highest, mine)
        logs = merged(message.logs, logs[0])
    downstream = () if config.is_last else (link.next,)
    for dst in downstream + (link.replicas if me == 0 else ()):
        check = Check(me, rank.iteration, rank.slot, lowest, highest, logs)
        work = yield from link.send(dst, check)
        checker.works.append((rank.iteration + config.pp_size, work))
    if config.is_last and lowest != highest:
        raise CallsDiffer(me, rank.iteration, rank.slot, logs)


def merged(logs: tuple[CallLog, ...], mine: CallLog) -> tuple[CallLog, ...]:
    """One log for each distinct digest, in the order of the ranks that brought it."""
    for place, log in enumerate(logs):
        if log.digest == mine.digest:
            return (*logs[:place], log._replace(ranks=log.ranks + mine.ranks), *logs[place + 1 :])
    return (*logs, mine)
