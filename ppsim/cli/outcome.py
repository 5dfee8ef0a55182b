"""How a run of either world ends: the folder is filled, the result printed, the exit code chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ppsim.cli.guard import Interrupted, ending_of, give_up, say, told_to_end

if TYPE_CHECKING:
    from ppsim.core.parts import Change
    from ppsim.recording import Recording, Verdict
    from ppsim.recording.folder import RunFolder
    from ppsim.recording.schema import Origin
    from ppsim.scenario import Scenario
    from ppsim.world.run_setting import Setting


def simulated(
    scenario: Scenario,
    change: Change,
    progress: Callable[[int, int], None],
    folder: RunFolder,
    *,
    is_changed: bool,
    max_s: float,
    fast: bool | None = False,
    began: Callable[[Setting], None] | None = None,
) -> tuple[Recording, Verdict]:
    """Simulate. What a changed scheduler raises is its own failure, with the place where it happened.

    A run that is stopped from outside, by Ctrl-C or after ``max_s`` seconds, is one too, as far as it came: its verdict
    is unknown, and its folder is marked. Raises Interrupted or PpsimError where it had not even begun.
    """
    from ppsim.errors import EXIT_UNKNOWN, PpsimError
    from ppsim.fuzz.limit import Limit, OutOfTime
    from ppsim.recording.folder import mark_incomplete
    from ppsim.world import simulate

    def last_resort(why: str) -> None:
        mark_incomplete(folder.path, f"the run was ended: {why}")
        give_up(why)

    limit = Limit(max_s, last_resort)

    def begins(setting: Setting) -> None:
        limit.began(setting)
        if began is not None:
            began(setting)

    try:
        with told_to_end(), limit:
            result = simulate(scenario, progress=progress, change=change, began=begins, fast=fast, place=folder.path)
        return result.recording, result.verdict
    except OutOfTime as stop:
        if limit.setting is None:
            raise PpsimError(f"{scenario.name}: stopped before it began: {stop}") from None
        return stopped(limit.setting, folder, f"no end: {stop}", EXIT_UNKNOWN, stop.rank)
    except KeyboardInterrupt as stop:
        why, code = ending_of(stop)
        if limit.setting is None:
            raise Interrupted(f"{why} before the run began; nothing is saved") from None
        return stopped(limit.setting, folder, why, code, None)
    except PpsimError:
        raise
    except (Exception, SystemExit) as error:
        if not is_changed:
            raise
        from ppsim.plugin.crash import crash_of
        from ppsim.world.crash import crashed
        from ppsim.world.where_stuck import record_stands

        if limit.setting is None:
            raise crash_of(scenario.name, error) from error
        record_stands(limit.setting)
        verdict = crashed(limit.setting, error)
        mark_incomplete(folder.path, verdict.message)
        return limit.setting.recording, verdict._replace(message=f"{scenario.name}: {verdict.message}")


def stopped(setting: Setting, folder: RunFolder, why: str, code: int, rank: int | None) -> tuple[Recording, Verdict]:
    """What there is of a run that was ended from outside, and how far it came."""
    from ppsim.recording import Verdict
    from ppsim.recording.folder import mark_incomplete
    from ppsim.world.where_stuck import record_stands

    first = setting.ranks[0]
    ended, asked = setting.watch.num_ended, setting.watch.num_requests
    now_ns = max(r.now for r in setting.ranks)
    far = (
        f"incomplete: {ended} of {asked} requests had ended, in iteration {first.rank.iteration} of the first rank, "
        f"at {now_ns / 1e9:.6f} s of simulated time"
    )
    mark_incomplete(folder.path, f"{why}\n{far}")
    iteration = first.rank.iteration if rank is None else setting.ranks[rank % len(setting.ranks)].rank.iteration
    verdict = Verdict("unknown", code, f"{why}\n{far}", None, rank, iteration)
    record_stands(setting)
    return setting.recording, verdict


def origin_of(plugin: str | None) -> Origin:
    """What a run of this command line is made with, besides its scenario."""
    from ppsim.recording.origin import digest_of_file, ppsim_version
    from ppsim.recording.schema import Origin

    return Origin(ppsim_version(), (), plugin, digest_of_file(plugin))


def keep_what_there_is(folder: RunFolder, error: BaseException) -> None:
    """A run on real processes ended in an error: save what its ranks have recorded, with the error as its verdict.

    Where that finds no room, the files of the ranks stay as they are, and the error is still what is told.
    """
    from ppsim.errors import EXIT_LIVENESS, EXIT_SAFETY, EXIT_UNKNOWN, UsageError
    from ppsim.recording import Verdict
    from ppsim.recording.folder import CONFIG, mark_incomplete, stand_lines, write_run
    from ppsim.recording.rank_file import RANKS, assemble, has_ranks
    from ppsim.recording.standing import read_standing
    from ppsim.recording.summary import summarize
    from ppsim.scenario.load import read_scenario

    path = folder.path
    if not has_ranks(path):
        return
    why, code = str(error), getattr(error, "exit_code", EXIT_UNKNOWN)
    if isinstance(error, KeyboardInterrupt):
        why, code = ending_of(error)
    try:
        mark_incomplete(path, why)
        recording = assemble(path)
        recording.stands = read_standing(path)
        message = "\n".join([why, *stand_lines(recording.stands)])
        kind: Any = "fail" if code in (EXIT_SAFETY, EXIT_LIVENESS) else "unknown"
        verdict = Verdict(kind, code, message, rank=getattr(error, "rank", None))
        write_run(folder, read_scenario(str(path / CONFIG)), recording, summarize(recording, verdict), verdict)
    except UsageError as full:
        say(f"left in {path / RANKS}, marked incomplete ({full})")
        return
    say(f"saved {path}, marked incomplete")


def conclude(
    folder: RunFolder,
    scenario: Scenario,
    recording: Recording,
    verdict: Verdict,
    *,
    as_json: bool,
    with_report: bool = False,
    known_bugs: Collection[str] | None = None,
    files: Mapping[str, str] | None = None,
) -> int:
    """Save, print and return the exit code. The verdict's text goes to stderr, as do the places of the run and page,
    and what became of the expectations. With them the exit code says whether they are met; without, the verdict.
    ``files``: digests of what the scenario names, from before the run."""
    from ppsim.errors import UsageError
    from ppsim.recording.folder import incomplete, leave, mark_incomplete, write_run
    from ppsim.recording.summary import summarize
    from ppsim.report.table import summary_text
    from ppsim.scenario.expect_judged import expectations
    from ppsim.scenario.kept import keep_files

    summary = summarize(recording, verdict)
    try:
        write_run(folder, scenario.model_dump(mode="json"), recording, summary, verdict)
    except UsageError as full:
        with suppress(UsageError):
            mark_incomplete(folder.path, f"the run has ended, and could not be saved: {full}")
        if verdict.kind != "pass":
            say(verdict.message)
        raise
    for sentence in keep_files(folder.path, scenario, files or {}):
        say(f"note: {sentence}")
    leave(folder)
    if verdict.message and verdict.kind != "pass":
        say(verdict.message)
    if folder.replaces:
        say(f"replaced the earlier run in {folder.path}")
    why = incomplete(folder.path)
    say(f"saved {folder.path}" + (", marked incomplete" if why else ""))
    expected = expectations(scenario, summary, verdict, stopped=why.partition("\n")[0], known_bugs=known_bugs)
    for line in expected.lines() if expected is not None else ():
        say(line)
    print(json.dumps(summary, allow_nan=False) if as_json else summary_text(summary))
    if with_report:
        from ppsim.cli.report import write_report

        say(f"saved {write_report(folder.path, recording, verdict)}")
    return exit_code(verdict, None if expected is None else expected.met)


def exit_code(verdict: Verdict, met: bool | None) -> int:
    """0 where the run came out as the scenario expects it, failures too; the verdict's, and never 0, where it did not.

    ``met`` None: nothing was judged, and the verdict speaks alone.
    """
    from ppsim.errors import EXIT_PASS, EXIT_SAFETY

    if met is None:
        return verdict.exit_code
    return EXIT_PASS if met else verdict.exit_code or EXIT_SAFETY
