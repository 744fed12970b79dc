"""Ratings of movies that tensorflow-datasets has prepared, read without TensorFlow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from fedjax_fair.data.cache import cache_folder, cached
from fedjax_fair.data.tfds_folder import find_prepared
from fedjax_fair.data.tfds_images import cache_key

__all__ = ["Ratings", "read_ratings"]

_COLUMNS = ("user_id", "movie_id", "user_rating", "movie_title")
_CHUNK = 4096  # Ratings held as separate objects while they are decoded.


class Ratings(NamedTuple):
    """Who likes what how much.

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


def read_ratings(name: str, data_dir: str | os.PathLike[str] | None = None) -> Ratings:
    """Reads a set of ratings; decoded once, and then from the cache beside it.

    Args:
        name: Name in tensorflow-datasets, such as ``movielens/100k-ratings``.
        data_dir: Folder of prepared sets; by default the environment variable
            ``TFDS_DATA_DIR``, or else ``~/tensorflow_datasets``.

    Returns:
        All ratings. Users and movies are numbered in the order of their names in the set.

    Raises:
        FileNotFoundError: If it is not prepared there as array_record; the message names the
            command that does it.
        ValueError: If it holds no ratings, or is damaged.
    """
    folder, _, features, _ = find_prepared(name, data_dir)
    if missing := [column for column in _COLUMNS if column not in features]:
        raise ValueError(f"{name=}: expected ratings with a {missing[0]}.")
    columns = cached(cache_folder(folder), f"ratings {cache_key(folder)}", lambda: _decode(folder))
    _, users = np.unique(columns["user_id"], return_inverse=True)
    _, first, movies = np.unique(columns["movie_id"], return_index=True, return_inverse=True)
    return Ratings(
        users=users.astype(np.int32),
        movies=movies.astype(np.int32),
        stars=columns["user_rating"].astype(np.float32),
        titles=columns["movie_title"][first],
        num_users=int(users.max()) + 1,
    )


def _decode(folder: Path) -> dict[str, np.ndarray]:
    import tensorflow_datasets as tfds

    builder: Any = tfds.builder_from_directory(str(folder))
    source = builder.as_data_source("train")
    columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    for start in range(0, len(source), _CHUNK):
        rows = source.__getitems__(list(range(start, min(start + _CHUNK, len(source)))))
        for name in _COLUMNS:
            columns[name] += [row[name] for row in rows]
    texts = [name for name in _COLUMNS if name != "user_rating"]
    decoded: dict[str, np.ndarray] = {
        name: np.asarray([value.decode("utf8") for value in columns[name]]) for name in texts
    }
    return decoded | {"user_rating": np.asarray(columns["user_rating"], np.float32)}
