"""The consensus store over ZeroMQ: every rank's statuses reach the first rank in the background (protocol.md 6.4).

    rank k > 0   PUSH: every change of its own map goes out, in order, from a thread of its own
    rank 0       PULL: a thread applies PUT and DELETE to peer_map[rank][rid]; ``collect`` reads one status a rank

Missing means unknown, never progress. What is malformed, from a rank that does not exist or of an unknown kind is
counted and dropped. Any other exception in a background thread ends the process at once: a rank that silently stops
reporting would stall every admission (the launcher then names it).
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable

import zmq

HOST = "127.0.0.1"
PUT, DELETE = "put", "delete"
BROKEN = 17
"""Exit status of a process whose background thread broke."""


class ConsensusStore:
    """Statuses of this rank, and on the first rank those of all others. ``close`` joins the thread."""

    def __init__(self, rank: int, num_ranks: int, endpoint: str | None = None) -> None:
        self.rank, self.num_ranks = rank, num_ranks
        self.own: dict[str, int] = {}
        self.peers: dict[int, dict[str, int]] = {r: {} for r in range(1, num_ranks)}
        self.num_dropped = 0
        self._lock = threading.Lock()
        self._outbox: queue.SimpleQueue[tuple[str, str, int] | None] = queue.SimpleQueue()
        self._context = zmq.Context()
        self._closing = False
        if rank == 0:
            self._socket = self._context.socket(zmq.PULL)
            self.endpoint = f"tcp://{HOST}:{self._socket.bind_to_random_port(f'tcp://{HOST}')}"
        else:
            assert endpoint is not None
            self._socket = self._context.socket(zmq.PUSH)
            self._socket.connect(endpoint)
            self.endpoint = endpoint
        target = self._receive if rank == 0 else self._send
        self._thread = threading.Thread(target=guarded, args=(target, rank), daemon=True, name="consensus store")
        self._thread.start()

    def put(self, rid: str, status: int) -> None:
        """Set a status of this rank; only changes travel."""
        with self._lock:
            if self.own.get(rid) == status:
                return
            self.own[rid] = status
            if self.rank:
                self._outbox.put((PUT, rid, status))

    def delete(self, rid: str) -> None:
        """Forget a request of this rank."""
        with self._lock:
            if self.own.pop(rid, None) is not None and self.rank:
                self._outbox.put((DELETE, rid, 0))

    def collect(self, rid: str) -> list[int | None]:
        """First rank: [own, rank 1, ..., rank P-1], None where nothing has arrived."""
        with self._lock:
            return [self.own.get(rid), *(self.peers[r].get(rid) for r in sorted(self.peers))]

    def close(self) -> None:
        """Let what is queued go out, then end the thread."""
        self._closing = True
        self._outbox.put(None)
        self._thread.join(timeout=5)
        self._socket.close(linger=1000)
        self._context.term()

    def apply(self, message: bytes) -> None:
        """First rank: one received mutation; what cannot be understood is dropped and counted."""
        try:
            kind, rank, rid, status = json.loads(message)
        except (ValueError, TypeError):
            self.num_dropped += 1
            return
        if rank not in self.peers or kind not in (PUT, DELETE) or type(rid) is not str or type(status) is not int:
            self.num_dropped += 1
            return
        with self._lock:
            if kind == PUT:
                self.peers[rank][rid] = status
            else:
                self.peers[rank].pop(rid, None)

    def _receive(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        while not self._closing:
            if poller.poll(timeout=50):
                self.apply(self._socket.recv())

    def _send(self) -> None:
        while (item := self._outbox.get()) is not None:
            kind, rid, status = item
            self._socket.send(json.dumps([kind, self.rank, rid, status]).encode())


def guarded(target: Callable[[], None], rank: int) -> None:
    """Run a background thread; if it breaks, so does the rank, loudly and at once."""
    try:
        target()
    except Exception as error:
        print(
            f"ppsim: rank {rank}: the consensus store's thread broke: {type(error).__name__}: {error}", file=sys.stderr
        )
        sys.stderr.flush()
        os._exit(BROKEN)
