"""``ppsim``: the table of commands.

Rule: names and options are an interface that scripts build on; add, don't rename. Nothing heavy is imported here:
``ppsim --help`` answers in a fraction of a second, and ``ppsim run`` never loads torch.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ppsim.cli import (
    bugs,
    chunks,
    compare,
    conform,
    diff,
    execute,
    explore,
    export,
    fit,
    fuzz,
    import_,
    layers,
    listing,
    paper,
    plot,
    questions,
    read,
    replay,
    report,
    run,
    show,
    sweep,
    trace,
    tune,
    volumes,
)
from ppsim.cli.guard import EXIT_INTERRUPTED, say

EPILOG = (
    "Exit codes: 0 pass, 1 safety violation (or diff or conform found a difference), 2 usage or bad input, "
    "3 liveness or deadlock, 4 nondeterminism, 5 unknown (no end within --max-seconds, a limit was reached), "
    "130 interrupted."
)

app = typer.Typer(
    name="ppsim",
    help="Simulate and execute pipeline-parallel LLM inference: one scheduler, two worlds.",
    epilog=EPILOG,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def tell_version(wanted: bool) -> None:
    """``--version``: one line on stdout."""
    if wanted:
        import ppsim

        print(f"ppsim {ppsim.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=tell_version, is_eager=True)
    ] = False,
) -> None:
    """Simulate and execute pipeline-parallel LLM inference: one scheduler, two worlds."""


app.command("run")(run.run)
app.command("exec")(execute.execute)
app.command("diff")(diff.diff)
app.command("show")(show.show)
app.command("plot")(plot.plot)
app.command("trace")(trace.trace)
app.command("report")(report.report)
app.command("sweep")(sweep.sweep)
app.command("fuzz")(fuzz.fuzz)
app.command("replay")(replay.replay)
app.command("bugs")(bugs.bugs)
app.command("explore")(explore.explore)
app.command("fit")(fit.fit)
app.command("read")(read.read)
app.command("volumes")(volumes.volumes)
app.command("paper")(paper.paper)
app.command("questions")(questions.questions)
app.command("layers")(layers.layers)
app.command("chunks")(chunks.chunks)
app.command("tune")(tune.tune)
app.command("compare")(compare.compare)
app.command("conform")(conform.conform)
app.command("import", context_settings=import_.CONTEXT)(import_.import_)
app.command("export")(export.export)
app.add_typer(listing.app, name="list")


def main() -> None:
    """Entry point of the ``ppsim`` script."""
    try:
        app()
    except KeyboardInterrupt:  # before or after a command's own guard
        say("ppsim: interrupted")
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
