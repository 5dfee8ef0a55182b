"""What a run leaves behind, as types. Both worlds write these and nothing else; reports read these and nothing else.

Rule: everything here is logical (rank, iteration, slot, rid, integers) except fields that end in ``_ns``. The logical
part is a function of the scenario, the seed and the replicated inputs; the times belong to the world that made them.
So digests and ``ppsim diff`` leave the times out, and summaries and pictures need them.

``Decision``, ``Harvest`` and ``Reply`` are the core's own effects (``ppsim.core.effects``), recorded as they are; how a
run ended and where its ranks stood (``Verdict``, ``Stand``) are ``ppsim.core.outcome``'s, for the judge makes them.
"""

from __future__ import annotations

from dataclasses import fields
from hashlib import blake2b
from typing import NamedTuple

from ppsim.core.messages import AbortReq, FlushCache, Input, NewRequest, Shutdown
from ppsim.core.outcome import PASS as PASS
from ppsim.core.outcome import Stand as Stand
from ppsim.core.outcome import Verdict as Verdict
from ppsim.core.tokens import count

SCHEMA = "ppsim-recording"
SCHEMA_VERSION = 2
READABLE = (1, 2)
"""Versions that the reader takes. 2 added: prompts, refusals, the origin in the header, a digest over the text; and
the files of single ranks (``rank_file.py``)."""


class Origin(NamedTuple):
    """What a run was made with, besides its scenario. A replay needs the same."""

    version: str = ""  # of ppsim; empty: not told
    changes: tuple[str, ...] = ()  # planted bugs and classes (module:Class) besides those of the scenario
    plugin: str | None = None  # path of the file
    plugin_digest: str | None = None  # of its text


UNTOLD = Origin()


class Refused(NamedTuple):
    """The world refused memory to launches of ``rid`` that admission had counted on: so often, behind so many."""

    rid: str
    num_failing: int
    behind: int


class Left(NamedTuple):
    """A rank of the real world sent device data: it was posted at leaves_ns, and the send was over at sent_ns."""

    dst: int
    kind: str
    iteration: int
    leaves_ns: int
    sent_ns: int


class Came(NamedTuple):
    """A rank of the real world has received device data. With the sender's ``Left`` it makes a ``Message``."""

    src: int
    kind: str
    iteration: int
    arrival_ns: int


class Arrival(NamedTuple):
    """A client sent request ``rid`` at ``at_ns``; the first rank may read it much later."""

    rid: str
    at_ns: int
    num_prompt_tokens: int
    num_output_tokens: int  # what it asks for; it may end earlier


class InputRecord(NamedTuple):
    """A replicated input without its bulk: of a prompt only the length and a digest stay.

    Prompts are a function of the scenario and the seed, and would be most of the file. Who replays a recording makes
    them again and holds them against ``prompt_digest``. ``fields`` are the remaining fields of the input, by name.
    """

    kind: str  # new | abort | flush | shutdown, or the name of the type
    rid: str
    num_prompt_tokens: int
    prompt_digest: str
    fields: tuple[tuple[str, object], ...]


class Ingested(NamedTuple):
    """The first rank read ``inputs`` in ``iteration``. ``live`` has the inputs as they were; empty once read back."""

    iteration: int
    time_ns: int
    inputs: tuple[InputRecord, ...]
    live: tuple[Input, ...] = ()


class TimedReply(NamedTuple):
    """A message to the client, and when it left. ``iteration`` is the first rank's, -1 where none was running."""

    time_ns: int
    iteration: int
    rid: str
    status: str  # token | finished | aborted | refused
    token_ids: tuple[int, ...]
    num_output_tokens: int
    reason: str


class Span(NamedTuple):
    """A rank's stream was busy with (slot, iteration) in [start_ns, end_ns)."""

    stream: str  # forward | kv (to the decode side) | write, load, prefetch (between the tiers of the cache)
    slot: int
    iteration: int
    start_ns: int
    end_ns: int


class Message(NamedTuple):
    """Device data on its way between two ranks: it left in [leaves_ns, sent_ns), and all of it had come at arrival_ns.

    Kept of hidden states and outputs that were received. What hosts tell each other (request lists, votes) is not kept.
    """

    iteration: int
    leaves_ns: int
    sent_ns: int
    arrival_ns: int


class Sampled(NamedTuple):
    """The last rank sampled ``token_ids`` for the batch launched in ``iteration``, one a row."""

    iteration: int
    slot: int
    token_ids: tuple[int, ...]


class Observed(NamedTuple):
    """What one rank alone saw: ``values`` in the order of ``keys``; the ``nth`` look of that iteration, from 0."""

    iteration: int
    nth: int
    what: str
    keys: tuple[str, ...]
    values: tuple[int, ...]


class Stored(NamedTuple):
    """What the consensus store held of ``rid`` when the first rank looked in ``iteration``: KVPoll of each rank.

    None: nothing had arrived. What the rank concluded from them is among its observations.
    """

    iteration: int
    rid: str
    statuses: tuple[int | None, ...]


WALL_CLOCK = "wall_clock"
"""The word of an ``Observed`` that no rank has asked for by an effect: a policy has read its rank's clock, in ns."""


class Mark(NamedTuple):
    """Disaggregation: request ``rid`` came to ``what`` at ``time_ns``, in that ``iteration`` of the first rank.

    Where ``what`` is true of a rank at a time, the mark is of the last rank. ``shares.py`` has the names.
    """

    rid: str
    what: str
    iteration: int
    time_ns: int


INPUT_KINDS: dict[type, str] = {NewRequest: "new", AbortReq: "abort", FlushCache: "flush", Shutdown: "shutdown"}


def input_record(item: Input) -> InputRecord:
    """The record of one replicated input: all of its fields, whatever they are, and of a prompt its digest."""
    rid, prompt, rest = "", b"", []
    for field in fields(item):
        value = getattr(item, field.name)
        if field.name == "rid":
            rid = value
        elif field.name == "prompt":
            prompt = value
        else:
            rest.append((field.name, value))
    kind = INPUT_KINDS.get(type(item), type(item).__name__)
    return InputRecord(kind, rid, count(prompt), prompt_digest(prompt) if prompt else "", tuple(rest))


def prompt_digest(prompt: bytes) -> str:
    """Eight bytes of blake2b over a packed prompt, in hex."""
    return blake2b(prompt, digest_size=8).hexdigest()
