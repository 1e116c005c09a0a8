"""Checkpoints: one part per ps, the manifest that commits them, reading, and export."""
