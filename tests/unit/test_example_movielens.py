"""The ratings of examples/movielens: files as MovieLens has them, histories, and the ratings that are made."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "movielens"
HEAD = "userId,movieId,rating,timestamp\n"


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"movielens_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


ratings = module("ratings")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_ratings_are_read_in_the_order_of_their_times(suffix: str, tmp_path: Path) -> None:
    text = HEAD + "1,31,2.5,30\n2,1029,4.0,10\n1,31000,5,20\n"
    path = tmp_path / f"ratings.csv{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
    found = ratings.read_ratings(tmp_path)
    assert (found.users.tolist(), found.movies.tolist()) == ([2, 1, 1], [1029, 31000, 31])
    assert found.stars.tolist() == [4.0, 5.0, 2.5]


def test_a_history_has_the_newest_movies_that_a_user_liked() -> None:
    number = ratings.MOST_LIKED + 2
    movies = np.arange(number + 2)
    users = np.array([*[1] * number, 3, 3])
    stars = np.array([*[4.0] * number, 3.5, 5.0])
    found = ratings.Ratings(users, movies, stars).histories()
    assert [each.tolist() for each in found] == [[], list(range(2, number)), [], [number + 1]]


def test_a_missing_file_and_a_bad_line_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no file ratings.csv or ratings.csv.gz"):
        ratings.read_ratings(tmp_path)
    (tmp_path / "ratings.csv").write_text(HEAD)
    with pytest.raises(ValueError, match=r"ratings.csv has no ratings"):
        ratings.read_ratings(tmp_path)
    (tmp_path / "ratings.csv").write_text(HEAD + "1,31,2.5,30\n2,x,4.0,10\n")
    with pytest.raises(ValueError, match=r"ratings.csv:3: expected numbers userId, movieId, rating, timestamp"):
        ratings.read_ratings(tmp_path)


def test_a_tenth_of_the_ratings_that_are_made_is_held_out() -> None:
    made = ratings.made_ratings()
    training, test = made.split()
    assert len(training.stars) + len(test.stars) == len(made.stars)
    assert len(test.stars) == -(-len(made.stars) // 10)
    pairs = set(zip(made.users.tolist(), made.movies.tolist(), strict=True))
    assert len(pairs) == len(made.stars), "a user has rated a movie twice"
    assert set((made.stars * 2).tolist()) <= set(range(1, 11))
