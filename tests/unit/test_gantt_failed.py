"""Law: the picture of a failed run says the verdict, where each rank stood, and who waited for whom."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from typer.testing import CliRunner

from ppsim.check.progress import DOES
from ppsim.cli.entry import app
from ppsim.core.chain import Chain
from ppsim.core.config import RankConfig
from ppsim.core.effects import Effect
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.votes import Voting
from ppsim.errors import UsageError
from ppsim.recording import Recording, Verdict
from ppsim.recording.folder import open_run, read_verdict
from ppsim.recording.schema import Stand
from ppsim.report import canvas
from ppsim.report.gantt import gantt
from ppsim.report.lanes import parts_of
from ppsim.report.page.ring import waits_html
from ppsim.report.phases import doing_words, phase_words
from ppsim.report.waits import FAILED, PITCH, circles, headline, stands_of
from ppsim.world import SimulationResult
from tests.unit.handmade import S, pipeline
from tests.unit.pixels import bars_of, pixels_of
from tests.worlds.making import run
from tests.worlds.pd_making import passed_pair

RED = tuple(int(canvas.FAILED[i : i + 2], 16) for i in (1, 3, 5))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The matplotlib figures behind the pictures that are made."""
    made: list[Any] = []
    real = canvas.encoded
    monkeypatch.setattr("ppsim.report.gantt.encoded", lambda figure, path: made.append(figure) or real(figure, path))
    return made


def texts(figure: Any) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def stuck(recording: Recording, *waits_for: int | None) -> Recording:
    """The same recording, of a run that failed with its ranks waiting so."""
    recording.stands = [
        Stand(rank, 7 - rank, rank % 4, "exchange_if_deep: waits in receive on lane tensor", peer, (5 - rank) * S)
        for rank, peer in enumerate(waits_for)
    ]
    return recording


def test_a_failed_run_is_saved_with_the_place_of_every_rank_and_read_back() -> None:
    result = CliRunner().invoke(
        app, ["run", "unit", "--set", "links.send=rendezvous", "--set", "workload.num_chunks=8", "--out", "stuck"]
    )
    assert result.exit_code == 3
    stands = open_run("stuck").stands
    lines = [line for line in read_verdict("stuck").message.splitlines() if line.startswith("  rank ")]
    assert len(stands) == len(lines) == 4
    for stand, line in zip(stands, lines):
        phase, _, effect = stand.doing.partition(": ")
        assert line == (
            f"  rank {stand.rank}: iteration {stand.iteration}, slot {stand.slot}, phase {phase}, "
            f"{effect} for rank {stand.waits_for} since {(stand.since_ns or 0) / 1e9:.6f} s"
        )
    assert [stand.waits_for for stand in stands] == [1, 2, 3, 0]


def test_a_run_that_passes_has_no_such_list() -> None:
    assert run({}).recording.stands == []


def test_of_two_pipelines_both_say_where_their_ranks_stood() -> None:
    result = passed_pair({})
    assert result.recording.peer is not None
    failed = SimulationResult(result.recording, Verdict("fail", 3, "by hand"), result.setting)
    assert [s.rank for s in failed.recording.stands] == [0, 1]
    assert [s.rank for s in result.recording.peer.stands] == [0, 1]
    assert {s.doing for s in failed.recording.stands} == {"has ended"}


def test_the_picture_has_the_verdict_a_line_for_each_rank_and_marks_at_their_instants(figures: list[Any]) -> None:
    recording = stuck(pipeline(4, 6), 1, 2, 3, 0)
    message = "deadlock in phase harvest: all wait\n  rank 0: ..."
    verdict = Verdict("fail", 3, message, "INV-40", 0, 7, 0, None, "harvest")
    Path("a.png").write_bytes(gantt(recording, Path("a.png"), verdict=verdict).content)
    found = texts(figures[0])
    words = "harvest: applying tokens, answering clients"
    assert f"FAIL (exit code 3, INV-40): deadlock in phase harvest ({words}): all wait" in found
    for rank in range(4):
        peer = (rank + 1) % 4
        assert (
            f"PP{rank}:  iteration {7 - rank}, slot {rank}, exchange of outputs before the launch: "
            f"waits in receive on lane tensor for PP{peer}, since {5 - rank}.0 s"
        ) in found
    pixels = pixels_of(Path("a.png"))
    bars = bars_of(pixels, canvas.LEFT, canvas.WIDTH)
    for rank, (_, stop) in enumerate(bars):
        red = np.flatnonzero((pixels[stop + 3, canvas.LEFT : canvas.LEFT + canvas.WIDTH] == RED).all(axis=1))
        assert abs(red.mean() + 0.5 - (5 - rank) / 9 * canvas.WIDTH) <= 1  # the run takes nine seconds


@pytest.mark.parametrize("role", ["plain", "prefill", "decode"])
@pytest.mark.parametrize("bootstrap", ["store", "vote"])
def test_every_phase_and_every_effect_has_words(role: Any, bootstrap: Any) -> None:
    """A reader of a picture has not read the loop: no name of the code stands in it."""
    config = RankConfig(0, 2, role=role, bootstrap_consensus=bootstrap)
    loop = Loop(config, Exchange(), Voting(), Chain())
    names = {phase.__name__ for phase in (*loop.plan(), *loop.at_end())}
    assert len(names) > 15
    for name in [*names, "agree_on_start", "compare", "event_loop_pp"]:
        assert "_" not in phase_words(name)
        assert phase_words(name) != name.replace("_", " ")
    assert doing_words("harvest: waits for x") == "harvest: applying tokens, answering clients: waits for x"
    assert doing_words("my_phase: waits") == "my phase: waits"
    assert doing_words("waiting for a message from rank 1") == "waiting for a message from rank 1"
    assert set(DOES) == set(get_args(Effect))


