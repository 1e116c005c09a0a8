"""The training program of the benchmark of embedding tables."""
