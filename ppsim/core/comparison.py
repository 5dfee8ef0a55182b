"""The calls of a window go down the chain, and the last stage compares them (``checker.py`` records them)."""

from __future__ import annotations

from ppsim.core.checker import Checker
from ppsim.core.digest import digest
from ppsim.core.effects import Effects, commit
from ppsim.core.errors import CallsDiffer
from ppsim.core.messages import CallLog, Check, Lane
from ppsim.core.rank import Rank


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
