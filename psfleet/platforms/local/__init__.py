"""Runs a fleet as processes of this machine."""
