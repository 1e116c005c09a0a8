"""The program of a benchmark whose workers wait instead of computing."""
