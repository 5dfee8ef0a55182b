"""Law: the page of a run says and draws what the recording holds, needs no network, and takes no markup from a name."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ppsim.cli.entry import app
from ppsim.core.effects import Reply
from ppsim.core.messages import NewRequest
from ppsim.core.tokens import pack
from ppsim.recording import PASS, Recording, Verdict
from ppsim.recording.schema import Span, Stand
from ppsim.recording.summary import request_lives, summarize
from ppsim.report.lanes import parts_of
from ppsim.report.page.data import run_data
from ppsim.report.page.html import Run, page
from ppsim.report.page.ring import MOST, waits_html
from ppsim.report.page.story import requests_sentence
from ppsim.report.page.tables import distance
from ppsim.report.series import kv_use, request_counts
from ppsim.report.table import percent
from tests.unit.handmade import S, decision, pipeline, two_requests
from tests.worlds.making import passed, requests
from tests.worlds.pd_making import passed_pair

pytest.importorskip("bokeh", reason="the page carries the charts of bokeh: pip install 'ppsim[report]'")

HOSTILE = (
    "</script ><script >window.pwned = 1</script >",
    "<img src=x onerror='window.pwned = 2'>",
    '"><svg onload="window.pwned = 3">',
    "<!-- <script>",
    "$data ${title} $$",
    "'; window.pwned = 4; '",
    "</title></style></textarea><b>bold",
    "&lt;script&gt; &amp; javascript:alert(1)",
    "a\u2028b\u2029c\ud800d\x00e",
)
FAILED = Verdict("fail", 3, "deadlock: <b>all</b> wait\n  rank 0: </pre><script>window.pwned = 5</script>", "INV-40")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def busy() -> Recording:
    """Three stages, twelve requests of several chunks in the middle of each other, a pool that is too small for all."""
    made = [{**r, "at_ms": 5.3 * i} for i, r in enumerate(requests(12, prompt=23, output=9))]
    return passed(
        {
            "cluster.pp_size": 3,
            "workload.requests": made,
            "scheduler.max_total_tokens": 160,
            "scheduler.pp_max_micro_batch_size": 4,
            "links.latency_us": 200,
        }
    )


def hostile() -> Recording:
    """A run whose every name is an attack."""
    recording = pipeline(2, 3)
    recording.name = HOSTILE[0]
    recording.warnings = list(HOSTILE)
    for i, rid in enumerate(HOSTILE):
        recording.arrival(rid, i * S, 10, 1)
        recording.ingested(i, (NewRequest(rid, pack(range(10)), 1),), i * S)
        for rank in range(2):
            recording.decision(rank, decision(3 + i, 0, (rid, 0, 10)))
            recording.span(rank, "forward", 0, 3 + i, (5 + i) * S, (6 + i) * S)
        recording.reply((6 + i) * S, Reply(rid, "aborted", (), 0, HOSTILE[1]))
    recording.stands = [Stand(rank, 1, 0, f"in {HOSTILE[0]}", 1 - rank, S) for rank in range(2)]
    return recording


def html_of(recording: Recording, verdict: Verdict = PASS) -> str:
    return page([Run(recording.name, recording, verdict)]).decode()


class Reader(HTMLParser):
    """Elements with their attributes, the text outside of scripts, and what is in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.scripts: list[str] = []
        self.inside: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)
            self.scripts += [""] * (tag == "script")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style") and self.inside:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.words += data
        elif self.inside[-1] == "script":
            self.scripts[-1] += data


def data_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Reader(text).scripts[0])
    return found


# --- drawn = computed --------------------------------------------------------------------------------------------


def spans_in(lane: dict[str, Any], origin: int) -> list[Span]:
    """The passes of a lane, written down from the coding's description and not from its code."""
    starts, iterations = accumulate(lane["start"]), accumulate(lane["iteration"])
    columns = zip(lane["slot"], iterations, starts, lane["length"])
    return [Span("forward", slot, i, origin + start, origin + start + long) for slot, i, start, long in columns]


def pieces_in(table: dict[str, Any], rids: list[str]) -> Iterator[tuple[int, int, tuple[tuple[str, int, int], ...]]]:
    """(iteration, slot, pieces) of a table of decisions."""
    reached: dict[int, int] = {}
    last: dict[int, list[int]] = {}
    for iteration, slot, row in zip(accumulate(table["iteration"]), table["slot"], table["pieces"]):
        numbers = list(last[slot] if row == 0 else row)
        last[slot] = numbers
        left, found = list(numbers), []
        while left:
            number = left.pop(0)
            who, prefix, new = (number, reached[number], 1) if number >= 0 else (-1 - number, left.pop(0), left.pop(0))
            reached[who] = prefix + new
            found.append((rids[who], prefix, new))
        yield iteration, slot, tuple(found)


