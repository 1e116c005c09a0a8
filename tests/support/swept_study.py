"""A study under test: its files, and `psfleet sweep` as a command."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from psfleet.processes.command import Process
from support import commands

PROGRAM = Path(__file__).parent / "programs" / "swept_program.py"
END_SECS = 90.0
"""Until a study has ended; about 6 on an idle machine."""


@dataclass(frozen=True)
class SweptStudy:
    """The folder of a study's files."""

    folder: Path

    @classmethod
    def make(
        cls,
        folder: Path,
        space: Mapping[str, Any],
        options: Mapping[str, Any] | None = None,
        deadlines: Mapping[str, float] | None = None,
        **fields: Any,
    ) -> SweptStudy:
        """Writes program, job and study file; `fields` replace those of the study file."""
        shutil.copy(PROGRAM, folder)
        job = {
            "name": "swept",
            "program": "swept_program:build",
            "options": {"folder": str(folder), **(options or {})},
            "optimizer": {"name": "momentum", "learning_rate": 0.1},
            "train": {"steps": 4, "batch_size": 4, "shuffle": 16, "seed": 7},
            "device": {"intra_op_threads": 1},
            "deadlines": dict(deadlines or {}),
        }
        study = {
            "name": "swept",
            "job": "job.yaml",
            "space": dict(space),
            "objective": {"metric": "loss", "direction": "minimize"},
            "search": {"kind": "grid"},
            **fields,
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(job))
        (folder / "study.yaml").write_text(yaml.safe_dump(study))
        return cls(folder)

    @property
    def out(self) -> Path:
        """The folder of the results."""
        return self.folder / "studies" / "swept"

    @property
    def screen(self) -> str:
        """What the command of `start` has printed."""
        return (self.folder / "screen").read_text()

    def run(self) -> subprocess.CompletedProcess[str]:
        """Runs the study to its end."""
        return commands.psfleet(self.folder, "sweep", "study.yaml", timeout_secs=END_SECS)

    def start(self) -> Process:
        """Starts the study."""
        screen = self.folder / "screen"
        return commands.started("psfleet", "sweep", "study.yaml", folder=self.folder, out=screen, err=screen)

    def rows(self) -> list[dict[str, str]]:
        """The lines of `trials.csv`."""
        with (self.out / "trials.csv").open() as file:
            return list(csv.DictReader(file))

    def reads(self) -> list[str]:
        """The process ids of all readings of the training data."""
        return (self.folder / "reads").read_text().split()
