"""Law: what is wrong with a change is told, by file and method, with its exit code and without a traceback.

Before anything runs: the form of an earlier version, a class of nothing, a misspelt method or phase, a rule that there
is not. While it runs: an answer of another type. At the end: what was never asked, in every process together.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ppsim
from ppsim.cli.entry import app
from ppsim.core.config import RankConfig
from ppsim.core.disagg.prefill import PrefillRole
from ppsim.core.exchange import Exchange
from ppsim.core.loop import Loop
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.parts import build_rank
from ppsim.core.policy import Policy
from ppsim.core.rank import Plan
from ppsim.core.schedule.admission import PrefillAdder
from ppsim.core.schedule.request import Request
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.schedule.slots import Slot
from ppsim.core.surroundings import Surroundings
from ppsim.core.votes import Voting
from ppsim.errors import UsageError
from ppsim.fuzz import round
from ppsim.fuzz.campaign import run_campaign
from ppsim.fuzz.experiment import Signature
from ppsim.fuzz.repro import Repro, save
from ppsim.fuzz.round import Order
from ppsim.plugin import load
from ppsim.plugin.watched import watched
from ppsim.scenario.load import load_scenario
from ppsim.world import simulate
from tests.fuzz.generated import experiments_of

IMPORTS = """import ppsim
from ppsim.core.loop import Loop
from ppsim.core.policy import Policy as Right
from ppsim.core.memory.prefix import RadixCache
from ppsim.core.schedule.scheduler import Scheduler
from ppsim.core.votes import Voting
from ppsim.plugin import planted
from ppsim.plugin.plans import behind, does, instead


