"""One frozen, validated configuration tree (``tree.py``), read from TOML with ``--set`` overrides (``load.py``)."""

from ppsim.scenario.load import load_scenario, parse_overrides
from ppsim.scenario.tree import Scenario

__all__ = ["Scenario", "load_scenario", "parse_overrides"]
