"""Rounds of a campaign on a Ray cluster (the extra ``ray``): ``local`` starts one here, an address joins one.

A round is a pure function of (order, number), so where it runs changes nothing: results are taken in order, the digest
of the campaign is that of a local one, and a failing example comes back as data like any other.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ppsim.errors import UsageError
from ppsim.fuzz.round import Order, RoundResult, run_round


def connect(address: str) -> Any:
    """The ray module, connected. Raises UsageError if ray is not installed or nothing answers."""
    try:
        import ray
    except ImportError:
        raise UsageError("--ray needs the package ray: pip install 'ppsim[ray]'") from None
    if ray.is_initialized():
        return ray
    if address not in ("local", "auto"):
        check_reachable(address)
    try:
        if address == "local":
            ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
        else:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise UsageError(f"--ray {address}: no cluster answers there: {error}") from None
    return ray


def check_reachable(address: str) -> None:
    """Ray itself retries for minutes where nothing listens; a closed port is known at once."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"--ray {address}: expected HOST:PORT, ray://HOST:PORT, 'auto' or 'local'")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"--ray {address}: no cluster answers there: {error}") from None


def ray_rounds(
    order: Order, sizes: Iterator[tuple[int, int]], address: str, budget_left_s: float | None
) -> Iterator[RoundResult]:
    """Results of the rounds, in order; as many in flight as the cluster has CPUs, twice."""
    ray = connect(address)
    started = time.monotonic()
    source = Path(order.plugin).read_bytes() if order.plugin else b""

    @ray.remote(max_retries=2)  # type: ignore[untyped-decorator]
    def remote_round(number: int, size: int, seconds: float | None) -> RoundResult:
        # A worker has a clock and files of its own: what travels is the time that is left, and the plug-in's text.
        deadline = None if seconds is None else time.monotonic() + seconds
        if not order.plugin:
            return run_round(order, number, size, deadline)
        with TemporaryDirectory() as folder:
            path = Path(folder) / Path(order.plugin).name
            path.write_bytes(source)
            return run_round(replace(order, plugin=str(path)), number, size, deadline)

    def left() -> float | None:
        return None if budget_left_s is None else max(0.0, budget_left_s - (time.monotonic() - started))

    width = 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting = [remote_round.remote(n, size, left()) for n, size in islice(sizes, width)]
    while waiting:
        result: RoundResult = ray.get(waiting.pop(0))
        waiting += [remote_round.remote(n, size, left()) for n, size in islice(sizes, 1)]
        yield result
        if result.failing is not None or left() == 0.0:
            for reference in waiting:
                ray.cancel(reference, force=True)
            return
