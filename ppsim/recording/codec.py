"""One record, one JSON array: the kind first, then the fields in the order of ``SHAPES``.

Rule: the bytes are a function of the record. No floats, no spaces, no dictionaries whose order could change, and
nothing but ASCII. The digests are taken over the same text (without rank and times), so a file and its digests
cannot disagree about what a record says.

``SHAPES`` is the schema: every field with its name and the check that a value read from a file must pass.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, TypeAlias

from ppsim.core.effects import Decision, Harvest
from ppsim.core.tokens import WIDTH, TokenBytes
from ppsim.recording.schema import Ingested, InputRecord, Message, TimedReply

Check: TypeAlias = Callable[[Any], Any]

ENCODER = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def encoder() -> Callable[[object], str]:
    """``ENCODER.encode``. It makes a C encoder for each call, which costs more than a record does: here one is made for
    all, where the interpreter has it."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return ENCODER.encode
    chunks = make(None, ENCODER.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0))


text_of = encoder()
"""Compact JSON of a record's fields; tuples become arrays."""


class BadField(ValueError):
    """A value of a record is not what its field holds. ``field`` is its name; the file and line are the reader's."""

    def __init__(self, field: str, expected: str, came: object) -> None:
        super().__init__(field, expected, came)
        self.field, self.expected, self.came = field, expected, came


def integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("an integer")
    if not -(2**127) <= value < 2**127:  # what costs more than all time there is has a place, and still makes a float
        raise TypeError("an integer of at most 128 bits")
    return value


