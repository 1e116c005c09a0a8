"""Drops the sessions of a client on this process's server."""

from __future__ import annotations

import logging
from functools import partial

import tensorflow as tf
import tensorflow.compat.v1 as v1

from psfleet.control.clients import ClientServicer
from psfleet.service.settings import Settings
from psfleet.tls.data_plane import DataPlane
from psfleet.tls.fleet_plane import FleetTunnels

logger = logging.getLogger("psfleet.tf")


def for_clients(settings: Settings, target: str, plane: DataPlane) -> ClientServicer | None:
    """Serves the clients of a standing fleet; None: this process does not belong to one.

    Args:
        target: Session target of this process's server.
        plane: Its data plane.
    """
    if settings.fleet is None:
        return None
    drop = partial(drop_sessions, target)
    if isinstance(plane, FleetTunnels):
        return ClientServicer(settings.fleet, drop, plane.meet_client)
    return ClientServicer(settings.fleet, drop)


def drop_sessions(target: str, job: str) -> None:
    """Drops all sessions on a server that another process has opened as task 0 of a TensorFlow job.

    A server drops the sessions of a task when a process of another incarnation opens one under the task's name
    (SessionMgr::CreateSession), which this process does. Variables, queues and other sessions are not affected.

    Args:
        target: Session target of the server, `grpc://host:port`.
    """
    config = v1.ConfigProto()
    cluster = tf.train.ClusterSpec({job: {0: target.removeprefix("grpc://")}})
    config.cluster_def.CopyFrom(cluster.as_cluster_def())
    config.experimental.share_session_state_in_clusterspec_propagation = True
    session = v1.Session(target, graph=tf.Graph(), config=config)
    try:
        session.list_devices()
    except tf.errors.OpError as error:
        logger.warning("sessions of %s are not dropped: %s", job, error.message)
    finally:
        session.close()
