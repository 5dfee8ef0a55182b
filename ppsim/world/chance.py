"""What ``scenario.chance`` leaves open, decided by the run's choices: arrivals, aborts, stops, clocks, pauses, memory.

Rule: every question here is asked once, before the first iteration, and an answer of 0 is "as written". So a tape that
runs out is the scenario itself, and shrinking a tape takes one surprise away after the other. What is decided on the
way, by its own bound, asks the same object:

    question                        asked by             bound
    -----------------------------   ------------------   ---------------------------------------------
    arrival of a request            decided              chance.max_arrival_delay
    abort, flush                    decided              chance.max_abort_delay
    stop token among the sampled    decided              chance.stops (which of its tokens, if any)
    clock of a rank                 clock_skew_ms        chance.max_clock_skew_ms
    pause of a rank                 pauses               chance.pause_iterations, chance.pause_ms
    part of a pool's allocation     allocated            chance.max_lost_pages
    allocation after admission      failing              chance.max_failed_allocations
    launches before it fails        failing              chance.max_good_allocations
    local fact is seen late         workload/local_facts.py    observations.max_delay
    message on a link               network.py           links.jitter_us
    forward pass of a stage         driver.py            host.stage_jitter_percent
    order of equal events           clock.py             the number of events that are due at the same instant

A batch stops where its rows stop, and a token is a function of request and position, so one answer for each request
decides the stops of every batch that it will ever be in.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ppsim.core.messages import FlushCache
from ppsim.scenario.tree import Chance, Pause
from ppsim.workload.arrivals import EOS_TOKEN_ID, Arrival, Control, Workload, in_order
from ppsim.workload.choices import Choices
from ppsim.workload.refusals import Refusal

if TYPE_CHECKING:
    from ppsim.world.run_setting import Setting

NS_PER_MS = 1_000_000


def decided(workload: Workload, chance: Chance, choices: Choices) -> Workload:
    """The workload with what chance leaves open decided: when each item comes, and where a request stops."""
    arrivals = [arrival_of(arrival, chance, choices) for arrival in workload.arrivals]
    controls = tuple(control_of(control, chance, choices) for control in workload.controls)
    ordered = tuple(arrivals) if workload.concurrency else in_order(arrivals)  # clients keep to their order
    return replace(workload, arrivals=ordered, controls=controls)


def arrival_of(arrival: Arrival, chance: Chance, choices: Choices) -> Arrival:
    request = arrival.request
    late = below(choices, f"arrival {request.rid}", chance.max_arrival_delay)
    at_ns, at_iteration = later(arrival, late)
    stop_after = arrival.stop_after
    if chance.stops and not request.ignore_eos and not stop_after:
        stop_after = below(choices, f"stop {request.rid}", arrival.output_length)
        request = replace(request, stop_token_ids=(EOS_TOKEN_ID,))
    return replace(arrival, request=request, at_ns=at_ns, at_iteration=at_iteration, stop_after=stop_after)


def control_of(control: Control, chance: Chance, choices: Choices) -> Control:
    item = control.input
    name = f"flush {item.rid}" if isinstance(item, FlushCache) else f"abort {item.rid or 'all'}"
    return Control(item, *later(control, below(choices, name, chance.max_abort_delay)))


def later(item: Arrival | Control, late: int) -> tuple[int | None, int | None]:
    """(time, iteration) of an item that comes so many milliseconds or iterations later."""
    if item.at_iteration is not None:
        return None, item.at_iteration + late
    return (item.at_ns or 0) + late * NS_PER_MS, None


def below(choices: Choices, stream: str, most: int) -> int:
    """A choice from 0 to ``most``; where nothing is left open nothing is asked."""
    return choices.below(stream, most + 1) if most else 0


def failing(workload: Workload, chance: Chance, choices: Choices) -> dict[str, Refusal]:
    """By request: how often its allocations fail, and behind how many launches."""
    found: dict[str, Refusal] = {}
    for arrival in workload.arrivals if chance.max_failed_allocations else ():
        rid = arrival.request.rid
        num_failing = below(choices, f"memory {rid}", chance.max_failed_allocations)
        behind = below(choices, f"memory behind {rid}", chance.max_good_allocations) if num_failing else 0
        if num_failing:
            found[rid] = Refusal(num_failing, behind)
    return found


# --- of one rank ---------------------------------------------------------------------------------------------------


def clock_skew_ms(setting: Setting, rank: int) -> int:
    """What the scenario says, and 0, 1, -1, 2, -2... milliseconds."""
    written = setting.scenario.faults.clock_skew_ms
    chosen = below(setting.choices, f"skew {rank}", 2 * setting.scenario.chance.max_clock_skew_ms)
    return (written[rank] if written else 0) + (chosen + 1) // 2 * (1 if chosen % 2 else -1)


def pauses(setting: Setting, rank: int) -> list[Pause]:
    """Those of the scenario, and one more before an iteration of choice; in order."""
    chance = setting.scenario.chance
    found = [pause for pause in setting.scenario.faults.pauses if pause.rank == rank]
    chosen = below(setting.choices, f"pause {rank}", chance.pause_iterations)
    if chosen:
        found.append(Pause(rank=rank, at_iteration=chosen - 1, ms=chance.pause_ms))
    return sorted(found, key=lambda pause: pause.at_iteration)


def allocated(setting: Setting, rank: int, wanted_tokens: int) -> int:
    """Tokens of KV that a rank really gets; a server that cannot hold one chunk would not start at all."""
    s = setting.scenario.scheduler
    lost = below(setting.choices, f"allocation {rank}", setting.scenario.chance.max_lost_pages) * s.page_size
    return max(wanted_tokens - lost, min(wanted_tokens, max(s.chunked_prefill_size, s.page_size)))


class AskedOnce:
    """A question that was asked before gets the same answer: two pipelines share what happens to a request."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self.answers: dict[tuple[str, int], int] = {}

    def below(self, stream: str, n: int) -> int:
        if (stream, n) not in self.answers:
            self.answers[stream, n] = self.choices.below(stream, n)
        return self.answers[stream, n]
