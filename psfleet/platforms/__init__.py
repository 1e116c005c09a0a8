"""Platforms: each starts a job on this machine, a Docker engine or a cluster, for the core in `psfleet.launch`."""

from psfleet.platforms.connecting import connect
from psfleet.platforms.local.launcher import train

__all__ = ["connect", "train"]
