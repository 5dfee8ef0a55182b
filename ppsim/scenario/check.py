"""What single fields cannot say: combinations that contradict each other or could never make progress.

A configuration that can never progress is refused here, at the start, and not polled for ever (bugs.md B95, B114).
"""

from __future__ import annotations

from ppsim.cost.quantization import method_named
from ppsim.errors import ScenarioError
from ppsim.scenario.bounds import MAX_RANKS, MAX_REQUESTS, MAX_TOKENS
from ppsim.scenario.expect_possible import check_expect
from ppsim.scenario.gpu import scenario_gpu
from ppsim.scenario.hicache import check_hicache
from ppsim.scenario.layers import known_shape, num_layers
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Scenario
from ppsim.scenario.workload_keys import ScriptedRequest


def check_scenario(s: Scenario) -> None:
    """Raise ScenarioError for the first contradiction."""
    check_cluster(s)
    check_scheduler(s)
    check_model(s)
    check_workload(s)
    check_surroundings(s)
    check_hicache(s)
    check_expect(s, (s.cluster.pp_size + decode_stages(s)) * s.cluster.tp_replicas)


def check_cluster(s: Scenario) -> None:
    c = s.cluster
    if s.cost.source == "quadratic" and c.pp_size > num_layers(s):
        raise ScenarioError(
            "cluster.pp_size",
            f"{c.pp_size} stages, but the model has only {num_layers(s)} layers",
            "every stage needs at least one layer",
        )
    if c.pp_size * c.tp_replicas > MAX_RANKS:
        raise ScenarioError(
            "cluster.tp_replicas",
            f"{c.tp_replicas} on each of {c.pp_size} stages are {c.pp_size * c.tp_replicas} ranks, at most {MAX_RANKS}",
            "fewer stages, or fewer replicas",
        )
    if c.tp_replicas > c.tp_size:
        raise ScenarioError("cluster.tp_replicas", f"{c.tp_replicas} is more than cluster.tp_size {c.tp_size}")
    if s.scheduler.exchange_order == "paired" and c.pp_size != 2:
        raise ScenarioError(
            "scheduler.exchange_order", f"'paired' needs cluster.pp_size 2, got {c.pp_size}", "use 'parity'"
        )


def check_scheduler(s: Scenario) -> None:
    c = s.scheduler
    chunk = c.chunked_prefill_size
    if chunk != -1 and chunk <= 0:
        raise ScenarioError("scheduler.chunked_prefill_size", f"must be positive, or -1 for no chunking, got {chunk}")
    if chunk != -1 and chunk % c.page_size:
        raise ScenarioError(
            "scheduler.chunked_prefill_size",
            f"{chunk} is not a multiple of scheduler.page_size {c.page_size}",
            f"nearest multiple: {max(1, round(chunk / c.page_size)) * c.page_size}",
        )
    pools = c.max_total_tokens if isinstance(c.max_total_tokens, tuple) else (c.max_total_tokens,)
    if isinstance(c.max_total_tokens, tuple) and len(c.max_total_tokens) != s.cluster.pp_size:
        raise ScenarioError(
            "scheduler.max_total_tokens",
            f"has {len(c.max_total_tokens)} entries for {s.cluster.pp_size} ranks",
            "give one number, or one for each rank",
        )
    for pool in pools:
        if pool is None:
            continue
        has_chunks = chunk != -1 and s.disaggregation.role != "decode"
        need = max(chunk if has_chunks else 1, c.page_size)
        if pool < need:
            raise ScenarioError(
                "scheduler.max_total_tokens",
                f"a pool of {pool} tokens is smaller than one chunk or page ({need} tokens)",
                "no prompt of a full chunk could ever run",
            )


def check_model(s: Scenario) -> None:
    m = s.model
    if m.quantization is not None:
        method_named("model.quantization", m.quantization)
    if s.gpu.key is not None:
        scenario_gpu(s)  # raises for an unknown key
    if s.cost.source == "roofline":
        if m.key is None:
            raise ScenarioError("model.key", "is not set", "cost.source 'roofline' needs model.key and gpu.key")
        stage_cost(s)  # raises for an unknown key, heads that tp_size does not divide, an impossible partition
        return
    partition = m.layer_partition
    if partition is not None:
        if len(partition) != s.cluster.pp_size:
            raise ScenarioError("model.layer_partition", f"has {len(partition)} entries for {s.cluster.pp_size} stages")
        if sum(partition) != num_layers(s):
            raise ScenarioError(
                "model.layer_partition",
                f"sums to {sum(partition)}, but the model has {num_layers(s)} layers",
            )
    shape = known_shape(s)
    if shape is not None:
        shape.check_tp(s.cluster.tp_size)
        return
    if m.num_attention_heads % m.num_key_value_heads:
        raise ScenarioError(
            "model.num_key_value_heads",
            f"{m.num_key_value_heads} does not divide model.num_attention_heads {m.num_attention_heads}",
        )
    if m.num_attention_heads % s.cluster.tp_size:
        raise ScenarioError(
            "cluster.tp_size",
            f"{s.cluster.tp_size} does not divide the {m.num_attention_heads} attention heads",
        )


