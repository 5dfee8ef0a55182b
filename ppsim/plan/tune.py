"""``ppsim tune``: search, judge the best by the event simulation, and say what it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field

from ppsim.errors import PpsimError, ScenarioError, UsageError
from ppsim.plan import around
from ppsim.plan.candidate import Candidate, with_candidate
from ppsim.plan.evaluate import Figures, not_in_fast_path
from ppsim.plan.feasible import pool_tokens
from ppsim.plan.grid import chunk_sizes
from ppsim.plan.rerun import rerun
from ppsim.plan.search import Progress, Search
from ppsim.plan.trial_load import NUM_REQUESTS, probe_of
from ppsim.plan.tuning import DEPTH_TOLERANCE, Judged, Row, Tuning, score_of
from ppsim.scenario.bounds import MAX_TOKENS
from ppsim.scenario.layers import exceeded_positions, known_shape
from ppsim.scenario.rank import given_pool
from ppsim.scenario.tree import Scenario
from ppsim.scenario.warn import MADE_UP, assumed_workload, default_costs, named_model
from ppsim.sglang.edit import edited
from ppsim.sglang.launch import to_launch_line
from ppsim.sglang.scenario import ALLOWS_LONGER, is_set

CONTEXT_MARGIN_TOKENS = 4096
NUM_RIVALS = 9  # simulated beside the best row where the search leaves something out


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for. ``num_gpus`` None: as many as the scenario uses; ``max_cp`` 0: any; ``fast``: whether one rank
    stands for all where the best are simulated, None: where it can."""

    objective: str = "ttft"
    num_gpus: int | None = None
    rate_per_s: float | None = None
    prompt: int | None = None
    num_requests: int = NUM_REQUESTS
    max_cp: int = 0
    fast: bool | None = None


class TuningCut(KeyboardInterrupt):
    """Ctrl-C in a search. ``rows``: what it had evaluated, the best first; none of it is judged by a simulation."""

    def __init__(self, rows: list[Row], num_evaluated: int) -> None:
        super().__init__(rows, num_evaluated)
        self.rows, self.num_evaluated = rows, num_evaluated


def tune(s: Scenario, wish: Wish, progress: Progress | None = None) -> Tuning:
    """Tune a scenario. Raises UsageError or ScenarioError for what cannot be, PpsimError if a simulated run fails, and
    TuningCut at Ctrl-C."""
    refuse_made_up_costs(s)
    s, made_room = with_room(s, wish.prompt)
    probe = probe_of(s, wish.objective, rate_per_s=wish.rate_per_s, prompt=wish.prompt, num_requests=wish.num_requests)
    k = s.cluster
    num_gpus = k.pp_size * k.tp_size * k.cp_size if wish.num_gpus is None else wish.num_gpus
    search = Search(s, probe, num_gpus, wish.max_cp, progress)
    try:
        return searched(s, wish, search, made_room)
    except KeyboardInterrupt:
        rows = [row for row in search.table() if row.figures is not None]
        raise TuningCut(rows, search.fast.num_evaluated) from None


def searched(s: Scenario, wish: Wish, search: Search, made_room: list[str]) -> Tuning:
    """The search, the event simulation of its best, and what is around it."""
    probe, num_gpus = search.probe, search.num_gpus
    search.require_any()
    given = search.given()
    search.joint()
    own = given.split if given.figures is not None and given.split.num_gpus == num_gpus else None
    path = search.path(own or search.best_by_split()[0][0])
    shallow, gain = search.shallow()
    found = Tuning(probe, num_gpus, given, search.table(shallow), path)
    if gain:
        found.notes.append(
            f"a larger depth than {shallow.pp_async_batch_depth} would gain {100 * gain:.2g} %: not recommended below "
            f"{100 * DEPTH_TOLERANCE:g} %, because it holds every output back"
        )
    judge(search, found, wish.fast)
    winner = found.best.candidate
    assert winner is not None
    found.changes = around.changes(search, winner)
    found.contests = around.contests(search, winner)
    found.maps = around.maps(search, winner)
    found.num_evaluated = search.fast.num_evaluated
    found.configs_per_s = found.num_evaluated / max(search.fast.cpu_s, 1e-9)
    found.notes += [*made_room, *notes(search, found)]
    if wish.prompt is None:
        found.assumed = assumed_workload(s).replace("--output, ", "")  # prefill alone is tuned
    return found


