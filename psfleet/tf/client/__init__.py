"""A client of a standing fleet: sessions on its ps and workers, resource containers, and queues between programs."""

from psfleet.tf.client.fleet import Fleet
from psfleet.tf.client.queue import Queue
from psfleet.tf.client.session import FleetSession

__all__ = ["Fleet", "FleetSession", "Queue"]
