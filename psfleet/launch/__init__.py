"""Launchers: each starts a job on a platform, follows the run to its end, and returns its report; standing fleets."""

from psfleet.launch.connecting import connect
from psfleet.launch.local.launcher import train

__all__ = ["connect", "train"]
