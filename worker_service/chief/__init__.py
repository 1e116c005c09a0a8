"""What worker 0 does beside training: agrees on a generation, commits checkpoints, evaluates, records, concludes."""
