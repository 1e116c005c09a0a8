"""Which GPUs this process sees; decided before TensorFlow first looks for any."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

import tensorflow as tf

from psfleet.errors import BadJobError
from psfleet.job.sections import Device

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""Read by the CUDA driver when TensorFlow first looks for GPUs: numbers or names of GPUs, up to the first invalid."""
NONE = "-1"


def hide_gpus(environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets this process, a ps, see no GPU: it would allocate memory on each, and every worker needs its own."""
    environ[VISIBLE] = NONE


def show_gpus(device: Device | None, index: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Lets this process, a worker, see the GPUs that the job gives to its index.

    Args:
        device: Of the job or of the standing fleet; None, or without a list of GPUs: it sees all.
        index: Of the worker.
        environ: The environment of this process; if it restricts the GPUs already, the job's numbers count those left.

    Raises:
        BadJobError: It has fewer GPUs than the job says.
    """
    by_index = [] if device is None else device.visible_gpus.worker
    if not by_index:
        return
    gpus = by_index[index] if index < len(by_index) else []
    before = environ.get(VISIBLE)
    if before is not None and gpus:
        shown = [] if before.startswith("-") else [each.strip() for each in before.split(",") if each.strip()]
        if max(gpus) >= len(shown):
            raise BadJobError(
                f"{_needs(index, gpus)}, but {VISIBLE} is {before!r}, which shows {len(shown)}: expected at least "
                f"{max(gpus) + 1}"
            )
        environ[VISIBLE] = ",".join(shown[gpu] for gpu in gpus)
    else:
        environ[VISIBLE] = ",".join(map(str, gpus)) or NONE
    if gpus and (found := len(tf.config.list_physical_devices("GPU"))) < len(gpus):
        raise BadJobError(
            f"{_needs(index, gpus)}, but TensorFlow finds {found} of them: expected TensorFlow with CUDA (the extra "
            "gpu), its driver, and these GPUs in this machine or container"
        )


def _needs(index: int, gpus: list[int]) -> str:
    return f"device.visible_gpus gives worker {index} the GPUs {gpus}"
