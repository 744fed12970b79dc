"""Records of runs, and the ascent that the continuous algorithms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from fedjax_fair import checks
from fedjax_fair.numerics.products import product
from fedjax_fair.submodular.federated.problem import Gains, Problem
from fedjax_fair.submodular.federated.secure import secure_aggregate
from fedjax_fair.submodular.matroids import Matroid
from fedjax_fair.tree import Number

if TYPE_CHECKING:
    import xarray as xr

__all__ = [
    "Communication",
    "ContinuousRun",
    "GreedyRun",
    "Sent",
    "ascend",
    "check_sizes",
    "sample_cohort",
    "step_size",
    "to_dataset",
]


class Communication(NamedTuple):
    """Clients and bits of every round.

    Attributes:
        contacted: Clients that the server contacted, ``[rounds]``.
        responded: Clients that responded, ``[rounds]``.
        down: Bits sent to each client contacted, ``[rounds]``.
        up: Bits of each response, ``[rounds]``.
    """

    contacted: Int[Array, " rounds"]
    responded: Int[Array, " rounds"]
    down: Int[Array, " rounds"]
    up: Int[Array, " rounds"]

    def bits_down(self) -> Int[np.ndarray, "*seeds rounds"]:
        """Bits sent to clients in every round; on the host, since they exceed 32 bits."""
        return np.asarray(self.contacted, np.int64) * np.asarray(self.down)

    def bits_up(self) -> Int[np.ndarray, "*seeds rounds"]:
        """Bits sent by clients in every round."""
        return np.asarray(self.responded, np.int64) * np.asarray(self.up)


class ContinuousRun(NamedTuple):
    """A run of an algorithm that moves a fractional point.

    All quantities of a round are measured at the point before it. The server sees only the
    directions; the other quantities are diagnostics of the simulation.

    Attributes:
        x: The last point, in the matroid polytope, ``[size]``.
        step: Step size.
        rank: Rank of the matroid.
        directions: The direction of each round, ``[rounds, size]``.
        extension: ``F(x)`` before the first and after each round, ``[rounds + 1]``.
        rounded: Value of the heaviest base at each of these points (greedy rounding).
        spread: Largest difference of a client's gradient from the mean one, ``[rounds]``.
        client_base_gain: The mean over clients of ``<v_i, grad f_i(x)>``, of the bases that they sent.
        progress: ``<direction, grad F(x)>``.
        max_base_gain: The largest ``<v, grad F(x)>`` of a base; no set has a value above
            ``extension + max_base_gain``.
        lipschitz: Largest change of a client's gradient along its local steps, per distance; 0
            where there are none, NaN where there are but the gradient is estimated.
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
    """A run of an algorithm that adds one item after another.

    Attributes:
        chosen: The set, ``[size]``.
        items: Its items in the order in which they were chosen, ``[rank]``.
        values: Value of the set before the first and after each item, ``[rank + 1]``.
        communication: Clients and bits of every step.
    """

    chosen: Bool[Array, " size"]
    items: Int[Array, " rank"]
    values: Float[Array, " points"]
    communication: Communication


class Sent(NamedTuple):
    """The result of the messages of one round.

    Attributes:
        direction: The direction of the server's step, ``[size]``.
        client_base_gain: As in ``ContinuousRun``.
        lipschitz: As in ``ContinuousRun``.
    """

    direction: Float[Array, " size"]
    client_base_gain: Float[Array, ""]
    lipschitz: Float[Array, ""]


def ascend(
    problem: Problem,
    matroid: Matroid,
    weights: Float[Array, " clients"],
    key: Key[Array, ""],
    rounds: int,
    step: Number,
    communicate: Callable[[Key[Array, ""], Key[Array, ""], Float[Array, " size"], Gains], Sent],
    costs: tuple[int, int, int],
) -> ContinuousRun:
    """Starts at 0 and follows the directions that ``communicate`` gives.

    Args:
        problem: The clients' functions.
        matroid: Which sets are allowed.
        weights: Weights of the clients.
        key: Random key; that of a round is folded in.
        rounds: Number of rounds.
        step: Step size.
        communicate: The messages of a round, ``communicate(key_cohort, key_work, x, gradients)``,
            with the clients' gradients at the point.
        costs: Clients of a round, and bits sent to and by each of them.
    """

    def rounded_at(x):
        return product(weights, problem.values(matroid.max_weight_base(x)))

    def one_round(x, number):
        keys = jax.random.split(jax.random.fold_in(key, number), 3)
        values, gradients = problem.extensions(keys[0], x)
        used = gradients
        if not problem.exact:  # The estimate that a direction follows would overrate it.
            used = problem.extensions(keys[2], x).gradients
        sent = communicate(keys[1], keys[2], x, used)
        mean = secure_aggregate(gradients.messages(weights), problem.size)
        spread = gradients.spread(mean)
        max_base_gain = jnp.sum(mean, where=matroid.max_weight_base(mean))
        # Sums of steps can exceed 1 by rounding.
        moved = jnp.minimum(x + step * sent.direction, 1.0)
        record = (
            sent,
            product(weights, values),
            rounded_at(x),
            spread,
            product(sent.direction, mean),
            max_base_gain,
        )
        return moved, record

    numbers = jnp.arange(rounds, dtype=jnp.int32)
    x, (sent, extension, rounded, spread, progress, max_base_gain) = jax.lax.scan(
        one_round, jnp.zeros(problem.size), numbers
    )
    last = product(weights, problem.extensions(jax.random.fold_in(key, rounds), x).values)
    clients, down, up = (jnp.full(rounds, cost, jnp.int32) for cost in costs)
    return ContinuousRun(
        x=x,
        step=jnp.float32(step),
        rank=jnp.float32(matroid.rank),
        directions=sent.direction,
        extension=jnp.append(extension, last),
        rounded=jnp.append(rounded, rounded_at(x)),
        spread=spread,
        client_base_gain=sent.client_base_gain,
        progress=progress,
        max_base_gain=max_base_gain,
        lipschitz=sent.lipschitz,
        communication=Communication(clients, clients, down, up),
    )


