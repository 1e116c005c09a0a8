"""The devices of this worker over which it divides a batch: its towers."""

from __future__ import annotations

import logging

import tensorflow as tf

from psfleet.errors import BadJobError
from psfleet.job.job import Job

logger = logging.getLogger("psfleet")


def tower_devices(job: Job, index: int) -> tuple[str, ...]:
    """The device of each tower, `/device:GPU:0` and so on; empty if the step is not divided.

    Called after `show_gpus`. TensorFlow does not open the devices here.

    Args:
        index: Of this worker, for messages.

    Raises:
        BadJobError: This worker has fewer devices than the job has towers, or the batch does not divide over all.
    """
    device = job.device
    if device.replicas == 1:
        return ()
    if device.virtual_cpus is None:
        kind, found = "GPU", len(tf.config.list_physical_devices("GPU"))
    else:
        kind, found = "CPU", device.virtual_cpus
    wanted = max(found, 1) if device.replicas == "auto" else int(device.replicas)
    if wanted > max(found, 1):
        raise BadJobError(
            f"device.replicas is {wanted}, but worker {index} has 1 CPU and {found} GPUs: expected at most "
            f"{max(found, 1)}, or device.virtual_cpus to try towers without GPUs"
        )
    if job.train.batch_size % wanted:
        raise BadJobError(
            f"train.batch_size is {job.train.batch_size}, expected a multiple of {wanted}, the number of {kind}s of "
            f"worker {index}, with device.replicas auto"
        )
    if wanted == 1:
        return ()
    devices = tuple(f"/device:{kind}:{number}" for number in range(wanted))
    logger.info("divides each batch over %d devices: %s", wanted, ", ".join(devices))
    return devices
