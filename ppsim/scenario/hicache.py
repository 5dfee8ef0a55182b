"""The host tier of a scenario (``[hicache]``): its capacity in tokens, and what it must not say."""

from __future__ import annotations

from math import ceil

from ppsim.cost.memory import tokens_in
from ppsim.errors import ScenarioError
from ppsim.scenario.stagecost import kv_bytes_per_token
from ppsim.scenario.tree import Scenario

GB = 10**9


def local_host_tokens(s: Scenario, pp_rank: int) -> int:
    """Tokens of the host tier that a rank can hold alone, before the ranks agree on the minimum; 0 if it is off."""
    h = s.hicache
    if not h.enabled:
        return 0
    if h.host_tokens is not None:
        return h.host_tokens[pp_rank] if isinstance(h.host_tokens, tuple) else h.host_tokens
    room_gb = h.host_gb[pp_rank] if isinstance(h.host_gb, tuple) else h.host_gb or 0.0
    return tokens_in(round(room_gb * GB), token_kv_bytes(s, pp_rank))


def token_kv_bytes(s: Scenario, pp_rank: int) -> int:
    """KV of one token in the layers of a stage, on one of its ranks."""
    return max(1, ceil(kv_bytes_per_token(s)[pp_rank]))


def check_hicache(s: Scenario) -> None:
    """Raise ScenarioError for the first contradiction."""
    h = s.hicache
    if not h.enabled:
        return
    if s.scheduler.disable_radix_cache:
        raise ScenarioError(
            "hicache.enabled", "needs the radix cache, and scheduler.disable_radix_cache is set", "drop one of the two"
        )
    if s.disaggregation.role == "decode":
        raise ScenarioError(
            "hicache.enabled",
            "is not possible with disaggregation.role 'decode'",
            "a decode server has no radix cache; with role 'pd' the prefill side has the host tier",
        )
    _check_capacity(s)
    num_ranks = s.cluster.pp_size * s.cluster.tp_replicas
    if h.storage_hits and not h.storage:
        raise ScenarioError("hicache.storage_hits", "would be ignored: hicache.storage is off", "storage = true")
    seen: dict[str, int] = {}
    for i, hit in enumerate(h.storage_hits):
        first = seen.setdefault(hit.rid, i)
        if first != i:
            raise ScenarioError(
                f"hicache.storage_hits.{i}.rid",
                f"{hit.rid!r} is listed in entry {first} already",
                "they contradict each other: what storage has of a prompt is listed once",
            )
        if len(hit.tokens) != num_ranks:
            raise ScenarioError(
                f"hicache.storage_hits.{i}.tokens",
                f"has {len(hit.tokens)} entries for {num_ranks} ranks",
                "what each rank finds in storage",
            )


def _check_capacity(s: Scenario) -> None:
    h = s.hicache
    if (h.host_tokens is None) == (h.host_gb is None):
        raise ScenarioError("hicache.host_tokens", "needs either host_tokens or host_gb", "one of the two")
    key, given = ("host_tokens", h.host_tokens) if h.host_tokens is not None else ("host_gb", h.host_gb)
    if isinstance(given, tuple) and len(given) != s.cluster.pp_size:
        raise ScenarioError(
            f"hicache.{key}",
            f"has {len(given)} entries for {s.cluster.pp_size} stages",
            "give one number, or one for each stage",
        )
    for pp_rank in range(s.cluster.pp_size):
        tokens = local_host_tokens(s, pp_rank)
        if tokens < s.scheduler.page_size:
            raise ScenarioError(
                f"hicache.{key}",
                f"gives stage {pp_rank} a host capacity of {tokens} tokens, less than one page of "
                f"{s.scheduler.page_size}",
                "nothing could ever be copied to host memory: give more, or switch hicache.enabled off",
            )
