"""Records of runs, and the ascent that the continuous algorithms share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.checked_arrays import check_key, is_traced
from fedjax_fair.submodular.federated.problem import Problem, as_client_weights
from fedjax_fair.submodular.federated.secure import secure_aggregate
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.utils import checks

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["Communication", "ContinuousRun", "GreedyRun", "to_dataset"]


class Communication(NamedTuple):
    """Clients and bits of every round.

    Attributes:
        contacted: Clients that the server contacted, ``[rounds]``.
        responded: Clients that responded, ``[rounds]``.
        down: Bits sent to each contacted client, ``[rounds]``.
        up: Bits of each response, ``[rounds]``.
    """

    contacted: Int[Array, " rounds"]
    responded: Int[Array, " rounds"]
    down: Int[Array, " rounds"]
    up: Int[Array, " rounds"]

    def bits_down(self) -> Int[np.ndarray, "*seeds rounds"]:
        """Counts bits sent to clients in every round, on the host since they exceed 32 bits."""
        return np.asarray(self.contacted, np.int64) * np.asarray(self.down)

    def bits_up(self) -> Int[np.ndarray, "*seeds rounds"]:
        """Counts bits sent by clients in every round."""
        return np.asarray(self.responded, np.int64) * np.asarray(self.up)


def no_communication(rounds: int) -> Communication:
    """Returns the record of an algorithm on the server alone."""
    return Communication(*[jnp.zeros(rounds, jnp.int32)] * 4)


class ContinuousRun(NamedTuple):
    """Run of an algorithm that moves a fractional point.

    Quantities of a round are measured at the point before it.

    Attributes:
        x: Last point, in the matroid polytope, ``[size]``.
        step: Step size.
        rank: Rank of the matroid.
        directions: Direction of each round, ``[rounds, size]``.
        extension: ``F(x)`` before the first and after each round, ``[rounds + 1]``.
        rounded: Value of the heaviest base at each of these points.
        spread: Largest difference of a client's gradient from the mean, ``[rounds]``.
        client_base_gain: Mean of ``<v_i, grad f_i(x)>`` for the clients' bases.
        progress: ``<direction, grad F(x)>``.
        max_base_gain: Largest ``<v, grad F(x)>`` of a base; with ``extension`` it bounds the
            optimum.
        lipschitz: Largest change of a gradient along local steps, per distance; 0 without local
            steps, NaN if gradients are estimated.
        communication: Clients and bits of every round.
    """

    x: Float[Array, " size"]
    step: Float[Array, ""]
    rank: Float[Array, ""]
    directions: Float[Array, "rounds size"]
    extension: Float[Array, " points"]
    rounded: Float[Array, " points"]
    spread: Float[Array, " rounds"]
    client_base_gain: Float[Array, " rounds"]
    progress: Float[Array, " rounds"]
    max_base_gain: Float[Array, " rounds"]
    lipschitz: Float[Array, " rounds"]
    communication: Communication


class GreedyRun(NamedTuple):
    """Run of an algorithm that adds items sequentially.

    Attributes:
        chosen: The set, ``[size]``.
        items: Items in the order of addition, ``[rank]``.
        values: Value of the set before and after each item, ``[rank + 1]``.
        communication: Clients and bits of every step.
    """

    chosen: Bool[Array, " size"]
    items: Int[Array, " rank"]
    values: Float[Array, " points"]
    communication: Communication


class RoundResult(NamedTuple):
    """Direction of the server's step in a round, and diagnostics as in ``ContinuousRun``."""

    direction: Float[Array, " size"]
    client_base_gain: Float[Array, ""]
    lipschitz: Float[Array, ""]


def ascend(problem, matroid, weights, key, rounds, step, communicate, costs) -> ContinuousRun:
    """Starts at 0 and follows the directions of all rounds.

    They come from ``communicate(key_cohort, key_work, x, gradients) -> RoundResult``. ``costs`` are
    the clients per round, and the bits to and from each.
    """

    def rounded_value(x):
        return product(weights, problem.values(matroid.max_weight_base(x)))

    def one_round(x, number):
        keys = jax.random.split(jax.random.fold_in(key, number), 3)
        values, gradients = problem.extensions(keys[0], x)
        client_gradients = gradients
        if not problem.exact:  # Progress is overestimated by the estimate that it maximizes.
            client_gradients = problem.extensions(keys[2], x).gradients
        result = communicate(keys[1], keys[2], x, client_gradients)
        mean = secure_aggregate(gradients.messages(weights), problem.size)
        record = {
            "directions": result.direction,
            "extension": product(weights, values),
            "rounded": rounded_value(x),
            "spread": gradients.spread(mean),
            "client_base_gain": result.client_base_gain,
            "progress": product(result.direction, mean),
            "max_base_gain": jnp.sum(mean, where=matroid.max_weight_base(mean)),
            "lipschitz": result.lipschitz,
        }
        # Sums of steps can exceed 1 by rounding.
        return jnp.minimum(x + step * result.direction, 1.0), record

    numbers = jnp.arange(rounds, dtype=jnp.int32)
    x, record = jax.lax.scan(one_round, jnp.zeros(problem.size), numbers)
    last = product(weights, problem.extensions(jax.random.fold_in(key, rounds), x).values)
    record["extension"] = jnp.append(record["extension"], last)
    record["rounded"] = jnp.append(record["rounded"], rounded_value(x))
    clients, down, up = (jnp.full(rounds, cost, jnp.int32) for cost in costs)
    return ContinuousRun(
        x=x,
        step=jnp.float32(step),
        rank=jnp.float32(matroid.rank),
        communication=Communication(clients, clients, down, up),
        **record,
    )


