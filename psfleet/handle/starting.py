"""Starts runs, as processes or in containers, and attaches to runs."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from psfleet import errors
from psfleet.errors import BadJobError, NoCheckpointError, ProgramError, PsfleetError, UsageError
from psfleet.handle.container_channel import ContainerChannel
from psfleet.handle.local_channel import LocalChannel
from psfleet.handle.run import Run
from psfleet.job import function_program
from psfleet.job.job import Job, load_job, name_of, parse_job
from psfleet.launch.platform import KUBERNETES, Platform, Request, chief_of
from psfleet.launch.results_folder import require_usable
from psfleet.launch.shown import require
from psfleet.launch.up import start as start_fleet
from psfleet.platforms.choice import platform, require_known
from psfleet.platforms.standing.placing import certificates_of, on_fleet
from psfleet.platforms.standing.platform import standing_platform
from psfleet.run_folder import HOSTS, LOCAL, Owner, claimed, default_folder, owner
from psfleet.service import process_environment

MODULE = "psfleet.handle.background"
_ERRORS = {kind.exit_code: kind for kind in (UsageError, BadJobError, NoCheckpointError, ProgramError)}


def start(
    job: Job | Path | str | Mapping[str, Any],
    *,
    program: Callable[..., Any] | None = None,
    out: Path | str | None = None,
    fresh: bool = False,
    overrides: Sequence[str] = (),
    program_folder: Path | str | None = None,
    paused: bool = False,
    fleet: str | None = None,
    on: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> Run:
    """Starts a job, and returns once the run has claimed its folder, or its containers are started.

    The run does not end with this process: `attach` finds it again, from any process. `Run.stop` ends it.

    Args:
        job: A job, its content as a mapping, or the path of a job file.
        program: The function that returns the training program, instead of `job.program`: of a module, or defined in a
            notebook or script, with all that it uses there. With `on`, it is one of a module.
        out: The run's folder; `runs/<name>` by default. If it has checkpoints, training resumes from the newest.
        fresh: Whether the results of an earlier run are deleted first: in `out`, and on the platform.
        overrides: `key=value` texts that change the job, as `--set` of `psfleet train`.
        program_folder: Searched first for the program's module; the job file's folder by default, or else the current
            one.
        paused: Whether the run is held at the step that it starts from, and trains only as `Run.train` says.
        fleet: Name of the standing fleet whose ps are trained on, all of them: of this machine, or with `on` of that
            platform; None: the run starts its own.
        on: compose or kubernetes, where training resumes from what is there; None: processes of this machine.
        context: On Kubernetes, of the kubeconfig file; None: the current one.
        namespace: On Kubernetes; None: that of the context.

    Returns:
        The handle; of a run that is done already, that one.

    Raises:
        UsageError: The job file, the program, the folder or the standing fleet cannot be used, TensorFlow is not
            installed, or the platform refuses the fleet or has one of this name that runs.
        BadJobError: The job is not valid, or ends before the newest checkpoint in `out`.
        LostPeerError: The platform does not answer.
    """
    if on is not None:
        require_known(on)
    loaded, folder, files = _loaded(job, program, overrides, program_folder, on)
    if fleet is not None:
        loaded = on_fleet(loaded, fleet, None if on is None else standing_platform(on, context, namespace))
    path = Path(out) if out is not None else default_folder(loaded.name, on or LOCAL)
    if on is not None:
        place = platform(on, context, namespace)
        # The job's file is read no more: its folder is the program's.
        _start_fleet(place, Request(loaded, folder / "job.yaml", fresh, paused, fleet or ""), path, on)
        return Run(ContainerChannel(place, on, loaded.name, path.resolve()))
    _require_no_cluster(context, namespace)
    certificates = None if fleet is None else certificates_of(fleet)
    _start_processes(loaded, folder, path, {"fresh": fresh, "paused": paused}, files, certificates)
    return Run(LocalChannel(path.resolve()))


def attach(
    run: Path | str,
    *,
    on: str | None = None,
    out: Path | str | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> Run:
    """A handle on a run that another process may have started; also on one that has ended.

    Args:
        run: The run's folder; with `on`, also the job file or the job's name.
        on: compose or kubernetes; None: as the folder says.
        out: With a job's file or name, the run's folder; `runs/<name>` by default.
        context: On Kubernetes, of the kubeconfig file; None: the current one.
        namespace: On Kubernetes; None: that of the context.

    Raises:
        UsageError: There is no such run, or it is one of `psfleet task`, of which there is no handle.
        LostPeerError: The platform does not answer.
    """
    folder = Path(run).resolve()
    found = owner(folder) if folder.is_dir() else None
    if on is None:
        if found is None:
            raise UsageError(f"{run}: no run, expected the folder of one")
        if found.platform in ("", LOCAL):
            _require_no_cluster(context, namespace)
            return Run(LocalChannel(folder))
        if found.platform == HOSTS:
            raise UsageError(f"{run}: has a run of `psfleet task`, of which there is no handle")
        on = found.platform
    if found is not None and found.platform not in ("", on):
        raise UsageError(f"{run}: has a run on platform {found.platform}, expected one on {on}")
    name = found.name if found is not None else name_of(str(run))
    if found is None:
        folder = Path(out if out is not None else default_folder(name, on)).resolve()
    place = platform(on, context, namespace)
    if not place.members(name) and owner(folder) != Owner(name, on):
        require(place, name)
    return Run(ContainerChannel(place, on, name, folder))


def _function(
    program: Callable[..., Any], program_folder: Path | str | None, on: str | None
) -> tuple[str, Path | str | None, Mapping[str, bytes]]:
    """How a run imports a function: the job's `program`, the folder to search first, and the files to store.

    Raises:
        UsageError: It has to be stored by value, and the images of a platform may have other versions of packages.
    """
    name, own_folder = function_program.reference(program)
    if own_folder is not None:
        return name, own_folder, {}
    if on is not None:
        raise UsageError(
            f"program {getattr(program, '__name__', program)!r} is defined in a script or notebook, which containers "
            f"on {on} cannot import; expected a function of a module beside the job's other files"
        )
    return name, program_folder, function_program.contents(program)


def _loaded(
    job: Job | Path | str | Mapping[str, Any],
    program: Callable[..., Any] | None,
    overrides: Sequence[str],
    program_folder: Path | str | None,
    on: str | None,
) -> tuple[Job, Path, Mapping[str, bytes]]:
    """The resolved job, the folder of its program, and the files to store; see `start`."""
    files: Mapping[str, bytes] = {}
    if program is not None:
        name, program_folder, files = _function(program, program_folder, on)
        overrides = [*overrides, f"program={name}"]
    folder = Path(program_folder) if program_folder is not None else Path()
    if isinstance(job, str | Path):
        return load_job(Path(job), overrides), Path(job).parent if program_folder is None else folder, files
    content = job.model_dump(mode="json") if isinstance(job, Job) else job
    return parse_job(content, overrides=overrides), folder, files


def _start_fleet(place: Platform, request: Request, path: Path, on: str) -> None:
    """Starts a fleet in containers, and marks the run's folder as its own.

    Raises:
        UsageError: A fleet of this name runs, or the folder cannot be used.
    """
    job = request.job
    require_usable(place, job, path, request.fresh, on)
    chief = chief_of(place.members(job.name))
    if chief is not None and chief.state != "created" and not chief.is_over:
        raise UsageError(f"fleet {job.name} runs, expected one that is down: psfleet.attach finds it")
    start_fleet(place, request)
    # Only now, because a fresh run deletes the results in it.
    with claimed(path, job, fresh=request.fresh, platform=on, keeps=not request.fresh):
        return


def _start_processes(
    job: Job,
    folder: Path,
    path: Path,
    options: Mapping[str, bool],
    program_files: Mapping[str, bytes],
    certificates: Path | None,
) -> None:
    """Starts a run of local processes in a launcher of its own; `certificates` as for `train_resolved`."""
    process_environment.require_tensorflow()
    request = {
        "job": job.model_dump(mode="json"),
        "out": str(path.resolve()),
        "program_folder": str(folder.resolve()),
        "program_files": {name: base64.b64encode(content).decode() for name, content in program_files.items()},
        "certificates": None if certificates is None else str(certificates),
        **options,
    }
    _launch(request)


def _require_no_cluster(context: str | None, namespace: str | None) -> None:
    for option, value in (("context", context), ("namespace", namespace)):
        if value is not None:
            raise UsageError(f"{option}={value!r}: expected only with on={KUBERNETES!r}")


def _launch(request: Mapping[str, Any]) -> None:
    """Starts the launcher, and waits for its first line: it has claimed the folder, or an error."""
    with tempfile.TemporaryFile() as problems:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=problems,
            env=process_environment.for_child({}),
            start_new_session=True,
        )
        # Reaps the launcher when it ends, which may be hours from now.
        threading.Thread(target=process.wait, name="launcher", daemon=True).start()
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdout:
            # A launcher that has ended before it has read the request says why below.
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(request).encode())
            line = process.stdout.readline()
        if not line:
            problems.seek(0)
            text = problems.read().decode(errors="replace").strip() or f"exit code {process.wait()}"
            raise PsfleetError(f"the launcher ended before it claimed the run folder: {text.splitlines()[-1]}")
    answer = json.loads(line)
    if answer["exit_code"] != errors.DONE:
        error = _ERRORS.get(answer["exit_code"], PsfleetError)(answer["message"])
        error.exit_code = answer["exit_code"]
        raise error
