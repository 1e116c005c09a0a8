"""Reads the ratings of MovieLens, or makes some of the same kind."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILES = ("ratings.csv", "ratings.csv.gz")
COLUMNS = ("userId", "movieId", "rating", "timestamp")
LIKED = 4.0
MOST_LIKED = 20
"""Length of the longest history: the newest movies that a user liked."""
TEST_SHARE = 10
MADE_USERS, MADE_MOVIES, MADE_RATINGS = 400, 600, 24_000


@dataclass(frozen=True)
class Ratings:
    """Ratings, in the order of their times.

    Attributes:
        users, movies: int64 `[n]`, numbers from 1 on.
        stars: float32 `[n]`, 0.5 to 5.
    """

    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray

    def some(self, which: np.ndarray) -> Ratings:
        """Those of a mask, bool `[n]`."""
        return Ratings(self.users[which], self.movies[which], self.stars[which])

    def split(self) -> tuple[Ratings, Ratings]:
        """Nine tenths to train, and a tenth to test, by chance."""
        is_test = np.random.default_rng(0).permutation(len(self.stars)) % TEST_SHARE == 0
        return self.some(~is_test), self.some(is_test)

    def histories(self) -> list[np.ndarray]:
        """By user, the newest movies with at least `LIKED` stars, at most `MOST_LIKED`: int64 `[0 ... MOST_LIKED]`."""
        liked = self.some(self.stars >= LIKED)
        order = np.argsort(liked.users, kind="stable")
        starts = np.searchsorted(liked.users[order], np.arange(1, self.users.max() + 1))
        return [np.zeros(0, np.int64), *[each[-MOST_LIKED:] for each in np.split(liked.movies[order], starts)[1:]]]


def read_ratings(folder: Path) -> Ratings:
    """Reads `ratings.csv` or `ratings.csv.gz` of MovieLens, which may have more columns than `COLUMNS`.

    Raises:
        FileNotFoundError, ValueError: There are no ratings, or a line is none; names the file and the line.
    """
    path = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if path is None:
        raise FileNotFoundError(f"{folder} has no file {' or '.join(FILES)}")
    found: list[tuple[float, ...]] = []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for number, row in enumerate(csv.DictReader(file), start=2):
            try:
                found.append(tuple(float(row[name]) for name in COLUMNS))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}:{number}: expected numbers {', '.join(COLUMNS)}: {error!r}") from error
    if not found:
        raise ValueError(f"{path} has no ratings")
    found.sort(key=lambda rating: rating[-1])
    users, movies, stars, _ = np.array(found).T
    return Ratings(users.astype(np.int64), movies.astype(np.int64), stars.astype(np.float32))


def made_ratings() -> Ratings:
    """Ratings by a user's and a movie's mean and what they have in common, with noise; some movies are popular."""
    random = np.random.default_rng(1)
    popularity = 1 / np.arange(10, MADE_MOVIES + 10)
    users = random.integers(1, MADE_USERS + 1, MADE_RATINGS)
    movies = 1 + random.choice(MADE_MOVIES, MADE_RATINGS, p=popularity / popularity.sum())
    pairs = np.unique(np.stack([users, movies], 1), axis=0)
    users, movies = random.permutation(pairs).T
    biases = [random.normal(0, 0.45, number + 1) for number in (MADE_USERS, MADE_MOVIES)]
    tastes = [random.normal(0, 0.5, (number + 1, 3)) for number in (MADE_USERS, MADE_MOVIES)]
    common = np.sum(tastes[0][users] * tastes[1][movies], 1)
    exact = 3.5 + biases[0][users] + biases[1][movies] + common + random.normal(0, 0.6, len(users))
    return Ratings(users, movies, np.clip(np.round(exact * 2) / 2, 0.5, 5).astype(np.float32))
