"""What travels between ranks is data of known types: it comes back equal, and nothing else comes back at all."""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.wire import MESSAGES, PARTS, decode, encode  # noqa: E402
from ppsim.core import messages  # noqa: E402
from ppsim.core.messages import Lane  # noqa: E402

INTS = st.integers(-(2**63), 2**63)
TEXTS = st.text(max_size=8)
RIDS = st.lists(TEXTS, max_size=3).map(tuple)
INPUTS = st.one_of(
    st.builds(
        messages.NewRequest, TEXTS, st.binary(max_size=9), INTS, st.lists(INTS, max_size=2).map(tuple), grammar=TEXTS
    ),
    st.builds(messages.AbortReq, TEXTS, st.booleans(), TEXTS),
    st.builds(messages.FlushCache, TEXTS),
    st.just(messages.Shutdown()),
)
LOGS = st.builds(
    messages.CallLog,
    st.just((0, 1)),
    TEXTS,
    st.lists(st.builds(messages.Call, INTS, INTS, TEXTS, TEXTS, TEXTS)).map(tuple),
)
ANY = st.one_of(
    st.builds(messages.Start, INTS, INTS, TEXTS),
    st.builds(messages.Meta, INTS, INTS, INTS, st.lists(INPUTS, max_size=3).map(tuple), st.sampled_from(Lane)),
    st.builds(messages.Hidden, INTS, INTS, INTS, INTS, num_layers=INTS),
    st.builds(messages.Output, INTS, INTS, INTS, INTS, num_logprobs=INTS),
    st.builds(messages.Vote, INTS, INTS, INTS, TEXTS, RIDS, RIDS, st.sampled_from(Lane)),
    st.builds(messages.Conclusion, INTS, INTS, INTS, TEXTS, INTS, RIDS, RIDS),
    st.builds(messages.Side, INTS, st.sampled_from(Lane), INTS, INTS, st.lists(RIDS, max_size=2).map(tuple)),
    st.builds(messages.Check, INTS, INTS, INTS, TEXTS, TEXTS, st.lists(LOGS, max_size=2).map(tuple)),
)
PAYLOADS = st.none() | st.tuples(st.sampled_from([torch.float32, torch.bfloat16, torch.int64]), st.just((3, 8)))


@given(ANY, PAYLOADS)
def test_a_message_comes_back_equal_and_of_the_same_types(message: Any, payload: Any) -> None:
    again, described = decode(encode(message, payload))
    assert (again, type(again), described) == (message, type(message), payload)
    assert repr(again) == repr(message)  # tuples stay tuples, lanes lanes


def test_every_message_and_every_input_of_the_core_can_travel() -> None:
    assert set(messages.Message.__args__) == set(MESSAGES.values())
    assert set(messages.Input.__args__) <= set(PARTS.values())


class Intruder:
    """Would make a folder if it were unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("intruded",)


@pytest.mark.parametrize(
    "body",
    [
        pickle.dumps(Intruder()),
        b"",
        b"[]",
        b"[1, null]",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps([{"type": "Intruder", "fields": []}, None]).encode(),
        json.dumps(
            [{"type": "NewRequest", "fields": ["R", {"bytes": "AA=="}, 1, [], False, False, 0, None, None]}, None]
        ).encode(),
        json.dumps([{"type": "Meta", "fields": [0, 1]}, None]).encode(),
        json.dumps([{"type": "Hidden", "fields": [0, 1, 1, 3, None, 0]}, ["torch.complex64", [3]]]).encode(),
        json.dumps([{"lane": "motorway"}, None]).encode(),
    ],
)
def test_anything_else_is_refused_and_nothing_is_run(
    body: bytes, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError):
        decode(body)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_message_cannot_be_sent() -> None:
    with pytest.raises(TypeError, match="a float cannot travel between ranks"):
        encode(messages.Start(0, 1.5, "x"), None)  # type: ignore[arg-type]