def held(recording: Recording, run: dict[str, Any]) -> None:
    origin = int(run["origin_ns"])
    lanes = [lane for lane in run["lanes"] if lane["kind"] == "forward"]
    for rank, lane in enumerate(lanes[-recording.num_ranks :]):
        spans = [span for span in recording.spans[rank] if span.stream == "forward"]
        assert spans_in(lane, origin) == sorted(spans, key=lambda span: span.start_ns)
        found = list(pieces_in(run["batches"][lane["batches"]], run["rids"]))
        assert found == [(d.iteration, d.slot, d.pieces) for d in recording.decisions[rank] if d.pieces]


def test_the_page_holds_every_pass_and_every_piece_of_the_recording(busy: Recording) -> None:
    run = data_of(html_of(busy))["runs"][0]
    assert sum(map(len, busy.spans)) > 60
    assert any(row == 0 for table in run["batches"] for row in table["pieces"])  # the short code is met
    assert sum(len(decision.retracted) for decision in busy.decisions[0])  # and what breaks its expectation
    held(busy, run)
    assert len(run["batches"]) == 1  # ranks that decide alike share a table


def test_two_pipelines_are_both_held_with_their_transfers() -> None:
    recording = passed_pair({"workload.requests": requests(3, prompt=9, output=4)}).recording
    assert recording.peer is not None
    run = data_of(html_of(recording))["runs"][0]
    held(recording, run)
    held(recording.peer, run | {"lanes": run["lanes"][: recording.peer.num_ranks]})
    kv = [lane for lane in run["lanes"] if lane["kind"] == "kv"]
    counted = sum(span.stream == "kv" for spans in recording.peer.spans for span in spans)
    assert sum(len(lane["start"]) for lane in kv) == counted > 0


def test_the_bubble_of_two_pipelines_is_told_of_each() -> None:
    recording = passed_pair({"workload.requests": requests(3, prompt=9, output=4)}).recording
    assert recording.peer is not None
    bubbles = {
        side: percent(summarize(one, PASS)["bubble_ratio"])
        for side, one in (("decode", recording), ("prefill", recording.peer))
    }
    assert bubbles["decode"] != bubbles["prefill"]
    one = html_of(recording)
    assert f"<b>{bubbles['decode']}</b><small>time in which a stage waits: decode; prefill {bubbles['prefill']}" in one
    both = page([Run("a", recording, PASS), Run("b", pipeline(2, 2), PASS)]).decode()
    for side, bubble in bubbles.items():
        assert f"<th scope=row>bubble of {side}</th><td>{bubble}</td><td>- <small class=same></small></td>" in both
    assert "<th scope=row>bubble</th><td>-</td><td>33.3 % <small class=same></small></td>" in both  # P = M = 2: 1 of 3
    two = page([Run("a", recording, PASS), Run("c", recording, PASS)]).decode()
    assert "<th scope=row>bubble</th>" not in two
    alone = page([Run("a", pipeline(2, 3), PASS), Run("b", pipeline(2, 2), PASS)]).decode()
    assert "<th scope=row>bubble</th>" in alone
    assert "bubble of" not in alone


def test_ranks_that_decide_differently_have_tables_of_their_own() -> None:
    recording = pipeline(2, 4)
    recording.decisions[1][2] = decision(2, 0, ("R9", 20, 10))
    run = run_data(parts_of(recording), FAILED)
    held(recording, run)
    assert len(run["batches"]) == 2


def test_requests_and_counts_are_those_of_the_recording(busy: Recording) -> None:
    for recording in (busy, two_requests()):
        run = run_data(parts_of(recording), PASS)
        origin = int(run["origin_ns"])
        of = run["requests"]
        for i, life in enumerate(request_lives(recording)):
            instants = [life.arrived_ns, life.read_ns, *(life.token_ns[:1] or [None]), *(life.token_ns[-1:] or [None])]
            shown = [of[key][i] for key in ("arrived", "read", "first", "last")]
            assert [None if at is None else at + origin for at in shown] == instants
            assert (run["rids"][of["rid"][i]], of["status"][i]) == (life.rid, life.status)
            assert (of["prompt"][i], of["output"][i]) == (life.num_prompt_tokens, len(life.token_ns))
        counts = request_counts(recording)
        for name, series in (("running", counts.running), ("waiting", counts.waiting)):
            coded = run["counts"][0][name]
            assert [origin + at for at in accumulate(coded["time"])] == series.times
            assert list(accumulate(coded["value"])) == series.values
        coded = run["counts"][0]["kv_in_use"]
        assert list(accumulate(coded["value"])) == kv_use(recording, 0).in_use.values