def check_workload(s: Scenario) -> None:
    w = s.workload
    if s.model.vocab_size >= 2**32:
        raise ScenarioError("model.vocab_size", f"must be below 2**32, got {s.model.vocab_size}", "ids take four bytes")
    if w.source == "requests" and not w.requests:
        raise ScenarioError("workload.requests", "is empty", "source 'requests' needs [[workload.requests]] entries")
    if w.source == "generated" and w.num_requests == 0:
        raise ScenarioError("workload.num_requests", "must be positive for a generated workload, got 0")
    if w.source == "chunks" and s.scheduler.chunked_prefill_size == -1:
        raise ScenarioError("workload.source", "'chunks' needs scheduler.chunked_prefill_size", "set a chunk size")
    if w.source == "chunks" and w.num_chunks * s.scheduler.chunked_prefill_size > MAX_TOKENS:
        raise ScenarioError(
            "workload.num_chunks",
            f"{w.num_chunks} chunks of {s.scheduler.chunked_prefill_size} tokens are more than {MAX_TOKENS}",
            "fewer chunks, or a smaller scheduler.chunked_prefill_size",
        )
    if w.num_prefixes and not w.prefix_tokens:
        raise ScenarioError(
            "workload.prefix_tokens", f"is 0, so the {w.num_prefixes} shared prefixes are empty", "give their length"
        )
    for i, r in enumerate(w.requests):
        if r.at_iteration is not None and r.at_ms is not None:
            raise ScenarioError(
                f"workload.requests.{i}",
                "has both at_iteration and at_ms",
                "a request arrives at one of them",
            )
    check_ids(s)
    if w.source != "requests" and w.requests:
        raise ScenarioError(
            "workload.requests", f"would be ignored: workload.source is {w.source!r}", "source = 'requests' serves them"
        )
    check_clients(s)
    lengths = {"input_length": w.input_length, "output_length": w.output_length}
    if w.turn_input_length is not None:
        lengths["turn_input_length"] = w.turn_input_length
    for name, length in lengths.items():
        if length.min > length.max:
            raise ScenarioError(f"workload.{name}.min", f"{length.min} is more than max {length.max}")
        if length.kind == "fixed" and not length.min <= length.value <= length.max:
            raise ScenarioError(
                f"workload.{name}.value", f"{length.value} is outside min {length.min} to max {length.max}"
            )


def check_ids(s: Scenario) -> None:
    """An id may come again, as it does from real clients: later, and so that it is clear what is meant by it."""
    last: dict[str, int] = {}
    for i, r in enumerate(s.workload.requests):
        if r.rid in last:
            before = s.workload.requests[last[r.rid]]
            problem = f"{r.rid!r} is already the id of request {last[r.rid]}"
            if s.workload.concurrency:
                hint = "with workload.concurrency ids are unique: an answer tells a client by the id that it is free"
                raise ScenarioError(f"workload.requests.{i}.rid", problem, hint)
            if not comes_later(before, r):
                hint = "an id may come again only at a later at_iteration or at_ms than before; give another one"
                raise ScenarioError(f"workload.requests.{i}.rid", problem, hint)
            if r.stop_after != before.stop_after:
                raise ScenarioError(
                    f"workload.requests.{i}.stop_after",
                    f"is {r.stop_after}, but request {last[r.rid]} of the same id {r.rid!r} has {before.stop_after}",
                    "what is sampled is a function of id and position: give both the same, or another id",
                )
        last[r.rid] = i


def comes_later(before: ScriptedRequest, r: ScriptedRequest) -> bool:
    """Whether both name a moment in the same clock, and this one's is behind the other's; none: iteration 0."""
    if r.at_ms is not None or before.at_ms is not None:
        return r.at_ms is not None and before.at_ms is not None and r.at_ms > before.at_ms
    return (r.at_iteration or 0) > (before.at_iteration or 0)


