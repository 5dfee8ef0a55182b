"""The shell as people write it: each text with the values that a shell would give the server, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim.errors import UsageError
from ppsim.sglang.arithmetic import evaluate
from ppsim.sglang.launch import LaunchLine, read_launch, to_scenario

S, V = "sglang serve --model-path m", "vllm serve m"
K8S = "containers:\n- name: a\n  image: vllm/vllm-openai:latest\n  args:"
TEXTS: dict[str, tuple[str, dict[str, Any]]] = {
    "append": (  # the handed case append.txt
        'OPTS="--pp-size 4"\nOPTS+=" --tp-size 2"\nOPTS+=" --chunked-prefill-size 2048"\n'
        "python3 -m sglang.launch_server --model-path a/b $OPTS",
        {"model_path": "a/b", "pp_size": 4, "tp_size": 2, "chunked_prefill_size": 2048},
    ),
    "module_serve": (  # the handed case module_serve.txt
        "python3 -m vllm.entrypoints.cli.main serve my/model --pipeline-parallel-size 2",
        {"model_path": "my/model", "pp_size": 2},
    ),
    "arithmetic": (  # the handed case arithmetic.txt
        "CHUNK=1024\nsglang serve my/model --pp-size 2 --chunked-prefill-size $((CHUNK*4)) --schedule-policy priority",
        {"model_path": "my/model", "pp_size": 2, "chunked_prefill_size": 4096, "schedule_policy": "priority"},
    ),
    "export appended": (f'export O="--pp-size 4"\nexport O+=" --tp-size 2"\n{S} $O', {"pp_size": 4, "tp_size": 2}),
    "words over lines": (f'O="--pp-size 4\n --tp-size 2"\n{S} $O', {"pp_size": 4, "tp_size": 2}),
    "an appended array": (f'A=(--pp-size 4)\nA+=(--tp-size 2)\n{S} "${{A[@]}}"', {"pp_size": 4, "tp_size": 2}),
    "arithmetic of two": (f"N=2\nG=8\n{S} --tp-size $G --pp-size $(( N * $G / 8 ))", {"tp_size": 8, "pp_size": 2}),
    "let": (f"let PP=2*2\n{S} --pp-size $PP", {"pp_size": 4}),
    "double brackets": (f"((PP = 2 * 2))\n{S} --pp-size $PP", {"pp_size": 4}),
    "a default": (f"{S} --pp-size ${{PP:-4}}", {"pp_size": 4}),
    "a default not needed": (f"PP=2\n{S} --pp-size ${{PP:-4}}", {"pp_size": 2}),
    "a default within a default": (f"B=8\n{S} --pp-size ${{A:-${{B:-4}}}}", {"pp_size": 8}),
    "a default of an empty one": (f"PP=\n{S} --pp-size ${{PP:-4}} --tp-size 2 ${{PP-}}", {"pp_size": 4, "tp_size": 2}),
    "a default that stays": (f": ${{PP:=4}}\n{S} --pp-size $PP", {"pp_size": 4}),
    "set gives flags": (f"TP=2\n{S} ${{TP:+--tp-size $TP}} ${{PP:+--pp-size $PP}}", {"tp_size": 2}),
    "a substring": (f"V=819200\n{S} --chunked-prefill-size ${{V:0:4}}", {"chunked_prefill_size": 8192}),
    "a substring from the end": (f"V=008\n{S} --pp-size ${{V: -1}}", {"pp_size": 8}),
    "a cut end": ("M=org/m.gguf\nvllm serve ${M%.gguf} -pp 2", {"model_path": "org/m", "pp_size": 2}),
    "the longest cut end": ("M=a.b.c\nvllm serve ${M%%.*} -pp 2", {"model_path": "a", "pp_size": 2}),
    "a cut start": ("M=/models/org/m\nvllm serve x/${M##*/} -pp 2", {"model_path": "x/m", "pp_size": 2}),
    "replaced": ("M=org_m_x\nvllm serve ${M/_//} -pp 2", {"model_path": "org/m_x", "pp_size": 2}),
    "a length and an element": (f"A=(4 2)\n{S} --pp-size ${{A[0]}} --tp-size ${{#A[@]}}", {"pp_size": 4, "tp_size": 2}),
    "joined to one line": (rf"{S} \ --pp-size 4 \ --tp-size 2", {"pp_size": 4, "tp_size": 2}),
    "another quote": (f"{S} --revision $'x' --pp-size 4", {"revision": "x", "pp_size": 4}),
    "in prose": (f"Start it with `{S} --pp-size 4`, and wait.", {"pp_size": 4}),
    "on the fence's line": (f"```{S} --pp-size 4```", {"pp_size": 4}),
    "behind the fence's language": (f"```bash {S} --pp-size 4\n```", {"pp_size": 4}),
    "closed on its line": (f"```\n{S} --pp-size 4```", {"pp_size": 4}),
    "k8s args, flow": (
        f'{K8S} ["my/model", "--pipeline-parallel-size", "2"]',
        {"model_path": "my/model", "pp_size": 2},
    ),
    "k8s args, block": (f'{K8S}\n  - my/model\n  - -pp\n  - "2"', {"model_path": "my/model", "pp_size": 2}),
    "k8s args before the image": (
        "args: [my/model, --block-size, '16']\nimage: vllm/vllm-openai",
        {"model_path": "my/model", "page_size": 16},
    ),
    "compose": (
        "services:\n  v:\n    image: vllm/vllm-openai\n    command: my/model --pipeline-parallel-size 2",
        {"model_path": "my/model", "pp_size": 2},
    ),
    "systemd": (
        "[Service]\nEnvironment=PP=2 TP=4\nExecStart=-/usr/bin/sglang serve m --pp-size ${PP} --tp-size $TP",
        {"model_path": "m", "pp_size": 2, "tp_size": 4},
    ),
    "the model last": ("vllm serve --enforce-eager -pp 2 m", {"model_path": "m", "pp_size": 2, "enforce_eager": True}),
    "one turn of a loop": (f"for PP in 4; do\n {S} --pp-size $PP\ndone", {"pp_size": 4}),
    "a condition that changes nothing": (f"PP=4\nif x; then PP=4; fi\n{S} --pp-size $PP", {"pp_size": 4}),
}


def only(text: str) -> LaunchLine:
    (line,) = read_launch(text)
    assert not line.errors, line.errors
    return line


@pytest.mark.parametrize(("text", "values"), TEXTS.values(), ids=TEXTS.keys())
def test_a_server_gets_what_a_shell_would_give_it(text: str, values: dict[str, Any]) -> None:
    line = only(text)
    given = {name: given.value for name, given in line.values.items()}
    given.pop("model_path") if "model_path" not in values else None
    assert given == values
    assert not line.unresolved
    assert not line.unknown_flags
    assert not any("belongs to no flag" in str(note) for note in line.warnings)


OPEN = {
    "a name that nothing sets": f"{S} --pp-size ${{PP:0:1}}",
    "arithmetic of such a name": f"{S} --pp-size $((PP*2))",
    "division by zero": f"{S} --pp-size $((4/0))",
    "several turns of a loop": f"PP=8\nfor PP in 1 2 4; do\n{S} --pp-size $PP\ndone",
    "a condition": f'PP=2\nif [ "$A" = 1 ]; then PP=4; fi\n{S} --pp-size $PP',
    "a test before it": f"PP=2\n[ -n x ] && PP=4\n{S} --pp-size $PP",
    "read from the keyboard": f"PP=2\nread PP\n{S} --pp-size $PP",
    "unset": f"PP=2\nunset PP\n{S} --pp-size $PP",
    "a quote that never ends": f'{S} --pp-size "4 --tp-size 2',
}


@pytest.mark.parametrize("text", OPEN.values(), ids=OPEN.keys())
def test_what_the_text_does_not_settle_is_open_and_never_a_guess(text: str) -> None:
    (line,) = read_launch(text)
    assert line.is_unresolved("pp_size")
    assert not line.is_given("pp_size")
    assert "cluster.pp_size" in to_scenario(line)["left_open"]


CUT = {
    "--tp-size 2 --chunked-pref": ("tp_size", "cut in the middle of a flag"),
    "--tp-size 2 --chunked-prefill-size": ("tp_size", "the text is cut here"),
    "--tp-size 2 --enable-d": ("tp_size", "cut in the middle of a flag"),
    "--tp-size 2 --": ("tp_size", "the text is cut here"),
    "--tp-size 2 \\": ("tp_size", "ends in a continued line"),
    '--tp-size 2 --json-model-override-args \'{"a": 1': ("tp_size", "never closed"),
}


@pytest.mark.parametrize("flags", CUT)
def test_a_text_that_ends_in_the_middle_of_a_flag_is_told_and_the_rest_is_used(flags: str) -> None:
    name, said = CUT[flags]
    line = only(f"{S} \\\n --pp-size 4 {flags}")
    assert (line.get("pp_size"), line.get(name)) == (4, 2)
    assert set(line.values) == {"model_path", "pp_size", name}
    assert [note.line for note in line.warnings if said in str(note)] == [2]
    assert to_scenario(line)["overrides"]["cluster.pp_size"] == 4


@pytest.mark.parametrize("end", range(len(S) + 1, len(S) + 60))
def test_wherever_a_line_is_cut_what_stands_before_is_used_and_nothing_is_invented(end: int) -> None:
    """Words that are whole keep their value; of the last word only digits may be fewer than were meant."""
    text = f"{S} --pp-size 4 --chunked-prefill-size 4096 --enable-mixed-chunk"[:end]
    line = only(text)
    words = text.split()
    meant = {"pp_size": ("--pp-size", 4), "chunked_prefill_size": ("--chunked-prefill-size", 4096)}
    for name, (flag, value) in meant.items():
        whole = flag in words and words.index(flag) + 2 < len(words)
        assert line.is_given(name) or not whole
        assert line.get(name) == value or not whole
    cut_in_a_flag = words[-1].startswith("-") and words[-1] != "--enable-mixed-chunk"
    assert any("cut" in str(note) for note in line.warnings) == cut_in_a_flag


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("python3 -m vllm.entrypoints.cli.main bench serve --model m", "is a client or a benchmark"),
        ("vllm bench throughput --model m -pp 2", "is a client or a benchmark"),
        ("python -m sglang.bench_serving --backend sglang", "is a client"),
        ("python -m sglang_router.launch_router --policy random", "is a router"),
        ("trtllm-serve m --tp_size 8 --pp_size 2", "is another engine"),
    ],
)
def test_a_refusal_says_what_the_text_starts_instead(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        read_launch(text)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(data=st.data())
def test_arithmetic_is_that_of_whole_numbers(data: st.DataObject) -> None:
    """Against Python's own reading of the same text; division and remainder apart, which differ for negatives."""

    def term(depth: int) -> str:
        if depth == 0 or data.draw(st.booleans()):
            return data.draw(st.sampled_from(["1", "2", "7", "16", "0x1f", "A", "B"]))
        operator = data.draw(st.sampled_from(["+", "-", "*", "<<", "|", "&", "^", "**"]))
        right = data.draw(st.sampled_from(["1", "2", "3"])) if operator in ("<<", "**") else term(depth - 1)
        return f"({term(depth - 1)} {operator} {right})"

    text, names = term(3), {"A": 5, "B": 8}
    expected = eval(text, {"__builtins__": {}}, names)
    assert evaluate(text, lambda name: names[name]) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-7/2", -3),
        ("-7%2", -1),
        ("010", 8),
        ("1+2*3", 7),
        ("2**3**2", 512),
        ("3>2?4:5", 4),
        ("!0 && 1", 1),
        ("7-2-1", 4),
    ],
)
def test_arithmetic_rounds_to_zero_and_binds_as_in_c(text: str, value: int) -> None:
    assert evaluate(text, lambda name: 0) == value
