"""The control plane over gRPC: the messages, a client for workers and launchers, and how to serve it."""

MIN_STEPS_AHEAD = 2
"""A ps accepts a checkpoint or a pause only at a step at least so far above its own: its next one has started."""
