"""Predictions whose driver and workers are containers: runs with their models, and the command."""

from __future__ import annotations

import shutil
import subprocess
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from psfleet.manifests.certificates_folder import certificates_folder
from support.compose_fleet import Fleet, psfleet
from support.exported_run import PROGRAM, trained
from support.images import docker
from support.programs import predicted_data

NAME = "net-predict"
WORKERS = ("worker-0", "worker-1")


class ComposePrediction(Fleet):
    """The fleet of a prediction with the model of the run in its folder."""

    @property
    def file(self) -> Path:
        """The predictions."""
        return self.folder / "out.npz"

    def predict(self, data: str = "held_in_container", source: str = "") -> None:
        """Starts `psfleet predict --on compose`; the source is the run in the folder by default."""
        command = psfleet("predict", source or str(self.folder), *self._of_data(data), "--out", str(self.file))
        with self._screen(len(self.commands) + 1).open("wb") as screen:
            process = subprocess.Popen(
                [*command, "--on", "compose"],
                stdin=subprocess.DEVNULL, stdout=screen, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.commands.append(process)

    def predicted_here(self, source: str = "") -> dict[str, bytes]:
        """What processes of this machine predict; source as for `predict`."""
        path = self.folder / "local.npz"
        self.run("predict", source or str(self.folder), *self._of_data("labelled"), "--out", str(path))
        return arrays(path)

    def hold(self) -> None:
        """No data set ends until `release`."""
        (self.folder / "hold").touch()

    def release(self) -> None:
        """See `hold`."""
        (self.folder / "hold").unlink()

    def is_reading(self, worker: str) -> bool:
        """Whether the present process of a worker reads the data set."""
        return docker("exec", self.container(worker), "test", "-e", "/tmp/reader", check=False).returncode == 0

    def _of_data(self, data: str) -> list[str]:
        return ["--data", f"predicted_data:{data}", "--workers", "2"]


def arrays(path: Path) -> dict[str, bytes]:
    """The arrays of a file by name, bit for bit; the archive around them depends on the version of Python."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@contextmanager
def compose_prediction(folder: Path) -> Iterator[ComposePrediction]:
    """A run folder with a program; everything that the engine has of its prediction is removed with the block."""
    folder.mkdir()
    shutil.copy(predicted_data.__file__, trained(folder))
    folder.chmod(0o755)
    found = ComposePrediction(NAME, folder)
    try:
        yield found
    finally:
        _end(found, NAME)


@contextmanager
def compose_run(folder: Path) -> Iterator[Fleet]:
    """A job that trains for a moment with `tls`; what the engine has of it and of its prediction is removed."""
    folder.mkdir()
    shutil.copy(predicted_data.__file__, folder)
    (folder / "versioned_program.py").write_text(PROGRAM)
    found = Fleet(f"test-{uuid.uuid4().hex[:8]}", folder)
    job = {
        "name": found.name,
        "program": "versioned_program:keras_program",
        "fleet": {"workers": 2},
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "train": {"steps": 3, "batch_size": 2},
        "tls": True,
    }
    found.job.write_text(yaml.safe_dump(job))
    folder.chmod(0o755)
    try:
        yield found
    finally:
        _end(found, found.name, f"{found.name}-predict")


def _end(found: Fleet, *names: str) -> None:
    """Ends all commands, and removes fleets."""
    for command in found.commands:
        command.kill()
        command.wait()
    for name in names:
        if Fleet(name, found.folder).left():
            subprocess.run(psfleet("down", name, "--results"), stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(certificates_folder(name), ignore_errors=True)
