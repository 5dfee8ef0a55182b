"""Runs of the simulated world beside the max-plus model: which scenario, what the model is told, what differs first.

The model is told what does not depend on time: the batch of each iteration (its recorded decision), how long it takes
(the cost model) and how many bytes travel. Every time is compared: both ends of each forward pass, where each rank's
host is behind each step of each iteration, and each reply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from ppsim.core.effects import Decision, Effects
from ppsim.core.loop import Loop
from ppsim.core.rank import Phase, Plan, Rank
from ppsim.recording import Recording
from ppsim.scenario.layers import hidden_bytes_per_token
from ppsim.scenario.stagecost import stage_cost
from ppsim.scenario.tree import Links, Scenario
from ppsim.world import SimulationResult, simulate
from tests.worlds.making import changed, scenario
from tests.worlds.max_plus import Batch, Pipeline, Times, solve
from tests.worlds.max_plus_equations import Name

US, MS = 1_000, 1_000_000
OUTPUT_BYTES = 8  # a row: one token id

CHOICES: dict[str, tuple[str, ...]] = {
    "graph_fence": ("send", "commit"),
    "schedule_hold": ("commit", "post"),
    "payload": ("eager", "matched"),
    "token_read": ("arrival", "schedule_stream"),
    "early_send": ("after_exchange", "before_exchange"),
    "rendezvous_hold": ("posted", "received"),
    "commit_over": ("posted", "received"),
}
"""Keys of ``links`` for what the protocol's text leaves open, default first; drawn where the scenario has them."""

PLACES: dict[str, str] = {
    "ingest_inputs": "[requests taken]",
    "forward_inputs": "[requests passed on]",
    "schedule": "scheduled",
    "receive_hidden": "[hidden taken]",
    "commit_hidden": "[hidden committed]",
    "exchange_if_shallow": "[exchanged]",
    "harvest": "[harvested]",
    "send_hidden_late": "done",
}
"""Behind which step of the rank's loop its host is where in the model."""

COMPARED = frozenset((*PLACES.values(), "iteration", "forward", "forward end"))

HostTimes = dict[Name, int]


class Clocked(Loop):
    """The loop of a rank that notes its own clock behind each step. ``seen`` is shared by the ranks of a run."""

    seen: HostTimes

    def plan(self) -> Plan:
        noted: list[Phase] = [self._note("iteration")]
        for step in super().plan():
            noted.append(step)
            if step.__name__ in PLACES:
                noted.append(self._note(PLACES[step.__name__]))
        return tuple(noted)

    def _note(self, place: str) -> Phase:
        def note(rank: Rank) -> Effects[None]:
            self.seen[self.config.pp_rank, rank.iteration, place] = rank.policy.wall_clock_ns()
            yield from ()

        return note


def clocked(made: Scenario) -> tuple[SimulationResult, HostTimes]:
    """A run, and where each rank's host was behind each step."""
    seen_here: HostTimes = {}

    class Mine(Clocked):
        seen = seen_here

    return simulate(made, change=changed(Mine)), seen_here


# --- what the model is told ----------------------------------------------------------------------------------


def pipeline_of(s: Scenario) -> Pipeline:
    """The keys of a scenario that times depend on."""
    latency_ns = round(s.links.latency_us * US)
    control_us = s.links.control_latency_us
    open_choices: dict[str, Any] = {key: getattr(s.links, key, values[0]) for key, values in CHOICES.items()}
    return Pipeline(
        pp_size=s.cluster.pp_size,
        depth=s.cluster.pp_async_batch_depth,
        overlap=s.cluster.comm_overlap,
        order=s.links.order,
        send=s.links.send,
        commit=s.links.commit,
        latency_ns=latency_ns,
        control_ns=latency_ns if control_us is None else round(control_us * US),
        latency_on_stream=s.links.latency_on_stream,
        schedule_ns=round(s.host.schedule_us * US),
        process_ns=round(s.host.process_us * US),
        free_empty_visit=s.host.free_empty_visit,
        exchange_order=s.scheduler.exchange_order,
        hidden_send=s.scheduler.hidden_send,
        **open_choices,
    )


def batches_of(s: Scenario, recording: Recording) -> list[Batch | None]:
    """The batch of each iteration from the first rank's decisions."""
    return [batch_of(s, decision) for decision in recording.decisions[0]]


