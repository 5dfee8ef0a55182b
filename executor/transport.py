"""Messages between rank processes over torch.distributed.

Rule: one FIFO for each (source, destination, lane), the lane being the tag. A message is two or three transfers, as in
SGLang (protocol.md 3.1):

    length    int64 [1]
    body      uint8 [length]: the message without payload, and dtype and shape of the payload or None (wire.py)
    payload   the hidden states or token ids, where there are any

Sends are asynchronous and receives block. Gloo finishes a send only when the peer has posted the receive, so the
buffers of a send belong to its work handle until ``commit``. Device tensors travel through host memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

import torch
import torch.distributed as dist

from executor import wire
from ppsim.core.effects import Work
from ppsim.core.errors import ProtocolError
from ppsim.core.messages import Hidden, Lane, Message, Output

TAG = {lane: tag for tag, lane in enumerate(Lane)}


class PeerLost(Exception):
    """The connection to ``peer`` broke while ``doing`` something: the peer has died, or is ending the run."""

    def __init__(self, peer: int, doing: str) -> None:
        super().__init__(peer, doing)
        self.peer, self.doing = peer, doing


@dataclass(frozen=True, slots=True)
class SendWork:
    """An outstanding send: ``buffers`` must live and stay unchanged until every handle is done (invariant 38)."""

    dst: int
    handles: tuple[dist.Work, ...]
    buffers: tuple[torch.Tensor, ...]
    kind: str  # of message


class Transport:
    """This rank's end of all links. ``device``: where received payloads are put."""

    def __init__(self, rank: int, device: torch.device) -> None:
        self.rank = rank
        self.device = device
        self.outstanding: dict[Work, SendWork] = {}
        self.num_sent = 0

    def send(self, dst: int, message: Message) -> Work:
        """Start a send and return its handle."""
        bare, payload = split(message)
        described = None if payload is None else (payload.dtype, tuple(payload.shape))
        body = torch.frombuffer(bytearray(wire.encode(bare, described)), dtype=torch.uint8)
        buffers = [torch.tensor([len(body)]), body]
        if payload is not None and payload.numel():
            buffers.append(payload.to("cpu").contiguous())
        with peer_errors(dst, "sending to"):
            handles = tuple(started(dist.isend(buffer, dst, tag=TAG[message.lane])) for buffer in buffers)
        self.num_sent += 1
        self.outstanding[self.num_sent] = SendWork(dst, handles, tuple(buffers), message.kind.value)
        return self.num_sent

    def commit(self, work: Work) -> None:
        """Block until the peer has taken the message; its buffers are free then."""
        sent = self.outstanding.pop(work, None)
        if sent is None:
            raise self.misuse(f"an outstanding send, one of {sorted(self.outstanding)}", f"commit of work {work}")
        with peer_errors(sent.dst, "waiting for a send to be taken by"):
            for handle in sent.handles:
                handle.wait()

    def recv(self, src: int, lane: Lane) -> Message:
        """Block until the next message of ``lane`` from ``src`` is here."""
        if src == self.rank:
            wait_for_ever()
        tag = TAG[lane]
        length = torch.empty(1, dtype=torch.int64)
        with peer_errors(src, "receiving from"):
            dist.recv(length, src, tag=tag)
            body = torch.empty(int(length), dtype=torch.uint8)
            dist.recv(body, src, tag=tag)
            try:
                bare, described = wire.decode(body.numpy().tobytes())
            except ValueError as error:
                came = f"{len(body)} bytes that are none ({error})"
                raise ProtocolError(
                    self.rank, -1, -1, f"a message on lane {lane.value}", came, f"rank {src} sent it"
                ) from None
            if described is None:
                return bare
            dtype, shape = described
            payload = torch.empty(shape, dtype=dtype)
            if payload.numel():
                dist.recv(payload, src, tag=tag)
        assert isinstance(bare, Hidden | Output), type(bare)  # nothing else has a tensor
        return replace(bare, payload=payload.to(self.device))

    def finish(self) -> None:
        """Commit what is left, and leave together: a rank that leaves early would break the links of the others."""
        for work in list(self.outstanding):
            self.commit(work)
        with peer_errors(-1, "leaving with"):
            dist.barrier()

    def misuse(self, expected: str, came: str) -> ProtocolError:
        blame = f"rank {self.rank} broke the rules of sends"
        return ProtocolError(self.rank, -1, -1, expected, came, blame, "INV-38")


def split(message: Message) -> tuple[Message, torch.Tensor | None]:
    """A message without its tensor, and the tensor if it carries one."""
    if not isinstance(message, Hidden | Output) or message.payload is None:
        return message, None
    assert isinstance(message.payload, torch.Tensor), type(message.payload)
    return replace(message, payload=None), message.payload


def wait_for_ever() -> NoReturn:
    """There is no link from a rank to itself, so nothing ever comes over it; the backend would call that an error."""
    while True:
        time.sleep(3600)


def started(work: dist.Work | None) -> dist.Work:
    assert work is not None, "torch.distributed returns no handle where this rank is not part of the group"
    return work


@contextmanager
def peer_errors(peer: int, doing: str) -> Iterator[None]:
    """Broken connections come out of the backend as bare RuntimeError."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(peer, doing) from error
