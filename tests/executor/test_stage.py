"""Stages driven by hand, in one process, against the unsplit model under transformers' own ``generate``."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.kv import PagedKV  # noqa: E402
from executor.oracle import Oracle  # noqa: E402
from executor.packed import pack  # noqa: E402
from executor.stage import Stage, kv_of, load_stage  # noqa: E402
from ppsim.core.errors import InvariantViolation  # noqa: E402
from ppsim.scenario import Scenario  # noqa: E402
from tests.executor.small import Row, batch_of, prompt_ids, small_scenario  # noqa: E402

CPU = torch.device("cpu")


class Pipeline:
    """All stages of a scenario, run one after the other."""

    def __init__(self, scenario: Scenario) -> None:
        self.page_size = scenario.scheduler.page_size
        self.stages: list[Stage] = [load_stage(scenario, rank, CPU) for rank in range(scenario.cluster.pp_size)]
        self.kvs: list[PagedKV] = [kv_of(scenario, stage, 256) for stage in self.stages]

    def __call__(self, *pieces: tuple[Row, int, int]) -> list[int]:
        """The sampled token of each piece."""
        packed = pack(batch_of(pieces), self.page_size, self.kvs[0].num_pages, 0, CPU)
        ids = [token for row, prefix, new in pieces for token in row.input_ids(prefix, prefix + new)]
        rows = torch.tensor(ids, dtype=torch.int64)
        for stage, kv in zip(self.stages, self.kvs):
            rows = stage(rows, packed, kv)
        return [int(token) for token in self.stages[-1].sample(rows, packed)]


@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_chunked_prefill_shared_pages_and_mixed_batches_give_the_tokens_of_generate(
    architecture: str, tied: bool
) -> None:
    scenario = small_scenario(architecture, cluster={"pp_size": 3}, model={"tie_word_embeddings": tied})
    run, oracle = Pipeline(scenario), Oracle(scenario)
    shared = prompt_ids(1, 8)
    a = Row("a", shared + prompt_ids(2, 5), [9, 3, 30, 4, 11, 7])
    b = Row("b", shared + prompt_ids(3, 12), [9, 3, 5, 1, 2, 64])  # the first two pages are a's
    want_a, want_b = oracle.generate(a.tokens, 6), oracle.generate(b.tokens, 5)

    run((a, 0, 6))  # a chunk that ends inside a page
    a.tokens += run((a, 6, 7))
    token_a, token_b = run((a, 13, 1), (b, 8, 12))  # decode and prefill in one batch; b never computes its prefix
    a.tokens.append(token_a)
    b.tokens.append(token_b)
    while len(b.tokens) < 20 + 5:
        pieces = [(row, len(row.tokens) - 1, 1) for row in (a, b)]
        for row, token in zip((a, b), run(*pieces)):
            row.tokens.append(token)

    assert a.tokens[13 : 13 + 6] == want_a
    assert b.tokens[20 : 20 + 5] == want_b


def test_a_piece_of_no_token_changes_nothing_beside_others_and_alone() -> None:
    """A chunk whose budget the decodes have used up (SGLang's rule 9b): its row counts for nothing."""
    scenario = small_scenario("llama", cluster={"pp_size": 2})
    run, oracle = Pipeline(scenario), Oracle(scenario)
    a, b = Row("a", prompt_ids(1, 9), [9, 3, 30, 4]), Row("b", prompt_ids(2, 12), [5, 1, 2, 64])
    want_a, want_b = oracle.generate(a.tokens, 2), oracle.generate(b.tokens, 1)
    run((b, 0, 4))
    a.tokens += run((b, 4, 0), (a, 0, 9))[1:]
    assert run((b, 4, 0)) == [0]
    a.tokens += run((b, 4, 0), (a, 9, 1))[1:]
    assert a.tokens[9:] == want_a
    assert run((b, 4, 8)) == want_b


def test_random_weights_are_sensitive_to_every_earlier_token() -> None:
    """Else equality of tokens would prove nothing about the cache."""
    oracle = Oracle(small_scenario("llama"))
    prompt = prompt_ids(5, 24)
    base = oracle.generate(prompt, 4)
    changed = 0
    for place in range(0, 24, 2):
        other = prompt.copy()
        other[place] = (other[place] + 1) % 211
        changed += oracle.generate(other, 4) != base
    assert changed >= 9
    assert len(set(oracle.generate(prompt, 16))) > 4


def test_a_position_that_nobody_wrote_is_noticed() -> None:
    run = Pipeline(small_scenario("qwen3"))
    row = Row("a", prompt_ids(1, 12), [1, 2, 3])
    run((row, 0, 4))
    assert run((row, 8, 4)) == [-1]  # positions 4 to 7 were skipped


@pytest.mark.parametrize(
    ("row_a", "row_b", "message"),
    [
        (Row("a", [1] * 8, [1]), Row("b", [1] * 8, [2, 3]), "request a: expected pages for 8 tokens, got 1 pages of 4"),
        (Row("a", [1] * 8, [1, 0]), Row("b", [1] * 8, [2, 3]), "request a: expected a page in 1..64, got page 0"),
        (Row("a", [1] * 8, [1, 4]), Row("b", [1] * 8, [2, 65]), "request b: expected a page in 1..64, got page 65"),
        (
            Row("a", [1] * 8, [1, 4]),
            Row("b", [1] * 8, [2, 4]),
            "request b: KV slot 16 is also written by a",
        ),
    ],
)
def test_impossible_pages_name_the_request(row_a: Row, row_b: Row, message: str) -> None:
    with pytest.raises(InvariantViolation) as caught:
        pack(batch_of([(row_a, 0, 8), (row_b, 0, 8)], iteration=3), 4, 64, 2, CPU)
    assert str(caught.value) == f"INV-64 at rank 2, iteration 3, slot 0, {message}" + (
        " tokens" if "got 1 pages" in message else ""
    )