def refuse_made_up_costs(s: Scenario) -> None:
    """Nothing is recommended for a model by name on costs that are not its own. Raises ScenarioError."""
    name, costs = named_model(s), default_costs(s, MADE_UP)
    if not name or not any("_per_token" in cost for cost in costs):  # a constant that was left alone is told in a note
        return
    shape = known_shape(s)
    what = f"{name} has {shape.num_layers} layers" if shape else f"the shape of {name} is not known"
    raise ScenarioError(
        "cost.source",
        f"{what}, but {', '.join(costs)} are defaults and not its costs: nothing can be recommended on them",
        "ppsim tune --gpu KEY, or cost.source 'roofline' with model.key and gpu.key, or cost.* from ppsim fit",
    )


def judge(search: Search, found: Tuning, fast: bool | None = None) -> None:
    """Run the winner and its rivals in the event simulation; where they differ in order, it has the last word.

    The search has the figures of a simulation, so one rival is enough, but where it leaves something out: that may
    change the order, or end in a deadlock. What does not pass is not recommended; if none of them passes, the best of
    each split is run. Raises PpsimError if nothing passes.
    """
    s, objective, left_out = search.scenario, search.probe.objective, not_in_fast_path(search.scenario)
    first = [found.best, *found.rivals()[: NUM_RIVALS if left_out else 1]]
    ran = Ran(search, found, fast)
    passed = [row for row in first if ran.passes(row)]
    if not passed:
        others = {row.split: row for row in reversed(found.table) if row.figures is not None}
        first += [row for row in found.table if others.get(row.split) is row]
        passed = [row for row in first if ran.passes(row)]
    if not passed:
        raise ran.errors[0]
    order = sorted(passed, key=lambda row: score_of(objective, ran.of(row)))  # equals stay as they are
    if order[0] is not first[0]:
        found.table.remove(order[0])
        found.table.insert(0, order[0])
        place = first.index(order[0]) + 1
        which = "the runner-up" if place == 2 else f"number {place}"
        found.notes.append(f"the event simulation prefers {which} of the search: it is the winner now")
    if left_out:
        told = f"the search leaves out {', '.join(left_out)}; the event simulation of its {len(first)} best has them"
        found.notes.append(told)
    judged = dict(zip(("winner", "runner-up"), order))
    plain = found.best_without_cp
    if plain is not None and plain not in order[:2] and ran.passes(plain):
        judged["best without cp"] = plain
    for name, row in judged.items():
        assert row.candidate is not None
        found.judged.append(Judged(name, row, ran.of(row), *launch_line(s, row.candidate)))


@dataclass(slots=True)
class Ran:
    """Rows that were simulated. One that does not pass goes to the end of the table, as what cannot run."""

    search: Search
    found: Tuning
    fast: bool | None
    figures: dict[Row, Figures | None] = field(default_factory=dict)  # None: it does not pass
    errors: list[PpsimError] = field(default_factory=list)

    def passes(self, row: Row) -> bool:
        """Simulate a row, once."""
        if row in self.figures:
            return self.figures[row] is not None
        assert row.candidate is not None
        search, table = self.search, self.found.table
        pool = search.fast.pool(row.split, row.candidate.layer_partition)
        try:
            self.figures[row] = rerun(search.scenario, row.candidate, search.probe, pool, self.fast)
        except PpsimError as error:
            if self.fast and isinstance(error, UsageError):  # asked for, and not possible
                raise
            self.errors.append(error)
            self.figures[row] = None
            why = str(error).partition("\n")[0]
            table.remove(row)
            table.append(Row(row.split, row.candidate, None, why))
            self.found.notes.append(f"{row.split}, chunks of {row.candidate.chunked_prefill_size}: {why}")
        return self.figures[row] is not None

    def of(self, row: Row) -> Figures:
        """Figures of a row that passes."""
        figures = self.figures[row]
        assert figures is not None
        return figures


