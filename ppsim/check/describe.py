"""Effects and messages in words, and the requests that they are about, for the reports of the judge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ppsim.core.effects import (
    Act,
    AwaitLocal,
    Commit,
    Decided,
    Decision,
    Drop,
    Effect,
    Harvest,
    Harvested,
    Ingest,
    Launch,
    Observe,
    Recv,
    Reply,
    Send,
)
from ppsim.core.messages import AbortReq, Conclusion, Hidden, Message, Meta, NewRequest, Output, Side, Vote
from ppsim.core.observations import CopyKey

MAX_SHOWN = 200  # characters of one fact


class Place(NamedTuple):
    """Which rule is broken, and where."""

    invariant: str
    rank: int
    iteration: int
    slot: int | None
    phase: str = ""
    rid: str = ""

    def __str__(self) -> str:
        slot = f", slot {self.slot}" if self.slot is not None else ""
        phase = f", phase {self.phase}" if self.phase else ""
        about = f", request {self.rid}" if self.rid else ""
        return f"{self.invariant} at rank {self.rank}, iteration {self.iteration}{slot}{phase}{about}"


def told(effect: Effect) -> str:
    """What a rank asks of its world, in words."""
    match effect:
        case Ingest():
            return "reads its clients" + (", with nothing else to do" if effect.idle else ", with more to do")
        case Send():
            return f"sends the {told_message(effect.message)} to rank {effect.dst}"
        case Recv():
            return f"receives from rank {effect.src} on lane {effect.lane.value}"
        case Commit():
            return "waits for a send"
        case Drop():
            return "gives the buffer of a send up"
        case Launch():
            pieces = " ".join(f"{p.rid}[{p.prefix_len}+{p.new_tokens}]" for p in effect.batch.pieces)
            return short(f"launches {effect.batch.mode.value} {pieces}")
        case Observe():
            return short(f"looks at {effect.what} of {list(effect.keys)}")
        case AwaitLocal():
            return f"waits for its own {effect.what} of {effect.key}"
        case Act():
            return short(f"asks for {effect.action!r}")
        case Reply():
            return short(f"replies {effect.status} to {effect.rid} {list(effect.token_ids)}")
        case Decided():
            return short(f"decides {told_decision(effect.decision)}")
        case Harvested():
            return short(f"harvests {told_harvest(effect.harvest)}")
        case _:
            return "waits for the tokens of a launch"


def told_message(message: Message) -> str:
    """Kind and logical address; of votes and conclusions the name and what they say."""
    where = f"of iteration {message.iteration}, slot {message.slot}"
    match message:
        case Vote() | Conclusion():
            what = "vote" if isinstance(message, Vote) else "conclusion"
            return short(f"{what} {message.name} {where} (good {list(message.good)}, bad {list(message.bad)})")
        case Side():
            return short(f"{message.lane.value} message {where} {list(message.values or message.counts)}")
        case Meta():
            return short(f"request list {where} {[str(item) for item in message.inputs]}")
        case Hidden():
            return f"hidden states {where} ({message.num_tokens} rows, behind {message.num_layers} layers)"
        case Output():
            return f"output {where} ({message.num_rows} rows, {message.num_logprobs} with logprobs)"
        case _:
            return f"{message.kind.value} message {where}"


def told_decision(d: Decision) -> str:
    pieces = " ".join(f"{rid}[{prefix}+{new}]" for rid, prefix, new in d.pieces)
    retracted = f", retracts {list(d.retracted)}" if d.retracted else ""
    chunked = f", cuts {d.chunked_rid}" if d.chunked_rid else ""
    return f"{d.mode} {pieces}".rstrip() + f"{retracted}{chunked} (state {d.state_digest})"


def told_harvest(h: Harvest) -> str:
    what = "nothing" if h.harvested is None else f"the batch of iteration {h.harvested}"
    rows = ", ".join(f"token {token} as number {n} of {rid}" for (rid, n), token in zip(h.delivered, h.token_ids))
    ended = f", ends {list(h.finished)}" if h.finished else ""
    return f"{what}{': ' if rows else ''}{rows}{ended}; {h.free_tokens} tokens free, {h.evictable_tokens} evictable"


def short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 4] + " ..."


def rids_of(value: object) -> list[str]:
    """Texts inside nested tuples, in order: where requests are listed, their ids."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, NewRequest | AbortReq):
        return [value.rid]
    return [rid for item in value for rid in rids_of(item)] if isinstance(value, tuple | list) else []


def first_rid(one: object, other: object, known: Iterable[str] | None = None) -> str:
    """The first request that only one side has, or has in another place or with other words; empty where none is.

    ``known``: ids that there are; None where every text is an id.
    """
    ours, theirs = rids_of(one), rids_of(other)
    if known is not None:
        there = dict.fromkeys(known)
        ours, theirs = [rid for rid in ours if rid in there], [rid for rid in theirs if rid in there]
    for rid in [*ours, *theirs]:
        if (rid in ours) != (rid in theirs):
            return rid
    if isinstance(one, tuple) and isinstance(other, tuple):
        for mine, its in zip(one, other):
            if mine != its:
                found = rids_of(mine) + rids_of(its)
                return next((rid for rid in found if known is None or rid in known), "")
    return next((mine for mine, its in zip(ours, theirs) if mine != its), "")


def owner_of(key: str, known: Mapping[str, object]) -> str:
    """The request that a fact or an action is about; of a copy the one on whose behalf it was begun, if it is known."""
    if not isinstance(key, CopyKey):
        return key
    return key.owner if key.owner in known else ""


def rid_of(one: Effect, other: Effect, known: Mapping[str, object]) -> str:
    """The request that two effects differ about, as far as they name one."""
    for effect in (other, one):
        match effect:
            case Reply():
                return effect.rid
            case AwaitLocal():
                return owner_of(effect.fact.key, known)
            case Act():
                action = effect.action
                return owner_of(action.rid if hasattr(action, "rid") else action.key, known)
            case Decided() if isinstance(one, Decided) and isinstance(other, Decided):
                mine, its = one.decision, other.decision
                return first_rid((mine.pieces, mine.retracted), (its.pieces, its.retracted), known)
            case Harvested() if isinstance(one, Harvested) and isinstance(other, Harvested):
                mine_, its_ = one.harvest, other.harvest
                rows = zip(its_.delivered, mine_.token_ids, its_.token_ids)
                token = next((rid for (rid, _), a, b in rows if a != b), "")
                return first_rid((mine_.delivered, mine_.finished), (its_.delivered, its_.finished)) or token
            case Observe():
                return first_rid(effect.keys, one.keys if isinstance(one, Observe) else ())
            case Launch():
                return next((p.rid for p in effect.batch.pieces), "")
            case Send() if isinstance(one, Send) and isinstance(other, Send):
                return first_rid(named_in(one.message), named_in(other.message))
    return ""


def named_in(message: Message) -> tuple[object, ...]:
    """The requests that a message is about, as far as it names them."""
    match message:
        case Vote() | Conclusion():
            return message.good, message.bad
        case Meta():
            return message.inputs
        case Side():
            return message.values
        case _:
            return ()