def batch_of(s: Scenario, decision: Decision) -> Batch | None:
    """What the model needs to know of a decided batch."""
    if not decision.pieces:
        return None
    prompts = {request.rid: request.prompt for request in s.workload.requests}
    is_decode = {"extend": False, "decode": True}
    work = [(prefix, new, is_decode.get(decision.mode, prefix >= prompts[rid])) for rid, prefix, new in decision.pieces]
    cost = stage_cost(s)
    hidden_bytes = hidden_bytes_per_token(s) * sum(new for _, _, new in decision.pieces)
    return Batch(
        forward_ns=tuple(cost.batch_ns(stage, decision.slot, work) for stage in range(s.cluster.pp_size)),
        hidden_ns=wire_ns(s, hidden_bytes),
        output_ns=wire_ns(s, OUTPUT_BYTES * len(decision.pieces)),
        graph=s.cluster.cuda_graph and decision.mode == "decode",
        silent=is_silent(s, decision),
    )


def is_silent(s: Scenario, decision: Decision) -> bool:
    """The skip rule: a pure middle chunk, alone in its batch, whose request asks for no logprobs."""
    if not s.scheduler.skip_pure_chunked_output_comm or decision.mode != "extend" or len(decision.pieces) > 1:
        return False
    logprobs = {request.rid for request in s.workload.requests if request.return_logprob}
    return decision.chunked_rid is not None and decision.pieces[0][0] not in logprobs


def wire_ns(s: Scenario, num_bytes: int) -> int:
    """Bytes over the bandwidth: a GB/s is a byte a ns."""
    bandwidth = s.links.bandwidth_gb_per_s
    return round(num_bytes / bandwidth) if bandwidth else 0


# --- what differs --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One quantity of which simulator and model think differently. ``model_says`` has the model's reasons."""

    rank: int
    number: int
    what: str
    simulated: object
    modelled: object
    reasons: str = ""

    def __str__(self) -> str:
        where = f"rank {self.rank}, {self.what} {self.number}"
        return f"{where}: simulated {self.simulated}, model {self.modelled}\n{self.reasons}"


def differences(s: Scenario) -> list[Difference]:
    """All quantities that differ in a run of this scenario, the earliest first. Empty: they agree to the nanosecond.

    A run that stands still must do so in both, and all that came before must be equal too.
    """
    result, hosts = clocked(s)
    ended = result.verdict.kind == "pass"
    batches = batches_of(s, result.recording if ended else decided(s))
    times = solve(pipeline_of(s), batches)
    if (result.verdict.invariant == "INV-40") != (times.deadlock is not None) or not (ended or times.deadlock):
        return [Difference(0, 0, "verdict", result.verdict.message or "pass", str(times.deadlock or "pass"))]
    return list(compare(times, result.recording, hosts, len(batches)))


def decided(s: Scenario) -> Recording:
    """The same decisions from a run that cannot stand still: nothing waits for anybody."""
    free = {"send": "eager"} | ({"payload": "eager"} if "payload" in Links.model_fields else {})
    links = s.links.model_copy(update=free)
    return simulate(s.model_copy(update={"links": links})).recording


def compare(times: Times, recording: Recording, hosts: HostTimes, num_iterations: int) -> Iterator[Difference]:
    """What differs, in order of the model's time."""
    simulated = simulated_times(recording, hosts, num_iterations)
    modelled = {name: ns for name, ns in times.values.items() if name[2] in COMPARED}
    if times.deadlock is not None and times.pipeline.payload == "matched":
        # Streams lock, not hosts: a simulated host stands in the receive whose payload never comes, the model goes on
        # to its next true wait. Both lock, and every instant that the simulator has is compared.
        modelled = {name: ns for name, ns in modelled.items() if name in simulated}
    for name in sorted(simulated.keys() | modelled.keys(), key=lambda name: (modelled.get(name, -1), name)):
        if modelled.get(name) != simulated.get(name):
            reasons = times.why(*name) if name in modelled else ""
            yield Difference(*name, simulated.get(name), modelled.get(name), reasons)
    for name, ns in reply_times(recording):
        if times.values.get(name) != ns:
            yield Difference(*name, ns, times.values.get(name), "of a reply")


