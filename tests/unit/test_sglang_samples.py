"""Samples against a ground truth: a small engine writes logs in each form, and knows how long every batch took."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from ppsim.sglang.logs import LogReport, read_log

CHUNK = 2048
DECODE_STEP_S = 0.02
LOG_INTERVAL = 40


@dataclass
class Request:
    arrival_s: float
    prompt: int
    cached: int
    output: int
    done: int = 0


@dataclass
class Truth:
    """Of one prefill line: what it says, and whether nothing else lies inside the time that its rate covers."""

    prefix: int
    new_tokens: int
    duration_s: float
    clean: bool


@dataclass
class Engine:
    """One request a prefill batch, prefill before decode. Form own logs at the end of a batch, prev at its start."""

    form: str
    tags: tuple[str, ...]
    rng: random.Random
    now: float = 0.0
    lines: list[str] = field(default_factory=list)
    truth: list[Truth] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    last_log: float = 0.0
    last_tokens: int = 0
    steps: int = 0
    since: float = 0.0
    other: bool = True  # idle time or decode since the last prefill log

    def chunk_s(self, prefix: int, new: int) -> float:
        return 0.004 + 2e-5 * new + 1e-9 * (2 * prefix * new + new * new)

    def stamp(self, tag: str) -> str:
        seconds = int(self.now)
        return f"[2026-05-01 {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{tag and ' '}{tag}]"

    def run(self, requests: list[Request]) -> None:
        waiting: list[Request] = []
        future = sorted(requests, key=lambda request: request.arrival_s)
        current: Request | None = None
        while future or waiting or current or self.running:
            while future and future[0].arrival_s <= self.now:
                waiting.append(future.pop(0))
            if current is None and waiting:
                current = waiting.pop(0)
                current.done = current.cached
            if current is not None:
                current = self.prefill(current, waiting, future)
            elif self.running:
                self.decode()
            else:
                self.now = future[0].arrival_s
                self.other = True

    def prefill(self, request: Request, waiting: list[Request], future: list[Request]) -> Request | None:
        new = min(CHUNK, request.prompt - request.done)
        prefix, cached = request.done, request.cached if request.done == request.cached else 0
        duration = self.chunk_s(prefix, new)
        clean = not self.other and bool(self.truth)
        if self.form == "prev":
            self.log_prefill(new, cached, waiting, 0)
            if self.truth:
                self.truth[-1].clean = clean  # of the batch before: this line's rate is its
            clean = False
        self.now += duration
        request.done += new
        if self.form == "own":
            arrived = [one for one in future if one.arrival_s <= self.now]
            pending = request.prompt - request.done + sum(one.prompt for one in waiting + arrived)
            self.log_prefill(new, cached, waiting + arrived, pending)
        self.truth.append(Truth(prefix, new, duration, clean))
        self.other = False
        if request.done < request.prompt:
            return request
        if request.output > 1:
            self.running.append(request.output - 1)
        return None

    def log_prefill(self, new: int, cached: int, waiting: list[Request], pending: int) -> None:
        tokens = new if self.form == "own" else self.last_tokens
        rate = tokens / (self.now - self.last_log) if self.now > self.last_log else 0.0
        self.last_log, self.last_tokens = self.now, new
        tail = f"#queue-req: {len(waiting)}, "
        tail += f"#pending-token: {pending}, cuda graph: False, " if self.form == "own" else ""
        head = f"#new-seq: 1, #new-token: {new}, #cached-token: {cached}, token usage: 0.10, "
        head += f"#running-req: {len(self.running)}, "
        for tag in self.tags:
            self.lines.append(f"{self.stamp(tag)} Prefill batch, {head}{tail}input throughput (token/s): {rate:.2f}")

    def decode(self) -> None:
        self.now += DECODE_STEP_S
        self.other = True
        self.steps += 1
        count = len(self.running)
        self.running = [left - 1 for left in self.running if left > 1]
        if self.steps % LOG_INTERVAL == 0:
            rate = count * LOG_INTERVAL / (self.now - self.since) if self.now > self.since else 0.0
            self.since = self.now
            for tag in self.tags:
                self.lines.append(
                    f"{self.stamp(tag)} Decode batch, #running-req: {count}, #token: 100, token usage: 0.10, "
                    f"gen throughput (token/s): {rate:.2f}, #queue-req: 0"
                )


def prompts(rng: random.Random, count: int, gap_s: float) -> list[Request]:
    """Random prompts; none is a whole number of chunks, which a log without pending tokens could not tell."""
    found, at = [], 1.0
    for _ in range(count):
        length = rng.randrange(50, 5 * CHUNK)
        cached = rng.choice([0, 0, 0, 64])
        length += length <= cached
        length += (length - cached) % CHUNK == 0
        found.append(Request(at, max(length, cached + 1), cached, rng.choice([1, 1, 3, 100])))
        at += rng.expovariate(1 / gap_s) if gap_s else 0.0
    return found


def simulate(form: str, tags: tuple[str, ...], seed: int, gap_s: float) -> tuple[Engine, LogReport]:
    rng = random.Random(seed)
    engine = Engine(form, tags, rng)
    engine.run(prompts(rng, 30, gap_s))
    return engine, read_log("\n".join(engine.lines))


TAGS = {
    "one rank": ("",),
    "tensor parallel": ("TP0", "TP1"),
    "two stages": ("PP0 TP0", "PP0 TP1", "PP1 TP0", "PP1 TP1"),
}


@pytest.mark.parametrize("gap_s", [0.0, 0.05, 0.3, 2.0])
@pytest.mark.parametrize("form", ["own", "prev"])
@pytest.mark.parametrize("tags", TAGS.values(), ids=TAGS.keys())
@pytest.mark.parametrize("seed", range(4))
def test_every_sample_is_a_batch_as_it_was(form: str, tags: tuple[str, ...], seed: int, gap_s: float) -> None:
    engine, report = simulate(form, tags, seed, gap_s)
    truth = {}
    prefill = [i + 1 for i, line in enumerate(engine.lines) if "Prefill" in line]
    for i, line in enumerate(prefill):
        truth[line] = engine.truth[i // len(tags)]
    assert report.num_prefill_batches == len(engine.truth)
    lines = [sample.line for sample in report.samples]
    assert len(lines) == len(set(lines))
    for sample in report.samples:
        true = truth[sample.line]
        assert sample.new_tokens == true.new_tokens
        assert true.clean, "idle time or decode steps lie inside"
        assert sample.duration_s == pytest.approx(true.duration_s, rel=0.01)
        if sample.prefix_known:
            assert sample.prefix == true.prefix
    observed = {(sample.line - 1) // len(tags) for sample in report.samples}
    assert len(observed) == len(report.samples), "ranks of one batch gave two samples"


@pytest.mark.parametrize("seed", range(4))
def test_a_busy_log_gives_nearly_all_its_batches(seed: int) -> None:
    """All requests arrive at once: prefill runs without a break, and only the first batch has no neighbour."""
    engine, report = simulate("own", ("",), seed, 0.0)
    clean = sum(true.clean for true in engine.truth)
    assert clean >= 50
    assert len(report.samples) >= 0.9 * clean
    begun = [i + 1 for i, true in enumerate(engine.truth) if true.prefix == 0 or i == 0]
    unknown = [sample.line for sample in report.samples if not sample.prefix_known]
    assert all(line < [*begun, 10**9][1] for line in unknown), "only the text's first prompt may have begun before it"


@pytest.mark.parametrize("seed", range(4))
def test_the_older_form_gives_most_of_a_busy_log(seed: int) -> None:
    engine, report = simulate("prev", ("",), seed, 0.0)
    clean = sum(true.clean for true in engine.truth)
    assert len(report.samples) >= 0.6 * clean > 20


@pytest.mark.parametrize("form", ["own", "prev"])
def test_samples_of_a_log_recover_the_curve(form: str) -> None:
    """Least squares over the samples with a known prefix finds the coefficients that made them."""
    import numpy as np

    points = [sample for seed in range(6) for sample in simulate(form, ("",), seed, 0.0)[1].samples]
    known = [sample for sample in points if sample.prefix_known]
    assert len(known) > 30
    x = np.array([[1.0, s.new_tokens, 2 * s.prefix * s.new_tokens + s.new_tokens**2] for s in known])
    y = np.array([sample.duration_s for sample in known])
    c, b, a = np.linalg.lstsq(x, y, rcond=None)[0]
    assert c == pytest.approx(0.004, rel=0.05)
    assert b == pytest.approx(2e-5, rel=0.05)
    assert a == pytest.approx(1e-9, rel=0.1)


def line(rate: str, *, new: int = 1024, running: int = 0, extra: str = "", tag: str = "TP0") -> str:
    return (
        f"[2026-01-01 00:00:00 {tag}] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: 0, "
        f"token usage: 0.10, #running-req: {running}, #queue-req: 3, {extra}input throughput (token/s): {rate}"
    )


def test_a_rate_of_zero_gives_no_sample() -> None:
    report = read_log("\n".join([line("0.00"), line("0.00"), line("1024.00")]))
    assert [(sample.line, sample.duration_s) for sample in report.samples] == [(2, 1.0)]


def test_a_prefill_line_behind_a_decode_line_gives_no_sample() -> None:
    """Something waits all the time, yet decode steps lie inside the rate."""
    decode = "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 4, #token: 99, token usage: 0.10, #queue-req: 3"
    own = line("1024.00", extra="#pending-token: 4096, ")
    report = read_log("\n".join([own, decode, own]))
    assert report.samples == []
    assert report.unused == {
        "no neighbouring line of the same rank": 1,
        "the neighbouring line is no complete prefill line": 1,
    }


def test_a_negative_or_infinite_measurement_is_damage() -> None:
    report = read_log("\n".join([line("-5.00"), line("nan"), line("inf"), line("1e999"), line("10.00"), line("10.00")]))
    assert (report.num_prefill, len(report.damaged), len(report.samples)) == (2, 4, 1)


def test_a_damaged_line_between_two_good_ones_ends_the_chain() -> None:
    good, broken = line("1024.00"), line("1024.00").replace("#queue-req: 3", "#que")
    report = read_log("\n".join([good, broken, good, good]))
    assert (report.num_prefill, len(report.damaged), len(report.cut)) == (3, 1, 0)
    assert [sample.line for sample in report.samples] == [3]
    assert report.damaged[0].line == 2


def test_two_lines_glued_together_are_one_damaged_and_one_complete() -> None:
    glued = line("1.00")[:80] + line("2.00")
    report = read_log("\n".join([glued, "[2026-01-01 00:00:01] done"]))
    assert (report.num_prefill, len(report.damaged)) == (1, 1)
    assert report.of("prefill")[0].get("input throughput") == 2.0
    assert report.of("prefill")[0].rank == "TP0"


def test_a_line_wrapped_inside_a_word_is_one_line() -> None:
    text = line("5.00")
    report = read_log("\n".join([text[:90], text[90:], "[2026-01-01 00:00:01] done"]))
    assert (report.num_prefill, len(report.damaged)) == (1, 0)
    assert report.of("prefill")[0].get("input throughput") == 5.0


def test_the_last_line_cut_between_two_fields_is_known_by_its_siblings() -> None:
    good = line("5.00")
    report = read_log("\n".join([good, good, good[: good.index(", input throughput")]]))
    assert (report.num_prefill, len(report.cut)) == (2, 1)
    halved = read_log("\n".join([good, good, good[:-1]]))
    assert (halved.num_prefill, len(halved.cut)) == (2, 1)


def test_an_undecided_meaning_is_used_only_where_both_agree() -> None:
    undecided = "cuda graph: False, "
    same = [line("1024.00", extra=undecided)] * 4
    assert len(read_log("\n".join(same)).samples) == 2
    other = [line(rate, extra=undecided) for rate in ("1024.00", "2048.00", "512.00", "4096.00")]
    assert read_log("\n".join(other)).samples == []
    assert read_log("\n".join(same)).tput == "undecided"


def test_an_idle_gap_is_left_out() -> None:
    rates = ["1000.00", "1010.00", "990.00", "20.00", "1005.00"]
    report = read_log("\n".join(line(rate) for rate in rates))
    assert report.unused["the rate is that of an idle gap"] == 1
    assert min(sample.new_tokens / sample.duration_s for sample in report.samples) > 900


def test_speculative_steps_count_their_accepted_tokens() -> None:
    text = "[2026-01-01 00:00:0{0} TP0] Decode batch, #running-req: 4, #token: 9{0}, token usage: 0.10, "
    text += "accept len: 2.50, gen throughput (token/s): 1000.00, #queue-req: 0"
    report = read_log("\n".join(text.format(i) for i in range(3)))
    assert {round(sample.step_s, 6) for sample in report.decode_samples} == {0.01}


def old_lines(*batches: tuple[int, int], rate: float = 10_000.0) -> LogReport:
    """Lines of the older form, which says nothing of pending tokens: (new tokens, running requests) of each."""
    return read_log(
        "\n".join(
            f"[2026-05-01 00:00:0{n}] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: 0, "
            f"token usage: 0.10, #running-req: {running}, #queue-req: 0, input throughput (token/s): {rate:.2f}"
            for n, (new, running) in enumerate(batches)
        )
    )


def test_a_full_chunk_is_followed_at_once_only_where_nothing_decodes() -> None:
    """The older form tells neither pending tokens nor decode steps. Behind a full chunk the prompt goes on at once if
    nothing else can run; where requests decode, their steps lie between the two lines, inside the time."""
    alone = old_lines((2048, 0), (2048, 0), (500, 0))
    assert [sample.new_tokens for sample in alone.samples] == [2048, 2048]
    beside = old_lines((2048, 3), (2048, 3), (500, 3))
    assert beside.samples == []
    assert beside.unused["idle time may lie between the lines"] == 2


def test_one_line_does_not_tell_the_chunk_size() -> None:
    """The largest batch of a log may be a whole prompt of that length: only a size that comes again is a limit."""
    once = old_lines((2048, 0), (500, 0), (400, 0))
    assert once.samples == []
    assert once.unused["idle time may lie between the lines"] == 2
    assert [sample.new_tokens for sample in old_lines((2048, 0), (500, 0), (2048, 0), (1, 0)).samples] == [2048, 2048]


def new_lines(*batches: tuple[int, int], tag: str = "", before: str = "") -> LogReport:
    """Lines of the newer form: (new tokens, pending tokens behind it) of each, one request a batch."""
    rows = [before] if before else []
    rows += [
        f"[2026-05-01 00:00:0{n}{tag}] Prefill batch, #new-seq: 1, #new-token: {new}, #cached-token: 0, token usage: "
        f"0.10, #running-req: 0, #queue-req: 0, #pending-token: {pending}, input throughput (token/s): 10000.00"
        for n, (new, pending) in enumerate(batches)
    ]
    return read_log("\n".join(rows))


def decode_line(queued: int, running: int = 2, second: int = 0, tag: str = "") -> str:
    return (
        f"[2026-05-01 00:00:0{second}{tag}] Decode batch, #running-req: {running}, #token: 100, token usage: 0.10, "
        f"gen throughput (token/s): 100.00, #queue-req: {queued}"
    )


CHUNKS = ((2048, 4096), (2048, 2048), (2048, 0))


@pytest.mark.parametrize(
    ("before", "tag", "known"),
    [
        ("", "", False),  # the text may begin in the middle of a prompt
        (decode_line(0), "", True),  # nothing waited, so this prompt has just come
        (decode_line(1), "", False),  # what waited may have been the rest of it
        (decode_line(0, tag=" PP0"), " PP0", False),  # in a pipeline decode lines stand between the chunks of a prompt
    ],
)
def test_the_prefix_of_the_first_prompt_is_known_only_behind_a_line_that_saw_nothing_waiting(
    before: str, tag: str, known: bool
) -> None:
    report = new_lines(*CHUNKS, tag=tag, before=before)
    assert [(s.prefix, s.prefix_known) for s in report.samples] == [(2048, known), (4096, known)]


def test_without_pending_tokens_the_prefix_of_a_later_chunk_is_only_relative() -> None:
    """The older form shows full chunks in a row, and not whether one of them began another prompt. Even where the first
    chunk is known (it hit the cache), the second one's prefix is that only if it belongs to it."""
    rows = [line("10000.00").replace("#queue-req: 3", "#queue-req: 0") for _ in range(4)]
    rows[0] = rows[0].replace("#cached-token: 0", "#cached-token: 64")
    report = read_log("\n".join(rows))
    assert [s.prefix_known for s in report.samples if s.prefix == 64] == [True]
    assert [s.prefix_known for s in report.samples if s.prefix > 64] == [False] * (len(report.samples) - 1)
    assert len(report.samples) > 1


