"""What holds for the whole tree: files and functions stay small, and the core needs no TensorFlow."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("psfleet", "ps_service", "worker_service", "examples", "benchmarks", "tests")
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
TENSORFLOW_ROOM = "psfleet.tf"
"""The part of psfleet that imports TensorFlow as soon as it is imported."""


def test_no_file_is_too_long() -> None:
    """Every file, so that the message lists all that are too long."""
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in sources()}
    assert lengths
    assert not {name: length for name, length in lengths.items() if length > MAX_FILE_LINES}


def test_no_function_is_too_long() -> None:
    """Counted from its first decorator or `def` to its last line."""
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert lengths
    assert not {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}


def test_the_core_imports_neither_tensorflow_nor_keras() -> None:
    """A job file is refused in a second: nothing outside that room loads TensorFlow when it is imported."""
    modules = [name for name in map(module_name, sources("psfleet")) if not name.startswith(TENSORFLOW_ROOM)]
    assert "psfleet.job.job" in modules
    program = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
    loaded = {{"tensorflow", "keras"}} & set(sys.modules)
    assert not loaded, f"{{name}} loads {{loaded}}"
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def sources(*folders: str) -> list[Path]:
    """The Python files of the given folders, or of all, without generated ones."""
    paths = [path for folder in folders or FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return sorted(path for path in paths if "_pb2" not in path.name)


def module_name(path: Path) -> str:
    """`psfleet/a/b.py` is psfleet.a.b, `psfleet/a/__init__.py` is psfleet.a."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
