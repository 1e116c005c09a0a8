"""The control plane over gRPC: the messages, a client for workers and launchers, and how to serve it."""
