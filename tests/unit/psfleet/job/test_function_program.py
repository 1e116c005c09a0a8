"""A function of a notebook, a script or a module becomes a program that other processes import."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn

import pytest

from psfleet.errors import UsageError
from psfleet.job import function_program
from psfleet.job.program_files import digest, program_files

ANSWER = 41


def build(number: int = 1) -> int:
    """A program of this module; uses what is beside it."""
    return ANSWER + number


def closure(add: int) -> Any:
    """A function that no module has."""

    def inner(number: int = 0) -> int:
        return build(number) + add

    return inner


def imported(program: str, folder: Path) -> str:
    """What a program returns in a process of its own."""
    module, name = program.split(":")
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from {module} import {name}; print({name}(number=2))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


def run_as_main(script: Path, argument: str) -> NoReturn:
    """Becomes a process that runs a script: forked, it has Keras, which takes 4 CPU seconds to be imported."""
    code = 1
    try:
        sys.argv = [str(script), argument]
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def test_a_function_of_a_module_is_named(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("def top(number): return number\n")
    (tmp_path / "package" / "inner.py").write_text("def build(number): return 10 * number\n")
    code = """
import sys; sys.path.insert(0, sys.argv[1])
from psfleet.job.function_program import reference
import package, package.inner
print(*reference(package.inner.build), *reference(package.top))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["package.inner:build", str(tmp_path), "package:top", str(tmp_path)]
    assert imported("package.inner:build", tmp_path) == "20"


def test_a_module_that_is_a_link_is_found_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the file that it points to, another module can have the name."""
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.mkdir()
    folder.mkdir()
    (elsewhere / "version_3.py").write_text("def build(number): return 3 * number\n")
    (elsewhere / "linked_program.py").write_text("def build(number): return -1\n")
    (folder / "linked_program.py").symlink_to(elsewhere / "version_3.py")
    monkeypatch.syspath_prepend(str(folder))
    program, found = function_program.reference(importlib.import_module("linked_program").build)
    assert (program, found) == ("linked_program:build", folder)
    assert imported(program, folder) == "6"


def test_a_function_that_no_module_has_is_stored_with_what_it_uses(tmp_path: Path) -> None:
    program, folder = function_program.reference(closure(100))
    assert (program, folder) == ("stored_program:build", None)
    assert function_program.write(function_program.contents(closure(100)), tmp_path / "program") == tmp_path / "program"
    assert imported(program, tmp_path / "program") == "143"


def test_a_file_that_was_loaded_under_another_name_is_stored(tmp_path: Path) -> None:
    """No process can import it by that name."""
    (tmp_path / "train.py").write_text("ADDED = 5\ndef build(number): return number + ADDED\n")
    code = """
import importlib.util, pathlib, sys
from psfleet.job.function_program import contents, reference, write
spec = importlib.util.spec_from_file_location("loaded_so", sys.argv[1] + "/train.py")
sys.modules["loaded_so"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
program, folder = reference(module.build)
assert folder is None, folder
write(contents(module.build), pathlib.Path(sys.argv[1]) / "program")
print(program)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert imported(done.stdout.strip(), tmp_path / "program") == "7"


def test_a_module_that_is_a_link_is_named_where_the_link_is(tmp_path: Path) -> None:
    (tmp_path / "kept" / "elsewhere").mkdir(parents=True)
    (tmp_path / "kept" / "elsewhere" / "version_2.py").write_text("def build(number): return 3 * number\n")
    (tmp_path / "linked_program.py").symlink_to(tmp_path / "kept" / "elsewhere" / "version_2.py")
    code = """
import sys; sys.path.insert(0, sys.argv[1])
import linked_program
from psfleet.job.function_program import reference
print(*reference(linked_program.build))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["linked_program:build", str(tmp_path)]
    assert imported("linked_program:build", tmp_path) == "6"


def test_a_class_of_a_script_stays_registered_with_keras(tmp_path: Path) -> None:
    """An exported model names its classes as they are registered, and is loaded where they are."""
    import keras  # Not above: other processes import this module for `build`, which needs no Keras.

    script = tmp_path / "script.py"
    script.write_text("""
import pathlib, sys, threading, keras
from psfleet.job import function_program

LOCK = threading.Lock()

@keras.saving.register_keras_serializable("own")
class Twice(keras.layers.Layer):
    def call(self, x):
        return 2 * x

@keras.saving.register_keras_serializable("own")
def unused(x):
    return LOCK

def build(number):
    return Twice()

function_program.write(function_program.contents(build), pathlib.Path(sys.argv[1]))
""")
    forked = os.fork()
    if forked == 0:
        run_as_main(script, str(tmp_path / "program"))
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
    layer = function_program.load((tmp_path / "program" / "stored_program.pkl").read_bytes())(2)
    assert keras.saving.get_registered_name(type(layer)) == "own>Twice"


def test_a_changed_function_has_another_digest(tmp_path: Path) -> None:
    """A worker that is started again must not train with another program than the rest of the fleet."""
    digests = []
    for add in (1, 1, 2):
        function_program.write(function_program.contents(closure(add)), tmp_path)
        digests.append(digest(program_files("stored_program:build", tmp_path)))
    assert digests[0] == digests[1] != digests[2]


def test_what_cannot_be_stored_is_refused_with_the_reason() -> None:
    lock = threading.Lock()

    def uses_a_lock() -> Any:
        return lock

    with pytest.raises(UsageError, match=r"program 'uses_a_lock' uses an object that cannot be passed.*lock"):
        function_program.contents(uses_a_lock)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(UsageError, match="program is 'program:build', expected a function that returns a KerasProgram"):
        function_program.reference("program:build")  # type: ignore[arg-type]