# --- bytes, network, markup --------------------------------------------------------------------------------------


def test_the_same_run_gives_the_same_bytes_in_any_process() -> None:
    assert CliRunner().invoke(app, ["run", "unit", "--out", "r", "--report"]).exit_code == 0
    first = Path("r/report.html").read_bytes()
    for seed in ("1", "77"):
        words = [sys.executable, "-m", "ppsim.cli.entry", "report", "r", "-o", f"{seed}.html"]
        subprocess.run(words, check=True, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True)
        assert Path(f"{seed}.html").read_bytes() == first


def test_the_page_asks_nobody_and_runs_only_its_own_scripts(busy: Recording) -> None:
    text = html_of(busy)
    reader = Reader(text)
    for tag, attributes in reader.elements:
        assert tag not in ("link", "iframe", "img", "object", "embed", "base", "form")
        assert not {"src", "href", "action", "srcset"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")]
    policy = next(a["content"] for tag, a in reader.elements if tag == "meta" and "content" in a and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; base-uri 'none'; form-action 'none'")
    digests = re.findall(r"'sha256-([^']+)'", policy)
    running = reader.scripts[1:]
    assert [base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in running] == digests
    assert "unsafe-eval" not in policy
    assert not re.search(r"script-src[^;]*unsafe-inline", policy)


def test_no_name_becomes_markup() -> None:
    plain, attacked = Reader(html_of(pipeline(2, 3), FAILED)), Reader(html_of(hostile(), FAILED))
    assert len(attacked.scripts) == len(plain.scripts) == 4
    kinds = {tag for tag, _ in plain.elements} | {"svg", "path", "rect", "g", "text", "marker", "defs", "ol"}
    assert {tag for tag, _ in attacked.elements} <= kinds
    assert not [a for _, attributes in attacked.elements for a in attributes if a.startswith("on")]
    assert "window.pwned" not in attacked.scripts[-1]
    inside = html_of(hostile(), FAILED).split('id="data">', 1)[1].split("</script>", 1)[0]
    assert not set("<>&") & set(inside)  # nothing that could end it, whatever follows
    for name in HOSTILE[:8]:
        assert name in attacked.words  # as the words that they are
    assert data_of(html_of(hostile(), FAILED))["runs"][0]["rids"][1:] == list(HOSTILE)


# --- words ---------------------------------------------------------------------------------------------------------


def test_who_waits_in_a_circle_is_drawn_in_red_and_the_others_are_not() -> None:
    recording = pipeline(4, 2)
    recording.stands = [Stand(rank, 1, 0, "waits", to, S) for rank, to in enumerate((1, 2, 1, 0))]
    drawn = waits_html(FAILED, parts_of(recording))
    assert drawn.count('class="arrow red"') == 2  # 1 -> 2 -> 1
    assert drawn.count('class="arrow grey"') == 2
    assert drawn.count('class="node caught"') == drawn.count("<li class=caught>") == 2
    assert "2 of 4 ranks wait in a circle" in drawn
    assert 'aria-label="PP0 waits for PP1; PP1 waits for PP2; PP2 waits for PP1; PP3 waits for PP0"' in drawn
    assert waits_html(PASS, parts_of(recording)) == ""


def test_of_many_ranks_those_in_the_circle_are_drawn_and_the_rest_counted() -> None:
    recording = pipeline(40, 1)
    last = (38, 39)
    recording.stands = [Stand(rank, 1, 0, "waits", 77 - rank if rank in last else 38, S) for rank in range(40)]
    drawn = waits_html(FAILED, parts_of(recording))
    assert drawn.count('class="node') == MOST
    assert drawn.count('class="node caught"') == 2
    assert f"and {40 - MOST} more ranks" in drawn


@pytest.mark.parametrize(
    ("first", "value", "better", "says"),
    [
        (2.0, 3.0, -1, ("50.0 % worse", "worse")),
        (2.0, 1.5, -1, ("25.0 % better", "better")),
        (2.0, 3.0, 1, ("50.0 % better", "better")),
        (4, 5, 0, ("25.0 % more", "same")),
        (2.0, 2.0, -1, ("same", "same")),
        (0, 3, -1, ("worse", "worse")),
        (None, 3.0, -1, ("", "same")),
    ],
)
def test_a_distance_says_which_way_is_better(first: Any, value: Any, better: int, says: tuple[str, str]) -> None:
    assert distance(first, value, better) == says


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ((0, 0, 0, 0), "No request came."),
        ((1, 1, 0, 0), "1 request came; it finished, in 2.00 s in all."),
        ((1, 0, 0, 0), "1 request came; it was still open when the run ended, after 2.00 s."),
        ((1200, 1200, 0, 0), "1,200 requests came; all of them finished, in 2.00 s in all."),
        ((3, 0, 3, 0), "3 requests came; all of them were aborted, after 2.00 s."),
        ((9, 4, 2, 1), "9 requests came, in 2.00 s in all: 4 finished, 2 aborted, 1 refused, 2 still open when"
         " the run ended."),
    ],
)  # fmt: skip
def test_how_the_requests_ended_is_a_sentence(counts: tuple[int, ...], says: str) -> None:
    names = ("num_requests", "num_finished", "num_aborted", "num_refused")
    assert requests_sentence(dict(zip(names, counts)) | {"makespan_s": 2.0}) == says


