"""A handle on a live run: from another process, from a notebook, and from the command line."""

from psfleet.handle.run import Run
from psfleet.handle.starting import attach, start

__all__ = ["Run", "attach", "start"]