def tuned_scenario(s: Scenario, candidate: Candidate) -> Scenario:
    """The scenario in a configuration, its workload kept. A pool that was set by hand stays if the memory holds it."""
    given = given_pool(s)
    room = pool_tokens(s, candidate.split, candidate.layer_partition)
    return with_candidate(s, candidate, given if given is not None and given <= room else None)


def launch_line(s: Scenario, candidate: Candidate) -> tuple[str, list[str]]:
    """The command for a candidate, and what it changes in the line that was given."""
    tuned = tuned_scenario(s, candidate)
    given = edited(tuned)
    return (to_launch_line(tuned), []) if given is None else given[:2]


def with_room(s: Scenario, prompt: int | None) -> tuple[Scenario, list[str]]:
    """A context that holds the prompt that is asked for, where nobody gave a length; with the sentence that says so."""
    longest = prompt or max((r.prompt for r in s.workload.requests), default=0)
    if longest < s.scheduler.context_length or is_set(s, "scheduler.context_length") or longest > MAX_TOKENS:
        return s, []
    room = longest + CONTEXT_MARGIN_TOKENS
    scheduler = s.scheduler.model_copy(update={"context_length": room})
    scheduler.model_fields_set.discard("context_length")  # nobody gave it: it is no part of a launch line
    said = f"scheduler.context_length is not given: {room} tokens stand in, so that the prompt fits"
    return s.model_copy(update={"scheduler": scheduler}), [said]


def notes(search: Search, found: Tuning) -> list[str]:
    """What the figures rest on and leave out, as sentences."""
    out = []
    s, best = search.scenario, found.best
    made_up = default_costs(s, MADE_UP)
    if made_up:
        out.append(f"{', '.join(made_up)} are defaults: the times are those of no model")
    shape = known_shape(s)
    out += [f"{s.model.key}: {note}" for note in shape.notes] if shape else []
    most = exceeded_positions(s)
    if most is not None:
        out.append(
            f"scheduler.context_length {s.scheduler.context_length} is more than the {most} positions of "
            f"{s.model.key}: SGLang starts only with {ALLOWS_LONGER}=1"
        )
    if best.split.cp_size > 1:
        out.append("cp is an estimate (ppsim/cost/context_parallel.py); SGLang has it for some models only")
    if best.split.pp_size > 1 and not s.links.bandwidth_gb_per_s:
        out.append("links.bandwidth_gb_per_s is 0: handing hidden states on costs no time")
    if not s.host.schedule_us and not s.host.process_us:
        out.append("host.schedule_us and host.process_us are 0: small chunks and many stages look better than they are")
    if s.cost.tp_gb_per_s is not None:
        out.append(f"cost.tp_gb_per_s = {s.cost.tp_gb_per_s:g} holds for every all-reduce, inside a node, too")
    if s.disaggregation.role != "plain":
        out.append(f"disaggregation.role is {s.disaggregation.role!r}: only prefill is tuned, as one plain pipeline")
    if s.scheduler.chunk_planner != "sglang":
        out.append("scheduler.chunk_planner is replaced by SGLang's own rule, the one that can be launched")
    sizes, winner, cap = chunk_sizes(s, search.longest), best.candidate, s.scheduler.max_prefill_tokens
    if winner is not None and winner.chunked_prefill_size in (sizes[0], sizes[-1]):
        out.append(f"the best chunk is at the edge of what was tried, {sizes[0]} to {sizes[-1]} tokens")
    if winner is not None and winner.is_dynamic and winner.chunked_prefill_size > cap:
        out.append(
            f"only the first chunk of a prompt has {winner.chunked_prefill_size} tokens: SGLang's rule keeps the later "
            f"ones to max_prefill_tokens, {cap}"
        )
    w = s.workload
    if w.concurrency:
        out.append(f"workload.concurrency {w.concurrency} is not used: the prompts of the objective come as it says")
    if w.num_sessions:
        out.append("sessions: a later turn counts with its new tokens, without the history that a cache may have lost")
    out.append("memory counts weights and cache; activations of large chunks are inside gpu.mem_fraction_static")
    return out
