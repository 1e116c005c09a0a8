"""Finds ports of TensorFlow that do not answer: a ps's control plane can be reachable while its data plane is not."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from psfleet.addresses import Address
from psfleet.errors import LostPeerError
from worker_service.session_errors import UnreachableError

logger = logging.getLogger("psfleet.worker")

PROBE_SECS = 2.0


def located(error: UnreachableError, ps: Sequence[Address]) -> LostPeerError:
    """The error with the ports of TensorFlow that cannot be reached, which are logged, too."""
    found = blocked([(f"ps {shard}", address) for shard, address in enumerate(ps)])
    if not found:
        return error
    logger.warning("%s, while its control port answers", found, extra={"event": "blocked_port"})
    return UnreachableError(f"{error}; {found}, while its control port answers")


def blocked(ports: Sequence[tuple[str, Address]]) -> str:
    """Names the ports that accept no connection, with the reason of each, in one line; empty if all accept one.

    Args:
        ports: Whose port it is, and where.
    """
    with ThreadPoolExecutor(max(1, len(ports))) as pool:
        found = list(pool.map(_problem, ports))
    return ", ".join(filter(None, found))


def _problem(port: tuple[str, Address]) -> str:
    name, address = port
    host, _, number = address.data.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(number)), PROBE_SECS):
            return ""
    except OSError as error:
        reason = f"no answer in {PROBE_SECS:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return f"TensorFlow's port of {name} at {address.data} cannot be reached ({reason})"
