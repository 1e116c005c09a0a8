"""The job that every contender of the benchmark trains."""
