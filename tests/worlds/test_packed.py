"""``run.compress``: the same recording, packed to the same bytes each time, and read as the plain one is."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from ppsim.cli.import_ import content_of, unpacked
from ppsim.errors import ScenarioError, UsageError
from ppsim.recording.diff import first_difference
from ppsim.recording.folder import find_recording, open_run, prepare_folder, write_run
from ppsim.recording.reader import RecordingError, read_recording
from ppsim.recording.summary import summarize
from ppsim.scenario.check import check_scenario
from ppsim.world import simulate
from tests.worlds.making import scenario

LOAD: dict[str, Any] = {
    "workload.source": "generated",
    "workload.requests": [],
    "workload.num_requests": 30,
    "workload.rate_per_s": 60.0,
    "workload.output_length": {"value": 4},
    "workload.input_length": {"value": 40},
    "cost.unit_ms": 1.0,
}
PAIR: dict[str, Any] = {"disaggregation.role": "pd"}


def saved(folder: Path, keys: dict[str, Any]) -> Path:
    made = scenario({**LOAD, **keys})
    result = simulate(made, fast=None, place=folder.parent)
    config = made.model_dump(mode="json")
    summary = summarize(result.recording, result.verdict)
    write_run(prepare_folder(str(folder), "x", 0), config, result.recording, summary, result.verdict)
    return folder


@pytest.mark.parametrize("keep", ["all", "file"])
def test_the_packed_file_is_the_plain_one_packed_without_name_and_time(keep: str, tmp_path: Path) -> None:
    plain = saved(tmp_path / "plain", {"run.keep": keep}) / "recording.jsonl"
    packed = saved(tmp_path / "packed", {"run.keep": keep, "run.compress": "gzip"}) / "recording.jsonl.gz"
    again = saved(tmp_path / "again", {"run.compress": "gzip"}) / "recording.jsonl.gz"
    content = packed.read_bytes()
    assert gzip.decompress(content) == plain.read_bytes()
    assert content == again.read_bytes()  # whatever is kept
    assert content[3] == 0  # RFC 1952: no flags, so no file name
    assert content[4:8] == bytes(4)  # no time
    assert len(content) < plain.stat().st_size / 2
    assert not (packed.parent / "recording.jsonl").exists()


def test_a_run_is_found_and_read_by_folder_and_by_file_and_by_content(tmp_path: Path) -> None:
    plain = open_run(str(saved(tmp_path / "plain", {})))
    folder = saved(tmp_path / "packed", {"run.compress": "gzip"})
    file = folder / "recording.jsonl.gz"
    renamed = tmp_path / "renamed.jsonl"
    renamed.write_bytes(file.read_bytes())
    for name in (folder, file, renamed):
        assert first_difference(plain, open_run(str(name)), times=True) is None


def test_an_earlier_run_leaves_no_other_recording_behind(tmp_path: Path) -> None:
    for keys, there in (({"run.compress": "gzip"}, ".gz"), ({}, ""), ({"run.compress": "gzip"}, ".gz")):
        folder = saved(tmp_path / "run", keys)
        assert [path.name for path in folder.glob("recording*")] == [f"recording.jsonl{there}"]
        assert find_recording(str(folder)).name == f"recording.jsonl{there}"
    folder = saved(tmp_path / "run", {"run.keep": "summary"})
    assert not list(folder.glob("recording*"))


def test_both_sides_of_a_pair_are_packed(tmp_path: Path) -> None:
    keys = {**PAIR, "workload.num_requests": 4}
    plain, packed = saved(tmp_path / "a", keys), saved(tmp_path / "b", {**keys, "run.compress": "gzip"})
    for name in ("recording.jsonl", "recording-prefill.jsonl"):
        assert gzip.decompress((packed / f"{name}.gz").read_bytes()) == (plain / name).read_bytes()
    one, other = open_run(str(plain)).peer, open_run(str(packed)).peer
    assert one is not None
    assert other is not None
    assert first_difference(one, other, times=True) is None


def test_a_packed_file_that_breaks_off_or_is_damaged_is_named_with_its_line_and_what_to_do(tmp_path: Path) -> None:
    content = (saved(tmp_path / "run", {"run.compress": "gzip"}) / "recording.jsonl.gz").read_bytes()
    file = tmp_path / "cut.jsonl.gz"
    for length in range(3, len(content), max(1, len(content) // 15)):
        file.write_bytes(content[:length])
        with pytest.raises(RecordingError, match=r"cut\.jsonl\.gz:\d+: the packed file breaks off here.*copy it again"):
            read_recording(file)
    for place in range(10, len(content), max(1, len(content) // 15)):
        file.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with pytest.raises(RecordingError, match=r"cut\.jsonl\.gz"):
            read_recording(file)
    file.write_bytes(content[:-8] + bytes(4) + content[-4:])
    with pytest.raises(RecordingError, match=r"as gzip it is damaged.*copy it again.*gzip -t"):
        read_recording(file)


def test_a_run_that_writes_no_recording_is_told_that_there_is_nothing_to_pack() -> None:
    result = simulate(scenario({**LOAD, "run.keep": "summary", "run.compress": "gzip"}), fast=None)
    assert [message for message in result.recording.warnings if "run.compress has no effect" in message]


def test_more_requests_than_can_be_made_beforehand_need_a_run_that_makes_them_as_they_come() -> None:
    many = {**LOAD, "workload.num_requests": 1_000_000}
    with pytest.raises(ScenarioError, match=r"workload\.num_requests: 1000000 are made before.*run\.keep 'file'"):
        check_scenario(scenario(many))
    for keep in ("file", "summary"):
        check_scenario(scenario({**many, "run.keep": keep}))


def test_import_unpacks_what_it_is_given_and_names_what_is_damaged(tmp_path: Path) -> None:
    """A launch line in a packed file is the launch line; half of the file is refused by its name."""
    line = b"python -m sglang.launch_server --model-path Qwen/Qwen3-8B --pp-size 2\n" * 40
    assert unpacked("x", line) == line
    packed = gzip.compress(line)
    (tmp_path / "line.gz").write_bytes(packed)
    assert content_of([str(tmp_path / "line.gz")]) == line
    for spoilt in (packed[: len(packed) // 2], packed[:-6], packed[:20] + b"\0\0\0\0" + packed[24:]):
        with pytest.raises(UsageError, match=r"line\.gz: packed with gzip, and cut off or damaged"):
            unpacked("line.gz", spoilt)
