"""What a rank may ask its surroundings to do: a closed set, one class for each kind. None of it blocks.

    class             arguments                 meaning
    Compile           rid, grammar              begin to compile the grammar of a request
    CancelCompile     rid                       it is not wanted any more
    Bootstrap         rid, room                 prefill side: announce a sender to the decode side
    Admitted          rid                       prefill side: the handshake is agreed; the request may be scheduled
    SendChunk         rid, start, stop          prefill side: send KV of tokens [start, stop)
    SendLast          rid, start, stop          the same, with the first output token: nothing follows
    AbortSender       rid, room                 prefill side: give the transfer up
    Handshake         rid, room                 decode side: announce a receiver to the prefill side
    HandshakeAgreed   rid                       decode side: the handshake is agreed; memory may still be short
    SendMetadata      rid                       decode side: memory is allocated; say where KV is to be written
    AbortReceiver     rid, room                 decode side: give the transfer up
    Refused           rid, room                 either side: the request was refused at its arrival
    WriteThrough      key, num_tokens           copy device pages to host memory; they stay in use
    WriteBack         key, num_tokens           copy device pages to host memory; they may be overwritten after it
    LoadBack          key, num_tokens           copy host pages to the device
    FetchStored       key, start, stop          copy prompt tokens [start, stop) from storage to host memory

``room`` is the number that both sides know a request by: an id may come twice, a room does not. None: it has none.
Lengths are in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, get_args

from ppsim.core.observations import CopyKey

Room: TypeAlias = int | None


@dataclass(frozen=True, slots=True)
class Compile:
    rid: str
    grammar: str


@dataclass(frozen=True, slots=True)
class CancelCompile:
    rid: str


@dataclass(frozen=True, slots=True)
class Bootstrap:
    rid: str
    room: Room


@dataclass(frozen=True, slots=True)
class Admitted:
    rid: str


@dataclass(frozen=True, slots=True)
class SendChunk:
    rid: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SendLast:
    rid: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class AbortSender:
    rid: str
    room: Room


@dataclass(frozen=True, slots=True)
class Handshake:
    rid: str
    room: Room


@dataclass(frozen=True, slots=True)
class HandshakeAgreed:
    rid: str


@dataclass(frozen=True, slots=True)
class SendMetadata:
    rid: str


@dataclass(frozen=True, slots=True)
class AbortReceiver:
    rid: str
    room: Room


@dataclass(frozen=True, slots=True)
class Refused:
    rid: str
    room: Room


@dataclass(frozen=True, slots=True)
class WriteThrough:
    key: CopyKey
    num_tokens: int


@dataclass(frozen=True, slots=True)
class WriteBack:
    key: CopyKey
    num_tokens: int


@dataclass(frozen=True, slots=True)
class LoadBack:
    key: CopyKey
    num_tokens: int


@dataclass(frozen=True, slots=True)
class FetchStored:
    key: CopyKey
    start: int
    stop: int


Transfer: TypeAlias = (
    Bootstrap
    | Admitted
    | SendChunk
    | SendLast
    | AbortSender
    | Handshake
    | HandshakeAgreed
    | SendMetadata
    | AbortReceiver
    | Refused
)
"""Between the two sides of disaggregation."""
Copy: TypeAlias = WriteThrough | WriteBack | LoadBack | FetchStored
"""Between the tiers of the cache."""
Action: TypeAlias = Compile | CancelCompile | Transfer | Copy
ACTIONS: tuple[type[Action], ...] = get_args(Action)
