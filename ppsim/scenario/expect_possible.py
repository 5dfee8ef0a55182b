"""What single keys of ``[expect]`` cannot say: whether a run of this scenario could meet it at all."""

from __future__ import annotations

import re
from difflib import get_close_matches

from ppsim.errors import ScenarioError
from ppsim.scenario.expect import PEER, RULE_NAMES, STAGE, Outcome, is_figure, nearest_figure
from ppsim.scenario.tree import Scenario


def check_expect(s: Scenario, num_ranks: int) -> None:
    """Raise ScenarioError for an expectation that no run could meet."""
    for place, outcome in s.expect.outcomes() if s.expect is not None else ():
        check_outcome(place, outcome, num_ranks)
        for name in outcome.figures:
            check_figure(f"{place}.figures.{name}", name, s)


def check_outcome(place: str, outcome: Outcome, num_ranks: int) -> None:
    if outcome.rule is not None and outcome.rule not in RULE_NAMES:
        digits = re.sub(r"\D", "", outcome.rule).lstrip("0")
        near = [r for r in RULE_NAMES if digits and r == f"INV-{digits.zfill(2)}"]
        near = near or get_close_matches(outcome.rule.upper(), RULE_NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "see: ppsim list invariants"
        raise ScenarioError(f"{place}.rule", f"there is no rule {outcome.rule!r}", hint)
    if outcome.rank is not None and outcome.rank >= num_ranks:
        raise ScenarioError(f"{place}.rank", f"{outcome.rank}, but the {num_ranks} ranks are 0 to {num_ranks - 1}")
    named = [key for key in ("rule", "rank", "iteration", "rid") if getattr(outcome, key) is not None]
    if outcome.verdict == "pass" and named:
        raise ScenarioError(
            f"{place}.{named[0]}",
            f"{getattr(outcome, named[0])!r} belongs to a run that fails, and {place}.verdict is 'pass'",
            f"{place}.verdict = 'fail'",
        )


def check_figure(place: str, name: str, s: Scenario) -> None:
    if not is_figure(name):
        raise ScenarioError(place, "unknown figure", nearest_figure(name))
    is_pair = s.disaggregation.role == "pd"
    if name.startswith(PEER) and not is_pair:
        raise ScenarioError(place, "is of the prefill side of two pipelines, and disaggregation.role is not 'pd'")
    stage = STAGE.match(name.removeprefix(PEER))
    stages = s.cluster.pp_size
    if is_pair and not name.startswith(PEER):
        stages = s.disaggregation.decode_pp_size or stages
    if stage is not None and int(stage[1]) >= stages:
        raise ScenarioError(place, f"there are {stages} stages, 0 to {stages - 1}")
