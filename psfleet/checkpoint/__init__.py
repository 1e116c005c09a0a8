"""Checkpoints: the parts that the ps write, the manifest that completes them, reading, and export."""
