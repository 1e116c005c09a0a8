"""The duties of worker 0: recovery, checkpoints, evaluation, records and the end of the run."""
