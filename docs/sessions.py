"""Sessions in a page: ``python docs/sessions.py PAGE`` runs the commands of its console blocks and writes the output.

A block that begins with ```console is a session: lines with "$ " are commands, the others are their stdout, with a last
line "exit code N" where it is not 0; a last line "..." stands for all that follows. Commands run in an empty folder
that holds the files of ``docs/examples``. Blocks with any other word are left alone. A test holds the pages against
this.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from typer.testing import CliRunner

from ppsim.cli.entry import app

HERE = Path(__file__).resolve().parent
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def printed(command: str) -> str:
    """What one command prints on stdout, and its exit code. As in a shell a last " > FILE" puts it there, and " 2>&1"
    shows stderr too."""
    command, both, _ = command.partition(" 2>&1")
    command, _, file = command.partition(" > ")
    program, *arguments = shlex.split(command)
    if program == "cat":
        return Path(arguments[0]).read_text(encoding="utf-8")
    result = CliRunner().invoke(app, arguments)
    if file:
        Path(file).write_text(result.stdout, encoding="utf-8")
    shown = result.output if both else "" if file else result.stdout
    return shown + (f"exit code {result.exit_code}\n" if result.exit_code else "")


def steps(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a session, with the lines that it is said to print."""
    command, shown = "", []
    for line in block.splitlines():
        if not line.startswith("$ "):
            shown.append(line)
            continue
        if command:
            yield command, shown
        command, shown = line[2:], []
    if command:
        yield command, shown


def shortened(real: str, shown: list[str]) -> str:
    """What is printed, as far as the page shows it: behind a line "..." nothing follows but the exit code."""
    if "..." not in shown:
        return real
    lines = real.splitlines()
    code = lines[-1:] if lines and re.fullmatch(r"exit code \d+", lines[-1]) else []
    kept = lines[: min(shown.index("..."), len(lines) - len(code))]
    return "".join(f"{line}\n" for line in [*kept, "...", *code])


def fresh(page: str) -> str:
    """The page with every session as it is now."""

    def again(block: re.Match[str]) -> str:
        session = (f"$ {command}\n{shortened(printed(command), shown)}" for command, shown in steps(block[1]))
        return "```console\n" + "".join(session) + "```"

    with TemporaryDirectory() as folder:
        for example in sorted((HERE / "examples").iterdir()):
            shutil.copy(example, folder)
        with chdir(folder):
            return BLOCK.sub(again, page)


def main() -> None:
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(fresh(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
