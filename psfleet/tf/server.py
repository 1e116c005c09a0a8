"""Boots this process's own TensorFlow server, with no list of peers."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from psfleet.job.sections import Device
from psfleet.service.cpu import num_threads
from psfleet.tf.loopback import on_loopback
from psfleet.tls.listeners import is_on_loopback_alone

logger = logging.getLogger("psfleet")


def boot(address: Address, device: Device | None) -> str:
    """Starts the server of a one-task cluster; it lives as long as the process.

    The job name must not be one of those that travel with sessions (ps, worker): TensorFlow refuses a propagated
    ClusterSpec in which the booted name occurs.

    Args:
        address: Its TensorFlow port is listened on: on loopback alone if the host is, or else on all interfaces.
        device: Threads and accelerators; None: TensorFlow's defaults, with threads that fit this container's limit.

    Returns:
        The session target, `grpc://host:port`.

    Raises:
        LostPeerError: The port is taken.
    """
    cluster = tf.train.ClusterSpec({"boot": [address.data]})
    try:
        with on_loopback(address.port) if address.is_loopback else nullcontext():
            server = v1.train.Server(cluster, job_name="boot", task_index=0, config=session_config(device))
    except tf.errors.OpError as error:
        raise LostPeerError(
            f"TensorFlow port {address.port} of {address.host} is in use, expected a free one"
        ) from error
    if address.is_loopback and not is_on_loopback_alone(address.port):
        logger.warning("TensorFlow's port %d is open on all interfaces: whoever reaches it can run code", address.port)
    _alive.append(server)
    return f"grpc://{address.data}"


def session_config(device: Device | None) -> v1.ConfigProto:
    """The job's thread and device options as TensorFlow takes them."""
    config = v1.ConfigProto()
    # Threads that spin for work take a core from those that have it: 10 % of a small step on two cores.
    config.experimental.disable_thread_spinning = True
    config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = num_threads()
    if device is None:
        return config
    config.allow_soft_placement = device.soft_placement
    config.log_device_placement = device.log_placement
    if device.intra_op_threads is not None:
        config.intra_op_parallelism_threads = device.intra_op_threads
    if device.inter_op_threads is not None:
        config.inter_op_parallelism_threads = device.inter_op_threads
    config.gpu_options.allow_growth = device.gpu_memory_growth
    if device.gpu_memory_fraction is not None:
        config.gpu_options.per_process_gpu_memory_fraction = device.gpu_memory_fraction
    return config


_alive: list[v1.train.Server] = []
"""Servers stop when they are garbage collected."""
