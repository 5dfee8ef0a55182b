"""When each forward pass ran, in nanoseconds from the start of the run.

On the CPU a pass is over when the call returns. On CUDA the call only queues work, so events on the stream are used;
they are read once the device has passed them, since reading one earlier would wait for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ppsim.core.schedule.batch import ForwardBatch

NS_PER_MS = 1_000_000


class ForwardTimer:
    """``start_ns`` is the moment 0 of the run on this machine's monotonic clock, the same for all ranks."""

    def __init__(self, start_ns: int, device: torch.device) -> None:
        self.start_ns = start_ns
        self.cuda = device.type == "cuda"
        self.marks: deque[tuple[int, int, int | torch.cuda.Event, int | torch.cuda.Event]] = deque()
        if self.cuda:
            torch.cuda.synchronize(device)
            self.zero = self.mark()
            self.zero_ns = self.now_ns()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self.start_ns

    def mark(self) -> int | torch.cuda.Event:
        if not self.cuda:
            return self.now_ns()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    @contextmanager
    def forward(self, batch: ForwardBatch) -> Iterator[None]:
        """Around the forward pass of a batch."""
        begin = self.mark()
        yield
        self.marks.append((batch.slot, batch.iteration, begin, self.mark()))

    def finished(self) -> Iterator[tuple[int, int, int, int]]:
        """(slot, iteration, start_ns, end_ns) of each pass that is over by now and was not told before, in order."""
        while self.marks and is_over(self.marks[0][3]):
            slot, iteration, begin, end = self.marks.popleft()
            yield slot, iteration, self.at_ns(begin), self.at_ns(end)

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """(slot, iteration, start_ns, end_ns) of each pass that was not told before, in order; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
        yield from self.finished()

    def at_ns(self, mark: int | torch.cuda.Event) -> int:
        if isinstance(mark, int):
            return mark
        assert isinstance(self.zero, torch.cuda.Event)
        since_ms: float = self.zero.elapsed_time(mark)
        return self.zero_ns + round(since_ms * NS_PER_MS)


def is_over(mark: int | torch.cuda.Event) -> bool:
    """Whether the device has passed it."""
    return isinstance(mark, int) or bool(mark.query())  # type: ignore[no-untyped-call]
