"""Read a scenario: a name in ``scenarios/`` or a TOML file, then ``--set key=value`` in order, then validation.

All problems come out as ``ScenarioError`` with the dotted key, what was wrong, and the nearest name where a key is
unknown.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_origin

from pydantic import BaseModel, ValidationError

from ppsim.errors import ScenarioError, UsageError
from ppsim.parsing import TOO_DEEP, decoded, parse_toml
from ppsim.scenario.check import check_scenario
from ppsim.scenario.expect import Expect
from ppsim.scenario.kept import relocated
from ppsim.scenario.tree import Run, Scenario
from ppsim.scenario.words import hint_for, problem_in_words

PACKAGE = Path(__file__).resolve().parents[1]
PACKED = PACKAGE / "data" / "scenarios"  # the build of a wheel puts them here (setup.py); in the tree there is one copy
SHIPPED = PACKED if PACKED.is_dir() else PACKAGE.parent / "scenarios"
SCENARIO_DIRS = (Path("scenarios"), SHIPPED)
WHAT_IS_LEFT = ("run.keep", "run.compress")  # of a run, which is the same
ABOUT = "folder.txt"  # in a folder of scenarios: a sentence about them


def load_scenario(
    name_or_path: str,
    overrides: Iterable[str] = (),
    *,
    seed: int | None = None,
    bugs: Sequence[str] = (),
    tell: Callable[[str], object] = lambda sentence: None,
) -> Scenario:
    """Load, override, validate. ``bugs``: planted ones to switch on besides. ``tell`` hears of files that have changed
    since a saved run. Raises ScenarioError or UsageError; never anything else for bad input."""
    pairs = parse_overrides(overrides)
    raw, told = read_and_told(name_or_path)
    for sentence in told:
        if sentence.partition(":")[0] not in dict(pairs):
            tell(sentence)
    return scenario_with(raw, pairs if seed is None else [*pairs, ("seed", seed)], bugs)


def read_scenario(name_or_path: str) -> dict[str, Any]:
    """The content of a scenario's file, not validated yet; its name is the file's if it gives none."""
    return read_and_told(name_or_path)[0]


def read_and_told(name_or_path: str) -> tuple[dict[str, Any], list[str]]:
    """The same, and what has changed of the files that a run folder's config names."""
    path = find_scenario(name_or_path)
    try:
        text = decoded(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UsageError(f"{path}: is no text: {error}") from None
    try:
        raw = parse_toml(text)
    except ValueError as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None
    raw.setdefault("name", path.stem)
    return raw, relocated(raw, path)


def scenario_with(raw: dict[str, Any], pairs: Iterable[tuple[str, Any]], bugs: Sequence[str] = ()) -> Scenario:
    """A scenario as nested dictionaries, with dotted keys set in order, and planted bugs in front of its own. ``raw``
    is changed. Raises ScenarioError."""
    pairs = list(pairs)
    written = deepcopy(raw) if raw.get("expect") is not None and (pairs or bugs) else None
    given = []
    for key, value in pairs:
        put(raw, key, value)
        given.append(key)
    if "workload.source" not in given and ("workload.requests" in given or "workload.trace" in given):
        raw["workload"].pop("source", None)  # what was asked for is what is served
    if bugs:
        own = raw.get("bugs", [])
        raw["bugs"] = [*dict.fromkeys([*bugs, *own])] if isinstance(own, list) else own
        given.append("bugs")
    scenario = validate(raw)
    if written is not None:
        scenario = with_what_is_expected_now(scenario, written, given, raw["expect"], dict(pairs))
    check_scenario(scenario)
    return scenario


def with_what_is_expected_now(
    scenario: Scenario, written: dict[str, Any], given: Sequence[str], expect: Any, pairs: Mapping[str, Any]
) -> Scenario:
    """What is expected of a scenario is so as it was ``written``; here keys were ``given``.

    Where they change nothing, or only ``[expect]``, all of it holds. With one planted bug more it is what ``[expect]``
    says of that bug. Otherwise it is what the given keys say themselves, and nothing where they say nothing.
    """
    try:
        before = validate(written)
    except ScenarioError:  # it takes the given keys to make a scenario of it
        before = Scenario()
    changed = [
        key
        for key in sorted(set(given))
        if not is_expectation(key) and key not in WHAT_IS_LEFT and differs(before, scenario, key)
    ]
    if not changed and runs_alike(before, scenario):
        return scenario
    added = [bug for bug in scenario.bugs if bug not in before.bugs]
    told = scenario.expect if scenario.expect is not None else Expect()
    if any(is_expectation(key) for key in pairs):
        own: dict[str, Any] = {}
        for key, value in pairs.items():
            if is_expectation(key):
                put(own, key, value)
        now: dict[str, Any] = own["expect"]
    elif changed == ["bugs"] and len(added) == 1 and len(scenario.bugs) == len(before.bugs) + 1:
        outcome = told.bugs.get(added[0])
        now = (
            {"changed": [f"bugs (nothing is said under expect.bugs.{added[0]})"]}
            if outcome is None
            else outcome.model_dump(mode="json")
        )
    else:
        now = {"changed": changed or sorted(set(given))}
    return validate({**scenario.model_dump(mode="json", exclude_unset=True), "expect": now})


def is_expectation(key: str) -> bool:
    return key == "expect" or key.startswith("expect.")


def runs_alike(a: Scenario, b: Scenario) -> bool:
    """Whether two scenarios differ at most in what no run depends on."""
    apart = {"name": "", "description": "", "launch_line": None, "expect": None}
    left = {key.removeprefix("run."): getattr(Run(), key.removeprefix("run.")) for key in WHAT_IS_LEFT}
    first, second = (s.model_copy(update={**apart, "run": s.run.model_copy(update=left)}) for s in (a, b))
    return first == second


def differs(a: Scenario, b: Scenario, key: str) -> bool:
    """Whether a dotted key has another value in b, and a run depends on it."""
    return key not in ("name", "description", "launch_line") and value_in(a, key) != value_in(b, key)


def value_in(s: Scenario, key: str) -> object:
    value: object = s
    for part in key.split("."):
        value = getattr(value, part, None)
    return value


def find_scenario(name_or_path: str) -> Path:
    """A path that exists, or a name below one of the scenario folders."""
    direct = Path(name_or_path)
    if direct.suffix == ".toml" or direct.is_file():
        if direct.is_file():
            return direct
        raise UsageError(f"scenario file {name_or_path} does not exist")
    known = known_scenarios()
    if name_or_path in known:
        return known[name_or_path]
    near = get_close_matches(name_or_path, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "see: ppsim list scenarios"
    raise UsageError(f"unknown scenario {name_or_path!r} ({hint})")


def known_scenarios() -> dict[str, Path]:
    """Name -> file of every scenario that can be named, sorted; one in ./scenarios hides a shipped one of its name."""
    known: dict[str, Path] = {}
    for folder in SCENARIO_DIRS:
        for path in folder.glob("**/*.toml"):
            known.setdefault(path.relative_to(folder).with_suffix("").as_posix(), path)
    return dict(sorted(known.items()))


def folder_sentence(folder: str) -> str:
    """What the scenarios of a folder have in common: the first line of its folder.txt, or empty."""
    for place in SCENARIO_DIRS:
        file = place / folder / ABOUT
        if file.is_file():
            return file.read_text(encoding="utf-8", errors="replace").strip().partition("\n")[0]
    return ""


def parse_overrides(overrides: Iterable[str]) -> list[tuple[str, Any]]:
    """Split ``key=value``; the value is read as TOML, or taken as a string where it is not TOML."""
    pairs = []
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set {text!r}: expected key=value, for example cluster.pp_size=4")
        try:
            parsed = parse_toml(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        except ValueError as error:
            raise UsageError(f"--set {shortened(key)}=...: {error}") from None
        pairs.append((key.strip(), parsed))
    return pairs


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in a nested dictionary."""
    *sections, leaf = key.split(".")
    place = raw
    for i, section in enumerate(sections):
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise ScenarioError(".".join(sections[: i + 1]), "is a value, not a section", f"cannot set {key}")
    place[leaf] = value


def validate(raw: Mapping[str, Any]) -> Scenario:
    """Validate a nested mapping; the first problem becomes a ScenarioError."""
    raw = with_source(raw)
    try:
        # Strict JSON mode takes a TOML array for a tuple, and still refuses "4" for a number.
        return Scenario.model_validate_json(json.dumps(raw, default=str))
    except ValidationError as error:
        raise first_problem(error) from None
    except RecursionError:
        raise ScenarioError("scenario", TOO_DEEP) from None
    except ValueError as error:
        raise ScenarioError("scenario", str(error)) from None


def with_source(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a workload does not name its source, what it holds does: requests that are written are never ignored."""
    workload = raw.get("workload")
    if not isinstance(workload, dict) or "source" in workload:
        return raw
    for key, source in (("requests", "requests"), ("trace", "trace"), ("num_chunks", "chunks")):
        if workload.get(key):
            return {**raw, "workload": {**workload, "source": source}}
    return raw


def first_problem(error: ValidationError) -> ScenarioError:
    problems = error.errors(include_url=False)
    if problems[0]["type"] == "json_invalid":  # the text is ours: all that its reader may refuse is its depth
        return ScenarioError("scenario", TOO_DEEP)
    first = place_of(min(problems, key=lambda p: p["type"] != "extra_forbidden")["loc"])
    # A value that may be of several types has a problem for each: the one that sees deepest into it says most.
    problem = max(
        (p for p in problems if place_of(p["loc"])[: len(first)] == first), key=lambda p: len(place_of(p["loc"]))
    )
    where = place_of(problem["loc"])
    field = ".".join(where)
    if problem["type"] == "extra_forbidden":
        near = get_close_matches(where[-1], sorted(known_keys(where[:-1])), n=1, cutoff=0.5)
        known = ", ".join(sorted(known_keys(where[:-1])))
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {known}"
        return ScenarioError(shortened(field), "unknown key", hint)
    came = problem.get("input")
    came_as = "nothing" if problem["type"] == "missing" else shortened(repr(came))
    return ScenarioError(
        shortened(field), f"{problem_in_words(problem)}, got {came_as}", hint_for(problem["type"], came)
    )


def shortened(text: str) -> str:
    """No longer than a line."""
    return text if len(text) <= 200 else f"{text[:190]}... ({len(text)} characters)"


def place_of(loc: tuple[int | str, ...]) -> list[str]:
    """Keys, names in tables and list positions on the way to a problem; the name of a branch of a union is none."""
    place: list[str] = []
    model: type[BaseModel] | None = Scenario
    is_name = False  # the next part is a name of the scenario's own, in a table of sections
    for part in loc:
        if isinstance(part, int) or is_name:
            place.append(str(part))
            is_name = False
        elif model is not None:
            place.append(part)
            field = model.model_fields.get(part)
            model = section_in(field.annotation) if field is not None else None
            is_name = field is not None and is_table(field.annotation)
    return place


def known_keys(where: list[str]) -> list[str]:
    """Keys of the section at a dotted place; list positions and names in tables are skipped."""
    model: type[BaseModel] = Scenario
    is_name = False
    for part in where:
        if part.isdigit() or is_name:
            is_name = False
            continue
        if part not in model.model_fields:
            return []
        annotation = model.model_fields[part].annotation
        found = section_in(annotation)
        if found is None:
            return []
        model, is_name = found, is_table(annotation)
    return list(model.model_fields)


def is_table(annotation: Any) -> bool:
    """Whether a key holds sections under names of the scenario's own."""
    return get_origin(annotation) is dict


def section_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = section_in(argument)
        if found is not None:
            return found
    return None
