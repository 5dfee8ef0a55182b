"""Law: a wheel of the tree, installed into an environment of its own and used from another folder, has all it needs.

The environment sees the dependencies of this one and nothing of the tree. No network is needed where setuptools can
build a wheel by itself (70.1 and later, which the extra ``dev`` brings); else pip fetches one that can.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "ppsim", "executor", "scenarios")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def called(*command: str | Path, cwd: Path, timeout: float = 300) -> str:
    """stdout of a command that must end well, in an environment that names no folder of the tree."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    done = subprocess.run([*map(str, command)], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def can_build_alone() -> bool:
    """Whether the setuptools of this environment makes wheels."""
    version = importlib.metadata.version("setuptools") if find_spec("setuptools") else "0"
    return tuple(map(int, version.split(".")[:2])) >= (70, 1) or find_spec("wheel") is not None


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, from a copy of the tree: a build leaves folders behind."""
    tree, dist = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / part)
    alone = ["--no-build-isolation"] if can_build_alone() else []
    called(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *alone, "-w", dist, tree, cwd=tree)
    (built,) = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of an environment with nothing but the wheel. What it depends on is seen through a path file, which pulls
    in no editable installation as a folder for packages of its own would."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place, with_pip=False, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    seen = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    assert not any((Path(path) / "ppsim").exists() for path in seen), (
        "this environment has an installed ppsim of its own"
    )
    (site / "dependencies.pth").write_text("\n".join(seen) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", place / "bin" / "python"]
    called(*pip, "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel, cwd=place)
    return place / "bin" / "python"


def test_the_wheel_holds_every_scenario_once_and_says_that_it_is_typed(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    packed = {
        name.removeprefix("ppsim/data/scenarios/") for name in names if name.endswith(".toml") and "scenarios/" in name
    }
    assert packed == {path.relative_to(ROOT / "scenarios").as_posix() for path in ROOT.glob("scenarios/**/*.toml")}
    assert {name for name in names if "scenarios/" in name and not name.startswith("ppsim/data/scenarios/")} == set()
    files = ZipFile(wheel)
    for path in (*ROOT.glob("scenarios/**/*.toml"), *ROOT.glob("scenarios/**/folder.txt")):
        place = f"ppsim/data/scenarios/{path.relative_to(ROOT / 'scenarios').as_posix()}"
        assert files.read(place) == path.read_bytes(), place
    assert {"ppsim/py.typed", "ppsim/api/run.py", "ppsim/data/gpus.toml", "executor/launch.py"} <= set(names)


def test_the_installed_package_is_the_wheels_and_needs_no_tree(python: Path, tmp_path: Path) -> None:
    where = called(python, "-c", "import ppsim, executor; print(ppsim.__file__, executor.__file__)", cwd=tmp_path)
    assert all(place.startswith(str(python.parents[1])) for place in where.split()), where


def test_the_commands_work_from_another_folder(python: Path, tmp_path: Path) -> None:
    ppsim = python.with_name("ppsim")
    assert called(python, "-m", "ppsim", "--version", cwd=tmp_path) == f"ppsim {VERSION}\n"
    assert called(ppsim, "--version", cwd=tmp_path) == f"ppsim {VERSION}\n"
    listed = {row["name"] for row in json.loads(called(ppsim, "list", "scenarios", "--json", cwd=tmp_path))}
    assert listed == {
        path.relative_to(ROOT / "scenarios").with_suffix("").as_posix() for path in ROOT.glob("scenarios/**/*.toml")
    }
    run = json.loads(called(ppsim, "run", "mooncake", "--json", cwd=tmp_path))
    assert (run["verdict"], run["num_finished"]) == ("pass", 400)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_the_published_figures_come_out_as_from_the_tree(python: Path, tmp_path: Path) -> None:
    """The figures, and the questions, rest on the shipped scenarios; here they are answered from the packed ones."""
    golden = json.loads((ROOT / "tests" / "golden" / "commands" / "paper.json").read_text(encoding="utf-8"))
    assert json.loads(called(python.with_name("ppsim"), "paper", "--json", cwd=tmp_path)) == golden
    asked = json.loads((ROOT / "tests" / "golden" / "commands" / "questions.json").read_text(encoding="utf-8"))
    answers = json.loads(called(python.with_name("ppsim"), "questions", "P01", "P05", "--json", cwd=tmp_path))
    assert answers == [answer for answer in asked if answer in answers]
    assert len(answers) == 2


def test_the_library_works_from_another_folder(python: Path, tmp_path: Path) -> None:
    run = 'ppsim.simulate("unit", pp_size=3, num_chunks=5)'
    code = f'import ppsim; print(ppsim.__version__, {run}.summary["bubble_ratio"])'
    assert called(python, "-c", code, cwd=tmp_path).split() == [VERSION, str(2 / 7)]
    code = 'import ppsim; e = ppsim.simulate("unit").expectations; print(e.met, len(e.judged))'
    assert called(python, "-c", code, cwd=tmp_path).split() == ["True", "8"]
