"""Scripts: commands and the output they must have, in one text file that a reader can follow.

    # A comment tells the story.
    command argument key=value
    ----
    expected output, up to the next empty line

A script has one pipeline. ``COMMANDS`` is the vocabulary; each function documents its own. Tokens of a prompt are made
from the request's name, so two requests share nothing unless ``like=`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import TypeAlias

from ppsim.core import effects as fx
from ppsim.core.config import RankConfig
from ppsim.core.messages import AbortReq, Hidden, Input, Lane, Message, Meta, NewRequest, Output
from ppsim.core.tokens import pack
from tests.interactions.ring import Node, Ring
from tests.interactions.walk import picture

Arguments: TypeAlias = dict[str, str]


class ScriptError(Exception):
    """A script that does not follow the rules above; says file and line."""


@dataclass
class Step:
    """One command with its line number and the output that is written below it."""

    line: int
    command: str
    expected: str


@dataclass
class Stage:
    """What the commands of one script work on."""

    ring: Ring | None = None
    inputs: dict[int, tuple[Input, ...]] = field(default_factory=dict)  # grows while the ring runs
    prompts: dict[str, list[int]] = field(default_factory=dict)
    shown_replies: int = 0

    @property
    def open_ring(self) -> Ring:
        if self.ring is None:
            raise ScriptError("no pipeline yet: start the script with 'pipeline pp=...'")
        return self.ring

    @property
    def first(self) -> Node:
        return self.open_ring.nodes[0]


# --- commands ----------------------------------------------------------------------------------------------------


def pipeline(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """pipeline pp=4 depth=0 chunk=8 pool=100 page=1 radix=on mixed=off places=64 rows=64 ratio=7/10 reserve=slot ...

    ``places``: requests that decode in one slot; ``rows``: requests on the whole pipeline.
    """
    ratio = Fraction(keys.pop("ratio", "7/10"))
    config = RankConfig(
        0,
        int(keys.pop("pp", "1")),
        pp_async_batch_depth=int(keys.pop("depth", "0")),
        chunked_prefill_size=chunk if (chunk := int(keys.pop("chunk", "0"))) else None,
        page_size=int(keys.pop("page", "1")),
        enable_radix_cache=keys.pop("radix", "on") == "on",
        enable_mixed_chunk=keys.pop("mixed", "off") == "on",
        schedule_policy=keys.pop("policy", "fcfs"),
        max_micro_batch_size=int(keys.pop("places", "64")),
        max_running_requests=int(keys.pop("rows", "64")),
        prefill_decode_interval=int(keys.pop("decodes", "0")),
        reserve_all_slots=keys.pop("reserve", "slot") == "all_slots",
        skip_pure_chunk_output=keys.pop("skip", "off") == "on",
        init_new_token_ratio=ratio,
        min_new_token_ratio=ratio,
    )
    stage.ring = Ring(config, stage.inputs, capacities=(int(keys.pop("pool", "1000")),), stays_open=True)
    yield f"{config.pp_size} ranks, {config.num_slots} slots"


def request(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """request R1 prompt=20 out=4 at=0 like=R0:8 logprob=on

    ``at``: iteration of rank 0 that reads it, by default the next. ``like=R0:8``: its first 8 tokens are those of R0.
    """
    rid = words[0]
    prompt = [1000 + sum(ord(c) * 31**i for i, c in enumerate(rid))] * int(keys.pop("prompt"))
    if "like" in keys:
        other, length = keys.pop("like").split(":")
        prompt[: int(length)] = stage.prompts[other][: int(length)]
    stage.prompts[rid] = prompt
    spec = NewRequest(rid, pack(prompt), int(keys.pop("out")), return_logprob=keys.pop("logprob", "off") == "on")
    yield from read_at(stage, keys, spec, rid)


def abort(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """abort R1 at=3"""
    yield from read_at(stage, keys, AbortReq(words[0]), f"abort of {words[0]}")


def read_at(stage: Stage, keys: Arguments, item: NewRequest | AbortReq, name: str) -> Iterator[str]:
    at = int(keys.pop("at", str(stage.first.rank.iteration)))
    if at < stage.first.rank.iteration:
        raise ScriptError(f"iteration {at} is over, rank 0 is in {stage.first.rank.iteration}")
    stage.inputs[at] = (*stage.inputs.get(at, ()), item)
    yield f"{name} is read in iteration {at}"


def run(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """run 4 [quiet]: until rank 0 has done so many iterations more; one line for each, see ``visit``"""
    ring, first = stage.open_ring, stage.first
    start = first.rank.iteration
    go(ring, lambda node: node is not first or node.rank.iteration < start + int(words[0]))
    if "quiet" in words:
        yield f"i{start} to i{first.rank.iteration - 1}"
    else:
        yield from (visit(first, i) for i in range(start, first.rank.iteration))


def finish(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """finish [quiet]: run until every request has ended and the ranks stop; one line for each non-empty iteration"""
    ring, first = stage.open_ring, stage.first
    start = first.rank.iteration
    ring.stays_open = False
    go(ring, lambda node: True)
    if "quiet" in words:
        yield f"i{start} to i{first.rank.iteration - 1}"
        return
    empty = [i for i in range(start, first.rank.iteration) if is_empty(first, i)]
    yield from (visit(first, i) for i in range(start, first.rank.iteration) if i not in empty)
    if empty:
        yield f"and {len(empty)} empty iterations"


def advance(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """advance 1: this rank alone, as far as it can; then where it waits."""
    ring = stage.open_ring
    node = ring.nodes[int(words[0])]
    before = node.rank.iteration
    limit = before + int(keys.pop("limit", "1000000"))
    go(ring, lambda other: other is node and node.rank.iteration < limit)
    yield f"rank {node.rank_id}: iteration {before} -> {place(node)}"


def where(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """where: the iteration of every rank, and what it waits for"""
    yield from (f"rank {node.rank_id}: iteration {place(node)}" for node in stage.open_ring.nodes)


def slots(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """slots: of rank 0: who decodes in it, and the launched batch that is not harvested yet"""
    for slot in stage.first.rank.scheduler.slots.slots:
        running = " ".join(r.rid for r in slot.running) or "-"
        flight = f" in flight i{slot.launched.iteration}" if slot.in_flight and slot.launched else ""
        yield f"slot {slot.index}: {running}{' (full)' if slot.batch_is_full else ''}{flight}"


def queue(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """queue: of rank 0: who waits, and the request that is being cut into chunks"""
    s = stage.first.rank.scheduler
    yield f"waiting: {' '.join(r.rid for r in s.waiting) or '-'}"
    yield f"chunked: {s.chunked.rid if s.chunked else '-'}"


def pool(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """pool: of rank 0, in tokens"""
    kv = stage.first.rank.scheduler.kv
    cached = f"{kv.tree.evictable_tokens} evictable, {kv.tree.protected_tokens} locked"
    yield f"{kv.pool.free_tokens} free of {kv.pool.capacity_tokens}; cached: {cached}; {len(kv.free_rows)} rows free"


def tree(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """tree: of rank 0: every node of the radix cache, as the positions that it covers and whose prompt that is"""
    for start, path, locked in picture(stage.first.rank.scheduler.kv.tree):
        owners = [rid for rid, prompt in stage.prompts.items() if list(path)[: len(prompt)] == prompt[: len(path)]]
        yield f"[{start}:{len(path)}] of {' '.join(owners)}{' locked' if locked else ''}"


def replies(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """replies: the last replies that clients got since the last time, with the number of tokens"""
    new = stage.open_ring.replies[stage.shown_replies :]
    stage.shown_replies += len(new)
    for reply in new:
        if reply.status == "token":
            continue
        yield f"{reply.rid} {reply.status} {reply.num_output_tokens} {reply.reason}".strip()


def messages(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """messages 0 1: all that has left rank 0 for rank 1 since the start, lane by lane"""
    src, dst = int(words[0]), int(words[1])
    for lane in (Lane.CONTROL, Lane.TENSOR):
        sent = stage.open_ring.sent.get((src, dst, lane), [])
        yield f"{lane.value}: {' '.join(name_of(m) for m in sent) or '-'}"


def agree(stage: Stage, words: list[str], keys: Arguments) -> Iterator[str]:
    """agree: whether all ranks took the same decisions, as far as they have come"""
    nodes = stage.open_ring.nodes
    common = min(len(node.decisions) for node in nodes)
    same = all(node.decisions[:common] == nodes[0].decisions[:common] for node in nodes)
    yield f"{len(nodes)} ranks, {common} decisions: {'the same' if same else 'DIFFERENT'}"


Command: TypeAlias = Callable[[Stage, list[str], Arguments], Iterator[str]]
COMMANDS: dict[str, Command] = {
    f.__name__: f
    for f in (
        pipeline, request, abort, run, finish, advance, where, slots, queue, pool, tree, replies, messages, agree,
    )
}  # fmt: skip


# --- how things are written --------------------------------------------------------------------------------------


def go(ring: Ring, may_go: Callable[[Node], bool]) -> None:
    """Step the lowest rank that may and can, until there is none."""
    while ready := [node for node in ring.nodes if may_go(node) and ring.can_go_on(node)]:
        ring.step(ready[0])


def is_empty(node: Node, iteration: int) -> bool:
    harvest = node.harvests[iteration]
    return node.decisions[iteration].mode == "empty" and harvest.harvested is None and not harvest.finished


def visit(node: Node, iteration: int) -> str:
    """One iteration: what was launched | what was harvested | free + evictable tokens afterwards.

    R1[0:8] is a middle chunk with these positions, R1[16:20]! a last chunk, R1@20 a decode at that position; R1#2 is
    the second token of R1.
    """
    decision, harvest = node.decisions[iteration], node.harvests[iteration]
    launch = [decision.mode]
    for piece in node.launched.get(iteration, ()):
        chunk = f"[{piece.prefix_len}:{piece.prefix_len + piece.new_tokens}]{'!' if piece.is_last_chunk else ''}"
        launch.append(piece.rid + (f"@{piece.prefix_len}" if piece.is_decode else chunk))
    launch += [f"retracted {rid}" for rid in decision.retracted]
    got = ["-" if harvest.harvested is None else f"i{harvest.harvested}"]
    got += [f"{rid}#{n}" for rid, n in harvest.delivered] + [f"end {rid}" for rid in harvest.finished]
    memory = f"free {harvest.free_tokens}+{harvest.evictable_tokens}"
    return f"i{iteration} s{decision.slot} {' '.join(launch)} | {' '.join(got)} | {memory}"


def place(node: Node) -> str:
    """Where a rank stands."""
    match node.effect:
        case None:
            return f"{node.rank.iteration}, ended"
        case fx.Recv(src, lane):
            return f"{node.rank.iteration}, receives from rank {src} ({lane.value})"
        case fx.Commit():
            return f"{node.rank.iteration}, waits until a message is taken"
        case effect:
            return f"{node.rank.iteration}, before {type(effect).__name__.lower()}"


def name_of(message: Message) -> str:
    match message:
        case Meta():
            return f"{message.iteration}({len(message.inputs)})"
        case Hidden():
            return f"hidden:{message.iteration}({message.num_tokens})"
        case Output():
            return f"output:{message.iteration}({message.num_rows})"
    return f"{message.kind.value}:{message.iteration}"


# --- files -------------------------------------------------------------------------------------------------------


def parse(path: Path) -> list[tuple[str, Step | None]]:
    """The file as (text to keep as it is, step that follows it)."""
    parts: list[tuple[str, Step | None]] = []
    kept: list[str] = []
    lines = path.read_text().split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip() or line.startswith("#"):
            kept.append(line)
            continue
        command = line
        expected: list[str] = []
        if at < len(lines) and lines[at] == "----":
            end = next((i for i in range(at, len(lines)) if not lines[i].strip()), len(lines))
            expected, number, at = lines[at + 1 : end], at, end
        else:
            number = at
        parts.append(("\n".join(kept), Step(number, command, "\n".join(expected))))
        kept = []
    parts.append(("\n".join(kept), None))
    return parts


def play(stage: Stage, step: Step) -> str:
    """Output of one command. Raises ScriptError for a command or an argument that does not exist."""
    words = [word for word in step.command.split() if "=" not in word]
    keys = dict(word.split("=", 1) for word in step.command.split() if "=" in word)
    command = COMMANDS.get(words[0])
    if command is None:
        raise ScriptError(f"line {step.line}: no command {words[0]!r}; there are: {', '.join(COMMANDS)}")
    output = "\n".join(command(stage, words[1:], keys))
    if keys:
        raise ScriptError(f"line {step.line}: {words[0]} knows no {', '.join(keys)}: {command.__doc__}")
    return output


def render(parts: list[tuple[str, Step | None]], outputs: list[str]) -> str:
    """The file again, with the output that the commands really have."""
    text = ""
    for (kept, step), output in zip(parts, [*outputs, ""], strict=True):
        text += f"{kept}\n" if kept or text else ""
        if step is not None:
            text += f"{step.command}\n----\n{output}\n"
    return text.rstrip("\n") + "\n"
