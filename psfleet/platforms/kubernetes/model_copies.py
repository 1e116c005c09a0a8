"""Copies the models of a service that are on this machine to the service's claim, before its members start."""

from __future__ import annotations

import io
import secrets
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from psfleet.checkpoint import versions
from psfleet.checkpoint.location import CHECKPOINTS
from psfleet.checkpoint.manifest import MANIFEST
from psfleet.control.relay_client import Command
from psfleet.errors import LostPeerError, PsfleetError
from psfleet.job.job import Job
from psfleet.job.service_plan import PlannedModel, ServicePlan
from psfleet.launch.platform import Request
from psfleet.manifests import container
from psfleet.manifests.kubernetes.pod_settings import apply_placement
from psfleet.manifests.kubernetes.service_models import MODELS, copy_folder, writer
from psfleet.platforms.kubernetes.api import Cluster
from psfleet.platforms.kubernetes.events import WaitReasons
from psfleet.platforms.kubernetes.exec import running
from psfleet.platforms.kubernetes.volume_reader import helper_pod

SCRIPT = """
import os, shutil, sys, tarfile, uuid

target, manifest = sys.argv[1:]
part = f".{uuid.uuid4().hex}.part"
held, copied = [], set()
try:
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for entry in archive:
            path = os.path.join(target, entry.name)
            folder = os.path.dirname(path)
            os.makedirs(folder, exist_ok=True)
            held.append(path)
            with open(path + part, "wb") as file:
                shutil.copyfileobj(archive.extractfile(entry), file)
            is_checkpoint = os.path.basename(os.path.dirname(folder)) == "checkpoints"
            if os.path.basename(path) == manifest:
                copied.add(folder)
            elif is_checkpoint:
                continue
            while held:
                os.replace(held[0] + part, held.pop(0))
    for checkpoints in {os.path.dirname(folder) for folder in copied}:
        others = {os.path.join(checkpoints, each) for each in os.listdir(checkpoints)} - copied
        for folder in others:
            if os.path.isfile(os.path.join(folder, manifest)):
                os.remove(os.path.join(folder, manifest))
                shutil.rmtree(folder, ignore_errors=True)
except OSError as error:
    sys.exit(str(error))
finally:
    for path in held:
        if os.path.exists(path + part):
            os.remove(path + part)
"""
"""Unpacks an archive of files, each of which appears as a whole: members may read there, and another command write.

Those of a checkpoint appear at once, when its manifest has come: there may be one of the same step, of an earlier run.
Then it deletes the other checkpoints of a run, which would fill the claim, or be of later steps of an earlier run, if
the new one is whole: a connection that breaks may end the archive between two files. It ends with the archive, because
the API cannot close the command's input."""
UNPACK_SECS = 120.0
"""How long the command may take after the end of the archive."""


def copy_models(cluster: Cluster, reasons: WaitReasons, job: Job, plan: ServicePlan) -> None:
    """Copies models to the claim of a service; if all are results of fleets, nothing.

    Raises:
        UsageError, NoCheckpointError: As of `versions.find`.
        DeadlineError: The pod that writes does not start within `deadlines.start_secs`.
        LostPeerError: The API does not answer, the copy broke off, or a file was deleted meanwhile.
    """
    files = {
        f"{copy_folder(number)}/{name}": path
        for number, model in enumerate(plan.models)
        if model.folder
        for name, path in model_files(model).items()
    }
    if not files:
        return
    content = apply_placement(job.kubernetes, writer(job, f"{job.name}-{MODELS}-{secrets.token_hex(3)}"))
    with (
        helper_pod(cluster, reasons, job, content, "which takes the models") as pod,
        running(cluster, pod, MODELS, ("python", "-c", SCRIPT, container.OUT, MANIFEST)) as command,
    ):
        try:
            _send(command, files)
        except OSError as error:
            raise LostPeerError(f"{error.filename}: {error.strerror or error} while it was copied") from error
        except LostPeerError:
            # The command takes nothing more once it has failed, for example because the volume is full.
            _await_end(command, pod)
            raise
        _await_end(command, pod)


def copy_newer(request: Request, context: str | None, namespace: str | None) -> None:
    """Copies the models of a service that is up again: its members take newer checkpoints. Errors as of `copy_models`.

    Args:
        context, namespace: As of `Kubernetes`.
    """
    plan = request.activity.service if request.activity is not None else None
    if plan is not None:
        cluster = Cluster(context, namespace)
        try:
            copy_models(cluster, WaitReasons(cluster), request.job, plan)
        except PsfleetError as error:
            error.args = (f"{error}; service {request.job.name} stays, with the copies that it has",)
            raise


def model_files(model: PlannedModel) -> dict[str, Path]:
    """The files of a model on this machine, by their paths in the folder of the model in a container."""
    folder, source = Path(model.folder), model.source
    if source.run is None:
        name = Path(source.weights).name
        return {name: folder / name}
    checkpoint = versions.find(folder, source.step, source.best, is_live=True)
    assert isinstance(checkpoint.folder, Path), "it is not in a store"
    found = sorted(each for each in checkpoint.folder.iterdir() if each.is_file())
    # A checkpoint is one when its manifest is there.
    found.sort(key=lambda each: each.name == MANIFEST)
    return {f"{CHECKPOINTS}/{checkpoint.folder.name}/{each.name}": each for each in found}


class _Input(io.RawIOBase):
    """The standard input of a command, as a file that is written."""

    def __init__(self, command: Command) -> None:
        self._command = command

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        content = bytes(cast(bytes, data))
        self._command.send(content)
        return len(content)


def _send(command: Command, files: Mapping[str, Path]) -> None:
    with tarfile.open(fileobj=_Input(command), mode="w|", dereference=True) as archive:
        for name, path in files.items():
            archive.add(path, name, recursive=False)


def _await_end(command: Command, pod: str) -> None:
    until = time.monotonic() + UNPACK_SECS
    while command.receive(timeout_secs=1.0) is not None:
        if time.monotonic() > until:
            raise LostPeerError(f"pod {pod} has not stored the models within {UNPACK_SECS:g} s")
    end = command.end()
    if end.code != 0:
        raise LostPeerError(f"pod {pod} cannot store the models: {end.text or 'no message'}")
