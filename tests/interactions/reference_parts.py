"""What the naive scheduler keeps: requests, rows of a batch, slots. Plain values, and the request as it came."""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.core.messages import NewRequest
from tests.interactions.naive_tree import Tokens


@dataclass(eq=False)
class Job:
    """One request. ``kv`` tokens of ``prompt + out`` have their KV in the pool, ``len(shared)`` of them in the tree."""

    spec: NewRequest
    prompt: Tokens
    out: Tokens = ()
    kv: int = 0
    prefix: int = 0  # of kv: what admission found and the last stash covered
    shared: Tokens | None = None  # the path it locks; None while it holds no memory
    row: int | None = None  # of the request table
    middle: int = 0  # launched, unharvested middle chunks
    doomed: bool = False  # aborted, but a launched batch still contains it
    ended: bool = False

    @property
    def rid(self) -> str:
        return self.spec.rid

    @property
    def all(self) -> Tokens:
        return self.prompt + self.out

    @property
    def wants(self) -> int:
        """Tokens that it may still generate."""
        return self.spec.max_new_tokens - len(self.out)


@dataclass(eq=False)
class Row:
    job: Job
    start: int
    num: int
    last: bool
    decode: bool


@dataclass(eq=False)
class Batch:
    iteration: int
    mode: str
    rows: list[Row]
    chunked: Job | None  # the request that was unfinished when the batch was made


@dataclass(eq=False)
class RunningBatch:
    """The decode set of a slot. ``full`` is SGLang's ``batch_is_full``, which belongs to this object (rule 1a)."""

    jobs: list[Job] = field(default_factory=list)
    full: bool = False


@dataclass(eq=False)
class Microbatch:
    """What one slot keeps between its visits."""

    running: RunningBatch = field(default_factory=RunningBatch)
    launched: Batch | None = None
    last: Batch | None = None


def ceiling(n: int, page: int) -> int:
    return n if n % page == 0 else n + page - n % page


def floor(n: int, page: int) -> int:
    return n - n % page