def check_clients(s: Scenario) -> None:
    """Closed loops and sessions: what nobody could send, or nobody could answer."""
    w = s.workload
    if w.source == "generated" and w.num_sessions and w.num_requests is not None:
        raise ScenarioError(
            "workload.num_requests", f"{w.num_requests} and workload.num_sessions {w.num_sessions}", "give one of them"
        )
    if w.source == "generated" and (w.num_requests or 0) > MAX_REQUESTS and s.run.keep == "all":
        raise ScenarioError(
            "workload.num_requests",
            f"{w.num_requests} are made before a run begins that keeps all its records, at most {MAX_REQUESTS}",
            "fewer, or run.keep 'file' or 'summary', which make each when the one before has been read",
        )
    num_requests = w.num_sessions * (w.num_turns or 1)
    if w.source == "generated" and num_requests > MAX_REQUESTS:
        raise ScenarioError(
            "workload.num_sessions",
            f"{w.num_sessions} sessions of {w.num_turns} turns are {num_requests} requests, at most {MAX_REQUESTS}",
            "fewer sessions, or fewer turns",
        )
    if s.disaggregation.role == "prefill" and w.source == "generated" and w.num_sessions and (w.num_turns or 1) > 1:
        raise ScenarioError("workload.num_turns", *NO_ANSWER)
    if not w.concurrency:
        return
    for i, r in enumerate(w.requests):
        key = "at_ms" if r.at_ms is not None else "at_iteration"
        if getattr(r, key) is not None:
            raise ScenarioError(
                f"workload.requests.{i}.{key}",
                f"is {getattr(r, key):g}, but with workload.concurrency a request is sent when a client is free",
                "leave it out, or the concurrency",
            )
    for i, flush in enumerate(w.flushes):
        if flush.rid in {r.rid for r in w.requests}:
            raise ScenarioError(
                f"workload.flushes.{i}.rid",
                f"{flush.rid!r} is the id of a request, and its client could not tell the two answers apart",
                "another rid",
            )


NO_ANSWER = (
    "a prefill server alone answers with the first token only, and a turn's prompt begins with the whole answer before",
    "disaggregation.role 'pd' runs both servers, 'plain' one",
)


def check_surroundings(s: Scenario) -> None:
    """Roles, observations, timeouts and faults. With two pipelines the decode ranks are numbered after the others."""
    if s.disaggregation.role == "pd":
        check_two_pipelines(s)
    num_ranks = (s.cluster.pp_size + decode_stages(s)) * s.cluster.tp_replicas
    check_listed(s, num_ranks)
    if s.faults.clock_skew_ms and len(s.faults.clock_skew_ms) != num_ranks:
        raise ScenarioError(
            "faults.clock_skew_ms",
            f"has {len(s.faults.clock_skew_ms)} entries for {num_ranks} ranks",
            "one for each rank",
        )
    for i, pause in enumerate(s.faults.pauses):
        if pause.rank >= num_ranks:
            raise ScenarioError(f"faults.pauses.{i}.rank", f"is {pause.rank}", f"there are ranks 0 to {num_ranks - 1}")
    for i, abort in enumerate(s.workload.aborts):
        if abort.abort_all == bool(abort.rid):
            raise ScenarioError(f"workload.aborts.{i}", "needs either rid or abort_all", "one of the two")
        if (abort.at_iteration is None) == (abort.at_ms is None):
            raise ScenarioError(f"workload.aborts.{i}", "needs either at_iteration or at_ms", "one of the two")
        if abort.side != "both" and s.disaggregation.role != "pd":
            raise ScenarioError(
                f"workload.aborts.{i}.side", f"{abort.side!r} needs disaggregation.role 'pd'", "there is only one side"
            )
    check_limits(s)
    check_links(s)
    if s.disaggregation.role != "plain" and s.scheduler.hidden_send == "after_launch":
        raise ScenarioError(
            "scheduler.hidden_send",
            "'after_launch' needs the plain role: the loops of disaggregation send the request list last, and a rank "
            "cannot take hidden states before it",
        )
    if s.disaggregation.role == "decode" and s.scheduler.enable_mixed_chunk:
        raise ScenarioError("scheduler.enable_mixed_chunk", "a decode server has no prefill batches to mix with")


def check_listed(s: Scenario, num_ranks: int) -> None:
    """Facts that are listed: one value for each rank, and one entry for each fact."""
    seen: dict[tuple[str, str], int] = {}
    for i, entry in enumerate(s.observations.listed):
        for key, values in (("at", entry.at), ("failed", entry.failed)):
            if isinstance(values, tuple) and len(values) != num_ranks:
                raise ScenarioError(
                    f"observations.listed.{i}.{key}",
                    f"has {len(values)} entries for {num_ranks} ranks",
                    "give the iteration of each rank in which it sees the fact"
                    if key == "at"
                    else "give one value for all ranks, or one for each",
                )
        first = seen.setdefault((entry.what, entry.rid), i)
        if first != i:
            raise ScenarioError(
                f"observations.listed.{i}",
                f"{entry.what!r} of {entry.rid!r} is listed in entry {first} already",
                "they contradict each other: a fact comes once on each rank, so list it once (an id that comes again "
                "has the same facts)",
            )


