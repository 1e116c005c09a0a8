"""Callbacks of a run: the interface, and what job files name in `callbacks`."""

from psfleet.callbacks.interface import Callback, RunInfo

__all__ = ["Callback", "RunInfo"]
