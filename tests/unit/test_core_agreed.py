"""What all ranks hold is made by the functions that agree, and by nobody else (design decision 2)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ppsim
from ppsim.core.agreed import Agreed, agree

ROOT = Path(ppsim.__file__).parent.parent
AGREE = {
    "ppsim/core/start.py": {"agree_on_start"},
    "ppsim/core/leader.py": {"agree_grammar"},
    "ppsim/core/tiers.py": {"take_in"},
    "ppsim/core/disagg/ballots.py": {"agree_bootstrap", "concluded", "apply_transferred"},
}
"""As the table of ``ppsim/core/agreed.py`` says."""
WITHOUT_OTHERS = {
    "ppsim/scenario/fit.py": {"never_served"},  # a rank of its own, asked what would never fit
    "ppsim/fuzz/bugs/cache.py": {"start"},  # that is what is wrong with these
    "ppsim/fuzz/bugs/early.py": {"apply_release"},
    "ppsim/fuzz/bugs/observations.py": {"own_grammars", "own_releases"},
    "ppsim/fuzz/bugs/tiers.py": {"start"},
}


def callers(name: str) -> dict[str, set[str]]:
    """By file, the functions that call ``name``; the shared code of both worlds, and both worlds."""
    found: dict[str, set[str]] = {}
    for path in sorted([*(ROOT / "ppsim").rglob("*.py"), *(ROOT / "executor").rglob("*.py")]):
        text = path.read_text()
        if name not in text:
            continue
        for outer in ast.walk(ast.parse(text)):
            if isinstance(outer, ast.FunctionDef | ast.ClassDef | ast.Module):
                for call in own_calls(outer):
                    function = call.func
                    called = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
                    if called == name:
                        found.setdefault(str(path.relative_to(ROOT)), set()).add(getattr(outer, "name", "module"))
    return found


def own_calls(outer: ast.AST) -> list[ast.Call]:
    """Calls in a function's own body, not in functions inside it."""
    calls: list[ast.Call] = []
    stack = list(ast.iter_child_nodes(outer))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.Call):
            calls.append(node)
        stack += ast.iter_child_nodes(node)
    return calls


def test_only_the_functions_that_agree_make_what_is_agreed() -> None:
    assert callers("agree") == AGREE | WITHOUT_OTHERS


def test_the_class_itself_is_called_in_one_place() -> None:
    assert callers("Agreed") == {"ppsim/core/agreed.py": {"agree"}}


def test_one_that_is_made_by_hand_is_refused_with_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"Agreed\(\('A',\), 'me'\) is made by hand: .* call agree\(value, origin\)"):
        Agreed(("A",), "me")
    assert agree(("A",), "vote") == agree(("A",), "vote")
    assert agree(("A",), "vote").value == ("A",)


def test_the_table_in_the_docstring_names_who_makes_one() -> None:
    from ppsim.core import agreed

    rows = [line.split("  ") for line in (agreed.__doc__ or "").splitlines() if line.startswith("    ")][1:]
    makers = {next(word for part in row for word in part.split() if "." in word) for row in rows}
    assert makers == {f"{Path(file).stem}.{name}" for file, names in AGREE.items() for name in names}
