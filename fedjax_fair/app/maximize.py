"""Comparison of methods of federated maximization on real data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_fair import data, results
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings.config import Maximize, MaximizeExemplars, MaximizeMovielens
from fedjax_fair.data.sources.ratings import read_ratings
from fedjax_fair.report import maximization_page
from fedjax_fair.report.maximization import figures
from fedjax_fair.results.folder_lock import locked
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import method_comparison
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Task", "check", "execute", "exemplars", "movielens", "similarity", "solve", "task_of"]


class Task(NamedTuple):
    """Data of a problem.

    Attributes:
        name: Name of the data.
        make: Makes the problem of ``scores``, which are private to clients.
        labels: Label of each item, ``[items]``.
        pictures: Picture of each item, ``[items, height, width]``, or None.
    """

    name: str
    make: Callable[[Any], fed.Problem]
    scores: Any
    labels: np.ndarray
    pictures: np.ndarray | None
    num_clients: int


def task_of(config: Maximize) -> Task:
    """Loads the problem of a configuration."""
    if isinstance(config, MaximizeMovielens):
        return movielens(config.data.name, config.data.dir)
    assert isinstance(config, MaximizeExemplars)
    return exemplars(config.clients)


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
    sizes, order = np.asarray(private.sizes), np.asarray(private.order)
    scores = np.zeros((num_clients, sizes.max(), len(public)), np.float32)
    for client, images in enumerate(np.split(order, np.cumsum(sizes)[:-1])):
        scores[client, : len(images)] = similarities[images] / sizes[client]
    labels = np.asarray(digits.test.labels).astype(str)
    make = fed.combinatorial_public_projects
    return Task("exemplars", make, scores, labels, public[..., 0], num_clients)


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
    return Task(name, fed.facility_location, scores, ratings.titles, None, ratings.num_users)


def execute(
    task: Task, config: Maximize, folder: RunFolder, show: Callable[[str], None] = lambda name: None
) -> xr.Dataset:
    """Compares all methods, and writes results, figures and report to the folder.

    ``show`` is called with the name of each method before it runs.
    """
    with locked(folder.path):
        compared = solve(task, config, show)
        results.save(compared, folder.results)
        page = maximization_page.page(compared, asdict(config), folder.environment())
        folder.write_figures(figures(compared), page)
    return compared


def solve(
    task: Task, config: Maximize, show: Callable[[str], None] = lambda name: None
) -> xr.Dataset:
    """Compares all methods, as ``comparison.compare``, with the label and picture of each item."""
    check(config, task)
    matroid = matroids.Uniform(config.k, len(task.labels))
    problem = task.make(task.scores)
    factors = fed.importance_factors(problem).factors
    responses = min(config.cohort_size, int(np.count_nonzero(factors)))
    chosen = method_comparison.baselines() | method_comparison.methods(
        rounds=config.rounds,
        local_steps=config.local_steps,
        cohort_size=config.cohort_size,
        kappa=fed.kappa_for_responses(factors, responses),
    )
    compared = method_comparison.compare(problem, matroid, chosen, config.seeds, show)
    compared = compared.assign_coords(label=("item", task.labels))
    if task.pictures is not None:
        compared["picture"] = (("item", "height", "width"), task.pictures)
    return compared.assign_attrs(data=task.name, k=config.k, clients=task.num_clients)


def check(config: Maximize, task: Task) -> None:
    """Raises ``ValueError`` if a setting does not fit a task."""
    checks.positive_int("k", config.k, at_most=len(task.labels))
    checks.positive_int("rounds", config.rounds, at_most=checks.MAX_INT)
    checks.positive_int("local_steps", config.local_steps, at_most=config.rounds)
    checks.positive_int("cohort_size", config.cohort_size, at_most=task.num_clients)
    checks.seeds("seeds", config.seeds)
