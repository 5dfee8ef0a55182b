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
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ppsim.core.agreed_call import AgreedCall, declaration, show
from ppsim.core.digest import digest
from ppsim.core.effects import Effects, Work, commit
from ppsim.core.errors import CallsDiffer, InvariantViolation
from ppsim.core.messages import Call, CallLog, Check, Lane

if TYPE_CHECKING:
    from ppsim.core.rank import Rank

NOTHING = Call(-1, -1, "", "", "makes no further call")


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


def watched(checker: Checker, owner: object, name: str, declared: AgreedCall) -> Callable[..., Any]:
    """A bound method that leaves a log entry before and after. An exception leaves the second one out."""
    method = getattr(owner, name)
    title = f"{type(owner).__name__}.{name}"
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


# --- naming ----------------------------------------------------------------------------------------------------


def named(error: CallsDiffer) -> InvariantViolation:
    """The first call that differs, where the last stage has found that one does."""
    found = f"found when the calls up to iteration {error.iteration} were compared"
    violation = first_difference(error.logs, found)
    assert violation is not None, "digests differ although the calls are the same"
    return violation


def first_difference(logs: Sequence[CallLog], found: str, *, unfinished: bool = False) -> InvariantViolation | None:
    """The first place at which the logs differ, as the violation of the invariant that the call is declared for.

    The side with more ranks is taken to be right, with equally many the one of the lowest rank. ``unfinished``: the
    logs were taken while the ranks ran, so one may simply have come further than another.
    """
    length = (min if unfinished else max)((len(log.calls) for log in logs), default=0)
    for place in range(length):
        entries = [log.calls[place] if place < len(log.calls) else NOTHING for log in logs]
        if any(entry != entries[0] for entry in entries):
            return _named(logs, entries, place, found)
    return None


def _named(logs: Sequence[CallLog], entries: Sequence[Call], place: int, found: str) -> InvariantViolation:
    sides: dict[Call, list[int]] = {}
    for log, entry in zip(logs, entries, strict=True):
        sides[entry] = sorted([*sides.get(entry, []), *log.ranks])
    usual = min(sides, key=lambda entry: (-len(sides[entry]), sides[entry][0]))
    odd = min((entry for entry in sides if entry is not usual), key=lambda entry: sides[entry][0])
    ahead = {entry: log.calls[place:] for log, entry in zip(logs, entries, strict=True)}
    call = odd if odd is not NOTHING and _is_extra(odd, usual, ahead) else usual
    shown = "; ".join(f"{_ranks(ranks)} {_text(entry, call)}" for entry, ranks in sides.items())
    first = min((entry for entry in entries if entry is not NOTHING), key=lambda entry: entry.iteration)
    rank = sides[odd][0]
    detail = f"{call.name} differs between ranks: {shown}; {found}"
    return InvariantViolation(call.invariant, rank, first.iteration, first.slot, "", detail)


def _is_extra(odd: Call, usual: Call, ahead: dict[Call, tuple[Call, ...]]) -> bool:
    """Whether the odd rank makes a call too many (it comes to the usual one later) rather than leaving one out."""

    def distance(entry: Call, calls: tuple[Call, ...]) -> int:
        return calls.index(entry) if entry in calls else len(calls) + 1

    return usual is NOTHING or distance(usual, ahead[odd]) < distance(odd, ahead[usual])


def _text(entry: Call, call: Call) -> str:
    """What a side shows; with its name and iteration where it is another call."""
    if entry is NOTHING or (entry.name == call.name and entry.iteration == call.iteration):
        return entry.text
    return f"{entry.text} of {entry.name} in iteration {entry.iteration}"


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(str(rank) for rank in ranks)


def after_a_crash(logs: dict[int, tuple[Call, ...]]) -> InvariantViolation | None:
    """The same for ranks that stopped anywhere, from the logs that they still keep: what came before the crash."""
    kept = {rank: calls for rank, calls in logs.items() if calls}
    if len(kept) < 2:
        return None
    start = max(calls[0].iteration for calls in kept.values())
    common = [CallLog((r,), "", tuple(c for c in calls if c.iteration >= start)) for r, calls in sorted(kept.items())]
    return first_difference(common, "found when the run had failed", unfinished=True)
