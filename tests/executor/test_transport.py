"""Misuse of send handles is an error of the rank that does it, and not a corrupted message at its peer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the executor extra is not installed")

from executor.transport import TAG, Transport, split  # noqa: E402
from ppsim.core.errors import ProtocolError  # noqa: E402
from ppsim.core.messages import Hidden, Lane, Meta  # noqa: E402


def test_a_send_is_committed_once() -> None:
    transport = Transport(2, torch.device("cpu"))
    text = r"rank 2, .*an outstanding send, one of \[\], got commit of work 7"
    with pytest.raises(ProtocolError, match=text) as caught:
        transport.commit(7)
    assert caught.value.invariant == "INV-38"


def test_a_payload_travels_beside_its_message_and_every_lane_has_a_tag_of_its_own() -> None:
    payload = torch.ones(3, 8)
    bare, tensor = split(Hidden(0, 4, 1, 3, payload))
    assert bare == Hidden(0, 4, 1, 3)
    assert isinstance(bare, Hidden)
    assert bare.payload is None
    assert tensor is payload
    meta = Meta(0, 4, 1, ())
    assert split(meta) == (meta, None)
    assert sorted(TAG.values()) == list(range(len(Lane)))
