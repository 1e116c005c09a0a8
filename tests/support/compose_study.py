"""A study of two trials whose driver and workers are containers: its files, its command, and what the engine has."""

from __future__ import annotations

import csv
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.numpy
import yaml

from psfleet.manifests.certificates_folder import certificates_folder
from support.compose_fleet import Fleet, psfleet
from support.swept_study import SweptStudy

SPACE = {"optimizer.learning_rate": {"choice": [0.01, 0.02]}}


@dataclass
class ComposeStudy(Fleet):
    """The fleet of a study, whose program is held by a file `hold` in the folder `gates`."""

    def sweep(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts `psfleet sweep --on compose`."""
        command = psfleet("sweep", str(self.folder / "study.yaml"), "--on", "compose")
        with self._screen(len(self.commands) + 1).open("wb") as screen:
            process = subprocess.Popen(
                [*command, "--out", str(self.out), *arguments],
                stdin=subprocess.DEVNULL, stdout=screen, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.commands.append(process)
        return process

    def weights(self) -> dict[str, Mapping[str, Any]]:
        """The copied weights of each trial."""
        return {path.name: safetensors.numpy.load_file(path) for path in sorted((self.out / "weights").iterdir())}

    def rows(self) -> list[dict[str, str]]:
        """The lines of the copied `trials.csv`."""
        with (self.out / "trials.csv").open() as file:
            return list(csv.DictReader(file))

    def release(self) -> None:
        """From now on no step is held."""
        (self.folder / "hold").unlink()

    def trials_begun(self, worker: int) -> int:
        """How many trials a worker has begun, over all its processes."""
        return len(self.entries("trial", f"worker-{worker}"))


@contextmanager
def compose_study(folder: Path, tls: bool = False, held: bool = False, **deadlines: float) -> Iterator[ComposeStudy]:
    """A study of two trials on two workers; everything that the engine has of it is removed with the block.

    Args:
        held: Whether no step ends until `release`.
        deadlines: Of the job.
    """
    name = f"test-{uuid.uuid4().hex[:8]}"
    folder.mkdir(exist_ok=True)
    options = {"folder": "/tmp", "gate": "/program"}
    SweptStudy.make(folder, SPACE, options, deadlines, name=name, fleet={"workers": 2})
    job = yaml.safe_load((folder / "job.yaml").read_text())
    (folder / "job.yaml").write_text(yaml.safe_dump({**job, "tls": tls}))
    (folder / "other.yaml").write_text(yaml.safe_dump({**job, "name": name}))
    if held:
        (folder / "hold").touch()
    folder.chmod(0o755)
    found = ComposeStudy(name, folder)
    try:
        yield found
    finally:
        for command in found.commands:
            command.kill()
            command.wait()
        if found.left():
            subprocess.run(psfleet("down", name, "--results"), stdin=subprocess.DEVNULL, capture_output=True)
        shutil.rmtree(certificates_folder(name), ignore_errors=True)
