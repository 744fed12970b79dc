"""Comparison of methods of federated maximization."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fedjax_fair import results
from fedjax_fair.app.maximization_tasks import Task, constraint
from fedjax_fair.app.run_folder import RunFolder
from fedjax_fair.app.settings.config import Maximize
from fedjax_fair.app.settings.suggestions import lookup
from fedjax_fair.report import maximization_page
from fedjax_fair.results.files import locked
from fedjax_fair.submodular import federated as fed
from fedjax_fair.submodular.checked_arrays import as_known_epsilon
from fedjax_fair.submodular.federated import method_comparison
from fedjax_fair.submodular.federated.trajectory import step_size
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["check", "execute", "solve"]


def execute(
    task: Task, config: Maximize, folder: RunFolder, show: Callable[[str], None] = lambda name: None
) -> xr.Dataset:
    """Compares methods, and writes results, figures and report to the folder.

    ``show`` is called with the name of each method before it runs.
    """
    with locked(folder.path):
        compared = solve(task, config, show)
        results.save(compared, folder.results)
        page = maximization_page.page(compared, asdict(config), folder.environment())
        folder.write_figures(maximization_page.figures(compared), page)
    return compared


def solve(
    task: Task, config: Maximize, show: Callable[[str], None] = lambda name: None
) -> xr.Dataset:
    """Compares methods, as ``comparison.compare``, with the label and picture of each item."""
    matroid = check(config, task)
    problem = task.make(task.scores)
    weights = task.sizes / task.sizes.sum() if config.client_weights == "size" else None
    importance = fed.importance_factors(problem, weights)
    chosen = _methods(config, importance.factors)
    compared = method_comparison.compare(
        problem,
        matroid,
        chosen,
        config.seeds,
        show,
        client_weights=weights,
        round_by=config.rounding,
        importance=importance,
    )
    compared = compared.assign_coords(label=("item", task.labels))
    if task.pictures is not None:
        compared["picture"] = (("item", "height", "width"), task.pictures)
    return compared.assign_attrs(data=task.name, k=matroid.rank, clients=task.num_clients)


def _methods(config: Maximize, factors: ArrayLike):
    """Returns the methods of a configuration, and centralized greedy and popular beside them."""
    positive = int(np.count_nonzero(factors))
    cohort_size = None if config.cohort_size == "all" else config.cohort_size
    responses = None if cohort_size is None else min(cohort_size, positive)
    known = method_comparison.baselines() | method_comparison.methods(
        rounds=config.rounds,
        local_steps=config.local_steps,
        cohort_size=cohort_size,
        kappa=None if responses is None else fed.kappa_for_responses(factors, responses),
        epsilon=config.epsilon,
        step=config.step,
        local=config.local,
        sigma=config.sigma,
    )
    always = [method_comparison.GREEDY, method_comparison.POPULAR]
    names = [*always, *config.methods] if config.methods else list(known)
    return {name: known[name] for name in dict.fromkeys(names)}


def check(config: Maximize, task: Task) -> Matroid:
    """Checks that settings fit a task, and returns its constraint.

    Raises:
        ValueError: If one does not.
    """
    checks.positive_int("rounds", config.rounds, at_most=checks.MAX_INT)
    checks.positive_int("local_steps", config.local_steps, at_most=config.rounds)
    if config.cohort_size != "all":
        checks.positive_int("cohort_size", config.cohort_size, at_most=task.num_clients)
    if config.step is not None:
        step_size(config.step, config.rounds)
    if config.sigma is not None:
        checks.positive("sigma", config.sigma)
    if config.epsilon is not None:
        as_known_epsilon(config.epsilon)
    for method in config.methods:
        lookup("method", method, dict.fromkeys(method_comparison.NAMES))
    matroid = constraint(config, task)
    method_comparison.check_rounding(config.rounding, matroid)
    checks.seeds("seeds", config.seeds)
    return matroid
