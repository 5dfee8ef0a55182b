"""Law: the notebooks run, print what is stored, use the public interface alone, and are small.

Rewrite: python docs/notebooks.py [NAME].
"""

from __future__ import annotations

import ast
import re
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra 'docs'")
pytest.importorskip("nbclient", reason="notebooks need the extra 'docs'")

DOCS = Path(__file__).resolve().parents[2] / "docs"
TOOL = runpy.run_path(str(DOCS / "notebooks.py"))
BOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
MAY_IMPORT = {"ppsim", "pandas", "subprocess", "sys"}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def code(path: Path) -> list[str]:
    return [cell.source for cell in read(path).cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", BOOKS, ids=lambda p: p.stem)
def test_a_notebook_prints_what_is_stored(path: Path) -> None:
    needed = TOOL["NEEDS"].get(path.stem)
    if needed and find_spec(needed) is None:
        pytest.skip(f"needs {needed} (the extra 'executor')")
    fresh, stored = TOOL["execute"](path), read(path)
    assert TOOL["printed"](fresh) == TOOL["printed"](stored), f"run: python docs/notebooks.py {path.stem}"
    pictures = [[sorted(o.get("data", {})) for o in cell.get("outputs", [])] for cell in fresh.cells]
    assert pictures == [[sorted(o.get("data", {})) for o in cell.get("outputs", [])] for cell in stored.cells]


@pytest.mark.parametrize("path", BOOKS, ids=lambda p: p.stem)
def test_a_notebook_uses_the_public_interface_alone(path: Path) -> None:
    tree = ast.parse("\n".join(code(path)))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert "ppsim" in names
    assert names <= MAY_IMPORT
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


@pytest.mark.parametrize("path", BOOKS, ids=lambda p: p.stem)
def test_a_notebook_reads_well_unexecuted(path: Path) -> None:
    book = read(path)
    assert path.stat().st_size < 400_000
    assert book.cells[0].source.startswith("# ")
    assert book.cells[-1].source.startswith("## What to change to learn more")
    shown = [cell for cell in book.cells if cell.cell_type == "code" and cell.outputs]
    assert len(shown) >= 4
    assert any("image/png" in o.get("data", {}) for cell in shown for o in cell.outputs) or path.stem.startswith(
        ("4", "6")
    )
    assert not [o for cell in shown for o in cell.outputs if o.output_type == "error"]


def test_all_are_listed_with_a_question() -> None:
    page = (DOCS / "notebooks" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\(([\w]+\.ipynb)\) \| [^|]+\?", page) == [path.name for path in BOOKS]
    assert len(BOOKS) == 7
