"""``ppsim run``: a scenario in simulation."""

from __future__ import annotations

from ppsim.cli.guard import guarded
from ppsim.cli.options import (
    BugOption,
    ColumnOption,
    ConcurrencyOption,
    FastOption,
    JsonOption,
    MaxSecondsOption,
    OutOption,
    OutputOption,
    PluginOption,
    PromptOption,
    RateOption,
    ReportOption,
    ScenarioArg,
    SeedOption,
    SetOption,
    SkipOption,
    TraceOption,
    WhileRunningOption,
    check_seconds,
    plugin_of,
    scenario_of,
    tell_unfired,
    workload_keys,
)
from ppsim.errors import UsageError


@guarded
def run(
    scenario: ScenarioArg,
    seed: SeedOption = None,
    trace: TraceOption = None,
    prompt: PromptOption = None,
    output: OutputOption = None,
    rate: RateOption = None,
    columns: ColumnOption = None,
    skip_bad_lines: SkipOption = False,
    concurrency: ConcurrencyOption = None,
    overrides: SetOption = None,
    out: OutOption = None,
    bugs: BugOption = None,
    plugin: PluginOption = None,
    fast: FastOption = None,
    while_running: WhileRunningOption = False,
    max_seconds: MaxSecondsOption = 3600.0,
    as_json: JsonOption = False,
    with_report: ReportOption = False,
) -> int:
    """Simulate a scenario and save the run. One that says what must come out ([expect]) is judged by it."""
    check_seconds("--max-seconds", max_seconds)
    if with_report:
        from ppsim.report.page.library import library

        library()  # a long run should not end in a page that cannot be made
    arriving = workload_keys(prompt, output, rate, trace)
    loaded = scenario_of(scenario, seed, trace, overrides, arriving, columns, skip_bad_lines, concurrency, bugs)

    if with_report and loaded.run.keep != "all":
        raise UsageError(
            f"--report: run.keep is {loaded.run.keep!r}: no records are in memory when the run is over"
            + ("; ppsim report RUN reads the file" if loaded.run.keep == "file" else "")
        )
    if while_running and loaded.run.keep != "all":
        raise UsageError(
            f"--while-running: run.keep is {loaded.run.keep!r}, so the files of the ranks would have no records; "
            "leave one of the two out"
        )

    from ppsim.plugin import all_bugs, bugs_in, load
    from ppsim.plugin.loader import always_on
    from ppsim.scenario.expect_judged import with_change

    module = plugin_of(plugin)
    made = load(loaded.bugs, module)
    known = [*all_bugs(), *(bug.name for bug in (bugs_in(module) if module is not None else ()))]
    if module is not None and always_on(module):
        loaded = with_change(loaded, f"the policy ({plugin})")

    from ppsim.cli.outcome import conclude, origin_of, simulated
    from ppsim.cli.progress import ProgressBar
    from ppsim.cli.while_running import WhileRunning
    from ppsim.recording.folder import run_folder
    from ppsim.scenario.kept import digests_of

    files, origin = digests_of(loaded), origin_of(plugin)
    with run_folder(out, loaded.name, loaded.seed) as folder:
        with (
            ProgressBar(f"simulating {loaded.name}", "requests") as progress,
            WhileRunning(folder.path, loaded, origin, is_on=while_running) as files_of_ranks,
        ):
            recording, verdict = simulated(
                loaded,
                made.change,
                progress,
                folder,
                is_changed=bool(made.names),
                max_s=max_seconds,
                fast=fast,
                began=files_of_ranks.began,
            )
        for side in (recording, recording.peer):
            if side is not None:
                side.origin = origin
        if verdict.kind == "pass":
            tell_unfired(made.unfired())
        return conclude(
            folder,
            loaded,
            recording,
            verdict,
            as_json=as_json,
            with_report=with_report,
            known_bugs=known,
            files=files,
        )
