"""One request's life as a table of guarded transitions.

``TABLE`` is the whole truth about which event may happen in which state; anything else raises TransitionError. A rank's
scheduler moves requests only through ``Request.on``. KV of a request, by position:

    [0, cached_len)        shared with the radix tree, protected by a lock on ``last_node``
    [cached_len, kv_len)   written (or being written by a launched step) on pages of its own
    [kv_len, ...)          not allocated
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from ppsim.core.errors import TransitionError
from ppsim.core.memory.node import Node
from ppsim.core.messages import NewRequest
from ppsim.core.record import record
from ppsim.core.tokens import WIDTH, TokenBytes, cut, pack, unpack


class State(Enum):
    """Where a request is. The last three are terminal."""

    ARRIVED = "arrived"
    GRAMMAR = "grammar"  # its grammar is being compiled on every rank
    BOOTSTRAP = "bootstrap"  # prefill role: the decode side has not yet given it a place
    PREALLOC = "prealloc"  # decode role: waits for KV to be allocated
    TRANSFER = "transfer"  # decode role: KV is being received
    WAITING = "waiting"
    PREFILL = "prefill"  # at least one chunk launched, the last one not harvested
    DECODE = "decode"
    INFLIGHT = "inflight"  # prefill role: computed; its KV is being sent, or an aborted transfer drains
    RETRACTED = "retracted"  # decode role: put out of memory, waits for the vote that lets it resume
    FINISHED = "finished"
    ABORTED = "aborted"
    REFUSED = "refused"

    __hash__ = object.__hash__  # by identity: see messages.Lane


class Event(Enum):
    """What can happen to a request."""

    ACCEPT = "accept"
    COMPILE = "compile"
    GRAMMAR_READY = "grammar_ready"
    GRAMMAR_FAILED = "grammar_failed"
    BOOTSTRAP = "bootstrap"
    BOOTSTRAPPED = "bootstrapped"
    PREALLOC = "prealloc"
    ALLOCATED = "allocated"
    TRANSFERRED = "transferred"
    JOIN = "join"  # decode role: a waiting request joins the running set of a slot
    COMPUTED = "computed"  # prefill role: the last chunk is harvested
    DRAIN = "drain"  # prefill role: aborted with transfers possibly under way
    RESUME = "resume"
    FAIL = "fail"  # a transfer or a handshake failed
    REFUSE = "refuse"
    LAUNCH_CHUNK = "launch_chunk"
    MIDDLE_CHUNK = "middle_chunk"  # a middle chunk was harvested
    DISCARD = "discard"  # its row was harvested after it was marked for abort
    FIRST_TOKEN = "first_token"
    LAUNCH_DECODE = "launch_decode"
    TOKEN = "token"
    RETRACT = "retract"
    PUT_OUT = "put_out"  # decode role: retracted into the retracted queue
    FINISH = "finish"
    ABORT = "abort"

    __hash__ = object.__hash__


TABLE: dict[tuple[State, Event], State] = {
    (State.ARRIVED, Event.ACCEPT): State.WAITING,
    (State.ARRIVED, Event.REFUSE): State.REFUSED,
    (State.ARRIVED, Event.COMPILE): State.GRAMMAR,
    (State.GRAMMAR, Event.GRAMMAR_READY): State.WAITING,
    (State.GRAMMAR, Event.GRAMMAR_FAILED): State.ABORTED,
    (State.GRAMMAR, Event.ABORT): State.ABORTED,
    (State.GRAMMAR, Event.BOOTSTRAP): State.BOOTSTRAP,
    (State.GRAMMAR, Event.PREALLOC): State.PREALLOC,
    (State.ARRIVED, Event.BOOTSTRAP): State.BOOTSTRAP,
    (State.BOOTSTRAP, Event.BOOTSTRAPPED): State.WAITING,
    (State.BOOTSTRAP, Event.ABORT): State.ABORTED,
    (State.BOOTSTRAP, Event.FAIL): State.ABORTED,
    (State.ARRIVED, Event.PREALLOC): State.PREALLOC,
    (State.PREALLOC, Event.ALLOCATED): State.TRANSFER,
    (State.PREALLOC, Event.ABORT): State.ABORTED,
    (State.PREALLOC, Event.FAIL): State.ABORTED,
    (State.TRANSFER, Event.TRANSFERRED): State.WAITING,
    (State.TRANSFER, Event.ABORT): State.ABORTED,
    (State.TRANSFER, Event.FAIL): State.ABORTED,
    (State.WAITING, Event.JOIN): State.DECODE,
    (State.WAITING, Event.FINISH): State.FINISHED,
    (State.PREFILL, Event.DRAIN): State.INFLIGHT,
    (State.DECODE, Event.COMPUTED): State.INFLIGHT,
    (State.INFLIGHT, Event.FINISH): State.FINISHED,
    (State.INFLIGHT, Event.ABORT): State.ABORTED,
    (State.INFLIGHT, Event.FAIL): State.ABORTED,
    (State.RETRACTED, Event.RESUME): State.WAITING,
    (State.RETRACTED, Event.ABORT): State.ABORTED,
    (State.WAITING, Event.LAUNCH_CHUNK): State.PREFILL,
    (State.WAITING, Event.ABORT): State.ABORTED,
    (State.WAITING, Event.FAIL): State.ABORTED,
    (State.PREFILL, Event.LAUNCH_CHUNK): State.PREFILL,
    (State.PREFILL, Event.MIDDLE_CHUNK): State.PREFILL,
    (State.PREFILL, Event.DISCARD): State.PREFILL,
    (State.PREFILL, Event.FIRST_TOKEN): State.DECODE,
    (State.PREFILL, Event.ABORT): State.ABORTED,
    (State.DECODE, Event.LAUNCH_DECODE): State.DECODE,
    (State.DECODE, Event.TOKEN): State.DECODE,
    (State.DECODE, Event.DISCARD): State.DECODE,
    (State.DECODE, Event.RETRACT): State.WAITING,
    (State.DECODE, Event.PUT_OUT): State.RETRACTED,
    (State.DECODE, Event.FINISH): State.FINISHED,
    (State.DECODE, Event.ABORT): State.ABORTED,
}

TERMINAL = (State.FINISHED, State.ABORTED, State.REFUSED)


@record
class Moved:
    """A request takes the arrow of ``event`` out of state ``before``."""

    rid: str
    before: State
    event: Event


@dataclass(slots=True, eq=False)
class Request:
    """A request on one rank. Lengths are in tokens."""

    spec: NewRequest
    state: State = State.ARRIVED
    output_ids: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    kv_len: int = 0
    cached_len: int = 0
    stashed_len: int = 0  # what the tree was offered already (its whole pages are in it)
    last_node: Node | None = None
    req_slot: int | None = None  # row of the request table
    inflight_middle_chunks: int = 0
    num_inflight: int = 0  # launched, unharvested batches that contain it
    num_retractions: int = 0
    num_cached_tokens: int = 0  # prompt tokens served by the radix cache at the last admission
    sent_len: int = 0  # prefill role: tokens whose KV was handed to the transfer
    retraction_slot: int | None = None  # decode role: the slot whose votes consider it (retraction_mb_id)
    arrived: int = 0  # iteration in which it was read; an id may come again
    handshake_agreed: bool = False  # decode role: a conclusion has named it; it waits for memory only
    listeners: Sequence[Callable[[Moved], None]] = ()  # of the journal: told of each arrow that it takes
    to_abort: str = ""  # marked: ends as soon as no launched batch contains it any more; the text is the reason

    @property
    def rid(self) -> str:
        return self.spec.rid

    @property
    def prompt_len(self) -> int:
        return len(self.spec.prompt) // WIDTH

    @property
    def seq_len(self) -> int:
        """Prompt plus generated tokens: what a (re-)prefill has to cover."""
        return len(self.spec.prompt) // WIDTH + len(self.output_ids)

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    def on(self, event: Event) -> None:
        """Move along the table. Raises TransitionError and leaves the request untouched if there is no such arrow."""
        after = TABLE.get((self.state, event))
        if after is None:
            raise TransitionError(
                f"request {self.rid}: event {event.value!r} is not allowed in state {self.state.value!r}"
            )
        if self.listeners:
            moved = Moved(self.rid, self.state, event)
            for listen in self.listeners:
                listen(moved)
        self.state = after

    def tokens(self, stop: int, start: int = 0) -> TokenBytes:
        """Tokens [start, stop) of prompt + output."""
        split = self.prompt_len
        if stop <= split:
            return cut(self.spec.prompt, start, stop)
        return cut(self.spec.prompt, start, split) + pack(self.output_ids[max(start - split, 0) : stop - split])

    def input_ids(self, start: int, stop: int) -> list[int]:
        """Token ids at positions [start, stop)."""
        split = self.prompt_len
        from_prompt = unpack(cut(self.spec.prompt, start, min(stop, split))) if start < split else []
        return from_prompt + self.output_ids[max(start - split, 0) : max(stop - split, 0)]

    def hits_stop(self) -> str:
        """Why the last token ends the request ("length", "stop"), or empty."""
        spec, output_ids = self.spec, self.output_ids
        if spec.stop_token_ids and not spec.ignore_eos and output_ids[-1] in spec.stop_token_ids:
            return "stop"
        return "length" if len(output_ids) >= spec.max_new_tokens else ""
