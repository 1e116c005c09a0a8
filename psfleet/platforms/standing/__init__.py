"""Fleets that stand as processes of this machine until they are taken down."""
