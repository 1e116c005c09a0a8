"""Peers of psfleet: other ways to train the same models data-parallel, each in an environment of its own."""
