"""Federated maximization on real data: problems, and runs that compare all methods on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedjax_fair import checks, data, results
from fedjax_fair.app.config import Maximize, MaximizeExemplars, MaximizeMovielens
from fedjax_fair.app.run_folder import RunFolder, locked
from fedjax_fair.data.ratings import read_ratings
from fedjax_fair.report import maximization_page
from fedjax_fair.report.maximization import figures
from fedjax_fair.results.files import write_text
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular import matroids
from fedjax_fair.submodular.federated import comparison

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Task",
    "check",
    "execute",
    "exemplars",
    "movielens",
    "similarity",
    "solve",
    "task_of",
]


def _ignore(name: str) -> None:
    """Shows nothing."""


class Task(NamedTuple):
    """A problem on real data.

    Attributes:
        name: For people.
        make: Makes the problem of ``scores``.
        scores: What the clients keep to themselves.
        labels: What each item is called, ``[items]``.
        pictures: What each item looks like, ``[items, height, width]``, or None.
        num_clients: Number of clients.
    """

    name: str
    make: Callable[[Any], fed.Problem]
    scores: Any
    labels: np.ndarray
    pictures: np.ndarray | None
    num_clients: int


def task_of(config: Maximize) -> Task:
    """The problem that a configuration is about."""
    if isinstance(config, MaximizeMovielens):
        return movielens(config.data.name, config.data.dir)
    assert isinstance(config, MaximizeExemplars)
    return exemplars(config.clients)


def exemplars(num_clients: int) -> Task:
    """Clients hold images of handwritten digits; public ones are to stand for them.

    Of scikit-learn's digits every fifth of a class is public. The other 1,442 are split over
    clients, three classes to each. ``f_i(S)`` is the mean over a client's images of the correlation
    of their pixels with those of the most similar public image in *S*, between 0 and 1.

    Args:
        num_clients: Clients, 10 or more so that every digit has an owner.

    Examples:
        >>> task = exemplars(20)
        >>> task.scores.shape[0], task.scores.shape[2], task.pictures.shape
        (20, 355, (355, 8, 8))
    """
    digits = data.load("digits", data.classes_per_client(num_clients, 3))
    own, public = digits.train, np.asarray(digits.test.features)
    alike = similarity(np.asarray(own.features), public)
    sizes, order = np.asarray(own.sizes), np.asarray(own.order)
    scores = np.zeros((num_clients, sizes.max(), len(public)), np.float32)
    for client, (images, size) in enumerate(zip(np.split(order, np.cumsum(sizes)), sizes)):  # noqa: B905
        scores[client, :size] = alike[images] / size
    labels = np.asarray([f"{label}" for label in np.asarray(digits.test.labels)])
    make = fed.combinatorial_public_projects
    return Task("exemplars", make, scores, labels, public[..., 0], num_clients)


def similarity(images: np.ndarray, others: np.ndarray) -> Float[np.ndarray, "images others"]:
    """Correlation of the pixels of two images; 0 where it is negative.

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
    """Users have rated movies; each is served by the movie of the set that it likes best.

    Args:
        name: Ratings in tensorflow-datasets.
        data_dir: Folder of prepared sets.

    Raises:
        FileNotFoundError: If they are not prepared.
        ValueError: If they are no ratings.
    """
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
    task: Task, config: Maximize, folder: RunFolder, show: Callable[[str], None] = _ignore
) -> xr.Dataset:
    """Compares all methods on a task, and leaves results, figures and a page in the folder.

    Args:
        task: The problem.
        config: What is done with it.
        folder: Where to leave everything.
        show: Called with the name of each method before it runs.
    """
    with locked(folder.path):
        compared = solve(task, config, show)
        results.save(compared, folder.results)
        folder.plots.mkdir(exist_ok=True)
        for name, figure in figures(compared).items():
            figure.savefig(folder.plots / f"{name}.png", dpi=150)
        page = maximization_page.page(compared, asdict(config), folder.environment())
        write_text(folder.report, page)
    return compared


def solve(task: Task, config: Maximize, show: Callable[[str], None] = _ignore) -> xr.Dataset:
    """Compares all methods on a task, and says by ``show`` which is next.

    Raises:
        ValueError: If a number is out of range for it.

    Returns:
        What ``comparison.compare`` gives, with the ``label`` of every item and its ``picture``.
    """
    check(config, task)
    matroid = matroids.Uniform(config.k, len(task.labels))
    problem = task.make(task.scores)
    factors = fed.importance_factors(problem).factors
    responses = min(config.cohort_size, int(np.count_nonzero(factors)))
    chosen = comparison.baselines() | comparison.methods(
        rounds=config.rounds,
        local_steps=config.local_steps,
        cohort_size=config.cohort_size,
        kappa=fed.kappa_for_responses(factors, responses),
    )
    compared = comparison.compare(problem, matroid, chosen, config.seeds, show)
    compared = compared.assign_coords(label=("item", task.labels))
    if task.pictures is not None:
        compared["picture"] = (("item", "height", "width"), task.pictures)
    return compared.assign_attrs(data=task.name, k=config.k, clients=task.num_clients)


def check(config: Maximize, task: Task) -> None:
    """Requires numbers that fit a task, before anything is compiled.

    Raises:
        ValueError: If one does not.
    """
    checks.positive_int("k", config.k, at_most=len(task.labels))
    checks.positive_int("rounds", config.rounds)
    checks.positive_int("local_steps", config.local_steps, at_most=config.rounds)
    checks.positive_int("cohort_size", config.cohort_size, at_most=task.num_clients)
    checks.seeds("seeds", config.seeds)
