"""Launchers: a job in, a run watched to its end, a report out."""

from psfleet.launch.local.launcher import train

__all__ = ["train"]
