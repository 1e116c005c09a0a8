"""Trained programs that predict in this process alone; a worker of `psfleet predict` with its share of the batches."""
