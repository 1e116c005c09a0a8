"""A Keras model of `support.keras_styles` on its twelve examples."""

from __future__ import annotations

import tensorflow as tf

import psfleet
from support.keras_models import MODELS
from support.keras_styles import STYLES


def build(style: str) -> psfleet.KerasProgram:
    """The program of a style."""
    model, x, y, loss = {**MODELS, **STYLES}[style]
    data = tf.data.Dataset.from_tensor_slices((x, y))
    metrics = {"label": "accuracy"} if isinstance(y, dict) else None
    return psfleet.KerasProgram(
        model=model,
        loss=loss,
        train=lambda shard, shards: data.shard(shards, shard),
        evaluate=lambda: data,
        metrics=metrics,
    )
