"""The rules (``ppsim.check``) over a replay, hung on its ranks as on those of a run.

Rule: a replay makes what was recorded, whatever is wrong with it. So who finds a rule broken ends nothing here: the
finding is kept, the rules fall silent on that rank, and all ranks go on to where the records end. The verdict is the
first finding: of a simulated run in the order in which it came, of a run on processes, where nobody knows the order, by
iteration and rank, as there (``executor/ending.py``).

What only the recorded world could know is not judged again: limits in time, when a copy or a transfer was over, what
the other server did, what tensors held (docs/recording.md has the rules by number).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ppsim.check.audit import Audit, follow
from ppsim.check.client_watch import StopRun
from ppsim.check.observers import After, Before, Observers, phase_of_error
from ppsim.check.together import Record, Together, in_order
from ppsim.check.verdicts import verdict_of
from ppsim.check.wait_limits import watch_patience
from ppsim.core.effects import Effect
from ppsim.core.errors import CallsDiffer, CoreError, InvariantViolation
from ppsim.core.outcome import Verdict
from ppsim.errors import EXIT_UNKNOWN
from ppsim.world.run_setting import Setting, SimulatedSeat

Guard = Callable[[Callable[..., None]], Callable[..., None]]


class JudgedObservers(Observers):
    """Observers of one rank. While ``guard`` is set, what is hung here is one of the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.guard: Guard = unguarded
        self.failed: Callable[[SimulatedSeat, Exception], None] = nobody_listens

    def before(self, look: Before, *effects: type[Effect]) -> None:
        super().before(self.guard(look), *effects)

    def after(self, look: After, *effects: type[Effect]) -> None:
        super().after(self.guard(look), *effects)


def unguarded(look: Callable[..., None]) -> Callable[..., None]:
    return look


def nobody_listens(r: SimulatedSeat, error: Exception) -> None:
    """Of ranks that nobody judges."""


class Judge:
    """One for each replayed pipeline. ``observers``: of its ranks. ``of_processes``: where the records come from."""

    def __init__(self, setting: Setting, observers: Sequence[JudgedObservers], *, of_processes: bool) -> None:
        self.setting, self.observers, self.of_processes = setting, observers, of_processes
        run = setting.scenario.run
        self.together = Together(len(observers), check=run.check, audited=run.invariants)
        self.records: dict[int, list[Record]] = {rank: [] for rank in range(len(observers))}
        self.found: list[tuple[Verdict, bool]] = []  # in order; whether it is more exact than what ranks show together
        self.silent: set[int] = set()

    def watch(self) -> None:
        """Hang the rules on the ranks, in the order of a run. Call before they start."""
        setting, scenario = self.setting, self.setting.scenario
        run, ranks = scenario.run, setting.ranks
        for r, observers in zip(ranks, self.observers, strict=True):
            observers.guard, observers.failed = self._guard_of(r), self.keep
        commits_wait = self.of_processes or scenario.links.commit != "none"
        audit = Audit(self.tell, commits_wait=commits_wait) if run.invariants else None
        for r in ranks:
            setting.watch.watch(r)
            if audit is not None:
                audit.watch(r)
            elif run.check:
                follow(r, self.tell)
        watch_patience(
            ranks,
            run.max_wait_iterations,
            0,  # limits in time are the recorded world's
            max_retractions=run.max_retractions,
            max_wait_ms=0,
            audited=run.invariants,
        )
        for observers in self.observers:
            observers.guard = unguarded

    def tell(self, record: Record) -> None:
        """What ranks are held against each other by."""
        if self.of_processes:
            self.records[record.rank].append(record._replace(phase=self.setting.ranks[record.rank].phase()))
        else:
            self.together.take(record)

    def _guard_of(self, r: SimulatedSeat) -> Guard:
        def guard(look: Callable[..., None]) -> Callable[..., None]:
            def call(*given: Any) -> None:
                if r.rank_id in self.silent:
                    return
                try:
                    look(*given)
                except (CoreError, StopRun) as error:
                    self.silent.add(r.rank_id)
                    self.keep(r, error)

            return call

        return guard

    def keep(self, r: SimulatedSeat, error: Exception) -> None:
        """A rule is broken at a rank, or its loop has raised."""
        phase = phase_of_error(error)
        if isinstance(error, StopRun):
            r = self.setting.ranks[error.rank]
        elif isinstance(error, InvariantViolation) and not phase and error.rank < len(self.setting.ranks):
            phase = self.setting.ranks[error.rank].phase()
        if isinstance(error, CoreError | StopRun):
            verdict = verdict_of(error, r, phase)
        else:
            place = f"rank {r.rank_id}, iteration {r.rank.iteration}"
            text = f"{place}: {type(error).__name__}: {error}"
            verdict = Verdict("fail", EXIT_UNKNOWN, text, None, r.rank_id, r.rank.iteration)
        self.found.append((verdict, isinstance(error, CallsDiffer)))

    def first(self) -> Verdict | None:
        """The first finding."""
        if not self.of_processes:
            return self.found[0][0] if self.found else None
        own = min(self.found, key=lambda item: place_of(item[0]), default=None)
        broken = self._broken_together()
        if broken is None or own is None:
            return broken or (own[0] if own is not None else None)
        verdict, is_exact = own
        before, at = place_of(broken), place_of(verdict)
        return broken if before < at or (before == at and not is_exact) else verdict

    def _broken_together(self) -> Verdict | None:
        """The first rule that the ranks of separate processes break together, in the order of iterations and ranks."""
        try:
            for record in in_order(self.records):
                self.together.take(record)
        except InvariantViolation as broken:
            return verdict_of(broken)
        return None


def place_of(verdict: Verdict) -> tuple[int, int]:
    """Where a verdict stands in the order of the run."""
    return verdict.iteration or 0, verdict.rank or 0
