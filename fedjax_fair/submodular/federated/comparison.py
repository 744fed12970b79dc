"""Comparison of methods on one problem, as one Dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from fedjax_fair.submodular import rounding
from fedjax_fair.submodular.federated.baselines import random_base, top_singletons
from fedjax_fair.submodular.federated.bounds import (
    Guarantee,
    largest_single,
    theorem_3_2,
    theorem_3_5,
    theorem_4_3,
)
from fedjax_fair.submodular.federated.centralized_greedy import centralized_greedy
from fedjax_fair.submodular.federated.discrete_greedy import discrete_greedy
from fedjax_fair.submodular.federated.fedcg import fedcg
from fedjax_fair.submodular.federated.fedcg_plus import fedcg_plus
from fedjax_fair.submodular.federated.importance_factors import importance_factors
from fedjax_fair.submodular.federated.problem import Problem
from fedjax_fair.submodular.federated.trajectory import (
    Communication,
    ContinuousRun,
    GreedyRun,
    to_dataset,
)
from fedjax_fair.submodular.matroids import Matroid

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["GREEDY", "POPULAR", "RANDOM", "Method", "baselines", "compare", "methods"]

GREEDY, POPULAR, RANDOM = "centralized", "popular", "random"

_DELTA = 0.05  # Probability with which a bound may fail.


class Method(NamedTuple):
    """A method to find a set.

    Attributes:
        solve: ``solve(key, problem, matroid)`` gives a run.
        guarantee: ``guarantee(run, largest)``, the bound of a continuous run; or None.
        prepares: Whether importance factors are computed first, which is communication too.
    """

    solve: Callable[[Key[Array, ""], Problem, Matroid], ContinuousRun | GreedyRun]
    guarantee: Callable[..., Guarantee] | None = None
    prepares: bool = False


def baselines() -> dict[str, Method]:
    """The baselines: centralized greedy, the base of the largest single values, a random base."""

    def popular(key, problem, matroid):
        communication = importance_factors(problem).communication
        first = Communication(*(of_rounds[:1] for of_rounds in communication))
        return _at_once(problem, matroid, top_singletons(problem, matroid), first)

    def random(key, problem, matroid):
        nothing = Communication(*[jnp.zeros(1, jnp.int32)] * 4)
        return _at_once(problem, matroid, random_base(key, matroid), nothing)

    return {
        GREEDY: Method(lambda key, problem, matroid: centralized_greedy(problem, matroid)),
        POPULAR: Method(popular),
        RANDOM: Method(random),
    }


def methods(
    *, rounds: int, local_steps: int, cohort_size: int | None, kappa: float | None
) -> dict[str, Method]:
    """The federated methods.

    Args:
        rounds: Rounds of ``fedcg``, *T*. ``fedcg_plus`` takes ``local_steps`` times fewer, rounded
            up, so that a client computes as many gradients.
        local_steps: Local steps of ``fedcg_plus``, *tau*.
        cohort_size: Clients of a round of ``fedcg`` and ``fedcg_plus``; None for all clients.
        kappa: Of ``discrete_greedy``; with None all clients respond.
    """

    def continuous(run: ContinuousRun, largest: Array) -> Guarantee:
        if cohort_size is None:
            return theorem_3_2(run, largest)
        return theorem_3_5(run, largest, cohort_size=cohort_size, delta=_DELTA)

    def voting(send):
        def solve(key, problem, matroid):
            return fedcg(key, problem, matroid, rounds, cohort_size=cohort_size, send=send)

        return solve

    def local(key, problem, matroid):
        few = -(-rounds // local_steps)
        return fedcg_plus(key, problem, matroid, few, local_steps, cohort_size=cohort_size)

    def with_steps(run: ContinuousRun, largest: Array) -> Guarantee:
        assert cohort_size is not None
        return theorem_4_3(run, largest, cohort_size=cohort_size, delta=_DELTA, sigma=0.0)

    def discrete(key, problem, matroid):
        # No positive factor is as small as 1e-30, so that all clients with one respond.
        return discrete_greedy(key, problem, matroid, kappa=kappa or 1e30)

    return {
        "fedcg": Method(voting("base"), continuous),
        "fedcg-gradient": Method(voting("gradient"), continuous),
        "fedcg+": Method(local, with_steps if cohort_size else None),
        "discrete-greedy": Method(discrete, prepares=True),
    }


def compare(
    problem: Problem,
    matroid: Matroid,
    chosen: Mapping[str, Method],
    seeds: Sequence[int],
    show: Callable[[str], None] = lambda name: None,
) -> xr.Dataset:
    """Runs methods on one problem, and measures the sets that they find and their communication.

    Args:
        problem: The clients' functions.
        matroid: Which sets are allowed; uniform or a partition.
        chosen: The methods.
        seeds: Seeds of the runs of each method.
        show: Called with the name of each method before it is compiled and runs.

    Returns:
        Over ``algorithm``, ``seed`` and ``round``: ``value`` of the set so far (of a fractional
        point, its heaviest base), and clients and bits as in ``to_dataset``. Over
        ``algorithm`` and ``seed``: ``final_value``, the value of the last set, and ``rounded``, of a
        random rounding of the last point; ``guaranteed_factor`` and ``guaranteed_error`` of
        continuous runs (``bounds.Guarantee``), and the last ``extension_reached``. Over ``item``
        too: the sets, ``chosen``.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> scores = jnp.array([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> one = matroids.Uniform(1, 3)
        >>> side = compare(federated.facility_location(scores), one, baselines(), seeds=(0,))
        >>> side["final_value"].sel(algorithm=["centralized", "popular"]).values.tolist()
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
    run, measured, prepared = _solved(keys, problem, matroid, method)
    recorded = to_dataset(run, tuple(seeds))
    found = recorded[["bits_up", "bits_down", "contacted", "responded"]]
    if method.prepares:
        found["bits_up"] += int(prepared.bits_up().sum())
        found["bits_down"] += int(prepared.bits_down().sum())
        found["contacted"] += int(np.sum(prepared.contacted))
        found["responded"] += int(np.sum(prepared.responded))
    communicates = int(found["contacted"].max()) + int(found["responded"].max()) > 0
    found["rounds"] = (recorded.sizes["round"] - 1 + 2 * method.prepares) * communicates
    found["value"] = recorded["rounded" if "rounded" in recorded else "values"]
    for name, values in measured.items():
        found[name] = (("seed", "item")[: values.ndim], np.asarray(values))
    return found.assign_coords(round=np.arange(found.sizes["round"]))


@partial(jax.jit, static_argnames="method")
def _solved(keys, problem, matroid, method):
    largest = largest_single(problem)
    prepared = importance_factors(problem).communication

    def one(key):
        key_solve, key_round = jax.random.split(key)
        run = method.solve(key_solve, problem, matroid)
        return run, _measured(key_round, run, problem, matroid, method, largest)

    return (*jax.vmap(one)(keys), prepared)


def _measured(key, run, problem, matroid, method, largest) -> dict[str, Array]:
    if isinstance(run, GreedyRun):
        return {"chosen": run.chosen, "final_value": problem.value(run.chosen)}
    chosen = rounding.greedy(matroid, run.x)
    measured = {
        "chosen": chosen,
        "final_value": problem.value(chosen),
        "rounded": problem.value(rounding.pipage(key, matroid, run.x)),
        "extension_reached": run.extension[-1],
        "upper_bound": jnp.min(run.extension[:-1] + run.max_base_gain),
    }
    if method.guarantee is not None:
        bound = method.guarantee(run, largest)
        measured |= {"guaranteed_factor": bound.factor, "guaranteed_error": bound.error}
    return measured


def _at_once(
    problem: Problem, matroid: Matroid, chosen: Bool[Array, " size"], traffic: Communication
) -> GreedyRun:
    """A set that is chosen in one step, as a run."""
    items = jnp.flatnonzero(chosen, size=matroid.rank).astype(jnp.int32)
    return GreedyRun(chosen, items, jnp.stack([jnp.zeros(()), problem.value(chosen)]), traffic)
