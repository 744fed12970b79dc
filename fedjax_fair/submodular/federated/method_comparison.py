"""Comparison of methods on one problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from fedjax_fair.submodular import rounding
from fedjax_fair.submodular.federated import bounds, centralized_baselines, trajectory
from fedjax_fair.submodular.federated.discrete_greedy import discrete_greedy
from fedjax_fair.submodular.federated.fedcg import fedcg
from fedjax_fair.submodular.federated.fedcg_plus import fedcg_plus
from fedjax_fair.submodular.federated.importance_factors import importance_factors
from fedjax_fair.submodular.federated.problem import Problem
from fedjax_fair.submodular.federated.trajectory import Communication, GreedyRun
from fedjax_fair.submodular.matroids import Matroid

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["GREEDY", "POPULAR", "RANDOM", "Method", "baselines", "compare", "methods"]

GREEDY, POPULAR, RANDOM = "centralized", "popular", "random"

_DELTA = 0.05  # Probability with which a bound may fail.


class Method(NamedTuple):
    """Method for finding a set.

    Attributes:
        solve: ``solve(key, problem, matroid)`` returns a run.
        guarantee: ``guarantee(run, largest)`` of a continuous run, or None.
        prepares: Whether importance factors are communicated first.
    """

    solve: Callable[[Key[Array, ""], Problem, Matroid], trajectory.ContinuousRun | GreedyRun]
    guarantee: Callable[..., bounds.Guarantee] | None = None
    prepares: bool = False


def baselines() -> dict[str, Method]:
    """Returns centralized greedy, the base of the largest single values, and a random base."""

    def in_one_step(problem, matroid, chosen, communication):
        items = jnp.flatnonzero(chosen, size=matroid.rank).astype(jnp.int32)
        values = jnp.stack([jnp.zeros(()), problem.value(chosen)])
        return GreedyRun(chosen, items, values, communication)

    def popular(key, problem, matroid):
        both_rounds = importance_factors(problem).communication
        communication = Communication(*(counts[:1] for counts in both_rounds))
        return in_one_step(
            problem, matroid, centralized_baselines.top_singletons(problem, matroid), communication
        )

    def random(key, problem, matroid):
        chosen = centralized_baselines.random_base(key, matroid)
        return in_one_step(problem, matroid, chosen, trajectory.no_communication(1))

    return {
        GREEDY: Method(
            lambda key, problem, matroid: centralized_baselines.centralized_greedy(problem, matroid)
        ),
        POPULAR: Method(popular),
        RANDOM: Method(random),
    }


def methods(
    *, rounds: int, local_steps: int, cohort_size: int | None, kappa: float | None
) -> dict[str, Method]:
    """Returns the federated methods.

    Args:
        rounds: Rounds of ``fedcg``. ``fedcg_plus`` takes ``local_steps`` times fewer.
        local_steps: Local steps of ``fedcg_plus``.
        cohort_size: Clients per round of ``fedcg`` and ``fedcg_plus``; None for all.
        kappa: Of ``discrete_greedy``; with None all clients respond.
    """
    bound, bound_plus = bounds.theorem_3_2, None
    if cohort_size is not None:
        sampling = {"cohort_size": cohort_size, "delta": _DELTA}
        bound = partial(bounds.theorem_3_5, **sampling)
        bound_plus = partial(bounds.theorem_4_3, **sampling, sigma=0.0)
    vote = partial(fedcg, rounds=rounds, cohort_size=cohort_size)
    local = {"rounds": -(-rounds // local_steps), "local_steps": local_steps}
    # Positive factors exceed 1e-30, so that all clients with one respond.
    greedy = partial(discrete_greedy, kappa=kappa or 1e30)
    return {
        "fedcg": Method(vote, bound),
        "fedcg-gradient": Method(partial(vote, send="gradient"), bound),
        "fedcg+": Method(partial(fedcg_plus, **local, cohort_size=cohort_size), bound_plus),
        "discrete-greedy": Method(greedy, prepares=True),
    }


def compare(
    problem: Problem,
    matroid: Matroid,
    chosen: Mapping[str, Method],
    seeds: Sequence[int],
    show: Callable[[str], None] = lambda name: None,
) -> xr.Dataset:
    """Runs methods on one problem, and measures their sets and their communication.

    Args:
        problem: The clients' functions.
        matroid: A uniform or partition matroid.
        chosen: The methods.
        seeds: Seeds of the runs of each method.
        show: Called with the name of each method before it runs.

    Returns:
        Over ``round``: ``value`` of the set so far (of a point, its heaviest base), and the
        communication of ``to_dataset``. Without: ``final_value``, ``rounded`` of a random rounding,
        ``guaranteed_factor`` and ``guaranteed_error`` (``bounds.Guarantee``),
        ``extension_reached``, ``upper_bound`` of the optimum, and the set ``chosen``.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location(jnp.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]]))
        >>> results = compare(problem, matroids.Uniform(1, 3), baselines(), seeds=(0,))
        >>> results["final_value"].sel(algorithm=["centralized", "popular"]).values.tolist()
        [[1.5], [1.5]]
    """
    import xarray as xr

    runs: list[xr.Dataset] = []
    for name, method in chosen.items():
        show(name)
        runs.append(_run(problem, matroid, method, seeds))
    names = xr.DataArray(list(chosen), dims="algorithm", name="algorithm")
    return xr.concat(runs, names, join="outer", data_vars="all")


def _run(problem, matroid, method, seeds) -> xr.Dataset:
    keys = jax.vmap(jax.random.key)(jnp.asarray(seeds, jnp.uint32))
    run, measurements, preparation = _solve(keys, problem, matroid, method)
    recorded = trajectory.to_dataset(run, tuple(seeds))
    results = recorded[["bits_up", "bits_down", "contacted", "responded"]]
    if method.prepares:
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
def _solve(keys, problem, matroid, method):
    largest = bounds.largest_single(problem)
    preparation = importance_factors(problem).communication

    def solve_one(key):
        key_solve, key_round = jax.random.split(key)
        run = method.solve(key_solve, problem, matroid)
        return run, _measure(key_round, run, problem, matroid, method, largest)

    return (*jax.vmap(solve_one)(keys), preparation)


def _measure(key, run, problem, matroid, method, largest) -> dict[str, Array]:
    if isinstance(run, GreedyRun):
        return {"chosen": run.chosen, "final_value": problem.value(run.chosen)}
    chosen = rounding.greedy(matroid, run.x)
    measurements = {
        "chosen": chosen,
        "final_value": problem.value(chosen),
        "rounded": problem.value(rounding.pipage(key, matroid, run.x)),
        "extension_reached": run.extension[-1],
        "upper_bound": jnp.min(run.extension[:-1] + run.max_base_gain),
    }
    if method.guarantee is not None:
        guarantee = method.guarantee(run, largest)
        measurements |= {
            "guaranteed_factor": guarantee.factor,
            "guaranteed_error": guarantee.error,
        }
    return measurements
