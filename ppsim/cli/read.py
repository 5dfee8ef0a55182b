"""``ppsim read``: what a file is, what was read in it, what was not understood, and which command takes it."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from ppsim.cli.guard import guarded, say
from ppsim.cli.options import JsonOption
from ppsim.errors import EXIT_PASS, EXIT_USAGE

FilesArg = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="Any files or run folders, packed with gzip, zstd or not; - is stdin."),
]


@guarded
def read(files: FilesArg, as_json: JsonOption = False) -> int:
    """Say what a file is, what was read in it, and which command takes it."""
    from ppsim.cli.fit import finite
    from ppsim.cli.read_report import Told
    from ppsim.cli.recognise import recognise

    found: list[Told] = []
    for name in files:
        try:
            found.append(recognise(name, sys.stdin.buffer.read() if name == "-" else None))
        except (OSError, ValueError) as error:
            found.append(Told(name, read=[f"cannot be read: {getattr(error, 'strerror', None) or error}"]))
    if as_json:
        print(json.dumps([finite(told.to_dict()) for told in found], allow_nan=False, default=str))
    else:
        print("\n".join(told.text() for told in found))
    unknown = [told.file for told in found if not told.kind]
    if unknown:
        say(f"ppsim: not recognised: {', '.join(unknown)}")
    return EXIT_USAGE if unknown else EXIT_PASS
