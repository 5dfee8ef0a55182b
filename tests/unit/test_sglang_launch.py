"""Launch lines as people write them. The oracle is the ``expect`` column of the tables, not the output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ppsim.errors import UsageError
from ppsim.sglang.flags import defaults
from ppsim.sglang.launch import LaunchLine, read_launch, to_scenario
from tests.unit._sglang_index import MISSING, SHARED, Row, rows, rows_of

ROWS = rows("launch")
SHORT = {
    "chunk": "chunked_prefill_size",
    "dynamic": "enable_dynamic_chunking",
    "smooth": "dynamic_chunking_smooth_factor",
    "mixed_chunk": "enable_mixed_chunk",
    "executor": "distributed_executor_backend",
    "max_micro_batch_size": "pp_max_micro_batch_size",
    "disable_overlap": "disable_overlap_schedule",
}
CLAUSE = re.compile(r"^(?P<name>[a-z_]+)=(?P<value>.+?)(?: \((?P<remark>[^()]*)\))?$")
DEFAULT = re.compile(r"^default\((.+)\)$")


def typed(text: str) -> Any:
    """Value of a clause: the spelling decides the type, as for anybody who reads the table."""
    if text in ("true", "false"):
        return text == "true"
    if text == "None":
        return None
    if re.fullmatch(r"\d+(?:,\d+)+", text):
        return tuple(int(part) for part in text.split(","))
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else text


def check_value(line: LaunchLine, name: str, value: str, remark: str | None) -> None:
    name = SHORT.get(name, name)
    default = DEFAULT.match(value)
    if default:
        assert not line.is_given(name)
        assert line.get(name) == typed(default[1])
    elif value == "unset":
        assert not line.is_given(name)
        assert line.get(name) is None
    elif value.startswith("unresolved "):
        assert not line.is_given(name)
        assert [hole.text for hole in line.unresolved if hole.name == name] == [value.removeprefix("unresolved ")]
    elif name == "role":
        assert line.role == value
    elif value == "false":
        assert line.get(name) is False
    else:
        assert line.is_given(name), f"{name} is not given"
        assert line.get(name) == typed(value)
        assert isinstance(line.get(name), type(typed(value)))
    if remark and remark.startswith("sum "):
        assert sum(line.get(name)) == int(remark.removeprefix("sum "))


def warned(line: LaunchLine, *parts: str) -> bool:
    return any(all(part in str(note) for part in parts) for note in [*line.warnings, *line.notes])


def check_unresolved(line: LaunchLine, names: str) -> None:
    """Exactly these: named values, variables or placeholders as written."""
    expected = [part.strip() for part in names.split(",")]
    for hole in line.unresolved:
        assert hole.name in expected or hole.text in expected or hole.label in expected, f"{hole} is not expected"
    assert len(line.unresolved) == len(expected)


def pp_abbreviation(line: LaunchLine) -> None:
    assert warned(line, "--pp:", "abbreviation of --pp-size", "ambiguous", "--pp-async-batch-depth")


def nothing_blocks(line: LaunchLine) -> None:
    assert "CUDA_LAUNCH_BLOCKING" not in line.env
    assert line.env["SGLANG_DCP"] == "8"


def overrides_left_open(line: LaunchLine) -> None:
    assert [hole.name for hole in line.unresolved] == ["json_model_override_args"]


def old_split(line: LaunchLine) -> None:
    assert warned(line, "--pp-size", "94 layers on 8 stages: 11 x 7 + 17")
    assert 11 * 7 + 17 == 94


def sizes_with_suffix(line: LaunchLine) -> None:
    assert line.get("max_model_len") == 2**20
    assert line.get("max_num_batched_tokens") == 2**15
    lower = read_launch("vllm serve m --max-model-len 1m --max-num-batched-tokens 32k")[0]
    assert lower.get("max_model_len") == 10**6
    assert lower.get("max_num_batched_tokens") == 32_000


BY_HAND: dict[tuple[str, str], Callable[[LaunchLine], None]] = {
    ("001_sglang", "warn: --pp is an argparse abbreviation"): pp_abbreviation,
    ("004_sglang", "note: 94 layers went 11x7+17"): old_split,
    ("011_sglang", "disable_overlap"): lambda line: check_value(line, "disable_overlap", "true", None),
    ("012_sglang", "unresolved: json override"): overrides_left_open,
    ("013_sglang", "CUDA_LAUNCH_BLOCKING must not be set"): nothing_blocks,
    ("020_sglang", "warn: mixed chunk"): lambda line: assert_warned(line, "--enable-mixed-chunk", "2026-04", "22920"),
    ("042_sglang", "warn: --nccl-init-addr"): lambda line: assert_warned(
        line, "--nccl-init-addr", "old name of --dist-init-addr"
    ),
    ("049_vllm", "enforce_eager"): lambda line: check_value(line, "enforce_eager", "true", None),
    ("051_sglang", "max_micro_batch_size=None"): lambda line: assert_warned(
        line, "max_micro_batch_size", "old name of pp_max_micro_batch_size"
    ),
    ("057_vllm", "max_model_len=1048576 and"): sizes_with_suffix,
    ("059_sglang", "warn: --pp ambiguous"): pp_abbreviation,
}


def assert_warned(line: LaunchLine, *parts: str) -> None:
    assert warned(line, *parts), [str(note) for note in line.warnings]


def lines_of(row: Row) -> list[LaunchLine]:
    return read_launch(row.text)


def check_clause(row: Row, clause: str, lines: list[LaunchLine]) -> bool:
    """Assert what the clause says; False if no rule and no function by hand covers it."""
    hands = [check for (name, start), check in BY_HAND.items() if name == row.name and clause.startswith(start)]
    for line in lines if hands else []:
        hands[0](line)
    role = re.match(r"^(prefill|decode): (.*)$", clause)
    if role:
        line = next(line for line in lines if line.role == role[1])
        return all(check_clause(row, part, [line]) for part in role[2].split(", "))
    if hands and not CLAUSE.match(clause):
        return True
    unresolved = re.match(r"^unresolved: (.*)$", clause)
    if unresolved:
        check_unresolved(lines[0], unresolved[1])
        return True
    parts = clause.split(" and ") if " and " in clause else [clause]
    found = [CLAUSE.match(part) for part in parts]
    for match in found:
        for line in lines:
            if match:
                check_value(line, match["name"], match["value"], match["remark"])
    return bool(hands) or all(found)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_launch_line_gives_what_the_table_says(row: Row) -> None:
    lines = lines_of(row)
    for clause in row.clauses:
        assert check_clause(row, clause, lines), f"no check covers the clause {clause!r}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_text_gives_as_many_servers_as_it_starts_and_no_error(row: Row) -> None:
    lines = lines_of(row)
    assert len(lines) == (2 if "two roles" in row.special else 1)
    for line in lines:
        assert not line.errors, [str(note) for note in line.errors]
        assert not line.unknown_flags, line.unknown_flags


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_engine_is_recognised(row: Row) -> None:
    family = {"sglang": "sglang", "sglang-fork": "sglang"}.get(row.engine, "vllm")
    for line in lines_of(row):
        assert line.engine == family


def test_our_launch_lines_are_there() -> None:
    assert len([row for row in ROWS if row.name.startswith("own_")]) == 19


@pytest.mark.skipif(not rows_of(SHARED, "launch"), reason=MISSING)
def test_all_forty_posted_launch_lines_are_there_and_no_hand_check_is_idle() -> None:
    names = {row.name for row in rows_of(SHARED, "launch")}
    assert len(names) == 40
    assert {name for name, _ in BY_HAND} <= names


def test_what_is_only_a_comment_is_not_given() -> None:
    commented = [row for row in ROWS if "commented flag" in row.special]
    assert commented
    for row in commented:
        for line in lines_of(row):
            assert not line.is_given("enable_dynamic_chunking")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_launch_line_becomes_overrides_that_the_tree_takes(row: Row) -> None:
    from ppsim.scenario.load import put, validate

    for line in lines_of(row):
        found = to_scenario(line)
        raw: dict[str, Any] = {}
        for key, value in found["overrides"].items():
            put(raw, key, value)
        scenario = validate(raw)
        if line.is_given("pp_size"):
            assert scenario.cluster.pp_size == line.get("pp_size")
        assert set(found["left_open"]).isdisjoint(found["overrides"])


WRAPPED = {
    "a plain command": "python3 -m sglang.launch_server --model-path m --tp-size 8 --pp-size 2",
    "a user's prompt": "ubuntu@gpu-01:~/work$ python3 -m sglang.launch_server --model-path m --tp-size 8 --pp-size 2",
    "a prompt without a blank": "$sglang serve --model-path m --tp-size 8 --pp-size 2",
    "root's prompt": "root@abc:/workspace# sglang serve --model-path m --tp-size 8 --pp-size 2",
    "an environment's prompt": "(venv) $ sglang serve --model-path m --tp-size 8 --pp-size 2",
    "prompts on continuation lines": "$ sglang serve \\\n>   --model-path m \\\n>   --tp-size 8 --pp-size 2",
    "a quoted mail": "> sglang serve --model-path m \\\n>   --tp-size 8 --pp-size 2",
    "a fence in prose": (
        "I run this:\n```bash\nsglang serve --model-path m --tp-size 8 --pp-size 2\n```\nit doesn't work"
    ),
    "a label": "Node 0: python3 -m sglang.launch_server --model-path m --tp-size 8 --pp-size 2",
    "long dashes": "sglang serve \u2014model-path m \u2013tp-size 8 \u2014pp-size 2",
    "curly quotes": "sglang serve --model-path \u201cm\u201d --tp-size 8 --pp-size 2",
    "a comment inside": "sglang serve \\\n  --model-path m \\\n  # --tp-size 4 \\\n  --tp-size 8 --pp-size 2",
    "blanks behind a backslash": "sglang serve \\ \n --model-path m --tp-size 8 \\   # one node\n --pp-size 2",
    "Windows' continuation": "sglang serve ^\r\n --model-path m ^\r\n --tp-size 8 --pp-size 2",
    "bash -c in a container": (
        'docker run lmsysorg/sglang bash -c "sglang serve --model-path m --tp-size 8 --pp-size 2"'
    ),
    "slurm": "srun -N 2 bash -lc 'cd /x && python3 -m sglang.launch_server --model-path m --tp-size 8 --pp-size 2'",
    "an array of arguments": 'A=(--tp-size 8)\nA+=(--pp-size 2)\nsglang serve --model-path m "${A[@]}"',
    "a string of arguments": 'A="--tp-size 8 --pp-size 2"\nsglang serve --model-path m $A',
    "a default in a variable": "sglang serve --model-path ${MODEL:-m} --tp-size ${TP:-8} --pp-size ${PP:-2}",
    "variables": "export TP=8\nPP=2\nsglang serve --model-path m --tp-size $TP --pp-size ${PP}",
    "a Dockerfile": (
        'CMD ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--tp-size", "8", "--pp-size=2"]'
    ),
    "a systemd unit": (
        "[Service]\nExecStart=/bin/python -m sglang.launch_server \\\n --model-path m --tp-size 8 --pp-size 2"
    ),
    "a subprocess call": (
        'run([\n "python3", "-m", "sglang.launch_server",\n "--model-path", "m",\n "--tp-size", "8", '
        '"--pp-size", "2",\n])'
    ),
    "the Python interface": "llm = sgl.Engine(\n    model_path='m',\n    tp_size=8,\n    pp_size=2,\n)",
    "a configuration file": "model-path: m\ntensor-parallel-size: 8\npipeline-parallel-size: 2  # stages\n",
    "JSON": (
        '{"command": ["python3", "-m", "sglang.launch_server"], "args": ["--model-path", "m", "--tp-size", '
        '"8", "--pp-size", "2"]}'
    ),
    "a description in JSON": '{"model_path": "m", "tp_size": 8, "pp_size": 2}',
    "a Kubernetes list": (
        "args:\n- --model-path=m\n- --tp-size\n- '8'\n- --pp-size=2\ncommand:\n- python3\n- -m\n- "
        "sglang.launch_server"
    ),
    "a folded block": (
        "command: [sh, -c]\nargs:\n  - >\n    python3 -m sglang.launch_server\n    --model-path m\n    "
        "--tp-size $(TP)\n    --pp-size 2\nenv:\n  - name: TP\n    value: '8'"
    ),
    "compose": (
        "entrypoint: python3 -m sglang.launch_server\ncommand:\n  --model-path m\n  --tp-size 8\n  --pp-size "
        "2\n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", WRAPPED.values(), ids=WRAPPED.keys())
def test_a_wrapping_does_not_change_the_values(text: str) -> None:
    (line,) = read_launch(text)
    assert {name: line.get(name) for name in ("model_path", "tp_size", "pp_size")} == {
        "model_path": "m",
        "tp_size": 8,
        "pp_size": 2,
    }
    assert (line.engine, line.errors, line.unresolved, line.unknown_flags) == ("sglang", [], [], [])


@pytest.mark.parametrize("name", ["a folded block", "compose", "a Kubernetes list", "an array of arguments"])
def test_what_a_list_joins_is_no_offence_against_the_shell(name: str) -> None:
    (line,) = read_launch(WRAPPED[name])
    assert not warned(line, "a shell would")


def test_a_flag_on_a_line_of_its_own_behind_a_command_is_read_and_said() -> None:
    (line,) = read_launch("sglang serve --model-path m\n--pp-size 2")
    assert line.get("pp_size") == 2
    assert warned(line, "line 2", "a shell would not")


def test_the_environment_tells_the_engine_where_the_flags_do_not() -> None:
    assert read_launch("VLLM_USE_V1=1\n--pipeline-parallel-size 2")[0].engine == "vllm"
    assert read_launch("export SGLANG_X=1\n--pipeline-parallel-size 2")[0].engine == "sglang"
    assert warned(read_launch("--pipeline-parallel-size 2")[0], "the engine is not named")


def test_a_dump_that_is_cut_says_so_and_uses_nothing_half() -> None:
    (line,) = read_launch(
        "server_args=ServerArgs(model_path='m', tp_size=8, chunked_prefil\nl_size=16384, max_prefill_tok"
    )
    assert (line.get("tp_size"), line.get("chunked_prefill_size")) == (8, 16384)
    assert not line.is_given("max_prefill_tokens")
    assert warned(line, "'max_prefill_tok' is cut off")
    (number,) = read_launch("ServerArgs(model_path='m', pp_size=1, tp_size=1")
    assert not number.is_given("tp_size"), "the 1 may be the beginning of 16"


def test_a_decode_server_with_a_pipeline_is_told_what_it_needs() -> None:
    (line,) = read_launch("sglang serve --model-path m --disaggregation-mode decode --pp-size 2")
    assert warned(line, "--pp-size", "pp_size 1 or that of its prefill server")


def test_an_unknown_flag_is_listed_with_its_words_and_the_nearest_name() -> None:
    (line,) = read_launch("sglang serve --model-path m --chunk-prefill-size 4096 --frobnicate a b --pp-size 2")
    chunk, other = line.unknown_flags
    assert (chunk.spelling, chunk.values, chunk.nearest) == (
        "--chunk-prefill-size",
        ("4096",),
        "--chunked-prefill-size",
    )
    assert (other.spelling, other.values, other.nearest) == ("--frobnicate", ("a", "b"), None)
    assert line.get("pp_size") == 2
    assert not line.is_given("chunked_prefill_size")


@pytest.mark.parametrize(
    ("flags", "place", "problem"),
    [
        ("--pp-size four", "line 2, --pp-size", "expected a whole number, got 'four'"),
        ("--tp-size --pp-size 2", "line 2, --tp-size", "and --pp-size follows"),
        ("--pp-size 0", "line 2, --pp-size", "must be positive"),
        ("--chunked-prefill-size 0", "line 2, --chunked-prefill-size", "or -1 for no chunking"),
        ("--mem-fraction-static nan", "line 2, --mem-fraction-static", "finite"),
        ("--nnodes 2 --node-rank 2", "line 2, --node-rank", "does not exist with 2 nodes"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_its_place(flags: str, place: str, problem: str) -> None:
    (line,) = read_launch(f"sglang serve --model-path m \\\n {flags}")
    assert any(place in str(note) and problem in str(note) for note in line.errors), line.errors
    with pytest.raises(UsageError, match="line 2"):
        to_scenario(line)


def test_a_partition_of_another_length_than_the_pipeline_is_an_error() -> None:
    (line,) = read_launch("SGLANG_PP_LAYER_PARTITION=10,11,12 sglang serve --model-path m --pp-size 2")
    assert any("3 stages, but pp_size is 2" in str(note) for note in line.errors)


@pytest.mark.parametrize("text", ["", "  \n", "ls -la", "I have a problem with my server", "\0\x01\x02" * 50])
def test_a_text_that_starts_no_server_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="launch line"):
        read_launch(text)


def test_a_text_of_ten_megabytes_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match="10000000 characters"):
        read_launch("x" * 10_000_000)


def test_a_given_value_twice_warns_and_the_later_one_holds() -> None:
    (line,) = read_launch("sglang serve --model-path m --pp-size 2 --pp-size 4")
    assert line.get("pp_size") == 4
    assert warned(line, "given twice")


def test_underscores_are_vllms_and_refused_by_sglang() -> None:
    (line,) = read_launch("sglang serve --model-path m --pp_size 2")
    assert line.get("pp_size") == 2
    assert warned(line, "underscores are refused")
    (other,) = read_launch("vllm serve m --pipeline_parallel_size 2")
    assert other.get("pp_size") == 2
    assert not warned(other, "underscores")


def test_two_servers_get_their_own_exports() -> None:
    text = "export SGLANG_PP_LAYER_PARTITION=5,6\n"
    text += "sglang serve --model-path m --pp-size 2 --disaggregation-mode prefill &\n"
    text += "export SGLANG_PP_LAYER_PARTITION=11\nsglang serve --model-path m --disaggregation-mode decode\n"
    prefill, decode = read_launch(text)
    assert (prefill.role, prefill.get("layer_partition")) == ("prefill", (5, 6))
    assert (decode.role, decode.get("layer_partition")) == ("decode", (11,))


def test_containers_keep_their_variables_apart() -> None:
    part = "- name: {0}\n  image: lmsysorg/sglang\n  args:\n  - --pp-size=2\n"
    part += "  env:\n  - name: SGLANG_PP_LAYER_PARTITION\n    value: '{1}'\n"
    first, second = read_launch("containers:\n" + part.format("a", "5,6") + part.format("b", "7,4"))
    assert (first.get("layer_partition"), second.get("layer_partition")) == ((5, 6), (7, 4))


def test_a_client_of_the_server_is_no_server() -> None:
    with pytest.raises(UsageError):
        read_launch("python -m sglang.bench_serving --backend sglang --num-prompts 10")


def test_defaults_are_told_apart_from_values() -> None:
    (line,) = read_launch("sglang serve --model-path m --pp-size 1")
    data = line.to_dict()
    assert data["values"]["pp_size"] == 1
    assert data["defaults"]["tp_size"] == 1
    assert "pp_size" not in data["defaults"]
    assert data["defaults"]["chunked_prefill_size"] is None


def test_published_defaults_of_the_pipeline_flags() -> None:
    """protocol.md 10.1 and 10.2."""
    known = defaults("sglang")
    published = {
        "pp_size": 1,
        "pp_async_batch_depth": 0,
        "pp_max_micro_batch_size": None,
        "chunked_prefill_size": None,
        "enable_dynamic_chunking": False,
        "max_prefill_tokens": 16384,
        "prefill_max_requests": None,
        "prefill_decode_interval": 0,
        "schedule_policy": "fcfs",
        "schedule_conservativeness": 1.0,
        "dynamic_chunking_smooth_factor": 0.75,
        "layer_partition": None,
        "pp_comm_overlap": False,
        "clip_max_new_tokens_estimation": 4096,
        "disaggregation_bootstrap_port": 8998,
        "num_reserved_decode_tokens": 512,
        "watchdog_timeout": 300,
    }
    assert {name: known[name] for name in published} == published
