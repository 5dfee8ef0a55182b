"""Sessions in a page: ``python docs/sessions.py PAGE`` runs the commands of its console blocks and writes the output.

A block that begins with ```console is a session: lines with "$ " are commands, the others are their stdout, with a last
line "exit code N" where it is not 0. Commands run in an empty folder that holds the files of ``docs/examples``. Blocks
with any other word are left alone. A test holds the pages against this.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from typer.testing import CliRunner

from ppsim.cli.entry import app

HERE = Path(__file__).resolve().parent
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def printed(command: str) -> str:
    """What one command prints on stdout, and its exit code."""
    program, *arguments = shlex.split(command)
    if program == "cat":
        return Path(arguments[0]).read_text(encoding="utf-8")
    result = CliRunner().invoke(app, arguments)
    return result.stdout + (f"exit code {result.exit_code}\n" if result.exit_code else "")


def fresh(page: str) -> str:
    """The page with every session as it is now."""

    def again(block: re.Match[str]) -> str:
        commands = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
        return "```console\n" + "".join(f"$ {command}\n{printed(command)}" for command in commands) + "```"

    with TemporaryDirectory() as folder:
        for example in sorted((HERE / "examples").glob("*.py")):
            shutil.copy(example, folder)
        with chdir(folder):
            return BLOCK.sub(again, page)


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fresh(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
