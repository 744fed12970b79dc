"""Problems of the command ``maximize``, and constraints on their sets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_fair import data
from fedjax_fair.app.settings.config import (
    Maximize,
    MaximizeExemplars,
    MaximizeFeatures,
    MaximizeMovielens,
    MaximizeScores,
)
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.sources.ratings import read_ratings
from fedjax_fair.data.tables.table_files import as_frame
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Task",
    "constraint",
    "exemplars",
    "features",
    "movielens",
    "scores",
    "similarity",
    "task_of",
]


class Task(NamedTuple):
    """Data of a problem.

    Attributes:
        name: Name of the data.
        make: Makes the problem of ``scores``, which are private to clients.
        labels: Label of each item, ``[items]``.
        sizes: Examples of each client, ``[clients]``.
        pictures: Picture of each item, ``[items, height, width]``, or None.
        classes: Class of each item, ``[items]``, or None.
        matroid: The constraint, if the problem has one of its own.
    """

    name: str
    make: Callable[[Any], fed.Problem]
    scores: Any
    labels: np.ndarray
    sizes: np.ndarray
    pictures: np.ndarray | None = None
    classes: np.ndarray | None = None
    matroid: matroids.Matroid | None = None

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return len(self.sizes)


def task_of(config: Maximize) -> Task:
    """Loads the problem of a configuration."""
    match config:
        case MaximizeMovielens():
            return movielens(config.data.name, config.data.dir)
        case MaximizeExemplars():
            return exemplars(config.clients)
        case MaximizeFeatures():
            return features(config)
    assert isinstance(config, MaximizeScores)
    return scores(config.file, config.objective)


def constraint(config: Maximize, task: Task) -> matroids.Matroid:
    """Makes the matroid of a configuration.

    Raises:
        ValueError: If items have no classes, or the file does not describe a matroid of them.
    """
    num_items = len(task.labels)
    checks.positive_int("per_class", config.per_class)
    if task.matroid is not None:
        return task.matroid
    if config.matroid.endswith(".json"):
        return _read_matroid(config.matroid, num_items)
    if config.matroid != "partition":
        checks.positive_int("k", config.k, at_most=num_items)
    if config.matroid == "uniform":
        return matroids.Uniform(config.k, num_items)
    lookup("matroid", config.matroid, dict.fromkeys(("uniform", "partition", "laminar")))
    if task.classes is None:
        raise ValueError(
            f"matroid={config.matroid!r}: items of {task.name} have no classes; use 'uniform' or a "
            "JSON file."
        )
    _, classes, counts = np.unique(task.classes, return_inverse=True, return_counts=True)
    allowed = np.minimum(config.per_class, counts)
    if config.matroid == "partition":
        return matroids.Partition(classes, allowed)
    nested = np.vstack([np.ones((1, num_items), bool), classes == np.arange(len(counts))[:, None]])
    return matroids.Laminar(nested, np.append(config.k, allowed))


_MATROIDS = {
    "partition": matroids.Partition,
    "laminar": matroids.Laminar,
    "graphic": matroids.Graphic,
}


def _read_matroid(path: str, num_items: int) -> matroids.Matroid:
    """Reads ``{"graphic": {"edges": [[0, 1], ...]}}``: a class, and its arguments as lists."""
    try:
        content = json.loads(Path(path).read_text("utf8"))
        ((name, arguments),) = content.items()
        kind = lookup("matroid", name, _MATROIDS)
        matroid = kind(**{key: np.array(values) for key, values in arguments.items()})
    except (AttributeError, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f'matroid={path!r}: {reason}; expected one of {{"partition": {{"blocks": [...], '
            '"capacities": [...]}}, {"laminar": {"sets": [...], "capacities": [...]}} and '
            '{"graphic": {"edges": [...]}}.'
        ) from None
    if matroid.size != num_items:
        raise ValueError(
            f"matroid={path!r}: expected a matroid of the {num_items} items, got one of "
            f"{matroid.size}; give each item an entry."
        )
    return matroid


# The value of a client is the mean over its images, so that large clients do not dominate.
def exemplars(num_clients: int) -> Task:
    """Makes the problem of selecting public images of digits that represent private ones.

    Every fifth image of a class is public. Ten or more clients own the others, of three classes
    each. ``f_i(S)`` is the mean `similarity` of a client's images to the most similar one in *S*.

    Examples:
        >>> task = exemplars(20)
        >>> task.scores.shape[0], task.scores.shape[2], task.pictures.shape
        (20, 355, (355, 8, 8))
    """
    digits = data.load("digits", data.classes_per_client(num_clients, 3))
    private, public = digits.train, np.asarray(digits.test.features)
    similarities = similarity(np.asarray(private.features), public)
    sizes = np.asarray(private.sizes)
    scores = np.zeros((num_clients, sizes.max(), len(public)), np.float32)
    for client, images in enumerate(_rows(private)):
        scores[client, : len(images)] = similarities[images] / sizes[client]
    labels = np.asarray(digits.test.labels).astype(str)
    make = fed.combinatorial_public_projects
    return Task("exemplars", make, scores, labels, sizes, public[..., 0], classes=labels)


def _rows(examples: ClientExamples) -> list[np.ndarray]:
    """Returns the indices of each client's examples."""
    return np.split(np.asarray(examples.order), np.cumsum(np.asarray(examples.sizes))[:-1])


