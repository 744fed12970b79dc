"""Comparison of methods on one problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import ArrayLike

from fedjax_fair.submodular import rounding
from fedjax_fair.submodular.federated import bounds, centralized_baselines, trajectory
from fedjax_fair.submodular.federated.discrete_greedy import discrete_greedy
from fedjax_fair.submodular.federated.fedcg import fedcg
from fedjax_fair.submodular.federated.fedcg_plus import fedcg_plus
from fedjax_fair.submodular.federated.importance_factors import (
    ImportanceFactors,
    importance_factors,
)
from fedjax_fair.submodular.federated.problem import Problem
from fedjax_fair.submodular.federated.trajectory import Communication, GreedyRun
from fedjax_fair.submodular.matroids import Matroid, Uniform, heaviest_base
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "GREEDY",
    "NAMES",
    "POPULAR",
    "RANDOM",
    "Method",
    "baselines",
    "check_rounding",
    "compare",
    "methods",
]

GREEDY, POPULAR, RANDOM = "centralized", "popular", "random"
NAMES = (GREEDY, POPULAR, RANDOM, "fedcg", "fedcg-gradient", "fedcg+", "discrete-greedy")
"""Names of all methods."""

_DELTA = 0.05  # Probability with which a bound may fail.


class Method(NamedTuple):
    """Method for finding a set.

    Attributes:
        solve: ``solve(key, problem, matroid, client_weights=...)`` returns a run.
        guarantee: ``guarantee(run, matroid, largest, largest_of_client)``, with the largest value
            of a single item to all clients and to any one of them, or None.
        prepares: Whether importance factors are communicated first.
    """

    solve: Callable[..., trajectory.ContinuousRun | GreedyRun]
    guarantee: Callable[..., bounds.Guarantee] | None = None
    prepares: bool = False


def baselines() -> dict[str, Method]:
    """Returns centralized greedy, the base of the largest single values, and a random base."""

    def in_one_step(problem, matroid, weights, chosen, communication):
        items = jnp.flatnonzero(chosen, size=matroid.rank).astype(jnp.int32)
        values = jnp.stack([jnp.zeros(()), problem.value(chosen, weights)])
        return GreedyRun(chosen, items, values, communication)

    def central(key, problem, matroid, **weights):
        return centralized_baselines.centralized_greedy(problem, matroid, **weights)

    def popular(key, problem, matroid, client_weights):
        importance = importance_factors(problem, client_weights)
        communication = Communication(*(counts[:1] for counts in importance.communication))
        chosen = heaviest_base(matroid, importance.singles)
        return in_one_step(problem, matroid, client_weights, chosen, communication)

    def random(key, problem, matroid, client_weights):
        chosen = centralized_baselines.random_base(key, matroid)
        communication = trajectory.no_communication(1)
        return in_one_step(problem, matroid, client_weights, chosen, communication)

    return {GREEDY: Method(central), POPULAR: Method(popular), RANDOM: Method(random)}


def methods(
    *,
    rounds: int,
    local_steps: int,
    cohort_size: int | None,
    kappa: float | None,
    epsilon: float | None = None,
    step: float | None = None,
    local: str = "clip",
    sigma: float | None = None,
) -> dict[str, Method]:
    """Returns the federated methods.

    Args:
        rounds: Rounds of ``fedcg``. ``fedcg_plus`` takes ``local_steps`` times fewer.
        local_steps: Local steps of ``fedcg_plus``.
        cohort_size: Clients per round of ``fedcg`` and ``fedcg_plus``; None for all.
        kappa: Of ``discrete_greedy``; with None all clients respond.
        epsilon: Of ``discrete_greedy`` with one sample of clients, instead of ``kappa``.
        step: Step size of ``fedcg``; a round of ``fedcg_plus`` takes ``local_steps`` times more.
        local: Of ``fedcg_plus``.
        sigma: Of ``fedcg_plus`` with sampled gradients; None for exact ones.
    """

    def of_fedcg(run, matroid, largest, _):
        if cohort_size is None:
            return bounds.theorem_3_2(run, largest)
        return bounds.theorem_3_5(run, largest, cohort_size=cohort_size, delta=_DELTA)

    def of_fedcg_plus(run, matroid, largest, largest_of_client):
        error = 0.0 if sigma is None else sigma * largest_of_client
        sampling = {"cohort_size": cohort_size, "delta": _DELTA, "sigma": error}
        return bounds.theorem_4_3(run, largest, **sampling)

    def of_discrete_greedy(run, matroid, *_):
        assert epsilon is not None
        is_uniform = isinstance(matroid, Uniform)
        return bounds.theorem_5_1(epsilon, size=matroid.size, cardinality=is_uniform)

    vote = partial(fedcg, rounds=rounds, cohort_size=cohort_size, step=step)
    local_rounds = -(-rounds // local_steps)
    ascent = partial(
        fedcg_plus,
        rounds=local_rounds,
        local_steps=local_steps,
        cohort_size=cohort_size,
        step=None if step is None else min(step * local_steps, 1 / local_rounds),
        local=local,
        gradient="exact" if sigma is None else "sampled",
        sigma=0.1 if sigma is None else sigma,
        delta=_DELTA,
    )
    # Positive factors exceed 1e-30, so that all clients with one respond.
    greedy = partial(discrete_greedy, kappa=kappa or 1e30)
    if epsilon is not None:
        greedy = partial(discrete_greedy, epsilon=epsilon, resample=False)
    return {
        "fedcg": Method(vote, of_fedcg),
        "fedcg-gradient": Method(partial(vote, send="gradient"), of_fedcg),
        "fedcg+": Method(ascent, None if cohort_size is None else of_fedcg_plus),
        "discrete-greedy": Method(greedy, None if epsilon is None else of_discrete_greedy, True),
    }


def compare(
    problem: Problem,
    matroid: Matroid,
    chosen: Mapping[str, Method],
    seeds: Sequence[int],
    show: Callable[[str], None] = lambda name: None,
    *,
    client_weights: ArrayLike | None = None,
    round_by: str = "greedy",
    importance: ImportanceFactors | None = None,
) -> xr.Dataset:
    """Runs methods on one problem, and measures their sets and their communication.

    Args:
        problem: The clients' functions.
        matroid: Constraint on sets.
        chosen: The methods.
        seeds: Seeds of the runs of each method.
        show: Called with the name of each method before it runs.
        client_weights: As for ``fedcg``.
        round_by: Function of ``rounding`` that makes the set of a fractional point: ``"greedy"``,
            ``"swap"``, or ``"pipage"`` for a uniform or partition matroid.
        importance: ``importance_factors`` of the problem and weights, computed if None.

    Returns:
        Over ``round``: ``value`` of the set so far (of a point, its heaviest base), and the
        communication of ``to_dataset``. Without: ``final_value``, ``rounded`` of a random rounding
        (pipage where it is defined, else swap), ``guaranteed_factor`` and ``guaranteed_error``
        (``bounds.Guarantee``), ``extension_reached``, ``upper_bound`` of the optimum, the set
        ``chosen``, and the ``importance_factor`` of each client.

    Raises:
        ValueError: If pipage does not support the matroid, or items or weights do not fit.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location(jnp.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]]))
        >>> results = compare(problem, matroids.Uniform(1, 3), baselines(), seeds=(0,))
        >>> results["final_value"].sel(algorithm=["centralized", "popular"]).values.tolist()
        [[1.5], [1.5]]
    """
    import xarray as xr

    check_rounding(round_by, matroid)
    weights = trajectory.check_arguments(problem, matroid, client_weights)
    if importance is None:
        importance = importance_factors(problem, client_weights)
    runs: list[xr.Dataset] = []
    for name, method in chosen.items():
        show(name)
        runs.append(_run(problem, matroid, method, seeds, weights, round_by, importance))
    names = xr.DataArray(list(chosen), dims="algorithm", name="algorithm")
    compared = xr.concat(runs, names, join="outer", data_vars="all")
    return compared.assign(importance_factor=("client", np.asarray(importance.factors)))


def check_rounding(round_by: str, matroid: Matroid) -> None:
    """Raises ``ValueError`` if there is no such rounding, or none for the matroid."""
    checks.one_of("rounding", round_by, ("greedy", "swap", "pipage"))
    if round_by == "pipage" and matroid.item_blocks is None:
        raise ValueError(
            f"rounding='pipage': expected a uniform or partition matroid, got "
            f"{type(matroid).__name__}; use 'swap'."
        )


def _run(problem, matroid, method, seeds, weights, round_by, importance) -> xr.Dataset:
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    run, measurements = _solve(keys, problem, matroid, method, weights, importance.singles)
    if not isinstance(run, GreedyRun):
        measurements |= _round(keys, run, problem, matroid, weights, round_by)
    recorded = trajectory.to_dataset(run, tuple(seeds))
    results = recorded[["bits_up", "bits_down", "contacted", "responded"]]
    if method.prepares:
        preparation = importance.communication
        results["bits_up"] += int(preparation.bits_up().sum())
        results["bits_down"] += int(preparation.bits_down().sum())
        results["contacted"] += int(np.sum(preparation.contacted))
        results["responded"] += int(np.sum(preparation.responded))
    communicates = int(results["contacted"].max()) + int(results["responded"].max()) > 0
    results["rounds"] = (recorded.sizes["round"] - 1 + 2 * method.prepares) * communicates
    results["value"] = recorded["rounded" if "rounded" in recorded else "values"]
    for name, values in measurements.items():
        results[name] = (("seed", "item")[: values.ndim], np.asarray(values))
    return results.assign_coords(round=np.arange(results.sizes["round"]))


@partial(jax.jit, static_argnames="method")
def _solve(keys, problem, matroid, method, weights, single_values):
    largest = jnp.max(single_values)
    single_gains = problem.gains(jnp.zeros(problem.size, bool))
    largest_of_client = single_gains.spread(jnp.zeros(problem.size))

    def solve_one(key):
        run = method.solve(jax.random.split(key)[0], problem, matroid, client_weights=weights)
        measured = {}
        if isinstance(run, GreedyRun):
            measured = {"chosen": run.chosen, "final_value": problem.value(run.chosen, weights)}
        else:
            measured["extension_reached"] = run.extension[-1]
            measured["upper_bound"] = jnp.min(run.extension[:-1] + run.max_base_gain)
        if method.guarantee is not None:
            guarantee = method.guarantee(run, matroid, largest, largest_of_client)
            measured["guaranteed_factor"] = guarantee.factor
            measured["guaranteed_error"] = guarantee.error
        return run, jax.tree.map(jnp.asarray, measured)

    return jax.vmap(solve_one)(keys)


def _round(keys, run, problem, matroid, weights, round_by) -> dict[str, Array]:
    """Rounds the last point of every run, one by one: swap rounding decomposes it on the host."""
    by_name = {
        "greedy": lambda key, x: rounding.greedy(matroid, x),
        "pipage": lambda key, x: rounding.pipage(key, matroid, x),
        "swap": lambda key, x: rounding.swap(key, matroid, x),
    }
    at_random = "swap" if matroid.item_blocks is None else "pipage"
    sets = {
        name: jnp.stack(
            [by_name[name](jax.random.split(key)[1], x) for key, x in zip(keys, run.x, strict=True)]
        )
        for name in {round_by, at_random}
    }
    values = {
        name: jnp.stack([problem.value(chosen, weights) for chosen in masks])
        for name, masks in sets.items()
    }
    return {
        "chosen": sets[round_by],
        "final_value": values[round_by],
        "rounded": values[at_random],
    }
