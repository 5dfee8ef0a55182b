"""ppsim: a simulator and a real executor for pipeline-parallel LLM inference that share one scheduler.

    run = ppsim.simulate("mooncake", pp_size=8, seed=1)
    run.verdict, run.summary["bubble_ratio"], run.requests()

The names in ``__all__`` are the public interface; ``docs/library.md`` explains them. Rule: nothing here prints, logs or
ends the process, and nothing is loaded before it is asked for: ``import ppsim`` alone loads none of numpy, simpy,
pandas, matplotlib, hypothesis and torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ppsim.api.campaign import Campaign, Found, experiments, explore, fuzz
    from ppsim.api.plans import ChunkPlan, Compared, Tuned, chunk_plan, compare, tune
    from ppsim.api.run import Drawing, Run, diff, read_run
    from ppsim.api.simulation import load, simulate
    from ppsim.api.sweeps import Swept, sweep
    from ppsim.core.policy import Policy
    from ppsim.errors import PluginError, PpsimError, ScenarioError, TraceError, UsageError
    from ppsim.plugin import planted
    from ppsim.recording.reader import RecordingError
    from ppsim.scenario.tree import Scenario
    from ppsim.sglang.launch import read_launch
    from ppsim.sglang.logs import read_log

    __version__: str

__all__ = [
    "Campaign",
    "ChunkPlan",
    "Compared",
    "Drawing",
    "Found",
    "PluginError",
    "Policy",
    "PpsimError",
    "RecordingError",
    "Run",
    "Scenario",
    "ScenarioError",
    "Swept",
    "TraceError",
    "Tuned",
    "UsageError",
    "__version__",
    "chunk_plan",
    "compare",
    "diff",
    "experiments",
    "explore",
    "fuzz",
    "load",
    "planted",
    "read_launch",
    "read_log",
    "read_run",
    "simulate",
    "sweep",
    "tune",
]

_PLACES = {
    "ppsim.api.campaign": ("Campaign", "Found", "experiments", "explore"),
    "ppsim.api.plans": ("ChunkPlan", "Compared", "Tuned", "chunk_plan", "compare", "tune"),
    "ppsim.api.run": ("Drawing", "Run", "diff", "read_run"),
    "ppsim.api.simulation": ("load", "simulate"),
    "ppsim.api.sweeps": ("Swept", "sweep"),
    "ppsim.core.policy": ("Policy",),
    "ppsim.errors": ("PluginError", "PpsimError", "ScenarioError", "TraceError", "UsageError"),
    "ppsim.plugin": ("planted",),
    "ppsim.recording.reader": ("RecordingError",),
    "ppsim.scenario.tree": ("Scenario",),
    "ppsim.sglang.launch": ("read_launch",),
    "ppsim.sglang.logs": ("read_log",),
}
_PLACE_OF = {name: module for module, names in _PLACES.items() for name in names}

# A package of the house has the name of a public function. Whoever imports such a package puts it in the place of the
# name, so the package itself is what can be called: package -> where the function is, and its name there.
_CALLED = {"fuzz": ("ppsim.api.campaign", "fuzz")}


class _CalledPackage(ModuleType):
    """A package that is called like the function of its name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, name = _CALLED[self.__name__.rpartition(".")[2]]
        return getattr(import_module(module), name)(*args, **kwargs)


class _Ppsim(ModuleType):
    """This package: it makes such a package callable as soon as somebody imports them."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _CALLED and type(value) is ModuleType:
            value.__class__ = _CalledPackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Ppsim


def __getattr__(name: str) -> Any:
    """A public name, loaded when it is first asked for."""
    if name in _CALLED:
        return import_module(f"ppsim.{name}")
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("ppsim")
        except PackageNotFoundError:
            return "unknown"
    if name not in _PLACE_OF:
        raise AttributeError(f"module 'ppsim' has no attribute {name!r}")
    value = getattr(import_module(_PLACE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
