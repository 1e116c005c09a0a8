"""Shares of a prediction as workers write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from psfleet.job.prediction_files import Output, Share, values_file

VALUES = np.arange(7, dtype=np.float32)
"""The predictions of all examples; a batch has two of them."""


def write_share(folder: Path, index: int, workers: int, attempt: str = "", checksum: int = 5) -> None:
    """Completes the share of a worker."""
    batches = [VALUES[at : at + 2] for at in range(0, len(VALUES), 2)][index::workers]
    values_file(folder, index, 0).write_bytes(b"".join(each.tobytes() for each in batches))
    Share(
        outputs=[Output(name="predictions", dtype="float32", shape=[])],
        counts=[len(each) for each in batches],
        num_examples=len(VALUES),
        checksum=checksum,
        attempt=attempt,
    ).write(folder, index)
