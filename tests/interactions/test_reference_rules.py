"""The smallest case of each rule of docs/batches.md, shown on the naive scheduler.

Two kinds of right values. MEASURED: what SGLang's own scheduler did in this case. BY HAND: added up in the comment from
the rule and from protocol.md, where the recorded runs cannot tell whether the rule is kept.
Pages of 1, no chunking, pp_size 2 and depth 0 unless said; every prompt differs from its first token on.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ppsim.core.config import RankConfig
from ppsim.core.messages import NewRequest
from tests.interactions.experiment import request, sampled
from tests.interactions.recorded import Visit, visit
from tests.interactions.reference_scheduler import ReferenceScheduler


@dataclass
class Case:
    """``requests`` are (iteration, request)."""

    kv: int
    requests: list[tuple[int, NewRequest]]
    rules: str = "sglang"

    def run(self, num_visits: int, **flags: Any) -> list[Visit]:
        self.naive = self.scheduler(**flags)
        return [
            visit(self.naive, i, [spec for at, spec in self.requests if at == i], sampled) for i in range(num_visits)
        ]

    def scheduler(self, pp_size: int = 2, chunked_prefill_size: int | None = None, **flags: Any) -> ReferenceScheduler:
        flags = {"max_running_requests": 16, "max_micro_batch_size": 8} | flags
        config = RankConfig(0, pp_size, chunked_prefill_size=chunked_prefill_size, **flags)
        return ReferenceScheduler(config, self.kv, self.rules)


def case(kv: int, *requests: tuple[int, int, int], **kind: Any) -> Case:
    """Requests as (iteration, prompt length, max_new_tokens), named R0, R1, ..."""
    return Case(
        kv, [(at, request(f"R{n}", [10 + n] * length, out, **kind)) for n, (at, length, out) in enumerate(requests)]
    )


def mended(sglang: Case) -> Case:
    return replace(sglang, rules="mended")


# --- rules 1a, 1b, 2: MEASURED ---------------------------------------------------------------------------------------


def test_rule_1a_a_prefill_batch_that_becomes_the_running_batch_brings_its_own_flag() -> None:
    visits = case(1000, (0, 100, 400), (0, 100, 400), (0, 100, 400)).run(3)
    first = {piece[0]: i for i, v in reversed(list(enumerate(visits))) for piece in v["pieces"]}
    assert first["R2"] == 2  # 800 - 399 x 0.7 = 520.7 > 501
    assert visits[1]["full"] is True, "R2 was refused in slot 1"


CLOSED = case(30, (0, 10, 10), (1, 10, 10), *((60 + 4 * n, 5, 5) for n in range(8)))


def test_rule_1b_an_empty_slot_that_got_no_token_is_closed_for_ever() -> None:
    visits = CLOSED.run(400)
    assert Counter(i % 2 for i, v in enumerate(visits) if v["pieces"]) == {0: 43}
    assert visits[-1]["full"] is True


def test_rule_1b_mended_an_empty_slot_is_open() -> None:
    visits = mended(CLOSED).run(400)
    assert Counter(i % 2 for i, v in enumerate(visits) if v["pieces"]) == {0: 25, 1: 22}


DEFERRED = case(1000, (0, 5, 5), (1, 5, 5))


def test_rule_2_a_deferred_visit_with_nothing_to_decode_stays_empty() -> None:
    assert [v["mode"] for v in DEFERRED.run(3, prefill_decode_interval=2)] == ["extend", "empty", "decode"]


def test_rule_2_holds_up_a_running_chunk_too() -> None:
    visits = case(1000, (0, 9, 1)).run(6, chunked_prefill_size=4, prefill_decode_interval=1)
    assert [v["pieces"] for v in visits] == [[["R0", 0, 4]], [], [["R0", 4, 4]], [], [["R0", 8, 1]], []]  # BY HAND


def test_rule_2_mended_a_deferred_visit_with_nothing_to_decode_prefills() -> None:
    visits = mended(DEFERRED).run(3, prefill_decode_interval=2)
    assert [v["mode"] for v in visits] == ["extend", "extend", "decode"]


# --- rules 3a, 3b, 3c: BY HAND ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("logprob", "free", "ev"), [(False, 12, 0), (True, 4, 8)])
def test_rule_3a_a_paged_decode_evicts_for_one_page_a_request(logprob: bool, free: int, ev: int) -> None:
    """Pages of 4, 28 tokens. R0 leaves 8 in the cache; R1 and R2 (5 tokens, two pages each) leave 28 - 8 - 16 = 4 free.

    Their next tokens fit into the pages that they have. Two pages are wanted all the same: 8 - 4 = 4 are short, and the
    leaf of 8 goes. Where a request asks for logprobs only due pages count, and none is due.
    """
    c = case(28, (0, 8, 1), (1, 5, 3), (1, 5, 3))
    c.requests[1] = (1, replace(c.requests[1][1], return_logprob=logprob))
    visits = c.run(3, pp_size=1, page_size=4)
    assert (visits[1]["mode"], visits[1]["free"], visits[1]["ev"]) == ("extend", 4, 8)
    assert (visits[2]["mode"], visits[2]["free"], visits[2]["ev"]) == ("decode", free, ev)


def test_rule_3b_a_paged_prefill_evicts_for_one_page_a_request_more() -> None:
    """Pages of 4, 16 tokens, of which R0 leaves 8 in the cache. R1 needs 5 tokens, that is 8, and 8 are free.

    Wanted are 5 + 4 = 9: one is short, the leaf of 8 goes, and 16 - 8 = 8 remain free.
    """
    visits = case(16, (0, 8, 1), (1, 5, 1)).run(2, pp_size=1, page_size=4)
    assert (visits[1]["pieces"], visits[1]["free"], visits[1]["ev"]) == ([["R1", 0, 5]], 8, 0)


def test_rule_3c_after_a_retraction_20_tokens_for_each_that_stays_are_made_free() -> None:
    """30 tokens, both admitted with 10 + 2 + 1 (clip 2). Five decodes use up the other 10; the sixth needs 2.

    R1 goes: its 5 output tokens are free, its prompt of 10 in the cache is evictable. 20 - 5 = 15 are short, so the
    prompt goes as well, and R0 takes one of 15. (6 + 20) / (20 + 1) is above 1.
    """
    visits = case(30, (0, 10, 20), (0, 10, 20)).run(7, pp_size=1, clip_max_new_tokens=2)
    assert visits[5]["free"] == 0
    assert (visits[6]["retracted"], visits[6]["free"], visits[6]["ev"], visits[6]["ratio"]) == (["R1"], 14, 0, 1)


# --- rule 4: MEASURED ------------------------------------------------------------------------------------------------


def test_rule_4_a_continued_chunk_truncates_the_remainder_and_not_the_growth() -> None:
    visits = case(40, (0, 16, 14), (0, 15, 4)).run(4, chunked_prefill_size=8)
    assert visits[3]["pieces"] == [["R1", 8, 6]]  # 16 - 13 x 0.7 = 6.9


def test_rule_4_a_remainder_below_one_token_is_none_so_the_whole_chunk_budget_is_taken() -> None:
    visits = case(50, (0, 16, 14), (0, 27, 4)).run(6, chunked_prefill_size=8)
    assert visits[5]["pieces"] == [["R1", 24, 3]]  # 10 - 13 x 0.7 = 0.9


# --- rules 5, 6: BY HAND ---------------------------------------------------------------------------------------------


def test_rule_5_those_that_stay_after_a_retraction_are_in_the_order_of_preference() -> None:
    """48 tokens: 33 of prompts, 15 of five decodes, the sixth retracts. Of equals the shorter prompt is better."""
    visits = case(48, (0, 11, 20), (0, 12, 20), (0, 10, 20)).run(7, pp_size=1, clip_max_new_tokens=2)
    assert [piece[0] for piece in visits[5]["pieces"]] == ["R0", "R1", "R2"]
    assert visits[6]["retracted"] == ["R1"]
    assert [piece[0] for piece in visits[6]["pieces"]] == visits[6]["running"] == ["R2", "R0"]


def cached(*tokens: int) -> ReferenceScheduler:
    """A scheduler whose cache holds just this sequence."""
    c = Case(1000, [(0, request("FIRST", list(tokens), 1))])
    c.run(2, pp_size=1, schedule_policy="lpm")
    assert c.naive.tree.picture() == [(0, tokens, False)]
    return c.naive


def test_rule_6_lpm_matches_the_whole_prompt_so_it_splits_nothing() -> None:
    naive = cached(1, 2, 3, 4, 5, 6)
    naive.arrive([request("SAME", [1, 2, 3, 4, 5, 6], 1)])
    naive.sort_queue()
    assert naive.tree.picture() == [(0, (1, 2, 3, 4, 5, 6), False)], "a match of 5 would have split it"


def test_rule_6_the_sort_key_leaves_the_last_token_out() -> None:
    naive = cached(1, 2, 3, 4, 5, 6)
    naive.arrive([request("FIVE", [1, 2, 3, 4, 5, 9], 1), request("SIX", [1, 2, 3, 4, 5, 6], 1)])
    naive.sort_queue()
    assert [job.rid for job in naive.queue] == ["FIVE", "SIX"], "both hit 5"


def test_rule_6_the_match_that_decides_who_waits_for_a_twin_is_the_whole_one() -> None:
    """Both have all 33 tokens in the cache, more than 32: none of them waits for what the other will put there."""
    naive = cached(*range(1, 34))
    naive.arrive(
        [request("THREE", [1, 2, 3, 50], 1), request("A", [*range(1, 34)], 1), request("B", [*range(1, 34)], 1)]
    )
    naive.sort_queue()
    assert [job.rid for job in naive.queue] == ["A", "B", "THREE"]


# --- rule 8: BY HAND -------------------------------------------------------------------------------------------------

# Without the radix cache. 30 tokens, R0 (10, 8) and R1 (10, 2) in one batch. Ordinarily R0 is charged 10 + 8 + 1, and
# 10 + 2 + 1 >= 11. Rule 8: 30 - 11 - 10 = 9 remain; R1 ends first, when 9 - 2 x 2 = 5 > 2 are free, and then R0, when
# 9 + 10 - 8 = 11 > 1 are.
TWO_ENDS = (30, (0, 10, 8), (0, 10, 2))

# 60 tokens, R0 (10, 30) decodes, R1 (4, 24) asks. Ordinarily 4 + 24 + 1 < 60 - 10 - 29 x 0.7 = 29.7. Rule 8 counts R0
# in full: when R1 ends, 60 - 10 - 4 - 2 x 24 = -2 are free.
IN_FULL = (60, (0, 10, 30), (1, 4, 24))


@pytest.mark.parametrize(("ignore_eos", "rids"), [(True, ["R0", "R1"]), (False, ["R0"])])
def test_rule_8_admits_more_where_ends_come_one_after_the_other(ignore_eos: bool, rids: list[str]) -> None:
    (first,) = case(*TWO_ENDS, ignore_eos=ignore_eos).run(1, pp_size=1, enable_radix_cache=False)
    assert [piece[0] for piece in first["pieces"]] == rids


@pytest.mark.parametrize(("ignore_eos", "mode"), [(True, "decode"), (False, "extend")])
def test_rule_8_admits_less_where_the_ratio_hopes_for_early_ends(ignore_eos: bool, mode: str) -> None:
    visits = case(*IN_FULL, ignore_eos=ignore_eos).run(2, pp_size=1, enable_radix_cache=False)
    assert (visits[1]["mode"], visits[1]["full"]) == (mode, ignore_eos)


@pytest.mark.parametrize(("out", "rids"), [(2, ["R0", "R1"]), (3, ["R0"])])
def test_rule_8_wants_more_than_one_token_for_each_that_is_still_there(out: int, rids: list[str]) -> None:
    """21 tokens, R0 (10, 8), R1 (2, out): 21 - 11 - 2 = 8 remain. When R1 ends: 8 - 2 x 2 > 2, but 8 - 2 x 3 = 2."""
    (first,) = case(21, (0, 10, 8), (0, 2, out), ignore_eos=True).run(1, pp_size=1, enable_radix_cache=False)
    assert [piece[0] for piece in first["pieces"]] == rids


def test_rule_8_puts_who_has_most_left_before_the_last() -> None:
    """The requests of TWO_ENDS the other way round: now 8 comes before 2, and 9 - 2 x 8 are not free then."""
    (first,) = case(30, (0, 10, 2), (0, 10, 8), ignore_eos=True).run(1, pp_size=1, enable_radix_cache=False)
    assert [piece[0] for piece in first["pieces"]] == ["R0"]


def test_rule_8_counts_who_may_stop_early_with_the_ratio() -> None:
    """IN_FULL, where R0 may stop: 30 x 0.7 - 1 = 20 are left of it. 60 - 10 - 4 - 2 x 20 = 6 > 2, then 46 + 11 - 24."""
    c = case(*IN_FULL)
    c.requests[1] = (1, replace(c.requests[1][1], ignore_eos=True))
    assert c.run(2, pp_size=1, enable_radix_cache=False)[1]["mode"] == "extend"


@pytest.mark.parametrize(("ignore_eos", "num"), [(True, 6), (False, 4)])
def test_rule_8_floors_no_chunk_to_a_page(ignore_eos: bool, num: int) -> None:
    (first,) = case(400, (0, 9, 2), ignore_eos=ignore_eos).run(
        1, pp_size=1, chunked_prefill_size=6, page_size=4, enable_radix_cache=False
    )
    assert first["pieces"] == [["R0", 0, num]]


def test_rule_8_is_for_servers_without_a_radix_cache() -> None:
    visits = case(*IN_FULL, ignore_eos=True).run(2, pp_size=1)
    assert visits[1]["mode"] == "extend"


def test_rule_8_starts_no_second_chunk() -> None:
    """A budget of 7 less the decode of R0; R1 is cut to a page (4), and the 2 that are left start no piece of R2."""
    c = case(400, (0, 4, 9), (1, 9, 2), (1, 9, 2))
    c.requests = [(at, replace(spec, ignore_eos=spec.rid == "R2")) for at, spec in c.requests]
    visits = c.run(2, pp_size=1, chunked_prefill_size=7, page_size=4, enable_radix_cache=False, enable_mixed_chunk=True)
    assert visits[1]["pieces"] == [["R1", 0, 4], ["R0", 4, 1]]


# --- rules 9a, 9b: BY HAND -------------------------------------------------------------------------------------------


def test_rule_9a_the_row_of_a_continued_chunk_is_counted_among_the_places() -> None:
    """Two rows of the table: R0 has one, the other is free, and R1 would fit into the 6 tokens that are left."""
    visits = case(1000, (0, 10, 5), (0, 2, 5)).run(2, pp_size=1, chunked_prefill_size=8, max_running_requests=2)
    assert (visits[1]["pieces"], visits[1]["full"]) == ([["R0", 8, 2]], True)


# A chunk budget of 2. R0 and R1 decode in slot 0, the chunk of R2 starts in slot 1, and then comes to slot 0.
NOTHING_LEFT = case(1000, (0, 1, 9), (0, 1, 9), (1, 9, 3))
MIXED = {"chunked_prefill_size": 2, "enable_mixed_chunk": True}
DECODES = [["R0", 1, 1], ["R1", 1, 1]]


def test_rule_9b_a_mixed_batch_whose_decodes_use_up_the_budget_launches_a_piece_of_0_tokens() -> None:
    visits = NOTHING_LEFT.run(3, **MIXED)
    assert visits[1]["pieces"] == [["R2", 0, 2]]
    assert (visits[2]["mode"], visits[2]["pieces"]) == ("mixed", [["R2", 2, 0], *DECODES])


def test_rule_9b_mended_the_visit_decodes() -> None:
    visits = mended(NOTHING_LEFT).run(3, **MIXED)
    assert (visits[2]["mode"], visits[2]["pieces"]) == ("decode", DECODES)


def test_rule_9b_where_nothing_can_be_mixed_the_visit_decodes() -> None:
    c = replace(NOTHING_LEFT, requests=[(at, replace(s, return_logprob=True)) for at, s in NOTHING_LEFT.requests])
    visits = c.run(3, **MIXED)
    assert (visits[2]["mode"], visits[2]["pieces"]) == ("decode", DECODES)
