"""Mutual TLS between the processes of a fleet: certificates, and the tunnel that carries TensorFlow's traffic."""
