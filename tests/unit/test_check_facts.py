"""The parts of the rules that look at the fact, each alone: ranges, pages, contents, and what several ranks tell."""

from __future__ import annotations

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ppsim.check.page_contents import LOOKS, PageContents
from ppsim.check.together import Concludes, Delivers, Moves, Reads, Record, Samples, Together, Voices, Writes
from ppsim.check.transfers import not_covered_once
from ppsim.core.errors import InvariantViolation
from ppsim.core.messages import NewRequest
from ppsim.core.schedule.batch import Piece
from ppsim.core.schedule.request import Request
from ppsim.core.tokens import pack

# --- ranges ----------------------------------------------------------------------------------------------------------


def test_ranges_cover_a_prompt_once_if_each_token_is_counted_once() -> None:
    """Against counting token by token, for every three ranges within six tokens and for random ones."""
    ends = [(start, stop) for start in range(5) for stop in range(start, 5)]
    for ranges in product(ends, repeat=3):
        count = [sum(start <= token < stop for start, stop in ranges) for token in range(6)]
        assert (not_covered_once(ranges, 3) == "") == (count[:3] == [1] * 3 and not any(count[3:])), ranges
        assert (not_covered_once(ranges, None) == "") == (max(count) <= 1), ranges


def test_what_is_wrong_with_ranges_is_told_by_the_tokens() -> None:
    assert not_covered_once([(0, 4), (4, 8)], 12) == "tokens 8:12 are missing, of 12 of the prompt"
    assert not_covered_once([(8, 12), (0, 4)], 12) == "tokens 4:8 are missing, of 12 of the prompt"
    assert not_covered_once([(0, 8), (4, 12)], 12) == "tokens 4:8 are there twice, in 0:8 and in 4:12"
    assert not_covered_once([(0, 16)], 12) == "tokens 12:16 lie behind the prompt of 12"
    assert not_covered_once([], 1) == "tokens 0:1 are missing, of 1 of the prompt"


# --- pages -----------------------------------------------------------------------------------------------------------


class Server:
    """One rank as the rule sees it, with pages of ``size`` tokens, and a prompt of random tokens for each request."""

    def __init__(self, size: int = 4) -> None:
        self.size, self.rule = size, PageContents()
        self.requests: dict[str, Request] = {}
        config = SimpleNamespace(page_size=size, role="plain")
        scheduler = SimpleNamespace(requests=self.requests, kv=SimpleNamespace(tiers=None))
        self.rank = SimpleNamespace(config=config, scheduler=scheduler, iteration=3, slot=1)
        self.rank_id = 0

    def arrives(self, rid: str, pages: list[int], tokens: list[int]) -> Request:
        request = self.requests[rid] = Request(NewRequest(rid, pack(tokens), 8))
        request.pages = pages
        return request

    def launches(self, rid: str, start: int, new_tokens: int) -> None:
        seat: Any = self
        self.rule.launches(seat, Piece(rid, start, new_tokens, True, False, self.requests[rid]))


def tokens(seed: int, num: int) -> list[int]:
    return Random(seed).sample(range(10_000), num)


def broken(server: Server, rid: str, start: int, new_tokens: int) -> str:
    with pytest.raises(InvariantViolation) as caught:
        server.launches(rid, start, new_tokens)
    assert (caught.value.invariant, caught.value.rid) == ("INV-78", rid)
    return caught.value.detail


def test_chunks_and_decodes_read_what_they_have_written() -> None:
    server = Server()
    server.arrives("a", [1, 2, 3, 4], tokens(1, 12))
    server.launches("a", 0, 6)
    server.launches("a", 6, 6)
    server.requests["a"].output_ids += [5]
    server.launches("a", 12, 1)
    server.launches("a", 13, 0)


def test_a_prefix_is_shared_with_whoever_has_the_same_tokens() -> None:
    server, prompt = Server(), tokens(1, 12)
    server.arrives("a", [1, 2, 3], prompt)
    server.launches("a", 0, 12)
    server.arrives("b", [1, 2, 7], [*prompt[:8], 3, 4])
    server.launches("b", 8, 2)
    server.arrives("c", [1, 2, 9], [*prompt[:7], 9999, 4])
    assert (
        broken(server, "c", 8, 1)
        == "its launch reads page 2 for its tokens from 4 on, which holds KV of a, page 1 of its list"
    )


def test_a_page_that_nobody_has_written_or_that_holds_another_place_is_not_read() -> None:
    server, prompt = Server(), tokens(1, 12)
    server.arrives("a", [1, 2, 3], prompt)
    server.launches("a", 0, 12)
    server.arrives("b", [1, 5, 7], prompt)
    assert broken(server, "b", 8, 1).endswith("which no launch has written")
    server.arrives("c", [2, 1, 7], prompt)
    assert broken(server, "c", 8, 1).endswith("which holds KV of a, page 1 of its list")


def test_tokens_that_were_not_written_yet_are_not_read() -> None:
    server, prompt = Server(), tokens(1, 12)
    server.arrives("a", [1, 2, 3], prompt)
    server.launches("a", 0, 6)
    server.arrives("b", [1, 2, 7], prompt)
    assert "its launch reads page 2" in broken(server, "b", 8, 1)


