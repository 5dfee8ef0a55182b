"""``ppsim replay``: run a saved failure again, bit for bit; or write it down as a regression test."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption


@guarded
def replay(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A reproduction written by ppsim fuzz.")],
    emit_test: Annotated[bool, typer.Option("--emit-test", help="Print a regression test instead of running.")] = False,
    twice: Annotated[bool, typer.Option("--twice", help="Run it twice and compare.")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="Run a file that another version wrote.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Reproduce a failure; the exit code is that of the failure, 4 if it does not come back the same."""
    from ppsim.errors import EXIT_NONDETERMINISM, EXIT_PASS, UsageError
    from ppsim.fuzz.emit import regression_test
    from ppsim.fuzz.repro import load, ppsim_version

    repro = load(file)
    if emit_test:
        name = re.sub(r"\W+", "_", f"{Path(file).parent.name}_{Path(file).stem}").strip("_").lower()
        print(regression_test(repro, name), end="")
        return EXIT_PASS
    if repro.version != ppsim_version() and not anyway:
        raise UsageError(
            f"{file}: written by ppsim {repro.version}, this is {ppsim_version()}; the same tape may mean another run "
            "(use --anyway to run it all the same)"
        )
    outcome = repro.run()
    same = repro.again(outcome)
    stable = not twice or repro.run().digest == outcome.digest
    if as_json:
        print(
            json.dumps(
                {
                    "reproduced": same,
                    "invariant": outcome.signature.invariant if outcome.signature else None,
                    "digest": outcome.digest,
                    "verdict": outcome.verdict.kind,
                    "message": outcome.verdict.message,
                }
            )
        )
    else:
        print(outcome.verdict.message or "the run passes: nothing is broken")
        print(
            "reproduced bit for bit" if same else f"NOT the saved failure ({repro.signature.invariant}, {repro.digest})"
        )
    if not stable:
        say("two runs of this file differ: something in it (a plug-in?) is nondeterministic")
        return EXIT_NONDETERMINISM
    if outcome.signature is None:
        return EXIT_PASS
    return outcome.verdict.exit_code if same else EXIT_NONDETERMINISM
