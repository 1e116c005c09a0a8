"""Mutual TLS between the processes of a fleet: certificates, and the tunnels for TensorFlow's traffic."""
