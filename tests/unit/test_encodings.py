"""Law: a byte-order mark says which text a file is, and it is read so; what is no text is told with line and remedy.
A value of the wrong kind is told in words of its field."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ppsim.cli.entry import app
from ppsim.cost.gpu import load_gpu
from ppsim.cost.samples import read_samples
from ppsim.errors import PpsimError, ScenarioError
from ppsim.parsing import as_utf8, decoded, readable
from ppsim.scenario import load_scenario
from ppsim.workload.trace import read_trace

MARKED = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
}
SCENARIO = 'description = "naïve"\n[cost]\nsource = "unit"\n[workload]\nsource = "chunks"\nnum_chunks = 2\n'
TRACE = json.dumps({"timestamp": 0, "input_length": 7, "output_length": 2, "hash_ids": [1]}) + "\n"
SAMPLES = "prefix,new_tokens,time_ms\n0,1024,10.5\n1024,1024,11.5\n"
GPU = "[gpu]\nbf16_tflops = 1.0\nmemory_gb = 1.0\nhbm_gb_per_s = 1.0\nlink_gb_per_s = 1.0 # é\n"
LAUNCH = "python3 -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --pp-size 4\n"


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def called(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("encoding", MARKED)
def test_every_reader_takes_a_marked_file(encoding: str) -> None:
    def put(name: str, text: str) -> str:
        Path(name).write_bytes(MARKED[encoding] + text.encode(encoding))
        return name

    assert load_scenario(put("s.toml", SCENARIO)).description == "naïve"
    assert [row.input_length for row in read_trace(put("t.jsonl", TRACE)).rows] == [7]
    assert len(read_samples(put("c.csv", SAMPLES))) == 2
    assert load_gpu(put("g.toml", GPU)).memory_gb == 1.0
    line = called("import", put("launch.sh", LAUNCH), "--json")
    assert line.exit_code == 0, line.stderr
    (server,) = json.loads(line.stdout)
    assert server["scenario"]["overrides"]["cluster.pp_size"] == 4
    assert "launch line" in called("read", "launch.sh").stdout.splitlines()[0]


def test_latin_1_is_told_with_its_line_and_what_to_do() -> None:
    told = "line 2: byte 0xe9 is not UTF-8; is it latin-1 or windows-1252? save it as UTF-8"
    body = "# first\n# caf\xe9\n".encode("latin-1")
    with pytest.raises(ValueError, match=told.replace("?", r"\?")):
        decoded(body)
    Path("s.toml").write_bytes(body)
    result = called("run", "s.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"ppsim: s.toml: is no text: {told}\n"
    Path("t.jsonl").write_bytes(body)
    assert "t.jsonl:2" in called("run", "mooncake", "--trace", "t.jsonl").stderr
    for name in ("g.toml", "c.csv"):
        Path(name).write_bytes(body)
        with pytest.raises(PpsimError, match="line 2: byte 0xe9"):
            load_gpu(name) if name == "g.toml" else read_samples(name)


def test_a_log_is_read_whatever_is_in_it_and_its_strange_bytes_are_told() -> None:
    text, remark = readable(b"one\ncaf\xe9\ntwo \xff\n")
    assert text == "one\ncaf\ufffd\ntwo \ufffd\n"
    assert remark == "2 lines, the first of them 2, has bytes that are not UTF-8 (latin-1?): a \ufffd stands for each"
    assert readable("caf\xe9".encode()) == ("caf\xe9", "")
    Path("launch.sh").write_bytes(LAUNCH.encode() + b"# caf\xe9\n")
    assert "line 2 has bytes that are not UTF-8" in called("import", "launch.sh").stderr


def test_utf_16_without_a_mark_and_what_the_mark_lies_about_are_told() -> None:
    with pytest.raises(ValueError, match="zero byte is no text; UTF-16 without a byte-order mark"):
        decoded("a = 1\n".encode("utf-16-le"))
    with pytest.raises(ValueError, match="is it a binary file"):
        decoded(b"a = 1234\x00")
    with pytest.raises(ValueError, match="begins with the mark of UTF-16-LE and is not"):
        decoded(codecs.BOM_UTF16_LE + b"abc")
    assert as_utf8(codecs.BOM_UTF16_LE + b"abc") == codecs.BOM_UTF16_LE + b"abc"


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ('cluster.pp_size="4"', "cluster.pp_size: must be a whole number, got '4' (write it without quotes)"),
        ("cluster.pp_size=4.5", "cluster.pp_size: must be a whole number, got 4.5"),
        ("cluster.pp_size=true", "cluster.pp_size: must be a whole number, got True"),
        ("cluster.pp_size=0", "cluster.pp_size: must be more than 0, got 0"),
        ("cluster.pp_size=[4]", "cluster.pp_size: must be a whole number, got [4]"),
        ("cluster=3", "cluster: must be a section with keys, got 3"),
        ("cost.unit_ms=fast", "cost.unit_ms: must be a number, got 'fast'"),
        ("cost.unit_ms=nan", "cost.unit_ms: must be a finite number, got nan"),
        ("cost.efficiency=1.5", "cost.efficiency: must be at most 1, got 1.5"),
        ('run.invariants="true"', "run.invariants: must be true or false, got 'true' (write it without quotes, "),
        ("description=5", "description: must be a text in quotes, got 5 (write it in quotes)"),
        ("scheduler.schedule_policy=lifo", "scheduler.schedule_policy: must be 'fcfs' or 'lpm', got 'lifo'"),
        ("model.layer_partition=5", "model.layer_partition: must be a list in brackets, got 5"),
        ("workload.requests=[{prompt=5}]", "workload.requests.0.rid: is missing"),
        ("disaggregation.lease_ms=1e-9", "disaggregation.lease_ms: must be 0 (none) or at least 1e-06, got 1e-09"),
    ],
)
def test_a_wrong_value_is_told_in_words_of_the_field(override: str, told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        load_scenario("unit", [override])
    assert str(error.value).startswith(told)
    for word in ("Input", "valid", "pydantic", "tuple", "Value error", "dictionary"):
        assert word not in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        "run unit --out",
        "exec tiny --out",
        "fuzz --examples 1 --out",
        "tune tiny --out",
        "sweep unit --out",
        "plot -o",
        "report -o",
        "trace -o",
        "compare --model llama-3.1-8b --gpu h20 --gpus 8 -o",
    ],
)
@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_refused_in_every_command(arguments: str, name: str) -> None:
    result = called(*arguments.split(), name)
    assert result.exit_code == 2
    assert "is empty; give a name, or leave the option out" in " ".join(result.stderr.split()).replace(" │ ", " ")
    assert not list(Path().iterdir())
