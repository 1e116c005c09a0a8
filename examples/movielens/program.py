"""Two towers that predict how many stars a user gives a movie, on MovieLens or on ratings that are made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from ratings import LIKED, Ratings, made_ratings, read_ratings

import psfleet

WIDTH = 16


def build(data_dir: str | None = None, users: int = 1000, movies: int = 200_000) -> psfleet.KerasProgram:
    """Returns the training program.

    Args:
        data_dir: A folder with `ratings.csv` or `ratings.csv.gz` of MovieLens; None: ratings that are made.
        users, movies: Rows of the tables: more than the highest number of a user and of a movie.
    """
    source = "made" if data_dir is None else "read"
    ratings = made_ratings() if data_dir is None else read_ratings(Path(data_dir))
    training, test = ratings.split()
    mean = float(training.stars.mean())
    error = float(np.sqrt(np.mean(np.square(test.stars - mean))))
    print(
        f"{len(ratings.stars):,} ratings were {source}; their mean, {mean:.3f}, has a test RMSE of {error:.4f}",
        flush=True,
    )
    histories = tf.ragged.constant(training.histories(), dtype=tf.int64)
    return psfleet.KerasProgram(
        model=lambda: towers(users, movies, mean),
        loss="mse",
        metrics=[keras.metrics.RootMeanSquaredError(name="rmse"), LikedPrecision()],
        train=lambda index, shards: dataset(training, histories, np.arange(len(training.stars)) % shards == index),
        evaluate=lambda: dataset(test, histories, np.ones(len(test.stars), bool)),
    )


def towers(users: int, movies: int, mean: float) -> keras.Model:
    """A model from user `[batch]`, movie `[batch]` and history `[batch, any]` to stars `[batch, 1]`.

    The history's movies, padded with 0, have a table of their own (Koren 2008, "Factorization meets the neighborhood",
    equation 15). The first column of the tables of users and movies is a bias.
    """
    user, movie = keras.Input((), name="user", dtype="int64"), keras.Input((), name="movie", dtype="int64")
    history = keras.Input((None,), name="history", dtype="int64")
    of_user = layers.Embedding(users, 1 + WIDTH, name="users")(user)
    of_movie = layers.Embedding(movies, 1 + WIDTH, name="movies")(movie)
    is_there = keras.ops.cast(history > 0, "float32")[:, :, None]
    liked = keras.ops.sum(layers.Embedding(movies, WIDTH, name="liked")(history) * is_there, 1)
    liked = liked / keras.ops.sqrt(keras.ops.maximum(keras.ops.sum(is_there, 1), 1.0))
    common = keras.ops.sum((of_user[:, 1:] + liked) * of_movie[:, 1:], 1, keepdims=True)
    parts = layers.Concatenate()([of_user[:, :1], of_movie[:, :1], common])
    bias = keras.initializers.Constant(mean)
    stars = layers.Dense(1, kernel_initializer="ones", bias_initializer=bias, name="stars")(parts)
    return keras.Model({"user": user, "movie": movie, "history": history}, stars)


def dataset(ratings: Ratings, histories: tf.RaggedTensor, which: np.ndarray) -> tf.data.Dataset:
    """Examples of some ratings: the history of the user lacks the movie whose stars are wanted."""
    some = ratings.some(which)

    def example(user: tf.Tensor, movie: tf.Tensor, stars: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        history = histories[user]
        others = tf.boolean_mask(history, history != movie)
        return {"user": user, "movie": movie, "history": others}, stars[None]

    return tf.data.Dataset.from_tensor_slices((some.users, some.movies, some.stars)).map(example)


class LikedPrecision(keras.metrics.Precision):
    """Of the movies that the model expects a user to like, the share that the user likes: at least `LIKED` stars."""

    def __init__(self) -> None:
        super().__init__(name="precision")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch of stars."""
        true, predicted = (keras.ops.cast(stars >= LIKED, "float32") for stars in (y_true, y_pred))
        super().update_state(true, predicted, sample_weight)
