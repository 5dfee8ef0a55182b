"""Puts the scenarios into the package when a wheel is built: the tree has one copy of them, in scenarios/.

Everything else about the build stands in pyproject.toml. An installed package reads ``ppsim/data/scenarios``, a clone
and an editable installation read ``scenarios`` itself (``ppsim/scenario/load.py``).
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SCENARIOS = Path("scenarios")
PACKED = Path("ppsim", "data", "scenarios")


class BuildWithScenarios(build_py):
    """The modules and package data as ever, then a copy of every scenario, and of what is said of a folder."""

    def packed(self) -> dict[str, str]:
        """Copy -> file in the tree: the scenarios, and of each folder the sentence about them."""
        target = Path(self.build_lib) / PACKED
        files = sorted([*SCENARIOS.glob("**/*.toml"), *SCENARIOS.glob("**/folder.txt")])
        return {str(target / file.relative_to(SCENARIOS)): str(file) for file in files}

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for copy, file in self.packed().items():
            self.mkpath(str(Path(copy).parent))
            self.copy_file(file, copy)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        packed = [] if self.editable_mode else list(self.packed())
        return [*super().get_outputs(include_bytecode), *packed]


setup(cmdclass={"build_py": BuildWithScenarios})