def string(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("a string")
    return value


def optional(check: Check) -> Check:
    def checked(value: Any) -> Any:
        return None if value is None else check(value)

    return checked


def many(check: Check) -> Check:
    """An array of such values, as a tuple."""

    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise TypeError("an array")
        return tuple([check(item) for item in value])

    return checked


def row(*checks: Check) -> Check:
    """An array with exactly these values, as a tuple."""

    def checked(value: Any) -> tuple[Any, ...]:
        if type(value) is not list or len(value) != len(checks):
            raise TypeError(f"an array of {len(checks)} values")
        return tuple([check(item) for check, item in zip(checks, value)])

    return checked


def setting(value: Any) -> object:
    """The value of an input's further field: a scalar, or an array of scalars as a tuple."""
    if isinstance(value, list):
        return tuple([setting(item) for item in value])
    if value is None or isinstance(value, str | int | bool):
        return value
    raise TypeError("a scalar or an array of scalars")


def input_row(value: Any) -> InputRecord:
    settings = many(row(string, setting))
    return InputRecord(*row(string, string, integer, string, settings)(value))


def packed(value: Any) -> bytes:
    """Packed tokens (``ppsim.core.tokens``) as base64."""
    try:
        tokens = b64decode(string(value).encode("ascii"), validate=True)
    except ValueError:
        raise TypeError("packed tokens in base64") from None
    if len(tokens) % WIDTH:
        raise TypeError(f"packed tokens of {WIDTH} bytes each in base64")
    return tokens


REPLY = row(string, string, many(integer), integer, string)

SHAPES: dict[str, tuple[tuple[str, Check], ...]] = {
    "arrival": (("rid", string), ("at_ns", integer), ("num_prompt_tokens", integer), ("num_output_tokens", integer)),
    "ingested": (("iteration", integer), ("time_ns", integer), ("inputs", many(input_row))),
    "decision": (
        ("rank", integer),
        ("iteration", integer),
        ("slot", integer),
        ("mode", string),
        ("pieces", many(row(string, integer, integer))),
        ("retracted", many(string)),
        ("chunked_rid", optional(string)),
        ("state_digest", string),
        ("stall", string),
    ),
    "harvest": (
        ("rank", integer),
        ("iteration", integer),
        ("slot", integer),
        ("harvested", optional(integer)),
        ("delivered", many(row(string, integer))),
        ("finished", many(string)),
        ("token_ids", many(integer)),
        ("free_tokens", integer),
        ("evictable_tokens", integer),
    ),
    "same": (("rank", integer), ("kind", string), ("first", integer), ("count", integer)),
    "observed": (
        ("rank", integer),
        ("iteration", integer),
        ("nth", integer),
        ("what", string),
        ("keys", many(string)),
        ("values", many(integer)),
    ),
    "stored": (("iteration", integer), ("rid", string), ("statuses", many(optional(integer)))),
    "sampled": (("iteration", integer), ("slot", integer), ("token_ids", many(integer))),
    "replies": (("iteration", integer), ("time_ns", integer), ("replies", many(REPLY))),
    "span": (
        ("rank", integer),
        ("stream", string),
        ("slot", integer),
        ("iteration", integer),
        ("start_ns", integer),
        ("end_ns", integer),
    ),
    "visits": (("rank", integer), ("first", integer), ("times", many(integer))),
    "messages": (("src", integer), ("dst", integer), ("kind", string), ("times", many(integer))),
    "mark": (("rid", string), ("what", string), ("iteration", integer), ("time_ns", integer)),
    "stand": (
        ("rank", integer),
        ("iteration", integer),
        ("slot", optional(integer)),
        ("doing", string),
        ("waits_for", optional(integer)),
        ("since_ns", optional(integer)),
    ),
    "warning": (("message", string),),
    "prompt": (("digest", string), ("tokens", packed)),
    "refusal": (("rid", string), ("num_failing", integer), ("behind", integer)),
    "left": (
        ("rank", integer),
        ("dst", integer),
        ("kind", string),
        ("iteration", integer),
        ("leaves_ns", integer),
        ("sent_ns", integer),
    ),
    "came": (("rank", integer), ("src", integer), ("kind", string), ("iteration", integer), ("arrival_ns", integer)),
    "sum": (("num_lines", integer), ("digest", string)),
    "end": (("num_lines", integer), ("digest", string), ("text_digest", string)),
}
NUM_OPTIONAL = {"decision": 1, "end": 1}
"""Last fields of a record that are left out where they are empty: older recordings have none of them."""


def parse_row(value: Any) -> tuple[str, list[Any]]:
    """Kind and checked fields of one line. Raises BadField."""
    if type(value) is not list or not value or type(value[0]) is not str:
        raise BadField("kind", "an array that begins with the kind of the record", value)
    kind, fields = value[0], value[1:]
    shape = SHAPES.get(kind)
    if shape is None:
        raise BadField("kind", f"one of {', '.join(SHAPES)}", kind)
    least = len(shape) - NUM_OPTIONAL.get(kind, 0)
    if not least <= len(fields) <= len(shape):
        names = [name for name, _ in shape]
        more = f", and {', '.join(names[least:])} where it is not empty" if names[least:] else ""
        raise BadField(kind, f"{least} fields ({', '.join(names[:least])}){more}", f"{len(fields)}")
    checked = []
    for (name, check), field in zip(shape, fields):
        try:
            checked.append(check(field))
        except TypeError as error:
            raise BadField(f"{kind}.{name}", str(error), field) from None
    return kind, checked


def decision_fields(d: Decision) -> tuple[object, ...]:
    fields = (d.iteration, d.slot, d.mode, d.pieces, d.retracted, d.chunked_rid, d.state_digest)
    return (*fields, d.stall) if d.stall else fields


def harvest_fields(h: Harvest) -> tuple[object, ...]:
    return (
        h.iteration,
        h.slot,
        h.harvested,
        h.delivered,
        h.finished,
        h.token_ids,
        h.free_tokens,
        h.evictable_tokens,
    )


def decision_text(d: Decision) -> str:
    """The fields of a decision as ``text_of`` writes them, without their brackets.

    Put together here, for every iteration has one: it takes a third of the time of ``text_of``.
    """
    iteration, slot, mode, took, put_out, chunked_rid, state, stall = d
    if not took:  # most visits are empty
        pieces = ""
    else:
        pieces = ",".join([f"[{quoted(rid)},{prefix_len},{new_tokens}]" for rid, prefix_len, new_tokens in took])
    chunked = "null" if chunked_rid is None else quoted(chunked_rid)
    retracted = ",".join(map(quoted, put_out)) if put_out else ""
    if stall:
        return f'{iteration},{slot},"{mode}",[{pieces}],[{retracted}],{chunked},"{state}",{quoted(stall)}'
    return f'{iteration},{slot},"{mode}",[{pieces}],[{retracted}],{chunked},"{state}"'


def harvest_text(h: Harvest) -> str:
    """Likewise of a harvest."""
    iteration, slot, launched, tokens_of, ended, token_ids, free, evictable = h
    harvested = "null" if launched is None else launched
    finished = ",".join(map(quoted, ended)) if ended else ""
    if not tokens_of and not token_ids:
        return f"{iteration},{slot},{harvested},[],[{finished}],[],{free},{evictable}"
    delivered = ",".join([f"[{quoted(rid)},{n}]" for rid, n in tokens_of])
    tokens = ",".join(map(str, token_ids))
    return f"{iteration},{slot},{harvested},[{delivered}],[{finished}],[{tokens}],{free},{evictable}"


def ingested_fields(i: Ingested) -> tuple[object, ...]:
    return (i.iteration, i.time_ns, i.inputs)


def reply_text(r: TimedReply) -> str:
    """An answer and its iteration, as ``text_of`` writes them."""
    tokens, reason = ",".join(map(str, r.token_ids)), quoted(r.reason) if r.reason else '""'
    return f'[{r.iteration},{quoted(r.rid)},"{r.status}",[{tokens}],{r.num_output_tokens},{reason}]'


def reply_fields(r: TimedReply) -> tuple[object, ...]:
    """A reply without its time and iteration: those stand once for all replies that leave together."""
    return (r.rid, r.status, r.token_ids, r.num_output_tokens, r.reason)


def prompt_line(digest: str, tokens: TokenBytes) -> str:
    """The line of a prompt."""
    return line_of("prompt", digest, b64encode(tokens).decode("ascii"))


def line_of(kind: str, *fields: object) -> str:
    """The line of one record, without its end."""
    return text_of([kind, *fields])


def reply_lines(replies: Sequence[TimedReply]) -> list[str]:
    """Replies that leave in the same iteration at the same time share a line."""
    lines = []
    together: list[tuple[object, ...]] = []
    for i, reply in enumerate(replies):
        together.append(reply_fields(reply))
        following = replies[i + 1] if i + 1 < len(replies) else None
        if following is None or (following.iteration, following.time_ns) != (reply.iteration, reply.time_ns):
            lines.append(line_of("replies", reply.iteration, reply.time_ns, together))
            together = []
    return lines


# --- times in long rows, each as its distance from the one before: a tenth of the text ---------------------------

ROW_LENGTH = 256  # records of a line


def visit_lines(rank: int, visits: Sequence[int], iteration: int = 0) -> Iterator[str]:
    """``first`` is the iteration of the first time in a row; that one is whole, the others follow by distance.

    ``iteration``: of ``visits[0]``.
    """
    for first in range(0, len(visits), ROW_LENGTH):
        row = visits[first : first + ROW_LENGTH]
        yield line_of("visits", rank, iteration + first, [row[0], *(b - a for a, b in pairwise(row))])


def visits_of(times: Sequence[int]) -> list[int]:
    return list(accumulate(times))


def message_lines(key: tuple[int, int, str], messages: Sequence[Message]) -> Iterator[str]:
    """Four numbers a message: iteration and departure by distance, then how long it left, then how long it came."""
    for first in range(0, len(messages), ROW_LENGTH):
        times: list[int] = []
        before = Message(0, 0, 0, 0)
        for m in messages[first : first + ROW_LENGTH]:
            times += (m.iteration - before.iteration, m.leaves_ns - before.leaves_ns)
            times += (m.sent_ns - m.leaves_ns, m.arrival_ns - m.sent_ns)
            before = m
        yield line_of("messages", *key, times)


def messages_of(times: Sequence[int]) -> list[Message]:
    """Raises LookupError for a row that is not made of whole messages."""
    if len(times) % 4:
        raise LookupError(f"{len(times)} times, expected four a message")
    found = []
    iteration = leaves = 0
    for place in range(0, len(times), 4):
        iteration += times[place]
        leaves += times[place + 1]
        sent = leaves + times[place + 2]
        found.append(Message(iteration, leaves, sent, sent + times[place + 3]))
    return found