"""
MARK = '@planted("mine", breaks="INV-26", profile="plain", source="here")\n'
COMMANDS = (
    "run unit",
    "fuzz --profile plain --examples 4",
    "explore explore_release --bound aborts=1",
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(round, "ROUND", 5)  # several rounds of few examples
    return tmp_path


def ppsim_(line: str) -> Result:
    return CliRunner().invoke(app, shlex.split(line))


def told(line: str, text: str) -> str:
    """What a command says of a plug-in with this text, which it refuses."""
    Path("p.py").write_text(text)
    result = ppsim_(f"{line} --plugin p.py")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1, result.stderr
    return result.stderr


# --- before anything runs --------------------------------------------------------------------------------------------

OLD = {
    "hooks": "from ppsim.core.hooks import Hooks\n\n\nclass Policy(Hooks):\n    pass\n",
    "module": "import ppsim.core.hooks\n\n\nclass Policy(ppsim.core.hooks.Hooks):\n    pass\n",
    "planted": "import ppsim\nfrom ppsim.planted import planted\n",
    "registry": "import ppsim.planted.registry\n",
}


@pytest.mark.parametrize("form", OLD)
@pytest.mark.parametrize("line", COMMANDS)
def test_a_plug_in_of_the_earlier_interface_is_told_how_it_is_written_now(line: str, form: str) -> None:
    message = told(line, OLD[form])
    gone = "ppsim.core.hooks" if form in ("hooks", "module") else "ppsim.planted"
    assert message.startswith(
        f"ppsim: plug-in p.py is written for the earlier interface ({gone} is gone): subclass Pol"
    )
    assert "take planted from ppsim.plugin; docs/plugins.md says for each old hook where it is now" in message


NOT_USABLE: dict[str, tuple[str, str]] = {
    "a misspelt decision": (
        "class Policy(Right):\n    def retraction_ordr(self, running):\n        return running\n",
        "Policy.retraction_ordr overrides nothing of Policy (did you mean 'retraction_order'?",
    ),
    "a misspelt method of a part": (
        f"{MARK}class Mine(RadixCache):\n    def evictt(self, num_pages):\n        return []\n",
        "Mine.evictt overrides nothing of RadixCache (did you mean 'evict'?",
    ),
    "a misspelt method of the class beside": (
        "class Other(Voting):\n    def reduce_goods(self, upstream, local):\n        return local\n\n\n"
        '@planted("mine", breaks="INV-26", profile="plain", source="here", beside=(Other,))\n'
        "class Mine(RadixCache):\n    pass\n",
        "Other.reduce_goods overrides nothing of Voting (did you mean 'reduce_good'?",
    ),
    "a planted class of nothing": (f"{MARK}class Mine:\n    pass\n", "Mine subclasses neither Policy, nor Surround"),
    "a policy of nothing": (
        "class Policy:\n    pass\n",
        "Policy subclasses neither Policy, nor Surroundings, nor a part",
    ),
    "a change of nothing": (
        "class Mine(dict):\n    pass\n\n\nCHANGES = [Mine]\n",
        "Mine subclasses neither Policy, nor Surroundings, nor a part of a rank (see: docs/plugins.md)",
    ),
    "a change that is no class": ("CHANGES = [3]\n", "3 subclasses neither Policy, nor Surroundings"),
    "changes that are no list": ("CHANGES = 3\n", "CHANGES must be a list of classes, it is 3"),
    "an unknown rule": (
        MARK.replace("INV-26", "INV-260") + "class Mine(RadixCache):\n    pass\n",
        "plug-in p.py: Mine: bug 'mine' breaks 'INV-260', which is no rule (did you mean 'INV-",
    ),
}


@pytest.mark.parametrize("what", NOT_USABLE)
def test_what_could_stand_nowhere_is_told(what: str) -> None:
    text, message = NOT_USABLE[what]
    for line in ("run unit", "fuzz --examples 1"):
        assert message in told(line, IMPORTS + text)


PHASE = (
    "class Mine(Loop):\n    def plan(self):\n        return instead(super().plan(), 'harvst')\n\n\nCHANGES = [Mine]\n"
)


@pytest.mark.parametrize("line", [*COMMANDS, "fuzz --examples 7 --profile plain --jobs 2"])
def test_a_misspelt_phase_is_told_with_the_nearest_name(line: str) -> None:
    text = told(line, IMPORTS + PHASE)
    assert "there is no phase 'harvst' in any loop (did you mean 'harvest'? see: docs/plugins.md)" in text
    at = (IMPORTS + PHASE).splitlines().index("    def plan(self):") + 1
    assert f"p.py, line {at}: Mine.plan: there is no phase" in text


def test_a_phase_of_another_role_is_no_mistake() -> None:
    Path("p.py").write_text(IMPORTS + PHASE.replace("harvst", "first_pass_release"))
    result = ppsim_("run unit --plugin p.py")
    assert result.exit_code == 0
    assert "Mine: fired 0 times" in result.stderr  # a plain server has no such vote: nothing is changed


# --- while it runs ---------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[str, str]] = {
    "nothing": (
        "class Policy(Right):\n    def admission_order(self, waiting):\n        waiting.sort(key=id)\n",
        "crash: TypeError: p.py, line 12: Policy.admission_order must return list, it returned nothing",
    ),
    "another type": (
        "class Policy(Right):\n    def may_prefill(self, running, waiting, free_tokens):\n        return 'yes'\n",
        "crash: TypeError: p.py, line 12: Policy.may_prefill must return bool, it returned 'yes' of type str",
    ),
    "a method of a part": (
        "class Mine(Scheduler):\n    def may_end_now(self, request):\n        pass\n\n"
        "    def num_places(self, slot, num_admitted, num_new_rows):\n        return 1.5\n\n\nCHANGES = [Mine]\n",
        "crash: TypeError: p.py, line 15: Mine.num_places must return int, it returned 1.5 of type float",
    ),
    "no list of phases": (
        "class Mine(Loop):\n    def plan(self):\n        super().plan()\n\n\nCHANGES = [Mine]\n",
        "crash: TypeError: p.py, line 12: Mine.plan must return tuple, it returned nothing",
    ),
    "a phase without a yield": (
        "def mine(rank):\n    rank.iteration += 0\n\n\n"
        "class Mine(Loop):\n    def plan(self):\n        return behind(super().plan(), 'schedule', mine)\n\n\n"
        "CHANGES = [Mine]\n",
        "crash: TypeError: p.py, line 11: phase mine must return effects (a generator: it needs a yield), it returned",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_method_that_answers_nothing_or_another_type_is_told_with_file_line_class_and_method(what: str) -> None:
    text, message = WRONG[what]
    Path("p.py").write_text(IMPORTS + text)
    run = ppsim_("run unit --plugin p.py")
    assert run.exit_code == 1
    # A crash leaves what was recorded, and its folder; where no rank could be built there is nothing yet.
    assert ("verdict fail" in run.stdout) == (what != "no list of phases")
    assert "unit: crash: TypeError: " in run.stderr
    fuzzed = ppsim_("fuzz --profile plain --examples 4 --plugin p.py")
    assert fuzzed.exit_code == 1
    assert fuzzed.stdout.startswith("FAIL  safety  crash-TypeError  seed 0  example 1")
    explored = ppsim_("explore explore_release --bound aborts=1 --plugin p.py")
    assert explored.exit_code == 1
    for result, shown in ((run, run.stderr), (fuzzed, fuzzed.stdout), (explored, explored.stdout)):
        assert message in shown
        assert "Traceback" not in result.output
        assert "watched.py" not in shown  # where it was asked, not where the answer was looked at
    with pytest.raises(ppsim.PluginError, match="must return"):
        ppsim.simulate("unit", policy="p.py")


def test_what_a_method_answers_at_the_end_of_its_effects_is_held_to_its_type_too() -> None:
    class Forgets(Voting):
        """Takes what comes from upstream, and forgets to say it."""

        def hear_upstream(self, rank, name, good, bad):  # type: ignore[no-untyped-def]
            yield from super().hear_upstream(rank, name, good, bad)

    made = load(classes=[Forgets]).change
    with pytest.raises(TypeError, match=r"test_plugin\.py, line \d+: Forgets\.hear_upstream must return tuple"):
        simulate(load_scenario("pd_busy_votes"), change=made)


def test_a_right_answer_passes_unchanged() -> None:
    """None where it may be None, a subclass of the type, a property, and what a class adds of its own."""
    fired: Counter[str] = Counter()

    class Mine(Exchange):
        def awaited(self, rank):  # type: ignore[no-untyped-def]
            return None

        def of_my_own(self):  # type: ignore[no-untyped-def]
            return None

    class MyRank(type(build_rank(RankConfig(0, 2)))):  # type: ignore[misc]
        @property
        def watches_timeouts(self) -> bool:
            return False

    exchange = watched(Mine, "mine", fired)()
    assert (exchange.awaited(None), exchange.of_my_own(), fired) == (None, None, {"mine": 1})
    scheduler = build_rank(RankConfig(0, 2))
    rank = watched(MyRank, "rank", fired)(scheduler.config, scheduler.policy, scheduler.link, scheduler.make_scheduler)
    assert (rank.watches_timeouts, fired["rank"]) == (False, 1)


def test_a_class_and_a_flag_that_are_put_in_place_of_others_are_counted_when_they_are_asked() -> None:
    class Adder(PrefillAdder):
        def context_to_fit(self, new_tokens: int) -> int:
            return new_tokens

    class Mine(Scheduler):
        adder_class = Adder

    class Prefill(PrefillRole):
        clears_full_flag = False

    counts = {}
    for cls, keys in ((Mine, {}), (Prefill, {"disaggregation.role": "prefill"})):
        made = load((), None, [cls])
        assert simulate(load_scenario("unit", [f"{k}={json.dumps(v)}" for k, v in keys.items()]), change=made.change)
        counts[cls.__name__] = made.fired[cls.__name__]
    assert counts["Mine"] > 0
    assert counts["Prefill"] > 0


def test_a_change_whose_method_ends_the_run_has_been_asked() -> None:
    class Raises(Scheduler):
        def may_prefill(self, slot: Slot) -> bool:
            raise ValueError("mine")

    made = load((), None, [Raises])
    with pytest.raises(Exception, match="mine"):
        simulate(load_scenario("unit", []), change=made.change)
    assert made.unfired() == []


# --- in the library --------------------------------------------------------------------------------------------------


def test_the_library_tells_a_rule_that_there_is_not_with_file_and_class() -> None:
    Path("p.py").write_text(IMPORTS + IDLE.replace("INV-26", "INV-999"))
    wanted = "plug-in p.py: Mine: bug 'mine' breaks 'INV-999', which is no rule"
    for call in (
        lambda: ppsim.simulate("unit", policy="p.py"),
        lambda: ppsim.fuzz("p.py", num_examples=1),
        lambda: ppsim.explore("explore_release", policy="p.py", bounds="aborts=1"),
    ):
        with pytest.raises(UsageError, match=wanted):
            call()

    @ppsim.planted("hers", breaks="INV-0", profile="plain", source="test")
    class Hers(Scheduler):
        pass

    with pytest.raises(UsageError, match=f"{__name__}: Hers: bug 'hers' breaks 'INV-0'"):
        ppsim.simulate("unit", policy=Hers)


def test_the_library_says_what_was_never_asked() -> None:
    class Never(Policy):
        def decode_goes_first(self, num_prefills: int, limit: int) -> bool:
            return True

    run = ppsim.simulate("unit", policy=Never)
    assert run.unfired == ("Never",)
    assert "Never fired 0 times" in repr(run)
    assert ppsim.simulate("unit").unfired == ()
    found = ppsim.explore("explore_release", policy=Never, bounds="aborts=1")
    assert found.unfired == ["Never"]


def test_a_replay_that_passes_says_what_was_never_asked() -> None:
    Path("p.py").write_text(IMPORTS + IDLE)
    experiment = experiments_of("plain", 1)[0]
    save(Path("r.json"), Repro(experiment, Signature("INV-10", "first"), "", None, ("mine",), "p.py"))
    result = ppsim_("replay r.json")
    assert result.exit_code == 0, result.output
    assert "mine: fired 0 times: nothing in this run came to what it changes\n" in result.stderr


# --- at its end ------------------------------------------------------------------------------------------------------

IDLE = f"{MARK}class Mine(Loop):\n    def of_my_own(self):\n        return 1\n"  # overrides nothing
RARE = (
    f"{MARK}class Mine(Scheduler):\n"
    "    def put_out(self, request):\n        super().put_out(request)\n"
)  # asked only where memory is short


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("run unit", "this run"),
        ("fuzz --profile plain --examples 3", "this campaign"),
        ("fuzz --profile plain --examples 7 --jobs 2", "this campaign"),
        ("explore explore_release --bound aborts=1", "this exploration"),
    ],
)
def test_what_was_never_asked_is_told_where_nothing_was_found(line: str, where: str) -> None:
    Path("p.py").write_text(IMPORTS + IDLE)
    result = ppsim_(f"{line} --plugin p.py --bug mine")
    assert result.exit_code == 0, result.output
    assert f"mine: fired 0 times: nothing in {where} came to what it changes\n" in result.stderr
    assert "fired" not in result.stdout


def test_a_search_for_a_bug_that_nobody_asks_says_so() -> None:
    Path("p.py").write_text(IMPORTS + IDLE)
    result = ppsim_("bugs mine --plugin p.py --budget 1 --json")
    assert [row["found"] for row in json.loads(result.stdout)] == [False]
    assert "mine: fired 0 times: nothing in its examples came to what it changes\n" in result.stderr


def test_what_was_asked_is_not_called_unfired() -> None:
    Path("p.py").write_text(IMPORTS + "class Policy(Right):\n    def admission_order(self, w):\n        return w\n")
    for line in COMMANDS:
        result = ppsim_(f"{line} --plugin p.py")
        assert result.exit_code == 0
        assert "fired" not in result.output


def test_the_count_is_the_same_in_one_process_and_in_two() -> None:
    Path("p.py").write_text(IMPORTS + RARE)
    order = Order("retraction", 1, 14, bugs=("mine",), plugin="p.py")
    here, there = run_campaign(order), run_campaign(order, num_jobs=2)
    assert here.findings == there.findings == []
    assert here.fired == there.fired
    assert here.fired["mine"] > 0
    assert here.unfired() == there.unfired() == []


# --- module:Class ----------------------------------------------------------------------------------------------------


class LastFirst(Policy):
    """The youngest request is tried first, on every rank."""

    def admission_order(self, waiting: list[Request]) -> list[Request]:
        return waiting[::-1]


class TwoPhasesLess(Loop):
    """A list of phases of a test."""

    def plan(self) -> Plan:
        return super().plan()[2:]


class Fast(Surroundings):
    """A world of a test."""

    def clock_ms(self, rank: int, now_ms: int) -> int:
        return 2 * now_ms


def test_a_class_is_named_by_its_module_and_stands_in_its_place() -> None:
    names = [f"{__name__}:{cls.__name__}" for cls in (LastFirst, TwoPhasesLess, Fast)]
    made = load(names)
    assert made.names == tuple(names)
    rank = made.change.rank(RankConfig(1, 2))
    assert isinstance(rank.policy, LastFirst)
    assert rank.policy.pp_rank == 1
    right = build_rank(RankConfig(1, 2)).plan
    assert [phase.__name__ for phase in rank.plan] == [phase.__name__ for phase in right[2:]]
    assert made.change.surroundings().clock_ms(0, 3) == 6
    assert made.unfired() == [names[0]]  # the world was asked above, the list of phases is another one


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:Mine", "change 'nowhere:Mine': No module named 'nowhere'; expected module:Class"),
        (f"{__name__}:Mine", "has no attribute 'Mine'; expected module:Class"),
        (":Mine", "change ':Mine': Empty module name; expected module:Class"),
        (f"{__name__}:COMMANDS", "subclasses neither Policy, nor Surroundings, nor a part of a rank"),
        ("fractions:Fraction", "Fraction subclasses neither Policy, nor Surroundings, nor a part of a rank"),
    ],
)
def test_a_class_that_is_not_there_or_of_nothing_is_told(name: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load([name])
    assert message in str(refused.value)


def test_classes_without_a_common_subclass_are_told() -> None:
    class One(RadixCache):
        pass

    class Two(RadixCache):
        pass

    class This(One, Two):
        pass

    class That(Two, One):
        pass

    with pytest.raises(UsageError, match=r"^This, That cannot be combined: "):
        load(classes=[This, That])


def test_the_first_named_wins_where_two_override_the_same_method() -> None:
    class One(Policy):
        def chunk_size(self, prefix_len: int, planned: int) -> int:
            return 1

    class Two(Policy):
        def chunk_size(self, prefix_len: int, planned: int) -> int:
            return 2

        def may_prefill(self, running: Sequence[Request], waiting: Sequence[Request], free_tokens: int) -> bool:
            return False

    policy = load(classes=[One, Two]).change.policy()
    assert (policy.chunk_size(0, 9), policy.may_prefill([], [], 0)) == (1, False)
    assert load(classes=[Two, One]).change.policy().chunk_size(0, 9) == 2
