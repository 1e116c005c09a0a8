"""Training programs that are functions of the caller, of a notebook for example: how other processes import them.

A function at the top level of a module is named. Any other one, and all that a notebook or a script defines, is stored
by value with cloudpickle, in a module that loads it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from psfleet.errors import UsageError

MODULE = "stored_program"
CALLABLE = "build"
FILES = (f"{MODULE}.pkl", f"{MODULE}.py")
"""The files of a function that is stored by value."""

_SOURCE = '''"""The training program that `psfleet.train(program=...)` was called with; written by psfleet."""

import sys
from pathlib import Path

from psfleet.job.function_program import load

SHA256 = {sha256!r}
"""Of the stored function, so that the digest of this file is that of the program."""

sys.path += [folder for folder in {folders!r} if folder not in sys.path]
{callable} = load(Path(__file__).with_suffix(".pkl").read_bytes())
'''


def reference(function: Callable[..., Any]) -> tuple[str, Path | None]:
    """How the processes of a run find a function.

    Returns:
        `program` of the job, `module:callable`, and the folder to search first; None: it has to be stored, see
        `contents`.

    Raises:
        UsageError: It is not a function.
    """
    if not callable(function):
        raise UsageError(f"program is {function!r}, expected a function that returns a KerasProgram or GraphProgram")
    module, name = _module_of(function), getattr(function, "__name__", "")
    folder = _import_folder(module)
    if module is None or folder is None or getattr(module, name, None) is not function:
        return f"{MODULE}:{CALLABLE}", None
    return f"{module.__name__}:{name}", folder


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    return sys.modules.get(getattr(function, "__module__", None) or "")


def _import_folder(module: ModuleType | None) -> Path | None:
    """The folder from which a module is imported by its name; None if it cannot be, as a file loaded under another."""
    file = getattr(module, "__file__", None)
    if module is None or module.__name__ == "__main__" or file is None:
        return None
    # Links are not followed: the name is that of the link.
    path = Path(os.path.abspath(file))
    path = path.parent if path.name == "__init__.py" else path.with_name(path.name.partition(".")[0])
    parts = module.__name__.split(".")
    return path.parents[len(parts) - 1] if path.parts[-len(parts) :] == tuple(parts) else None


def contents(function: Callable[..., Any]) -> dict[str, bytes]:
    """The files by which other processes import a function, with all that it uses of the notebook or script around it.

    Modules are stored by name: those that the caller can import, the program can, too.

    Raises:
        UsageError: It uses an object that cannot be stored.
    """
    try:
        content = _by_value(function)
    except Exception as error:
        raise UsageError(
            f"program {getattr(function, '__name__', function)!r} uses an object that cannot be passed to other "
            f"processes ({type(error).__name__}: {error}); expected it to be made inside of the function"
        ) from error
    folders = [os.path.abspath(entry) for entry in sys.path]
    source = _SOURCE.format(sha256=hashlib.sha256(content).hexdigest(), folders=folders, callable=CALLABLE)
    return dict(zip(FILES, (content, source.encode()), strict=True))


def write(files: Mapping[str, bytes], folder: Path) -> Path:
    """Writes the files of a function into a folder, and returns the folder.

    Raises:
        UsageError: The folder cannot be written.
    """
    try:
        folder.mkdir(exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror or error}, expected a folder that can be written") from error
    return folder


def load(content: bytes) -> Callable[..., Any]:
    """The function in a file of `contents`; registers with Keras the objects that were registered beside it."""
    function, registered = cloudpickle.loads(content)
    for name, value in registered.items():
        package, separator, own = name.rpartition(">")
        if separator:
            sys.modules["keras"].saving.register_keras_serializable(package, own)(value)
        else:
            sys.modules["keras"].saving.get_custom_objects()[name] = value
    return function


def _by_value(function: Callable[..., Any]) -> bytes:
    """A function as bytes, with what it uses of its module if that cannot be imported by its name."""
    module = _module_of(function)
    is_stored = module is not None and module.__name__ in cloudpickle.list_registry_pickle_by_value()
    if is_stored or getattr(module, "__file__", None) is None or _import_folder(module) is not None:
        return _dumped(function)
    cloudpickle.register_pickle_by_value(module)
    try:
        return _dumped(function)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _dumped(function: Callable[..., Any]) -> bytes:
    """A function and what its module has registered with Keras, by name.

    The decorator `register_keras_serializable` does not run where a class is loaded by value. Without the registration
    an exported model would name the class as if it had none, and `keras.models.load_model` would not find it.
    """
    keras = sys.modules.get("keras")
    objects = {} if keras is None else keras.saving.get_custom_objects()
    own = {name: each for name, each in objects.items() if getattr(each, "__module__", None) == function.__module__}
    return cloudpickle.dumps((function, {name: each for name, each in own.items() if _can_be_stored(each)}))


def _can_be_stored(value: object) -> bool:
    """Whether an object can be stored; one that the program does not use need not be."""
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
