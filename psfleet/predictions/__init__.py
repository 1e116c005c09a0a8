"""Predictions of a data set by worker processes of this machine, in one file."""