def test_a_rank_that_stood_in_something_instant_says_so_in_words() -> None:
    """Of a run that is cut short ranks stand where nobody waits: "is in decided" meant nothing."""
    found = run({"run.max_iterations": 3}).recording.stands
    assert len(found) == 2
    for stand in found:
        assert not stand.doing.endswith(tuple(effect.__name__.lower() for effect in DOES)), stand


def test_arrows_lead_from_the_one_that_waits_to_the_one_that_is_waited_for(figures: list[Any]) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import PathPatch

    gantt(stuck(pipeline(4, 6), 1, 0, 1, None), Path("a.png"), verdict=Verdict("fail", 3, "watchdog", None, 1, 7, 0))
    panel = figures[0].axes[-1]
    arrows = {}
    for patch in panel.findobj(PathPatch):
        if patch.get_facecolor()[3] == 0:  # an arc and not a head
            for arc in np.split(patch.get_path().vertices, np.flatnonzero(patch.get_path().codes == 1)[1:]):
                start, end = (int(y // PITCH) - 1 for y in (arc[0][1], arc[3][1]))
                arrows[start, end] = to_hex(patch.get_edgecolor())
    assert arrows == {(0, 1): FAILED, (1, 0): FAILED, (2, 1): canvas.GREY}


def test_of_a_run_that_was_stopped_no_circle_is_called_one(figures: list[Any]) -> None:
    """A limit was reached: two ranks that wait for each other at that moment may have a message on its way."""
    from matplotlib.colors import to_hex
    from matplotlib.patches import PathPatch

    verdict = Verdict("unknown", 5, "stopped at run.max_iterations = 5")
    recording = stuck(pipeline(2, 6), 1, 0)
    gantt(recording, Path("a.png"), verdict=verdict)
    arcs = [p for p in figures[0].axes[-1].findobj(PathPatch) if p.get_facecolor()[3] == 0]
    assert {to_hex(arc.get_edgecolor()) for arc in arcs} == {canvas.GREY}
    assert any(text.endswith("the run was stopped, and might have gone on") for text in texts(figures[0]))
    page = waits_html(verdict, parts_of(recording))
    assert "caught" not in page
    assert "none of them can go on" not in page
    assert "nobody waits in a circle" not in page
    assert "class=caught" in waits_html(Verdict("fail", 3, "deadlock"), parts_of(recording))


def test_circles_are_found_wherever_they_begin() -> None:
    assert circles({"a": "b", "b": "c", "c": "b"}) == {"b", "c"}
    assert circles({"a": "b", "b": "c"}) == set()
    assert circles({"a": "a"}) == {"a"}
    assert circles({"a": "b", "b": "a", "c": "d", "d": "c", "e": "a"}) == {"a", "b", "c", "d"}


def test_of_two_pipelines_each_has_its_own_ranks() -> None:
    recording = stuck(pipeline(1, 2), None)
    recording.peer = stuck(pipeline(2, 2), 1, None)
    assert list(stands_of(parts_of(recording))) == ["prefill PP0", "prefill PP1", "decode PP0"]
    assert list(stands_of(parts_of(recording, "decode"))) == ["decode PP0"]


def test_a_run_that_failed_before_anything_was_computed_has_a_picture_of_words(figures: list[Any]) -> None:
    verdict = Verdict("unknown", 5, "gave up at iteration 0")
    picture = gantt(stuck(Recording(2, name="early"), 1, None), Path("a.png"), verdict=verdict)
    assert picture.window is None
    assert "UNKNOWN (exit code 5): gave up at iteration 0" in texts(figures[0])
    assert bars_of(pixels_of_bytes(picture.content), canvas.LEFT, canvas.WIDTH) == []
    with pytest.raises(UsageError, match="no forward pass"):
        gantt(Recording(2), Path("a.png"))


def pixels_of_bytes(content: bytes) -> Any:
    Path("read-back.png").write_bytes(content)
    return pixels_of(Path("read-back.png"))


def test_the_end_of_a_failed_run_is_shown_and_not_its_middle() -> None:
    recording = pipeline(2, 100)
    verdict = Verdict("fail", 1, "INV-07 at rank 1: ...", "INV-07", 1)
    assert headline(verdict) == ["FAIL (exit code 1): INV-07 at rank 1: ..."]
    window = gantt(recording, Path("a.png"), verdict=verdict).window
    assert window is not None
    assert (window.start_ns, window.end_ns) == (64 * S, 101 * S)


def test_more_ranks_than_fit_are_counted(figures: list[Any]) -> None:
    num = 70
    recording = stuck(pipeline(num, 3), *[(rank + 1) % num for rank in range(num)])
    gantt(recording, Path("a.png"), verdict=Verdict("fail", 3, "deadlock"))
    assert "and 6 more ranks" in texts(figures[0])