def check_arguments(problem, matroid, client_weights, cohort_size=None, key=None) -> Any:
    """Checks arguments that all algorithms have, and returns the weights."""
    checks.instance("problem", problem, Problem, "federated.facility_location(scores)")
    checks.instance("matroid", matroid, Matroid, "matroids.Uniform(k, num_items)")
    if matroid.size != problem.size:
        raise ValueError(
            f"matroid: got one of {matroid.size} items, expected one of {problem.size} items, as "
            f"the problem has; make the matroid with size={problem.size}."
        )
    if key is not None:
        check_key(key)
    if cohort_size is not None:
        checks.positive_int("cohort_size", cohort_size)
    return as_client_weights(problem, client_weights)


def step_size(step: float | None, rounds: int) -> float:
    """Returns the step size, ``1 / rounds`` by default, which keeps points in the polytope."""
    checks.positive_int("rounds", rounds)
    if step is None:
        return 1 / rounds
    checks.positive("step", step)
    if is_traced(step):
        return step
    if step * rounds > 1 + 1e-6:
        raise ValueError(
            f"{step=}, {rounds=}: step * rounds is {step * rounds:.6g}, expected at most 1; use "
            "step=1 / rounds."
        )
    return float(step)


def sample_cohort(key, weights, cohort_size: int) -> Int[Array, " cohort"]:
    """Samples clients with replacement, with probabilities ``p_i``."""
    return jax.random.choice(key, weights.shape[0], (cohort_size,), p=weights).astype(jnp.int32)


# Dimension and long name of each recorded value.
_RECORDED = {
    "extension": ("round", "Multilinear extension at the point"),
    "rounded": ("round", "Value of the greedily rounded set"),
    "values": ("round", "Value of the set"),
    "spread": ("training_round", "Largest difference of a client's gradient from the mean"),
    "client_base_gain": ("training_round", "Mean gain of the clients' bases, to first order"),
    "progress": ("training_round", "Gain of the direction, to first order"),
    "max_base_gain": ("training_round", "Largest gain of a base, to first order"),
    "lipschitz": ("training_round", "Largest change of a gradient in local steps, per distance"),
}


def to_dataset(run: ContinuousRun | GreedyRun, seeds: tuple[int, ...] | None = None) -> xr.Dataset:
    """Converts a run to a dataset.

    Args:
        run: A run, or one that was mapped over seeds with ``jax.vmap``.
        seeds: Seeds of a mapped run.

    Returns:
        Values and cumulative communication over ``round``, diagnostics over ``training_round``, the
        solution ``x`` or ``chosen`` over ``item``.

    Examples:
        >>> from fedjax_fair.submodular import federated, matroids
        >>> problem = federated.facility_location([[3.0, 1.0], [0.0, 2.0]])
        >>> run = federated.centralized_greedy(problem, matroids.Uniform(2, 2))
        >>> to_dataset(run)["values"].values.tolist()
        [0.0, 1.5, 2.5]
    """
    import xarray as xr

    if seeds is not None:
        checks.seeds("seeds", seeds, different=False)
    axes = () if seeds is None else ("seed",)
    columns: dict[str, Any] = {}
    for name, (dimension, long_name) in _RECORDED.items():
        if name in run._fields:
            attributes = {"long_name": long_name, "units": "value"}
            columns[name] = ((*axes, dimension), np.asarray(getattr(run, name)), attributes)
    solution = "x" if isinstance(run, ContinuousRun) else "chosen"
    columns[solution] = ((*axes, "item"), np.asarray(getattr(run, solution)))
    traffic = run.communication
    for name, counts, long_name, units in (
        ("bits_up", traffic.bits_up(), "Sent by clients so far", "bit"),
        ("bits_down", traffic.bits_down(), "Sent to clients so far", "bit"),
        ("contacted", np.asarray(traffic.contacted), "Clients contacted so far", "clients"),
        ("responded", np.asarray(traffic.responded), "Clients that responded so far", "clients"),
    ):
        sums = np.cumsum(counts, axis=-1, dtype=np.int64)
        sums = np.concatenate([np.zeros_like(sums[..., :1]), sums], axis=-1)
        columns[name] = ((*axes, "round"), sums, {"long_name": long_name, "units": units})
    coordinates = {} if seeds is None else {"seed": np.asarray(seeds, np.int64)}
    return xr.Dataset(columns, coords=coordinates)
