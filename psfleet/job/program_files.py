"""The Python files of a training program and their digest, which is the same in all processes of a run.

A program's files are its module and the modules of the same folder that it imports, directly or not; the modules of the
job's callbacks in that folder count, too. They are found in
the `import` statements, without importing anything, because an edit of an unrelated file must not end a run. Of a
program that is installed on Python's path, only its top-level package or module counts: the packages beside it may
differ between images. Not found are modules that are imported by a computed name, and files that are not Python.
Symbolic links are followed: Kubernetes mounts the files of a ConfigMap as links.
"""

from __future__ import annotations

import ast
import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from psfleet.job.callback import MLFLOW
from psfleet.job.job import Job

MAX_FILES = 1000
"""A program with more has the digest of the first of them, in the order in which they are found."""
DIGEST_CHARS = 16
PROGRAM_DIGEST = "program_digest"
"""Key of a manifest's extra content: the digest of the program that trained the checkpoint."""


def job_files(job: Job, folder: Path) -> dict[str, str]:
    """The files of a job's program and of its callbacks; see `program_files`."""
    return program_files(job.program, folder, [spec.use for spec in job.callbacks if spec.use != MLFLOW])


def program_files(program: str, folder: Path, callbacks: Sequence[str] = ()) -> dict[str, str]:
    """The files of a program and the digests of their contents, by path relative to the folder that has its module.

    Args:
        program: `module:callable`, as in the job file.
        folder: The folder that is searched before Python's path, as by `load_program`.
        callbacks: `module:callable` each. They count if they are in `folder`; an installed package that only the chief
            imports need not be the same in all images.

    Returns:
        Empty if there is no such module in a folder.
    """
    found: dict[str, str] = {}
    _add_files(found, _module(program), _base(_module(program), folder), folder)
    for module in map(_module, callbacks):
        if _base(module, folder) == folder:
            _add_files(found, module, folder, folder)
    return found


def _module(reference: str) -> str:
    return reference.partition(":")[0]


def _add_files(found: dict[str, str], module: str, base: Path | None, folder: Path) -> None:
    """Adds the files of a module below `base`, and of what it imports from there."""
    if base is None:
        return
    root = module.partition(".")[0]
    waiting, seen = [module], set[str]()
    while waiting and len(found) < MAX_FILES:
        name = waiting.pop(0)
        if name in seen or (base != folder and name.partition(".")[0] != root):
            continue
        seen.add(name)
        for path, package in _files(base, name):
            relative = path.relative_to(base).as_posix()
            if relative not in found:
                content = _read(path)
                found[relative] = hashlib.sha256(content).hexdigest()[:DIGEST_CHARS]
                waiting.extend(_imports(content, package))


def digest(files: Mapping[str, str]) -> str:
    """One digest for all files of a program; empty if there are none."""
    if not files:
        return ""
    text = "".join(f"{name}\n{content}\n" for name, content in sorted(files.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]


def first_difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """The first file, by name, that is not the same in both; empty if there is none."""
    return next((name for name in sorted({*one, *other}) if one.get(name) != other.get(name)), "")


def _base(module: str, folder: Path) -> Path | None:
    """The folder that has the top-level module or package of a module."""
    root = module.partition(".")[0]
    if _holds(Path.is_file, folder / f"{root}.py") or _holds(Path.is_dir, folder / root):
        return folder
    try:
        spec = PathFinder.find_spec(root)
    except (ImportError, ValueError, OSError):
        return None
    if spec is None or spec.origin is None:
        return None
    origin = Path(spec.origin)
    return origin.parents[1] if spec.submodule_search_locations else origin.parent


def _files(base: Path, name: str) -> Iterator[tuple[Path, str]]:
    """The files that the import of a module executes below a folder, each with the package that it belongs to."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        dotted, place = ".".join(parts[:length]), base.joinpath(*parts[:length])
        for path, package in (
            (place / "__init__.py", dotted),
            (place.with_name(f"{place.name}.py"), ".".join(parts[: length - 1])),
        ):
            if _holds(Path.is_file, path):
                yield path, package
                break


def _imports(content: bytes, package: str) -> Iterator[str]:
    """The modules that a file imports, and the names that it imports from them, which may be modules."""
    with warnings.catch_warnings():
        # Warnings of the parser about the program's text: Python shows them when it imports the program.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError, RecursionError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".") if package else []
            above = above[: len(above) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            yield from ([module] if module else [])
            yield from (f"{module}.{alias.name}" if module else alias.name for alias in node.names)


def _holds(test: Callable[[Path], bool], path: Path) -> bool:
    """The result of `Path.is_file` or `Path.is_dir`; False where they raise, in a folder that cannot be read."""
    try:
        return test(path)
    except OSError:
        return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
