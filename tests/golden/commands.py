"""The ``--json`` of the commands that plan and read. What measures this machine is left out; long tables are shortened
to their first rows and a digest of all."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from typer.testing import CliRunner

from ppsim.cli.entry import app

LINE = (
    "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --pp-size 4 --tp-size 2 "
    "--chunked-prefill-size 4096 --enable-dynamic-chunking --mem-fraction-static 0.85 --page-size 64 "
    "--max-running-requests 128"
)

# Chunks whose times follow c + b x + a (2 L x + x^2) with c = 40, b = 0.05, a = 1e-6, to the nanosecond.
SAMPLES = "".join(
    f'{{"prefix": {prefix}, "new": {new}, "ms": {40 + 0.05 * new + 1e-6 * (2 * prefix * new + new * new):.6f}}}\n'
    for prefix in (0, 4096, 16384, 65536)
    for new in (256, 1024, 2048, 4096)
)

COMMANDS: dict[str, tuple[str, ...]] = {
    "tune": ("tune", "paper/deepseek_v31_h20_pp4", "--prompt", "16384"),
    "tune_mooncake": ("tune", "mooncake"),
    "layers": ("layers", "--model", "llama-3.1-8b", "--pp", "4"),
    "compare": ("compare", "--model", "llama-3.1-8b", "--gpu", "h20", "--gpus", "8"),
    "chunks": ("chunks", "--model", "llama-3.1-8b", "--tokens", "65536"),
    "paper": ("paper",),
    "questions": ("questions",),
    "fit": ("fit", "samples.jsonl"),
    "import": ("import", LINE),
}

MEASURED = ("configs_per_s", "seconds")  # of this machine, not of the answer
MAX_ROWS = 24


def answer(arguments: tuple[str, ...]) -> Any:
    """What a command prints with ``--json``, parsed; its current folder holds ``samples.jsonl``."""
    result = CliRunner().invoke(app, [*arguments, "--json"])
    if result.exit_code or not result.stdout:
        return {"exit_code": result.exit_code, "stderr": result.stderr}
    return without(json.loads(result.stdout))


def without(value: Any) -> Any:
    """The value less what was measured, and of each long table the first rows and a digest of all."""
    if isinstance(value, dict):
        return {key: without(part) for key, part in value.items() if key not in MEASURED}
    if not isinstance(value, list):
        return value
    rows = [without(part) for part in value]
    if len(rows) <= MAX_ROWS:
        return rows
    digest = blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=8).hexdigest()
    return {"num_rows": len(rows), "digest": digest, "first": rows[:MAX_ROWS]}
