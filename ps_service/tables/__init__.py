"""Embedding tables on a ps: rows that are created when they are first updated, and their optimizers."""
