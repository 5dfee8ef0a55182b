"""Nobody from outside can reach a run: every socket that one of its processes listens on is on the loopback."""

from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import sys
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.launch import execute, open_store
from tests.executor.small import small_scenario

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sockets are read from /proc")

LISTEN = "0A"
FEW = {"source": "requests", "requests": [{"rid": f"R{n}", "prompt": 200, "output": 60} for n in range(6)]}
"""All at once: the work of a default scenario comes in real time, over most of a minute."""


def listening(pid: int) -> set[tuple[str, int]]:
    """(address, port) of every TCP socket that a process listens on."""
    found = set()
    inodes = set()
    with suppress(OSError):  # ended meanwhile
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                inodes.add(os.readlink(descriptor))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTEN and f"socket:[{rest[5]}]" in inodes:
                address, port = local.split(":")
                words = struct.unpack(f"<{len(address) // 8}I", bytes.fromhex(address))
                packed = struct.pack(f">{len(words)}I", *words)
                found.add((str(ip_address(packed)), int(port, 16)))
    return found


def outside(sockets: set[tuple[str, int]]) -> list[tuple[str, int]]:
    return [(address, port) for address, port in sorted(sockets) if not ip_address(address).is_loopback]


def test_a_socket_for_everybody_would_be_seen() -> None:
    with socket.socket() as wide:
        wide.bind(("0.0.0.0", 0))
        wide.listen()
        assert ("0.0.0.0", wide.getsockname()[1]) in outside(listening(os.getpid()))


def test_the_store_listens_on_the_loopback_only() -> None:
    before = listening(os.getpid())
    store = open_store(None)
    assert {address for address, port in listening(os.getpid()) - before if port == store.port} == {"127.0.0.1"}


@pytest.mark.parametrize("role", ["plain", "prefill"])
def test_no_process_of_a_run_listens_to_the_outside(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")  # what a cluster's shell may have set
    seen: set[tuple[str, int]] = set()
    most = 0

    def look(_ended: int, _all: int) -> None:
        nonlocal most
        for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)):
            sockets = listening(pid)
            most = max(most, len(sockets)) if pid != os.getpid() else most
            seen.update(sockets)

    before = outside(listening(os.getpid()))  # of the test run itself
    scenario = small_scenario(disaggregation={"role": role}, workload=FEW)
    result = execute(scenario, progress=look, start_method="forkserver")
    assert result.verdict.kind == "pass", result.verdict.message
    assert most > 0, "no rank was ever seen to listen: the test looked too late"
    assert [place for place in outside(seen) if place not in before] == []
