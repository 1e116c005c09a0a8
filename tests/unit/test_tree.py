"""The shape of the tree: sizes of files and functions, tests that mirror the source, no TensorFlow in the core."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
UNIT_TESTS = Path(__file__).parent
SOURCE = ("psfleet", "ps_service", "worker_service", "examples", "benchmarks")
FOLDERS = (*SOURCE, "tests")
MAX_FILE_LINES = 250
MAX_TEST_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_MEDIAN_FUNCTION_LINES = 8
MAX_TOP_LEVEL_FILES = 10
"""Files directly in `psfleet/`; everything else belongs to a package with one purpose."""
TENSORFLOW_PACKAGE = "psfleet.tf"
"""The package of psfleet that imports TensorFlow as soon as it is imported."""


def test_no_file_is_too_long() -> None:
    """Checks every file, so that the message lists all that are too long."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert lengths
    assert not {name: length for name, length in lengths.items() if length > max_lines(name)}


def test_no_function_is_too_long_and_most_are_short() -> None:
    lengths = function_lengths()
    assert lengths
    assert not {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}
    assert statistics.median(lengths.values()) <= MAX_MEDIAN_FUNCTION_LINES


def test_few_files_lie_directly_in_psfleet() -> None:
    names = sorted(path.name for path in (ROOT / "psfleet").iterdir() if path.is_file())
    assert len(names) <= MAX_TOP_LEVEL_FILES, names


def test_folders_of_unit_tests_mirror_the_source() -> None:
    folders = {path.parent.relative_to(UNIT_TESTS) for path in UNIT_TESTS.rglob("test_*.py")}
    assert Path("psfleet/job") in folders
    assert not {str(folder) for folder in folders if not (ROOT / folder).is_dir()}


def test_the_core_imports_neither_tensorflow_nor_keras() -> None:
    """A bad job file is refused within a second, because only one package loads TensorFlow when it is imported.

    Nor is the client of an object store loaded, which few jobs need.
    """
    modules = [name for name in map(module_name, sources("psfleet")) if not name.startswith(TENSORFLOW_PACKAGE)]
    assert {"psfleet.job.job", "psfleet.checkpoint.export", "psfleet.checkpoint.store"} <= set(modules)
    program = f"""
import gc, importlib, sys
gc.disable()
for name in {modules!r}:
    importlib.import_module(name)
    loaded = {{"tensorflow", "keras", "fsspec", "botocore"}} & set(sys.modules)
    assert not loaded, f"{{name}} loads {{loaded}}"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports for types, and those inside functions, count, too."""
    modules = {module_name(path): path for path in sources("psfleet", "ps_service", "worker_service")}
    imports = {name: imported(path, modules) - {"psfleet", name} for name, path in modules.items()}
    assert "psfleet.job.job" in imports["psfleet.job.watched_metrics"]
    # A report shows itself in a notebook.
    imports["psfleet.report.schema"].remove("psfleet.report.notebook")
    TopologicalSorter(imports).prepare()


def test_modules_of_the_test_kit_that_make_runs_can_be_imported() -> None:
    """As `make` runs them, without pytest's own paths."""
    modules = sorted(set(re.findall(r"-m (support\.\w+)", (ROOT / "Makefile").read_text())))
    assert modules
    command = [sys.executable, "-c", f"import {', '.join(modules)}"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sources(*folders: str) -> list[Path]:
    """The Python files of the given folders, or of all, without generated ones."""
    paths = [path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in paths if "_pb2" not in path.name)


def max_lines(name: str) -> int:
    """The limit of a file by its path in the repository."""
    return MAX_TEST_FILE_LINES if name.startswith("tests/") else MAX_FILE_LINES


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file. Not kept: Python's garbage collector would scan a growing number of trees."""
    return ast.parse(path.read_text())


def function_lengths() -> dict[str, int]:
    """Lines of each function, from its `def` to its last line, by `path:line name`."""
    return {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in sources()
        for node in statements(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def imported(path: Path, modules: Collection[str]) -> set[str]:
    """Those of the modules that a file imports; of a package, what it imports from it."""
    found = set()
    for node in statements(parsed(path)):
        if isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & set(modules)


def statements(parent: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node; most nodes are parts of expressions, which hold none."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for node in getattr(parent, field, ()):
            yield node
            yield from statements(node)


def module_name(path: Path) -> str:
    """`psfleet/a/b.py` is psfleet.a.b, `psfleet/a/__init__.py` is psfleet.a."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