def test_runs_side_by_side_say_where_their_decisions_part(busy: Recording) -> None:
    other = pipeline(3, 2)
    text = Reader(page([Run("one", busy, PASS), Run("two", busy, PASS), Run("<i>three", other, FAILED)]).decode()).words
    assert "B schedules like A in every iteration." in text
    assert "C schedules differently from A, first in" in text
    assert "C: <i>three" in text
    assert not re.search(r"\d % (better|worse)", text.split("B schedules like A")[0])  # equal, and failed


# --- the command ---------------------------------------------------------------------------------------------------


def test_the_command_writes_a_page_beside_the_run_and_keeps_another_one() -> None:
    runner = CliRunner()
    assert runner.invoke(app, ["run", "unit", "--out", "r"]).exit_code == 0
    made = runner.invoke(app, ["report", "r"])
    assert made.stdout == "r/report.html\n"
    Path("r/report.html").write_text("mine")
    assert runner.invoke(app, ["report", "r"]).stdout == "r/report-2.html\n"
    assert Path("r/report.html").read_text() == "mine"
    for name, says in (("x.pdf", "expected .html or .htm"), ("x", "has no ending"), ("no/x.html", "cannot be written")):
        refused = runner.invoke(app, ["report", "r", "-o", name])
        assert (refused.exit_code, says in refused.stderr) == (2, True), refused.stderr


def test_a_run_that_fails_or_has_nothing_in_it_has_a_page_too() -> None:
    runner = CliRunner()
    words = ["run", "unit", "--report", "--set", "links.send=rendezvous", "--set", "workload.num_chunks=8"]
    assert runner.invoke(app, [*words, "--out", "stuck"]).exit_code == 3
    told = Reader(Path("stuck/report.html").read_text(encoding="utf-8")).words
    assert "INV-40 at rank 3, iteration 3, slot 3" in told
    assert "deadlock: the event queue is empty and 4 of 4 ranks wait for ever (exit code 3, rule INV-40)" in told
    assert "all ranks wait in a circle" in told
    empty = Reader(html_of(Recording(2, name="empty"), Verdict("unknown", 5))).words
    assert "Nothing was computed in this run." in empty
    assert "No request came." in empty


def test_without_bokeh_the_command_says_what_to_install_before_it_simulates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ppsim.report.page.library.find_spec", lambda name: None)
    for words in (["report", "r"], ["run", "unit", "--out", "r", "--report"]):
        Path("r").mkdir(exist_ok=True)
        Path("r/recording.jsonl").touch()
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 2
        assert "pip install 'ppsim[report]'" in refused.stderr
    assert not Path("r/verdict.json").exists()


def test_pages_need_nothing_of_bokeh_but_its_files() -> None:
    code = (
        "import sys; from pathlib import Path; from tests.unit.handmade import pipeline; "
        "from ppsim.recording import PASS; from ppsim.report.page.html import Run, page; "
        "page([Run('x', pipeline(2, 2), PASS)]); assert 'bokeh' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).resolve().parents[2])
