"""Execute the notebooks and store what they print: ``python docs/notebooks.py [NAME...]``. A test runs them again.

A notebook is stored without anything that differs from run to run: no times of execution, no ids of the machine. A cell
whose output may differ (measured times) has the tag ``varies``; all others must print the same again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).resolve().parent / "notebooks"
TIMEOUT_S = 300
NEEDS = {"7_simulation_and_processes": "torch"}  # packages of the executor, beside what all of them need


def execute(path: Path) -> Any:
    """A notebook with fresh outputs, run in an empty folder. Raises CellExecutionError where a cell raises."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    with TemporaryDirectory() as folder:
        here = {"metadata": {"path": folder}}
        NotebookClient(book, timeout=TIMEOUT_S, kernel_name="python3", resources=here).execute()
    return cleaned(book)


def cleaned(book: Any) -> Any:
    """Without what differs from run to run."""
    book.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for number, cell in enumerate(book.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata = {"tags": cell.metadata["tags"]} if "tags" in cell.metadata else {}
        for output in cell.get("outputs", []):
            output.pop("execution_count", None)
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return book


def printed(book: Any) -> list[str]:
    """What each cell printed and showed as text; of one whose output may differ only how many outputs it has."""
    found = []
    for cell in book.cells:
        if cell.cell_type != "code":
            continue
        outputs = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
        found.append(str(bool(outputs)) if "varies" in cell.metadata.get("tags", []) else "".join(outputs))
    return found


def main() -> None:
    import nbformat

    for path in sorted(HERE.glob("*.ipynb")):
        if not sys.argv[1:] or any(name in path.stem for name in sys.argv[1:]):
            nbformat.write(execute(path), path)
            print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
