"""Agnostic federated learning: a mixture of clients that climbs towards those served worst."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from optax.projections import projection_simplex

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Selector
from fedjax_fair.shuffle import permuted

__all__ = ["agnostic"]

Number = float | Float[Array, ""]


def agnostic(
    step: Number, cohort_size: int | None = None, local_steps: int | None = None
) -> Selector:
    r"""Plays against the model: it descends on a mixture of losses, the mixture ascends.

    The mixture :math:`\lambda` starts with the same share for every client. The server looks for

    .. math:: \min_w \max_{\lambda \in \Delta} \sum_i \lambda_i f_i(w).

    Without ``cohort_size`` (AFL) everybody trains in every round, with weights :math:`\lambda
    \leftarrow \Pi_\Delta(\lambda + \text{step} \cdot f(w))` from all losses at the current model.
    They are the cohort's weights and only count with ``mean("cohort")``. With one local step on all
    examples this is the paper's algorithm.

    With ``cohort_size`` (DRFA) each slot of the cohort is drawn from :math:`\lambda` independently,
    and weighs the same: the aggregator is ``mean("uniform")``. Members keep a copy of their model
    after a random number of local steps, the same for all. Then ``cohort_size`` other clients,
    drawn uniformly without replacement, report their losses at the average of these copies, and
    :math:`\lambda \leftarrow \Pi_\Delta(\lambda + \text{step} \cdot \text{local steps} \cdot v)`
    with :math:`v_i = \frac{N}{\text{cohort size}} f_i`, or 0 for those who were not asked.

    Losses are over all training examples of a client, where the papers take a minibatch. A loss
    that is not finite counts as one that was not asked. The papers' bounds hold for the average of
    the models of all rounds; here, as everywhere, the last one is evaluated.

    Args:
        step: Step size of the mixture, >= 0, per nat; may be traced. With 0 the mixture stays
            uniform: AFL is then federated averaging of everybody, with equal weights.
        cohort_size: Clients per round, or None for everybody.
        local_steps: Local steps of the solver, exactly if ``cohort_size`` is given.

    Returns:
        A ``Selector``. A round tells ``effective_clients``, :math:`1 / \sum_i \lambda_i^2`: all of
        them for the uniform mixture, 1 if a single client has everything.

    Raises:
        ValueError: If a setting is out of range or only one of the last two is given, if (at
            ``init``) ``cohort_size`` exceeds the number of clients, or if (in a round) the solver
            keeps no copies.

    References:
        Mohri, Sivek, Suresh, *Agnostic Federated Learning*, 2019, https://arxiv.org/abs/1902.00146

        Deng, Kamani, Mahdavi, *Distributionally Robust Federated Averaging*, 2020,
        https://arxiv.org/abs/2102.12660

    Examples:
        >>> everybody = agnostic(step=0.1)
        >>> drawn = agnostic(step=0.01, cohort_size=10, local_steps=5)
    """
    checks.non_negative("step", step)
    if (cohort_size is None) != (local_steps is None):
        raise ValueError(f"expected both of {cohort_size=} and {local_steps=}, or neither.")
    if cohort_size is None or local_steps is None:
        return _everybody(step)
    checks.positive_int("cohort_size", cohort_size)
    checks.positive_int("local_steps", local_steps)
    return _drawn(step, cohort_size, local_steps)


def _everybody(step: Number) -> Selector:
    def select(key, mixture, context):
        mixture = _climb(mixture, step, context.losses(context.variables))
        clients = jnp.arange(context.num_clients, dtype=jnp.int32)
        return Cohort(clients, mixture), mixture, _tell(mixture)

    def observe(mixture, cohort, results, context):
        return mixture

    return Selector(lambda context: _uniform(context.num_clients), select, observe)


class _Drawn(NamedTuple):
    """The mixture, and who is asked for a loss once the cohort has trained."""

    mixture: Float[Array, " clients"]
    asked: Int[Array, " cohort"]


def _drawn(step: Number, cohort_size: int, local_steps: int) -> Selector:
    places = jnp.arange(cohort_size, dtype=jnp.int32)

    def init(context):
        checks.positive_int("cohort_size", cohort_size, at_most=context.num_clients)
        return _Drawn(_uniform(context.num_clients), places)

    def select(key, state, context):
        key_clients, key_snapshot, key_asked = jax.random.split(key, 3)
        count, mixture = context.num_clients, state.mixture
        clients = jax.random.choice(key_clients, count, (cohort_size,), p=mixture)
        cohort = Cohort(
            clients=clients.astype(jnp.int32),
            weights=_uniform(cohort_size),
            snapshot=jax.random.randint(key_snapshot, (), 1, local_steps + 1, jnp.int32),
        )
        return cohort, _Drawn(mixture, permuted(key_asked, places, count)), _tell(mixture)

    def observe(state, cohort, results, context):
        if results.snapshot is None:
            raise ValueError("snapshot=None: expected a solver that keeps a copy of the model.")
        average = context.total(cohort.weights, results.snapshot)
        copies = jax.tree.map(jnp.add, context.variables, average)
        losses = context.losses(copies, state.asked) * (context.num_clients / cohort_size)
        everyone = jnp.zeros_like(state.mixture).at[state.asked].set(losses)
        return _Drawn(_climb(state.mixture, step * local_steps, everyone), state.asked)

    return Selector(init, select, observe)


def _uniform(count: int) -> Float[Array, " count"]:
    return jnp.full(count, 1 / count, jnp.float32)


def _climb(
    mixture: Float[Array, " clients"], step: Number, losses: Float[Array, " clients"]
) -> Float[Array, " clients"]:
    """A step along the losses, back onto the simplex."""
    moved = mixture + step * jnp.where(jnp.isfinite(losses), losses, 0)
    # A common shift does not change the projection; near zero it is exact.
    shifted = moved - jnp.max(moved)
    with jax.numpy_dtype_promotion("standard"):  # It divides by counts.
        return projection_simplex(shifted)


def _tell(mixture: Float[Array, " clients"]) -> dict[str, Array]:
    return {"effective_clients": 1 / jnp.sum(jnp.square(mixture))}
