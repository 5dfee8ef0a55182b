"""``ppsim``: the table of commands.

Rule: names and options are an interface that scripts build on; add, don't rename. Nothing heavy is imported here, and
of the commands only the one that is called: ``ppsim --help`` answers in a fraction of a second, and ``ppsim run`` never
loads torch.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any

import typer

from ppsim.cli.guard import EXIT_INTERRUPTED, say

EPILOG = (
    "Exit codes: 0 pass, 1 safety violation (or diff or conform found a difference), 2 usage or bad input, "
    "3 liveness or deadlock, 4 nondeterminism, 5 unknown (no end within --max-seconds, a limit was reached), "
    "130 interrupted."
)

COMMANDS = {
    "run": "run.run",
    "exec": "execute.execute",
    "diff": "diff.diff",
    "show": "show.show",
    "plot": "plot.plot",
    "trace": "trace.trace",
    "report": "report.report",
    "sweep": "sweep.sweep",
    "fuzz": "fuzz.fuzz",
    "replay": "replay.replay",
    "bugs": "bugs.bugs",
    "explore": "explore.explore",
    "fit": "fit.fit",
    "read": "read.read",
    "volumes": "volumes.volumes",
    "paper": "paper.paper",
    "questions": "questions.questions",
    "layers": "layers.layers",
    "chunks": "chunks.chunks",
    "tune": "tune.tune",
    "compare": "compare.compare",
    "conform": "conform.conform",
    "import": "import_.import_",
    "export": "export.export",
    "list": "listing.app",
}
"""Name to the file below ``ppsim/cli`` and what of it is the command."""

app: typer.Typer
"""All commands, put together when it is asked for."""


def tell_version(wanted: bool) -> None:
    """``--version``: one line on stdout."""
    if wanted:
        import ppsim

        print(f"ppsim {ppsim.__version__}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=tell_version, is_eager=True)
    ] = False,
) -> None:
    """Simulate and execute pipeline-parallel LLM inference: one scheduler, two worlds."""


def app_of(names: Iterable[str]) -> typer.Typer:
    """The program with these of its commands."""
    made = typer.Typer(
        name="ppsim",
        help="Simulate and execute pipeline-parallel LLM inference: one scheduler, two worlds.",
        epilog=EPILOG,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    made.callback()(options)
    for name in names:
        file, _, attribute = COMMANDS[name].partition(".")
        module = import_module(f"ppsim.cli.{file}")
        command = getattr(module, attribute)
        if isinstance(command, typer.Typer):
            made.add_typer(command, name=name)
        else:
            made.command(name, context_settings=getattr(module, "CONTEXT", None))(command)
    return made


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()["app"] = app_of(COMMANDS)
    return globals()["app"]


def main() -> None:
    """Entry point of the ``ppsim`` script."""
    try:
        app_of(sys.argv[1:2] if sys.argv[1:2] and sys.argv[1] in COMMANDS else COMMANDS)()
    except KeyboardInterrupt:  # before or after a command's own guard
        say("ppsim: interrupted")
        sys.exit(EXIT_INTERRUPTED)
    finally:
        gc.freeze()  # the process ends: to look for cycles in all that a run has left takes up to a tenth of it


if __name__ == "__main__":
    main()
