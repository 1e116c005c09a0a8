"""TensorFlow servers of this process for one test after the other.

A server cannot be stopped. Each takes 0.05 CPU seconds to start, and 40 MB and 85 threads until the process ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import tensorflow.compat.v1 as v1

from psfleet.addresses import Address
from psfleet.processes.ports import free_addresses
from psfleet.tf.server import boot

DEFAULT_CONTAINER = "boot"
"""That of resources without a container: the name of the server's job (`boot`)."""
_idle: defaultdict[int | None, list[Address]] = defaultdict(list)
"""By number of CPU devices."""


@contextmanager
def tf_server(containers: Sequence[str], num_cpus: int | None = None) -> Iterator[Address]:
    """A server without sessions and resources; after a block that fails it is not used again.

    Args:
        containers: Those in which the block makes resources, apart from the default one.
        num_cpus: See `boot`.
    """
    idle = _idle[num_cpus]
    address = idle.pop() if idle else _booted(num_cpus)
    yield address
    v1.Session.reset(f"grpc://{address.data}", [DEFAULT_CONTAINER, *containers])
    idle.append(address)


def _booted(num_cpus: int | None) -> Address:
    (address,) = free_addresses(1)
    boot(address, None, num_cpus)
    return address
