"""A server that is asked for a longer context than its model has positions: it refuses to start, or computes nonsense.

Rule: told where the model is known here, by its name or by its config.json; never for one whose config the line
overrides. The variable that makes the server start all the same is named, and taken for an answer.
"""

from __future__ import annotations

from ppsim.cost.config_json import load_model
from ppsim.errors import ScenarioError
from ppsim.sglang.result import LaunchLine, Note
from ppsim.sglang.scenario import ALLOWS_LONGER, ENGINES, key_of
from ppsim.sglang.vllm import in_sglang_words

ALLOWS = {"sglang": ALLOWS_LONGER, "vllm": "VLLM_ALLOW_LONG_MAX_MODEL_LEN"}
OVERRIDES = ("json_model_override_args", "hf_overrides", "rope_scaling")  # values that change the model's config
OFF = ("", "0", "false", "False", "no")


def advise_positions(line: LaunchLine) -> None:
    """Add the warning of a line, or a note where it says that it means it."""
    given = in_sglang_words({name: one.value for name, one in line.values.items()})
    length, model = given.get("context_length"), key_of(given.get("model_path"))
    if not isinstance(length, int) or model is None or any(line.is_given(name) for name in OVERRIDES):
        return
    try:
        most = load_model(model).positions
    except ScenarioError:  # a folder whose config cannot be read: told where the scenario is made
        return
    if most is None or length <= most:
        return
    place = next(one for name, one in line.values.items() if name in ("context_length", "max_model_len"))
    variable = ALLOWS[line.engine]
    said = f"{length} tokens are more than the {most} positions of {given['model_path']}"
    beyond = "what it says behind them is not what it was trained for"
    if line.env.get(variable, "") in OFF:
        refuses = f"{ENGINES[line.engine]} refuses to start without {variable}=1, and {beyond}"
        line.warn(f"{said}: {refuses}", place.line, place.spelling)
    else:
        line.notes.append(Note(f"{said}: {beyond}", place.line, place.spelling))
