"""Names of what the driver of a study and its workers share: attributes in Optuna's storage, and files."""

from __future__ import annotations

import re
from pathlib import Path

JOB = "job"
"""Of a trial: its resolved job, as JSON."""
STARTED = "started"
"""Of a trial: whether it has made a step."""
ERROR = "error"
"""Of a failed trial: its cause, in one line."""
EXIT_CODE = "exit_code"
"""Of a failed trial: the exit code of the error."""
DETAILS = "details"
"""Of a trial in which the program failed: the traceback."""
METRICS = "metrics"
"""Of a complete trial: the metrics of its evaluation by name."""

LOSSES = "losses"
"""Of a trial: how often a worker died that trained it, under earlier numbers."""
UNIX = "unix"
"""Host of Optuna's proxy whose `port` is the path of a Unix socket: gRPC gets `unix:PATH`."""


def assignment(index: int) -> str:
    """Of a study: the id of the trial that a worker has to train."""
    return f"worker {index}"


def life_file(folder: Path, index: int) -> Path:
    """The file that a worker renews each second, in the folder of its study."""
    return folder / "logs" / f"worker-{index}.alive"


def is_weights_name(name: str) -> bool:
    """Whether a file of this name in the folder of a study has the weights of a trial."""
    return re.fullmatch(r"weights/\d{5,}\.safetensors", name) is not None


def weights_file(folder: Path, number: int) -> Path:
    """The weights of a trial in the folder of its study."""
    return folder / "weights" / f"{number:05d}.safetensors"
