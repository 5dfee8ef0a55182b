"""Two requests compute the same tokens; the second gives its own pages up while its chunk is still in flight.

That is safe for whoever writes to them on the same stream (protocol.md 4.1 step 3, invariant 64), so no run may be
stopped for it; a load from host memory comes on another stream and has to wait for the chunk.
"""

from __future__ import annotations

from typing import Any

import pytest

from ppsim.core.actions import LoadBack
from ppsim.core.observations import CopyKey
from tests.worlds.making import MS, UNIT, passed, run

SAME: dict[str, Any] = {
    **UNIT,
    "cluster.pp_size": 3,
    "scheduler.max_total_tokens": 19,
    "scheduler.pp_max_micro_batch_size": 2,
    "workload.block_tokens": 16,
    "workload.requests": [
        {"rid": "R0", "prompt": 8, "at_iteration": 2, "prefix_blocks": [1]},
        {"rid": "R1", "prompt": 4, "at_iteration": 0, "prefix_blocks": [1]},
        {"rid": "R2", "prompt": 8, "at_iteration": 2, "prefix_blocks": [1]},
        {"rid": "X", "prompt": 4, "at_iteration": 1},
    ],
    "run.invariants": True,
}
"""Found by search. R0's first chunk is launched before R1's is harvested; R2 takes the page that R0 gives up."""


@pytest.mark.parametrize("role", ["plain", "prefill"])
def test_pages_of_a_duplicate_are_used_again_at_once(role: str) -> None:
    result = run({**SAME, "disaggregation.role": role})
    assert result.verdict.kind == "pass", result.verdict.message
    assert result.setting.ranks[0].rank.scheduler.kv.num_duplicates > 0, "else this shows nothing"
    roomy = passed({**SAME, "disaggregation.role": role, "scheduler.max_total_tokens": 4096})
    for replies in (result.recording.replies, roomy.replies):
        assert {r.rid for r in replies if r.status == "finished"} == {"R0", "R1", "R2", "X"}


def test_a_load_waits_for_the_passes_that_may_still_write_to_its_pages() -> None:
    tiers = run({**UNIT, "hicache.enabled": True, "hicache.host_tokens": 64}).setting.ranks[0].tiers
    assert tiers is not None
    for still_running in (False, True):
        tiers.r.streams.forward_free = tiers.r.now + 5 * MS
        if still_running:
            tiers.swapped()
        key = CopyKey("load", "R1", int(still_running))
        tiers.start(LoadBack(key, 4))
        assert tiers.ends[key] == tiers.r.now + (5 * MS if still_running else 0)
