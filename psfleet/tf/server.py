"""Starts this process's TensorFlow server, without a list of peers."""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import tensorflow as tf
import tensorflow.compat.v1 as v1
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig

from psfleet.addresses import Address
from psfleet.errors import BadJobError, LostPeerError
from psfleet.job.job import Job
from psfleet.job.sections import Device
from psfleet.polling import wait_until
from psfleet.service import settings
from psfleet.service.cpu import num_threads, num_usable_cpus
from psfleet.tf.error_text import reason
from psfleet.tf.loopback import bound_to
from psfleet.tls.listeners import process_listens_on, process_listens_on_loopback_alone

logger = logging.getLogger("psfleet")

PORT_IN_USE = "Could not start gRPC server"
"""TensorFlow's message if it cannot bind the port. Other messages are about devices, such as a GPU without memory."""
RESOLVE_SECS = 30.0
"""Until a host has an address."""


def boot(
    address: Address,
    device: Device | None,
    num_cpus: int | None = None,
    reacts_while_computing: bool = False,
    is_on_own_host: bool = False,
) -> str:
    """Starts the server of a one-task cluster, which runs until the process exits.

    The job name must differ from those in a session's ClusterSpec (ps, worker): TensorFlow refuses a propagated
    ClusterSpec that contains the server's own job name.

    Args:
        address: The server listens on its port: on its host only if that is one of loopback, else on all interfaces.
        device: Threads and accelerators; None: TensorFlow's defaults, with as many threads as the container has cores.
        num_cpus: Number of CPU devices, which share the threads; None: one.
        reacts_while_computing: See `server_config`.
        is_on_own_host: Whether it listens on its host only, also if that is not one of loopback.

    Returns:
        The session target, `grpc://host:port`.

    Raises:
        LostPeerError: The port is in use, or TensorFlow cannot use a device; gives the reason.
        DeadlineError: The host is not known.
        BadJobError: It listens on other addresses than its host, where it may not.
    """
    loopback = address.loopback_host
    only = resolved(address.host) if is_on_own_host and not loopback else loopback
    cluster = tf.train.ClusterSpec({"boot": [address.data]})
    config = server_config(device, reacts_while_computing)
    if num_cpus is not None:
        # Not `tf.config.set_logical_device_configuration`, which is for eager execution: a server ignores it.
        config.device_count["CPU"] = num_cpus
    try:
        with bound_to(address.port, only) if only else nullcontext():
            server = v1.train.Server(cluster, job_name="boot", task_index=0, config=config)
    except tf.errors.OpError as error:
        if PORT_IN_USE in error.message:
            text = f"TensorFlow port {address.port} of {address.host} is in use, expected a free one"
        else:
            text = f"TensorFlow's server at {address.data} cannot be started: {reason(error)}"
        raise LostPeerError(text) from error
    if loopback and not process_listens_on_loopback_alone(address.port):
        logger.warning(
            "TensorFlow's port %d is open on all interfaces, expected loopback: hosts that reach it can run code",
            address.port,
        )
    if only and not loopback and not process_listens_on(address.port, only):
        raise BadJobError(f"TensorFlow's port {address.port} is open on all interfaces, expected {only} alone")
    _alive.append(server)
    return f"grpc://{address.data}"


def resolved(host: str) -> str:
    """The IPv4 address of a host.

    Raises:
        DeadlineError: It is not known within `RESOLVE_SECS`: the engine may be about to publish the name.
    """

    def found() -> str:
        try:
            return socket.gethostbyname(host)
        except OSError:
            return ""

    return wait_until(found, RESOLVE_SECS, f"the address of {host}")


def server_config(device: Device | None, reacts_while_computing: bool) -> v1.ConfigProto:
    """The options of a process's server.

    Args:
        device: As in `boot`.
        reacts_while_computing: Whether others need tensors of this process while it computes, or it has to act on what
            arrives meanwhile. Unless the device says how many, it then has at least two threads for operations.
            TensorFlow does both in these; a single one would do it when it has nothing left to compute.
    """
    config = session_config(device)
    is_given = device is not None and device.inter_op_threads is not None
    if reacts_while_computing and not is_given and num_op_threads(config) == 1:
        config.inter_op_parallelism_threads = 2
    return config


def num_op_threads(config: v1.ConfigProto) -> int:
    """Threads for operations of a server with these options: 0 is TensorFlow's default, one for each core."""
    return config.inter_op_parallelism_threads or num_usable_cpus()


def session_config(device: Device | None) -> v1.ConfigProto:
    """The job's thread and device options as a ConfigProto."""
    config = v1.ConfigProto()
    # Threads that spin while they wait for work occupy a core: 10 % of a small step on two cores.
    config.experimental.disable_thread_spinning = True
    # By default Grappler goes over each graph twice: the second round takes half of its time and finds nothing.
    config.graph_options.rewrite_options.meta_optimizer_iterations = RewriterConfig.ONE
    config.intra_op_parallelism_threads = config.inter_op_parallelism_threads = settings.num_threads() or num_threads()
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


def cluster_config(job: Job, ps: Sequence[Address], worker_job: str, workers: Mapping[int, str]) -> v1.ConfigProto:
    """The options of a session that shares the resources of every ps.

    Args:
        worker_job: TensorFlow's name of the job of the workers.
        workers: `host:port` of those in the session, by index.
    """
    config = session_config(job.device)
    tasks = {"ps": [at.data for at in ps]}
    # A worker that is a ps, too, is one task.
    cluster = tf.train.ClusterSpec(tasks if job.fleet.colocate else {**tasks, worker_job: workers})
    config.cluster_def.CopyFrom(cluster.as_cluster_def())
    config.experimental.share_session_state_in_clusterspec_propagation = True
    return config


def fuse_what_runs(config: v1.ConfigProto, graph: tf.Graph) -> None:
    """Has Grappler fuse no operations of a graph with convolutions in bfloat16.

    In a session on a server it fuses Conv2D and BiasAdd, on CPUs for which oneDNN has bfloat16, into an operation that
    has no kernel for that type: what replaces it in a session of one process does not run.
    """
    if any(each.type == "Conv2D" and each.outputs[0].dtype == tf.bfloat16 for each in graph.get_operations()):
        config.graph_options.rewrite_options.remapping = RewriterConfig.OFF


_alive: list[v1.train.Server] = []
"""References: a server stops when it is garbage collected."""