def check_links(s: Scenario) -> None:
    """What the simulated world could only answer wrongly."""
    links = s.links
    if links.payload == "matched" and (s.disaggregation.role != "plain" or s.hicache.storage):
        raise ScenarioError(
            "links.payload",
            "'matched' needs the plain role and no storage: where a payload waits for its receiver, a rank's clock "
            "stands still until that is known, and others would see its statuses too late",
            "use 'eager'",
        )


def check_limits(s: Scenario) -> None:
    """A limit that passes within one iteration ends what has only just begun."""
    d = s.disaggregation
    limits: dict[str, float] = {
        "timeouts.waiting_ms": s.timeouts.waiting_ms,
        "timeouts.running_ms": s.timeouts.running_ms,
    }
    if d.role == "pd":
        limits |= {
            "disaggregation.bootstrap_timeout_ms": d.bootstrap_timeout_ms,
            "disaggregation.receive_timeout_ms": d.receive_timeout_ms,
        }
    if not any(limits.values()):
        return
    cost = stage_cost(s)
    slots = range(s.cluster.pp_size + s.cluster.pp_async_batch_depth)
    one_token = ((0, 1, False), (1, 1, True))
    passes = [cost.batch_ns(k, slot, [work]) for k in range(s.cluster.pp_size) for slot in slots for work in one_token]
    host_ms, pass_ms = (s.host.schedule_us + s.host.process_us) / 1000, min(passes) / 1e6
    for field, value in limits.items():
        if 0 < value < host_ms + pass_ms:
            raise ScenarioError(
                field,
                f"{value:g} ms is below one iteration ({host_ms:g} ms of host, {pass_ms:g} ms of a one-token pass)",
                "a longer limit; 0 switches it off",
            )


def decode_stages(s: Scenario) -> int:
    """Stages of the decode pipeline; 0 where there is none beside the one that ``cluster`` describes."""
    d = s.disaggregation
    return (d.decode_pp_size or s.cluster.pp_size) if d.role == "pd" else 0


ACROSS = ("bootstrap", "transfer", "handshake", "receive")
"""Facts that are the other side's doing."""


def check_two_pipelines(s: Scenario) -> None:
    """Role "pd": what two pipelines cannot do, or could only do by standing still for ever."""
    d = s.disaggregation
    if decode_stages(s) not in (1, s.cluster.pp_size):
        raise ScenarioError(
            "disaggregation.decode_pp_size",
            f"is {d.decode_pp_size}, the prefill side has {s.cluster.pp_size} stages",
            f"a decode pipeline has as many stages as the prefill side, or 1: give {s.cluster.pp_size} or 1",
        )
    if d.decode_max_total_tokens is not None and d.decode_max_total_tokens < s.scheduler.page_size:
        raise ScenarioError(
            "disaggregation.decode_max_total_tokens",
            f"a pool of {d.decode_max_total_tokens} tokens is smaller than one page of {s.scheduler.page_size}",
            "nothing could ever be received",
        )
    for i, r in enumerate(s.workload.requests):
        if r.at_iteration:
            raise ScenarioError(
                f"workload.requests.{i}.at_iteration",
                f"is {r.at_iteration}, but two pipelines count iterations of their own",
                "a request goes to both sides at a time: use at_ms",
            )
    for i, entry in enumerate(s.observations.listed):
        if entry.what in ACROSS:
            raise ScenarioError(
                f"observations.listed.{i}.what",
                f"{entry.what!r} is what the two sides do to each other",
                "list it only for a single role, where the peer is modelled",
            )
    faults: dict[tuple[str, int, int], int] = {}
    for i, fault in enumerate(d.kv_faults):
        first = faults.setdefault((fault.rid, fault.rank, fault.nth), i)
        if first != i:
            raise ScenarioError(
                f"disaggregation.kv_faults.{i}",
                f"write {fault.nth} of {fault.rid!r} on rank {fault.rank} goes wrong in entry {first} already",
                "one entry for each write",
            )
        if fault.rank >= s.cluster.pp_size * s.cluster.tp_replicas:
            raise ScenarioError(
                f"disaggregation.kv_faults.{i}.rank",
                f"is {fault.rank}",
                f"there are prefill ranks 0 to {s.cluster.pp_size * s.cluster.tp_replicas - 1}",
            )
