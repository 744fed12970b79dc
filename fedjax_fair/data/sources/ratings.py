"""Movie ratings prepared by tensorflow-datasets, read without TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedjax_fair.data.npz import cache_folder, cached
from fedjax_fair.data.sources.source import DataDir
from fedjax_fair.data.sources.tfds_folder import find_prepared, read_chunks
from fedjax_fair.data.sources.tfds_images import cache_key

__all__ = ["Ratings", "read_ratings"]

_COLUMNS = ("user_id", "movie_id", "user_rating", "movie_title")


class Ratings(NamedTuple):
    """Ratings of movies by users.

    Attributes:
        users: The user of each rating, from 0, ``[ratings]``.
        movies: Its movie, from 0, ``[ratings]``.
        stars: The rating itself, 0.5 to 5, ``[ratings]``.
        titles: Titles of the movies, ``[movies]``.
        num_users: Number of users.
    """

    users: Int[np.ndarray, " ratings"]
    movies: Int[np.ndarray, " ratings"]
    stars: Float[np.ndarray, " ratings"]
    titles: np.ndarray
    num_users: int


def read_ratings(name: str, data_dir: DataDir = None) -> Ratings:
    """Reads a set such as ``movielens/100k-ratings``, decoded once and then from a cache.

    Users and movies are numbered in the order of their names.

    Raises:
        FileNotFoundError: If it is not prepared there as array_record.
        ValueError: If it has no ratings, or is damaged.
    """
    folder, _, features, _ = find_prepared(name, data_dir)
    if missing := [column for column in _COLUMNS if column not in features]:
        raise ValueError(
            f"{name=}: expected ratings with a {missing[0]}, such as movielens/100k-ratings."
        )
    columns = cached(cache_folder(folder), f"ratings {cache_key(folder)}", lambda: _decode(folder))
    user_names, users = np.unique(columns["user_id"], return_inverse=True)
    _, first, movies = np.unique(columns["movie_id"], return_index=True, return_inverse=True)
    return Ratings(
        users=users.astype(np.int32),
        movies=movies.astype(np.int32),
        stars=columns["user_rating"].astype(np.float32),
        titles=columns["movie_title"][first],
        num_users=len(user_names),
    )


def _decode(folder: Path) -> dict[str, np.ndarray]:
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for chunk in read_chunks(folder, "train"):
        for name, values in columns.items():
            values += [
                rating[name].decode("utf8") if name != "user_rating" else rating[name]
                for rating in chunk
            ]
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    return arrays | {"user_rating": arrays["user_rating"].astype(np.float32)}
