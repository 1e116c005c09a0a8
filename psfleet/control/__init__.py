"""The control plane over gRPC: the messages, a client for workers and launchers, and how to serve it."""

RETRY_SECS = "psfleet-retry-secs"
"""Trailing metadata of a call that a ps cannot decide yet: in how many seconds it can."""
MIN_STEPS_AHEAD = 1
"""A ps accepts a checkpoint or a pause only for a step at least so far above its own: the one that is in progress."""
