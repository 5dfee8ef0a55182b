"""Messages as bytes: JSON of known types and nothing else.

Rule: what comes over a socket is data, never code. Unpickling would run whatever the sender wants; here a body can only
become one of the message types of the core, made of numbers, texts, bytes and tuples, or it is refused.

    None, bool, int, str   as they are
    bytes                  {"bytes": base64}
    a lane                 {"lane": value}
    tuple                  a list
    a message or a part    {"type": name, "fields": [...]}   in the order of its fields
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from ppsim.core.messages import (
    AbortReq,
    Call,
    CallLog,
    Check,
    Conclusion,
    FlushCache,
    Hidden,
    Lane,
    Message,
    Meta,
    NewRequest,
    Output,
    Shutdown,
    Side,
    Start,
    Vote,
)

MESSAGES: dict[str, type] = {c.__name__: c for c in (Start, Meta, Hidden, Output, Vote, Conclusion, Side, Check)}
PARTS: dict[str, type] = {c.__name__: c for c in (NewRequest, AbortReq, FlushCache, Shutdown, Call, CallLog)}
TYPES = {**MESSAGES, **PARTS}
DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64)}

Payload = tuple[torch.dtype, tuple[int, ...]]


def encode(message: Message, payload: Payload | None) -> bytes:
    """The body of a message without its tensor, and dtype and shape of the tensor that follows. Raises TypeError."""
    described = None if payload is None else [str(payload[0]), list(payload[1])]
    return json.dumps([plain(message), described]).encode()


def decode(body: bytes) -> tuple[Message, Payload | None]:
    """The message behind a body. Raises ValueError with the reason for anything that ``encode`` does not make."""
    try:
        found, described = json.loads(body)
        message = revive(found)
        payload = None if described is None else (DTYPES[described[0]], tuple(int(size) for size in described[1]))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if type(message).__name__ not in MESSAGES:
        raise ValueError(f"a {type(message).__name__} is no message")
    return message, payload


def plain(value: Any) -> Any:
    """What JSON can hold of a value; see the table above. Raises TypeError for any other type."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)  # of an enumeration of numbers its number
    if isinstance(value, bytes):
        return {"bytes": b64encode(value).decode("ascii")}
    if isinstance(value, Lane):
        return {"lane": value.value}
    name = type(value).__name__
    if TYPES.get(name) is type(value):
        return {"type": name, "fields": [plain(getattr(value, field)) for field in field_names(type(value))]}
    if type(value) is tuple:
        return [plain(item) for item in value]
    raise TypeError(f"a {name} cannot travel between ranks")


def revive(value: Any) -> Any:
    """The inverse of ``plain``."""
    if isinstance(value, list):
        return tuple(revive(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "bytes" in value:
        return b64decode(value["bytes"], validate=True)
    if "lane" in value:
        return Lane(value["lane"])
    cls = TYPES[value["type"]]
    names = field_names(cls)
    if len(names) != len(value["fields"]):
        raise ValueError(f"{value['type']} has {len(names)} fields, {len(value['fields'])} came")
    return cls(**dict(zip(names, map(revive, value["fields"]), strict=True)))


def field_names(cls: type) -> tuple[str, ...]:
    """Fields of a dataclass or a named tuple, in order."""
    if is_dataclass(cls):
        return tuple(field.name for field in fields(cls))
    names: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
    return names