def check_sizes(problem: Problem, matroid: Matroid) -> None:
    """Requires a matroid of as many items as the problem has."""
    if matroid.size != problem.size:
        raise ValueError(
            f"matroid: expected one of {problem.size} items, as the problem has, "
            f"got {matroid.size}."
        )


def step_size(step: float | None, rounds: int) -> float:
    """The step size, ``1 / rounds`` by default, with which all rounds stay in the polytope."""
    checks.positive_int("rounds", rounds)
    if step is None:
        return 1 / rounds
    checks.positive("step", step)
    if step * rounds > 1 + 1e-6:
        raise ValueError(
            f"{step=}, {rounds=}: expected step * rounds <= 1, got {step * rounds:.6g}."
        )
    return float(step)


def sample_cohort(
    key: Key[Array, ""], weights: Float[Array, " clients"], cohort_size: int
) -> Int[Array, " cohort"]:
    """Clients drawn with replacement, with probabilities ``p_i``."""
    return jax.random.choice(key, weights.shape[0], (cohort_size,), p=weights).astype(jnp.int32)


_PER_POINT = {
    "extension": ("Multilinear extension at the point", "value"),
    "rounded": ("Value of the greedily rounded set", "value"),
    "values": ("Value of the set", "value"),
}
_PER_ROUND = {
    "spread": ("Largest difference of a client's gradient from the mean", "value"),
    "client_base_gain": ("Mean gain of the clients' bases, to first order", "value"),
    "progress": ("Gain of the direction, to first order", "value"),
    "max_base_gain": ("Largest gain of a base, to first order", "value"),
    "lipschitz": ("Largest change of a gradient in local steps, per distance", "value"),
}


def to_dataset(run: ContinuousRun | GreedyRun, seeds: tuple[int, ...] | None = None) -> xr.Dataset:
    """A run as a Dataset.

    Args:
        run: A run, or one that was mapped over seeds with ``jax.vmap``.
        seeds: The seeds of a mapped run, in the order of its leading axis.

    Returns:
        Over ``round``, from 0 before the first: the values, and clients and bits so far; over
        ``training_round`` the diagnostics of every round; over ``item`` the last point ``x`` or the
        set ``chosen``; all of them over ``seed`` too where seeds are given.

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
    for table, dimension in ((_PER_POINT, "round"), (_PER_ROUND, "training_round")):
        for name, (long_name, units) in table.items():
            if name in run._fields:
                described = {"long_name": long_name, "units": units}
                columns[name] = ((*axes, dimension), np.asarray(getattr(run, name)), described)
    last = "x" if isinstance(run, ContinuousRun) else "chosen"
    columns[last] = ((*axes, "item"), np.asarray(getattr(run, last)))
    traffic = run.communication
    for name, amounts, long_name, units in (
        ("bits_up", traffic.bits_up(), "Sent by clients so far", "bit"),
        ("bits_down", traffic.bits_down(), "Sent to clients so far", "bit"),
        ("contacted", np.asarray(traffic.contacted), "Clients contacted so far", "clients"),
        ("responded", np.asarray(traffic.responded), "Clients that responded so far", "clients"),
    ):
        sums = np.cumsum(amounts, axis=-1, dtype=np.int64)
        sums = np.concatenate([np.zeros_like(sums[..., :1]), sums], axis=-1)
        columns[name] = ((*axes, "round"), sums, {"long_name": long_name, "units": units})
    coordinates = {} if seeds is None else {"seed": np.asarray(seeds, np.int64)}
    return xr.Dataset(columns, coords=coordinates)