def similarity(images: np.ndarray, others: np.ndarray) -> Float[np.ndarray, "images others"]:
    """Computes the correlations of the pixels of images, or 0 if they are negative.

    Examples:
        >>> similarity(np.array([[0, 1], [1, 0]]), np.array([[0, 3]])).round(3).tolist()
        [[1.0], [0.0]]
    """

    def normal(pixels):
        flat = pixels.reshape(len(pixels), -1).astype(np.float64)
        flat = flat - flat.mean(axis=1, keepdims=True)
        return flat / np.linalg.norm(flat, axis=1, keepdims=True)

    return np.maximum(normal(images) @ normal(others).T, 0)


def movielens(name: str, data_dir: str | None) -> Task:
    """Makes the problem of selecting movies; a user's value is its best rating of one of them."""
    ratings = read_ratings(name, data_dir)
    scores = fed.sparse_scores(
        ratings.users,
        ratings.movies,
        ratings.stars,
        num_clients=ratings.num_users,
        size=len(ratings.titles),
    )
    sizes = np.bincount(ratings.users, minlength=ratings.num_users)
    return Task(name, fed.facility_location, scores, ratings.titles, sizes)


def scores(file: str | None, objective: str) -> Task:
    """Makes a problem of the scores in a table, with a row per client and a column per item.

    The objective is ``facility_location`` (the best score of a selected item), ``coverage``
    (whether a selected item has a positive score) or ``welfare`` (every item is given to one
    client, whose value is the sum of the scores of its items). A column of text names the clients.

    Raises:
        ValueError: If a score is no number >= 0, or there are none.
    """
    checks.one_of("objective", objective, ("facility_location", "coverage", "welfare"))
    if file is None:
        raise ValueError("file=None: expected a table of scores; set --file.")
    table = as_frame("file", file).select_dtypes("number")
    values = np.asarray(table, np.float64)
    if not values.size or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError(
            f"file={file!r}: expected numbers >= 0, a row per client and a column per item; "
            "remove other columns, and write 0 for no value."
        )
    values, items = values.astype(np.float32), table.columns.to_numpy().astype(str)
    name, sizes = f"{objective} of {Path(file).stem}", np.ones(len(values))
    if objective == "coverage":
        return Task(name, fed.max_coverage, values > 0, items, sizes)
    if objective == "facility_location":
        return Task(name, fed.facility_location, values, items, sizes)
    pairs = np.array([f"{item}: client {i}" for item in items for i in range(len(values))])
    return Task(
        name,
        lambda valuations: fed.Welfare(fed.combinatorial_public_projects(valuations)),
        # One need per item makes the value of a set the sum over its items.
        np.eye(len(items), dtype=np.float32) * values[:, None, :],
        pairs,
        sizes,
        matroid=matroids.allocation(len(items), len(values)),
    )


def features(config: MaximizeFeatures) -> Task:
    """Makes the problem of selecting features: the information of a set about the label.

    Without a file, the features are the 64 pixels of digits, dark or bright; every client has three
    classes. A table's numeric columns are divided into ``bins`` of equal counts, or keep their
    values if there are no more of them; other columns are categories.

    Raises:
        ValueError: If the label or the clients are missing.
    """
    checks.positive_int("bins", config.bins)
    if config.file is None:
        digits = data.load("digits", data.classes_per_client(config.clients, 3)).train
        images = np.asarray(digits.features).reshape(len(digits.labels), -1)
        codes, labels = (images > images.max() / 2).astype(int), np.asarray(digits.labels)
        names = np.array([f"row {row}, column {column}" for row in range(8) for column in range(8)])
        parts = _rows(digits)
        title = "pixels of digits"
    else:
        import pandas as pd

        frame = as_frame("file", config.file)
        for name, column in (("label", config.label), ("client", config.client)):
            if column not in frame:
                raise ValueError(
                    f"{name}={column!r}: expected a column of {config.file!r}, which has "
                    f"{', '.join(map(str, frame))}; set --{name}."
                )
            if (missing := int(frame[column].isna().sum())) > 0:
                raise ValueError(
                    f"{name}={column!r}: {missing} rows of {config.file!r} have no value; expected "
                    "one in each; leave these rows out."
                )
        columns = frame.drop(columns=[config.label, config.client])
        coded = {name: _codes(column, config.bins) for name, column in columns.items()}
        codes, names = np.column_stack(list(coded.values())), np.array(list(coded), str)
        labels = pd.factorize(frame[config.label])[0]
        owners = pd.factorize(frame[config.client])[0]
        parts = [np.flatnonzero(owners == client) for client in range(owners.max() + 1)]
        title = Path(config.file).stem
    scores = [codes[rows] for rows in parts], [labels[rows] for rows in parts]
    num_values = int(codes.max()) + 1

    def make(examples):
        return fed.feature_selection(*examples, num_values=num_values, samples=20, num_examples=200)

    return Task(
        f"features of {title}", make, scores, names, np.array([len(rows) for rows in parts])
    )


def _codes(column: pd.Series, bins: int) -> np.ndarray:
    """Numbers the values of a column from 0; missing ones are one more."""
    import pandas as pd

    is_wide = pd.api.types.is_numeric_dtype(column) and column.nunique() > bins
    values = pd.qcut(column, bins, duplicates="drop") if is_wide else column
    codes = pd.factorize(values, sort=True)[0]
    return np.where(codes < 0, codes.max() + 1, codes)