def simulated_times(recording: Recording, hosts: HostTimes, num_iterations: int) -> HostTimes:
    """Places of the hosts and ends of the forward passes, by the model's names. What follows Shutdown is left out."""
    found = {name: ns for name, ns in hosts.items() if name[1] < num_iterations}
    for rank, spans in enumerate(recording.spans):
        for span in spans:
            if span.stream == "forward":
                found[rank, span.iteration, "forward"] = span.start_ns
                found[rank, span.iteration, "forward end"] = span.end_ns
    return found


def reply_times(recording: Recording) -> Iterator[tuple[Name, int]]:
    """When the first rank answered with tokens, by the batch that they come from."""
    harvested = {harvest.iteration: harvest.harvested for harvest in recording.harvests[0]}
    for reply in recording.replies:
        batch = harvested.get(reply.iteration)
        if reply.status in ("token", "finished") and batch is not None:
            yield (0, batch, "harvested"), reply.time_ns


# --- which scenario ------------------------------------------------------------------------------------------


def draw(random: Random) -> dict[str, Any]:
    """A scenario by dotted keys: small pipelines and workloads, every key that times depend on."""
    pp_size, depth = random.randint(1, 6), random.randint(0, 3)
    pick = random.choice
    unit = random.random() < 0.5
    made: dict[str, Any] = {
        "name": "max_plus",
        "cluster.pp_size": pp_size,
        "cluster.pp_async_batch_depth": depth,
        "cluster.comm_overlap": pick((True, False)),
        "cluster.cuda_graph": pick((True, False)),
        "scheduler.chunked_prefill_size": pick((4, 8, 16)),
        "scheduler.max_total_tokens": pick((64, 256, 4096)),
        "scheduler.max_running_requests": 64,
        "scheduler.pp_max_micro_batch_size": random.randint(1, 3),
        "scheduler.enable_mixed_chunk": pick((True, False, False)),
        "scheduler.hidden_send": pick(("after_harvest", "after_launch")),
        "scheduler.skip_pure_chunked_output_comm": pick((True, False)),
        "scheduler.exchange_order": pick(
            ("send_first", "parity", "paired") if pp_size == 2 else ("send_first", "parity")
        ),
        "model.hidden_size": pick((512, 1024, 4096)),
        "model.num_hidden_layers": pick((pp_size, pp_size + 3, 12)),
        "links.latency_us": pick((0.0, 0.0, 5.0, 700.0)),
        "links.bandwidth_gb_per_s": pick((0.0, 0.0, 0.0625, 0.5)),
        "links.send": pick(("eager", "eager", "rendezvous")),
        "links.order": pick(("stream", "link", "none")),
        "links.commit": pick(("all", "all", "requests", "none")),
        "links.latency_on_stream": pick((True, False)),
        "host.schedule_us": pick((0.0, 100.0, 1300.0)),
        "host.process_us": pick((0.0, 70.0, 900.0)),
        "host.free_empty_visit": pick((True, False)),
        "cost.source": "unit" if unit else "quadratic",
    }
    if pick((True, False)):
        made["links.control_latency_us"] = pick((0.0, 3.0, 450.0))
    if unit:
        made["cost.slot_ms"] = [pick((0.5, 1.0, 3.0, 7.0)) for _ in range(pp_size + depth)]
    else:
        made |= {"cost.prefill_c_ms": 2.0, "cost.prefill_b_ms_per_token": 0.25, "cost.decode_c_ms": pick((0.5, 5.0))}
    for key, values in CHOICES.items():
        if key in Links.model_fields:
            made[f"links.{key}"] = pick((values[0], values[0], values[-1]))
    made["workload.source"] = "requests"
    made["workload.requests"] = draw_requests(random, pp_size + depth)
    return made


def draw_requests(random: Random, num_slots: int) -> list[dict[str, Any]]:
    """The first one lives so long that the first rank is never idle before the last one arrives."""
    output = random.randint(1, 6)
    requests = [{"rid": "R0", "prompt": random.randint(1, 30), "output": output, "ignore_eos": True, "at_iteration": 0}]
    for n in range(1, random.randint(1, 6)):
        requests.append(
            {
                "rid": f"R{n}",
                "at_iteration": random.randint(0, output * num_slots - 1),
                "prompt": random.randint(1, 40),
                "output": random.randint(1, 6),
                "ignore_eos": True,
                "return_logprob": random.random() < 0.2,
            }
        )
    return requests


def drawn(seed: int, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of a seed, with some keys set."""
    return scenario({**draw(Random(seed)), **(changes or {})})
