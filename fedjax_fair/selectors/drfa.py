"""Distributionally robust federated averaging: cohorts drawn from the worst mixture of clients."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Number, Selector
from fedjax_fair.selectors.agnostic import ascend, mixture_info, uniform_mixture
from fedjax_fair.selectors.uniform import draw

__all__ = ["drfa"]


class _State(NamedTuple):
    """The mixture, and the clients that report a loss once the cohort has trained."""

    mixture: Float[Array, " clients"]
    reporting: Int[Array, " cohort"]


def drfa(
    mixture_learning_rate: Number = 0.1, cohort_size: int = 10, local_steps: int = 1
) -> Selector:
    r"""Draws every slot of the cohort from the mixture of clients that is worst for the model.

    The objective is that of `agnostic`. Slots are drawn from the mixture :math:`\lambda`
    independently and weigh the same: the aggregator is ``mean("uniform")``. Members keep a copy of
    their model after a random number of local steps, the same for all (instruction
    ``snapshot_step``). Then ``cohort_size`` clients, drawn uniformly without replacement, report
    their losses at the average of these copies, and :math:`\lambda \leftarrow \Pi_\Delta(\lambda +
    \gamma \cdot \text{local steps} \cdot v)` with :math:`v_i = \frac{N}{\text{cohort size}} f_i`
    for clients that report and 0 for the others. A loss that is not finite counts as 0.

    No guarantee of differential privacy covers it, because the mixture depends on what clients
    have.

    Args:
        mixture_learning_rate: Step size :math:`\gamma` of the mixture, >= 0, per unit of loss; may
            be traced.
        cohort_size: Clients per round.
        local_steps: Local steps of the solver, exactly.

    Returns:
        A ``Selector``. Info: as for `agnostic`.

    Raises:
        ValueError: If a setting is out of range, if (at ``init``) ``cohort_size`` exceeds the
            number of clients, or if (in a round) the solver reports no ``snapshot``.

    References:
        Deng, Kamani, Mahdavi, *Distributionally Robust Federated Averaging*, 2020,
        https://arxiv.org/abs/2102.12660

    Examples:
        >>> selector = drfa(mixture_learning_rate=0.01, cohort_size=10, local_steps=5)
    """
    checks.non_negative("mixture_learning_rate", mixture_learning_rate)
    checks.positive_int("cohort_size", cohort_size)
    checks.positive_int("local_steps", local_steps)
    slots = jnp.arange(cohort_size, dtype=jnp.int32)

    def init(context):
        checks.positive_int("cohort_size", cohort_size, at_most=context.num_clients)
        return _State(uniform_mixture(context.num_clients), slots)

    def select(key, state, context):
        key_clients, key_snapshot, key_reporting = jax.random.split(key, 3)
        count, mixture = context.num_clients, state.mixture
        likely = mixture
        if context.available is not None:
            likely = jnp.where(context.available, mixture, 0)
            likely = jnp.where(jnp.sum(likely) > 0, likely, mixture)
        clients = jax.random.choice(key_clients, count, (cohort_size,), p=likely)
        snapshot_step = jax.random.randint(key_snapshot, (), 1, local_steps + 1, jnp.int32)
        cohort = Cohort(
            clients=clients.astype(jnp.int32),
            weights=uniform_mixture(cohort_size),
            instructions={"snapshot_step": jnp.broadcast_to(snapshot_step, (cohort_size,))},
        )
        reporting = draw(key_reporting, cohort_size, context)
        return cohort, _State(mixture, reporting), mixture_info(mixture)

    def observe(state, cohort, results, context):
        if "snapshot" not in results.reports:
            raise ValueError(
                f"reports={sorted(results.reports)}: expected a solver that reports a snapshot."
            )
        weights = cohort.among_answers(cohort.weights)
        average = context.weighted_sum(weights, results.reports["snapshot"])
        copies = jax.tree.map(jnp.add, context.variables, average)
        losses = context.losses(copies, state.reporting) * (context.num_clients / cohort_size)
        if context.available is not None:
            losses = jnp.where(context.available[state.reporting], losses, 0)
        reported = jnp.zeros_like(state.mixture).at[state.reporting].set(losses)
        mixture = ascend(state.mixture, mixture_learning_rate * local_steps, reported)
        return _State(mixture, state.reporting)

    return Selector(init, select, observe, sees="numbers")
