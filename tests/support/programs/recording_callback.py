"""A callback that writes its calls into its own folder, one line each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import psfleet
from psfleet.callbacks import RunInfo


class Recording(psfleet.Callback):
    """Records the start, each evaluation, each checkpoint and the end."""

    def on_start(self, run: RunInfo) -> None:
        """Appends to the file of an earlier chief of the run."""
        self._file = run.state / "calls"
        self._write(f"start {run.name} {run.step}")

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """The metrics are those of any run."""
        assert step > 0
        assert set(metrics) == {"loss", "step_secs", "examples_per_sec"}

    def on_evaluate(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the step."""
        self._write(f"evaluate {step} {sorted(metrics)}")

    def on_checkpoint(self, step: int, folder: Path) -> None:
        """Records the step."""
        self._write(f"checkpoint {step} {folder.name}")

    def on_end(self, report: psfleet.Report) -> None:
        """Records the outcome."""
        self._write(f"end {report.status} {report.final_step}")

    def _write(self, line: str) -> None:
        with self._file.open("a") as file:
            file.write(line + "\n")