def test_a_page_is_not_written_to_while_another_request_stands_on_it() -> None:
    server, prompt = Server(), tokens(1, 12)
    server.arrives("a", [1, 2, 3], prompt)
    server.launches("a", 0, 12)
    server.arrives("b", [1, 2, 7], [*prompt[:8], 3, 4])
    server.launches("b", 8, 2)
    server.requests.pop("a").pages = []
    server.arrives("c", [3, 8], tokens(2, 8))
    server.launches("c", 0, 8)  # the third page of a went back to the pool
    server.arrives("d", [2, 9], tokens(3, 8))
    assert broken(server, "d", 0, 8) == "its launch writes to page 2, which holds KV of b, still there"


def test_pages_that_change_places_in_a_list_are_seen_at_the_next_launch_of_a_short_one() -> None:
    server = Server()
    server.arrives("a", [1, 2, 3], tokens(1, 9))
    server.launches("a", 0, 8)
    server.requests["a"].pages[:2] = [2, 1]
    assert "its launch reads page 2 for its tokens from 0 on" in broken(server, "a", 8, 1)


def test_in_a_long_list_they_are_seen_soon_and_at_once_if_an_exchange_was_told() -> None:
    for is_told in (False, True):
        server, num = Server(size=1), 4 * LOOKS
        server.arrives("a", list(range(1, num + 9)), tokens(1, num + 8))
        server.launches("a", 0, num)
        server.requests["a"].pages[:2] = [2, 1]
        if is_told:
            server.rule.exchanged(0)
        # The list grows with each launch, so a fourth one is not enough for its four times LOOKS.
        num_unseen = 0 if is_told else 4
        for launch in range(num_unseen):
            server.launches("a", num + launch, 1)
        assert "its launch reads page 2 for its tokens from 0 on" in broken(server, "a", num + num_unseen, 1)


def test_a_page_exchanged_for_one_of_the_same_tokens_is_right() -> None:
    server, prompt = Server(), tokens(1, 12)
    for rid, pages in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        server.arrives(rid, pages, prompt)
        server.launches(rid, 0, 8)
    server.requests["b"].pages[:2] = [1, 2]
    server.rule.exchanged(0)
    server.launches("b", 8, 4)


# --- records of several ranks ----------------------------------------------------------------------------------------


def judged(*records: Record) -> str:
    """The broken rule, and what it says; empty if none is."""
    together = Together(2, check=False, audited=True)
    try:
        for record in records:
            together.take(record)
    except InvariantViolation as found:
        return f"{found.invariant} {found.rank} {found.iteration} {found.rid}: {found.detail}"
    return ""


WRITTEN = (Writes(0, 4, 1, 44), Writes(0, 5, 2, 55), Writes(1, 5, 2, 155))


def test_what_is_read_is_what_its_writer_wrote_in_that_iteration() -> None:
    assert judged(*WRITTEN, Reads(1, 5, 2, "hidden states", 0, 5, 55, "R1")) == ""
    said = "INV-78 1 5 R1: the hidden states of iteration 5 that it reads "
    other = judged(*WRITTEN, Reads(1, 5, 2, "hidden states", 0, 5, 44, "R1"))
    assert other == said + "are those that rank 0 wrote in iteration 4"
    assert judged(*WRITTEN, Reads(1, 5, 2, "hidden states", 0, 5, 155, "R1")).endswith("rank 1 wrote in iteration 5")
    changed = judged(*WRITTEN, Reads(1, 5, 2, "hidden states", 0, 5, 56, "R1"))
    assert changed == said + "are not what rank 0 wrote, nor what any launch wrote: they were changed since"


def test_every_sampled_token_is_delivered_unless_its_request_is_aborted() -> None:
    sampled = Samples(1, 4, 1, (("R1", 7), ("R2", 8)))
    assert judged(sampled, Delivers(0, 6, 0, 4, (("R1", 7), ("R2", 8)))) == ""
    assert judged(sampled, Delivers(0, 6, 0, 4, (("R1", 7),), ("R2",))) == ""
    lost = judged(sampled, Delivers(0, 6, 0, 4, (("R1", 7),), ("R3",)))
    assert lost == "INV-76 0 6 R2: token 8, sampled in iteration 4, is not delivered"


def test_whoever_moves_was_named_by_a_conclusion_of_that_iteration() -> None:
    voices = tuple(Voices(rank, 4, 1, "release", (("R1",), ())) for rank in (0, 1))
    concluded = (*voices, Concludes(1, 4, 1, "release", 4, ("R1",), ()))
    assert judged(*concluded, Moves(0, 5, 2, 4, ("R1",), ())) == ""
    early = judged(*concluded, Moves(0, 5, 2, 3, ("R1",), ()))
    assert early == "INV-79 0 5 R1: it advances, but no conclusion of the votes of iteration 3 says so"
    assert judged(*concluded, Moves(0, 5, 2, 4, (), ("R1",))).startswith("INV-79 0 5 R1: it fails, but no conclusion")