def test_chunks_of_one_prompt_are_a_chain_and_its_length_is_told_where_the_log_gives_it_away() -> None:
    """Two prompts behind each other: 3 x 2048 tokens, then 2048 + 100. Only the second one's start is seen for sure."""
    report = new_lines(*CHUNKS, (2048, 100), (100, 0))
    assert [(c.num_chunks, c.prompt_tokens) for c in report.chains] == [(3, None), (2, 2148)]


def test_a_rank_may_be_as_fast_as_it_says() -> None:
    """A chunk of 0.8 ms is an observation; only nought, which a rank that has not measured prints, is none."""
    text = "[2026-05-01 00:00:00 PP0] Prefill rank batch, #new-token: 64, #cached-token: 0, #chunks: 1, gpu-ms: {}"
    report = read_log("\n".join(text.format(ms) for ms in ("0.80", "0.00")))
    assert [(s.new_tokens, s.duration_s, s.source) for s in report.samples] == [(64, pytest.approx(8e-4), "gpu")]


def test_a_decode_step_is_timed_between_lines_of_as_many_requests() -> None:
    """The rate of a line covers the steps since the line before: with other requests it is a mean of two sizes."""
    rows = [decode_line(0, running, second) for second, running in enumerate((2, 2, 3, 3, 1))]
    report = read_log("\n".join(rows))
    assert [(s.num_reqs, s.line) for s in report.decode_samples] == [(2, 2), (3, 4)]
    idle = rows[0].replace("100.00", "0.00")
    assert read_log("\n".join([idle, idle])).decode_samples == []
