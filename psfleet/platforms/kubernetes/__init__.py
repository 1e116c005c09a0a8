"""Fleets as Jobs in a Kubernetes cluster."""
