"""Approximations of contributions from the updates of one run with all clients.

Models of coalitions are reconstructed in each round: the global model plus the mean update of their
members. Values of rounds are summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from fedjax_fair.aggregators import Mean
from fedjax_fair.analysis.contributions import Contributions, check_contributions
from fedjax_fair.analysis.shapley import (
    agreement,
    coalition_members,
    gtg_shapley,
    shapley_matrix,
)
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.faults import Trace
from fedjax_fair.roles import Variables
from fedjax_fair.rounds.round import Round
from fedjax_fair.rounds.round_state import RoundState
from fedjax_fair.training.fit_result import FitResult
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["approximate_contributions", "check_approximations"]


def approximate_contributions(
    method: Round, data: FederatedData, exact: Contributions, *, min_gain: float = 1e-3
) -> xr.Dataset:
    """Approximates contributions from one run per seed, and compares them with exact ones.

    Args:
        method: The method of ``exact``, with the aggregator ``Mean`` of weights that are uniform or
            of ``"num_examples"``, without faults and privacy, and with all clients in every round.
        data: The federated dataset of ``exact``.
        exact: What `contributions` returned for a metric of test examples.
        min_gain: Utility that sampling neglects: GTG-Shapley omits rounds of at most this gain, and
            the rest of an order of clients within it of the utility of all.

    Returns:
        ``estimate`` over ``approximation``, ``seed`` and ``client``. Approximations are
        ``leave_one_out``; ``size``, the share of training examples, of all the gain;
        ``per_round``, exact Shapley values of each round; and ``gtg_shapley``, which samples them.
        And over ``approximation`` and ``seed``: ``rank_correlation`` (Spearman), ``correlation``
        (Pearson), ``largest_error`` and ``sign_errors`` (number of clients).

    Raises:
        ValueError: If the method or the metric is another one, or an argument is invalid.

    References:
        Liu, Chen, Yu, Liu, Cui, *GTG-Shapley: Efficient and Accurate Participant Contribution
        Evaluation in Federated Learning*, 2022, https://arxiv.org/abs/2109.02053

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.dirichlet(3, alpha=0.3))
        >>> fedavg = ff.Round(ff.models.logistic(10), ff.selectors.Full(),
        ...                   ff.solvers.SGD(0.1, 10, epochs=1), ff.aggregators.Mean())
        >>> exact = ff.analysis.contributions(fedavg, data, rounds=2)
        >>> compared = ff.analysis.approximate_contributions(fedavg, data, exact)
        >>> compared.approximation.values.tolist()
        ['leave_one_out', 'size', 'per_round', 'gtg_shapley']
    """
    import xarray as xr

    checks.instance("exact", exact, Contributions, "analysis.contributions(method, data, ...)")
    checks.non_negative("min_gain", min_gain)
    seeds, metric = exact.dataset["seed"].values.tolist(), exact.dataset.attrs["metric"]
    utility = check_contributions(method, data, seeds, metric, ())
    check_approximations(method, data.num_clients)
    sign = 1 if utility.better == "higher" else -1
    matrix = shapley_matrix(data.num_clients)
    estimates: dict[str, list[np.ndarray]] = {}
    for i, seed in enumerate(seeds):
        partition = data.partition(i)
        by_round = np.array(
            [
                sign * _utilities(method, models, partition, metric)
                for models in _reconstructed(method, partition, seed, exact.dataset.attrs["rounds"])
            ]
        )
        sizes, utilities = np.asarray(partition.train.sizes), exact.utilities[i]
        rng = np.random.default_rng(seed)
        sampled = [
            gtg_shapley(each, rng, min_gain=min_gain, tolerance=min_gain)[0] for each in by_round
        ]
        of_seed = {
            "leave_one_out": exact.leave_one_out[i],
            "size": sizes / sizes.sum() * (utilities[-1] - utilities[0]),
            "per_round": matrix @ by_round.sum(axis=0),
            "gtg_shapley": np.sum(sampled, axis=0),
        }
        for name, values in of_seed.items():
            estimates.setdefault(name, []).append(values)
    compared = {
        name: [agreement(*pair) for pair in zip(of_seeds, exact.values, strict=True)]
        for name, of_seeds in estimates.items()
    }
    by_seed = ("approximation", "seed")
    scores = {
        score: (by_seed, [[of_seed[score] for of_seed in each] for each in compared.values()])
        for score in ("rank_correlation", "correlation", "largest_error", "sign_errors")
    }
    columns = {"estimate": ((*by_seed, "client"), np.array(list(estimates.values())))} | scores
    coordinates: dict[str, Any] = {"approximation": list(estimates), "seed": seeds}
    if "client" in exact.dataset.coords:
        coordinates["client"] = exact.dataset["client"].values
    return xr.Dataset(columns, coordinates, exact.dataset.attrs)


def check_approximations(method: Round, num_clients: int) -> None:
    """Checks that the model of a coalition is the mean of its members' updates in each round.

    Raises:
        ValueError: As `approximate_contributions`.
    """
    aggregator, sampling = method.aggregator, method.selector.sampling
    is_mean = isinstance(aggregator, Mean) and aggregator.weights != "selector"
    if not is_mean or method.faults or method.privacy is not None:
        raise ValueError(
            f"method with aggregator={aggregator!r}, faults={method.faults!r} and "
            f"privacy={method.privacy!r}: expected aggregators.Mean without faults and privacy, "
            "whose models of coalitions are means of updates."
        )
    if sampling is None or sampling.cohort_size not in (None, num_clients):
        raise ValueError(
            f"method.selector={method.selector!r}: expected all clients in every round; use "
            "selectors.Full()."
        )


def _reconstructed(
    method: Round, data: FederatedData, seed: int, rounds: int
) -> Iterator[Variables]:
    """Yields the models of all coalitions in each round of the run with all clients."""
    members = coalition_members(data.num_clients)
    sizes = np.asarray(data.train.sizes, np.float64)
    weights = members * (sizes if method.aggregator == Mean("num_examples") else 1)
    weights = (weights / np.maximum(weights.sum(axis=1, keepdims=True), 1)).astype(np.float32)
    # A round with a single client adds its update to the model.
    single = np.concatenate([np.eye(data.num_clients, dtype=bool), members[-1:]])
    state = method.init(jax.random.key(seed), data)
    for _ in range(rounds):
        models, following = _step(method, state, data, single)
        yield jax.tree.map(
            lambda old, new: old[None] + jnp.tensordot(weights, new - old[None], axes=1),
            state.variables,
            models,
        )
        state = following


@jax.jit
def _step(
    method: Round,
    state: RoundState,
    data: FederatedData,
    members: Bool[Array, "coalitions clients"],
) -> tuple[Variables, RoundState]:
    """Returns models after a round of each coalition but the last, and the state of the last."""

    def step(coalition):
        return method.replace(faults=(Trace(coalition[None]),)).step(state, data)[0]

    states = jax.vmap(step)(members)
    return (
        jax.tree.map(lambda leaf: leaf[:-1], states.variables),
        jax.tree.map(lambda leaf: leaf[-1], states),
    )


def _utilities(
    method: Round, models: Variables, data: FederatedData, metric: str
) -> Float[np.ndarray, " coalitions"]:
    """Returns a metric of models on the test examples."""
    import xarray as xr

    count = 2**data.num_clients
    runs = xr.Dataset(coords={"seed": np.arange(count)})
    fitted = FitResult(runs, models, method.model, np.zeros(count, np.int64))
    evaluated = fitted.evaluate(data)
    checks.one_of("exact: metric", metric, tuple(map(str, evaluated)))
    return evaluated[metric].values.astype(np.float64)
