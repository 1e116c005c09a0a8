"""For all tests: a quiet TensorFlow, a time limit by folder and, in `fleet`, a check for processes that are left."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from support.commands import session_pids
from support.preloaded_tests import preloaded_tests

from psfleet.polling import wait_until
from psfleet.service.process import STOP_SIGNALS

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
# TensorFlow asks for each node of each graph whether oneDNN has a kernel for it: a tenth of the time of a short run.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

# Until pytest_collection_finish: Keras imports scikit-learn where that is installed, a fifth of TensorFlow's import.
sys.modules["sklearn"] = None  # type: ignore[assignment]

# Until pytest_collection_finish: a fifth of the time of all imports, which hardly leave garbage.
gc.disable()

# A shell that runs the tests in the background has them ignore SIGINT, and so their children, whose Ctrl-C is tested.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("psfleet", deadline=None)
hypothesis.settings.load_profile("psfleet")
hypothesis.settings.register_profile("interleavings", max_examples=10_000, deadline=None)
"""For tests/unit/ps_service/test_fleet_view_interleavings.py: `--hypothesis-profile=interleavings`."""

TESTS = Path(__file__).parent
TIME_LIMIT_SECS = {"unit": 60, "fleet": 180, "compose": 240, "kind": 600}
"""The limit of one test by its folder; a test's own `pytest.mark.timeout` comes first."""

WAITS = {
    "test_background.py",
    "test_dense_export.py",
    "test_dynamic_data.py",
    "test_fresh_in_a_store.py",
    "test_loaded_data.py",
    "test_loader_restarts.py",
    "test_slow_clients.py",
    "test_watched_process.py",
}
"""Files of unit tests that wait for more than five seconds."""

PROGRAM_MODULES = ("program", "helper")
"""Names of modules that several tests write, each in a folder of its own."""

LEAK_MARK = "PSFLEET_TEST_MARK"
"""Environment variable that every process started below a fleet test inherits; nothing in the product reads it."""
LAST_MOMENT_SECS = 5.0
"""How long after its end a fleet test's processes may take to vanish."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Has the processes of a parallel test run forked from one that has imported the tests."""
    until_end = ExitStack()
    config.add_cleanup(until_end.close)
    interpreter = until_end.enter_context(preloaded_tests(config.invocation_params.args))
    for spec in specs:
        spec.python = interpreter


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test its folder's time limit, and orders the files."""
    items[:] = _interleaved(items)
    for item in items:
        limit_secs = TIME_LIMIT_SECS.get(_level(item.path))
        if limit_secs is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(limit_secs))


def _interleaved(items: list[pytest.Item]) -> list[pytest.Item]:
    """The files that wait for a long time, above all those of `fleet`, spread over the others.

    The last fifth has neither: its short files keep all processes of a test run busy until the end. Files are ordered
    by their names without folders, since the folders differ in how long their files compute.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    kinds: dict[str, list[Path]] = {"fleet": [], "waits": [], "": []}
    for path in sorted(files, key=lambda path: (path.name, path), reverse=True):
        kinds["fleet" if _level(path) == "fleet" else "waits" if path.name in WAITS else ""].append(path)
    ends = {"fleet": 0.8, "waits": 0.8, "": 1.0}
    places = {path: ends[kind] * at / len(paths) for kind, paths in kinds.items() for at, path in enumerate(paths)}
    return [item for path in sorted(files, key=lambda path: places[path]) for item in files[path]]


def pytest_collection_finish() -> None:
    """Exempts what was imported from garbage collection: Keras collects for each model, which takes 0.4 s with it.

    Programs of tests can import scikit-learn from now on.
    """
    if sys.modules.get("sklearn", "") is None:
        del sys.modules["sklearn"]
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _own_path() -> list[str]:
    """The folders of modules before any test."""
    return list(sys.path)


@pytest.fixture(autouse=True)
def _no_program_left(_own_path: list[str]) -> Iterator[None]:
    """Undoes the import of training programs: a test process has those of many tests, and most are named `program`."""
    yield
    sys.path[:] = _own_path
    for name in PROGRAM_MODULES:
        sys.modules.pop(name, None)


@pytest.fixture(autouse=True)
def _default_log_level() -> None:
    """Undoes what a command in this process has set: a test that reads log entries would miss some."""
    logging.getLogger("psfleet").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _no_signal_handler_left() -> Iterator[None]:
    """Fails a test after which signals have other handlers: a later test of this process would miss a signal."""
    before = [signal.signal, *map(signal.getsignal, STOP_SIGNALS)]
    yield
    assert [signal.signal, *map(signal.getsignal, STOP_SIGNALS)] == before, "the test has left a signal handler"


@pytest.fixture(autouse=True)
def _no_process_left(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a fleet test that leaves a process behind, orphans of its children included, and kills what it left.

    Processes that a fork server forked show its environment in /proc, without the mark: they are known by descent.
    What a process from before the test starts, such as the supervisor of a module's fleet, belongs to that process.
    """
    if _level(request.path) != "fleet":
        yield
        return
    mark = uuid.uuid4().hex
    monkeypatch.setenv(LEAK_MARK, mark)
    before = set(_descendants())
    yield
    try:
        wait_until(
            lambda: _left(mark, before),
            LAST_MOMENT_SECS,
            "the end of every process that the test started",
            done=lambda left: not left,
        )
    finally:
        for pid in _left(mark, before):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _level(path: Path) -> str:
    """The folder below `tests` that a test lies in."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def _left(mark: str, before: set[int]) -> dict[int, str]:
    """Command lines, by pid, of new descendants and of every process that carries the mark."""
    descendants = _descendants()
    earlier = before | {pid for pid, parent in descendants.items() if parent in before}
    pids = (set(descendants) - earlier) | set(_marked(mark))
    commands = {pid: _read(pid, "cmdline").replace("\0", " ").strip() or "(ended, never waited for)" for pid in pids}
    return {
        pid: command
        for pid, command in commands.items()
        if "multiprocessing.resource_tracker" not in command and not _is_reaper_of(pid, earlier)
    }


def _is_reaper_of(pid: int, leaders: set[int]) -> bool:
    """Whether a process only waits for the end of one of these, which runs (see `psfleet.service.children`)."""
    _, _, fields = _read(pid, "stat").rpartition(") ")
    return _read(pid, "comm").strip() == "psfleet-reaper" and int(fields.split()[2]) in leaders


def _descendants() -> dict[int, int]:
    """Parents by process id of what runs below this session, ended processes that nobody has waited for included."""
    tops = session_pids()
    parents: dict[int, int] = {}
    for pid in _pids():
        _, _, fields = _read(pid, "stat").rpartition(") ")
        if fields:
            parents[pid] = int(fields.split()[1])
    found = {}
    for pid, parent in parents.items():
        ancestor: int | None = parent
        while ancestor is not None and ancestor not in tops:
            ancestor = parents.get(ancestor)
        if ancestor is not None and pid not in tops:
            found[pid] = parent
    return found


def _marked(mark: str) -> Iterator[int]:
    """Other processes that inherited the mark."""
    for pid in _pids():
        if pid != os.getpid() and f"{LEAK_MARK}={mark}" in _read(pid, "environ"):
            yield pid


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def _read(pid: int, name: str) -> str:
    """A file of /proc, empty when the process is gone or not ours."""
    try:
        return Path("/proc", str(pid), name).read_text(errors="replace")
    except OSError:
        return ""
