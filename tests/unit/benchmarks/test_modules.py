"""The modules of the benchmarks, which no other test runs whole."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
MODULES = sorted(FOLDER.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_what_a_benchmark_imports_from_others_is_there(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "benchmarks":
            assert importlib.util.find_spec(str(node.module)) is not None, node.module
            for alias in node.names:
                assert is_there(str(node.module), alias.name), f"{node.module}.{alias.name}"


def is_there(module: str, name: str) -> bool:
    """Whether a module defines a name, or contains a module of that name, without running it."""
    if importlib.util.find_spec(module).submodule_search_locations and importlib.util.find_spec(f"{module}.{name}"):
        return True
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
        if name in names or getattr(node, "name", None) == name:
            return True
    return False
