"""The tables of docs/protocol.md say what the code has: phases, lanes, kinds, votes, states, streams, defaults."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from ppsim.check.invariants import INVARIANTS, RULES
from ppsim.core import messages
from ppsim.core.config import RankConfig
from ppsim.core.consensus import KVPoll
from ppsim.core.loop import Plan, votes_of
from ppsim.core.messages import Kind, Lane
from ppsim.cost.sglang_chunks import ChunkPredictor
from ppsim.plugin.plans import right_plan
from ppsim.sglang.flags import defaults
from ppsim.world.streams import Streams

PAGE = Path(__file__).resolve().parents[2] / "docs" / "protocol.md"


@cache
def sections() -> dict[str, str]:
    """Text of each section, by its number."""
    parts = re.split(r"^#{2,3} (\d+(?:\.\d+)?) .*$", PAGE.read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str, head: str) -> list[list[str]]:
    """Cells of the table whose first line begins with ``head``."""
    lines = sections()[section].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    table = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return table


def quoted(text: str, known: set[str]) -> list[str]:
    """Names of phases in a text, in order."""
    return [name for name in re.findall(r"`([a-z_]+)`", text) if name in known]


PLAIN, PREFILL, DECODE = right_plan("plain"), right_plan("prefill"), right_plan("decode")
PREFILL_VOTING = right_plan("prefill", "vote")
KNOWN = {phase.__name__ for plan in (PLAIN, PREFILL, PREFILL_VOTING, DECODE) for phase in plan}


@pytest.mark.parametrize(
    ("section", "plan"), [("1.3", PLAIN), ("1.7", PREFILL), ("1.8", DECODE)], ids=["1.3", "1.7", "1.8"]
)
def test_the_steps_of_a_loop_are_its_phases_in_their_order(section: str, plan: Plan) -> None:
    steps = re.findall(r"^(?:\d+\. |\| \d+[ab]? \|).*(?:\n  .*)*", sections()[section], re.M)
    assert len(steps) >= 14
    assert quoted("\n".join(steps), KNOWN) == [phase.__name__ for phase in plan]


def test_the_phases_of_the_voting_bootstrap_are_those_that_the_page_puts_in_their_place() -> None:
    """Steps 1 and 2, its own first passes, 5 to 10, its own second passes, 13 to 18."""
    items = dict(re.findall(r"^(\d+)\. (.*(?:\n  .*)*)", sections()["1.7"], re.M))
    step = {number: quoted(text, KNOWN) for number, text in items.items()}
    own = quoted(sections()["1.7"].split("The released loop votes")[1], KNOWN)
    ran = [*step["1"], *step["2"], *own[:2], *(name for n in range(5, 11) for name in step[str(n)]), *own[2:]]
    ran += [name for n in range(13, 19) for name in step[str(n)]]
    assert ran == [phase.__name__ for phase in PREFILL_VOTING]


def test_lanes_kinds_and_states_are_those_of_the_core() -> None:
    assert [row[0].strip("`") for row in rows("2.1", "lane")] == [lane.name for lane in Lane]
    by_kind = {message.kind.value: message.__name__ for message in get_args(messages.Message)}
    assert {row[0].strip("`"): row[1] for row in rows("2.3", "kind")} == by_kind
    assert sorted(by_kind) == sorted(kind.value for kind in Kind)
    assert [(int(number), name.strip("`")) for number, name in rows("6.1", "value")] == [
        (p.value, p.name) for p in KVPoll
    ]


def test_the_votes_of_each_role_are_in_the_table_in_the_order_of_their_second_passes() -> None:
    def votes(role: str, bootstrap: str) -> tuple[str, ...]:
        return votes_of(RankConfig(pp_rank=0, pp_size=2, role=role, bootstrap_consensus=bootstrap))

    named = [re.findall(r"^`(\w+)`", row[0])[0] for row in rows("6.3", "vote")]
    assert tuple(named) == votes("prefill", "vote") + votes("decode", "store")


def test_streams_and_buffers_of_the_table_are_fields_of_the_simulated_ones() -> None:
    named = [name for row in rows("3.2", "stream") for name in re.findall(r"`([a-z_]+)`", row[2])]
    assert set(named) == {"waits_until", "forward_free"}
    assert set(named) <= {field.name for field in fields(Streams)}


def test_the_invariants_are_those_that_are_checked() -> None:
    assert [(int(n), text) for n, text in rows("12", "number")] == [
        (r.number, r.statement) for r in (*INVARIANTS, *RULES)
    ]


def test_the_chunks_of_the_table_are_what_the_predictor_gives() -> None:
    table = rows("5.3", "L")
    assert len(table) == 9
    for past, base, page, context, cap, smooth, blended, result in table:
        predictor = ChunkPredictor(1e-6, 1e-3, int(base), int(page), int(context), int(cap), float(smooth))
        root = predictor.root(int(past))
        assert root is not None
        assert int(int(base) + float(smooth) * (root - int(base))) == int(blended)
        assert predictor.next_chunk(int(past)) == int(result)


def test_the_defaults_of_server_arguments_are_those_of_the_table_of_flags() -> None:
    known = defaults("sglang")
    found = 0
    for argument, default, _ in rows("10.1", "argument"):
        name = re.findall(r"--([a-z-]+)", argument)[0].replace("-", "_")
        assert name in known, argument
        if re.fullmatch(r"[\d.]+", default):
            assert known[name] == float(default), argument
            found += 1
    assert found >= 7
