"""Distributionally robust federated averaging: cohorts sampled from the worst mixture."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.roles import Number, Selector, setting
from fedjax_fair.selectors.agnostic import ascend, mixture_info
from fedjax_fair.selectors.uniform import sample_clients, uniform_cohort, uniform_weights
from fedjax_fair.utils import checks

__all__ = ["DRFA"]


class _State(NamedTuple):
    """The mixture, and the clients that report a loss after local training."""

    mixture: Float[Array, " clients"]
    reporting: Int[Array, " cohort"]


# A class of its own next to `Agnostic`, because the cohort size and the local steps have no meaning
# there.
class DRFA(Selector):
    r"""Samples each slot of the cohort from the mixture of clients that is worst for the model.

    The objective is the same as in `Agnostic`. Slots are sampled from the mixture :math:`\lambda`
    independently, with equal weights, for ``Mean("uniform")``. Participants store a snapshot of
    their model after the same random number of local steps (instruction ``snapshot_step``). Then
    ``cohort_size`` clients, sampled uniformly without replacement, report their losses at the
    average snapshot, and :math:`\lambda \leftarrow \Pi_\Delta(\lambda + \gamma
    \cdot \text{local steps} \cdot v)` with :math:`v_i = \frac{N}{\text{cohort size}} f_i` for
    reporting clients and 0 otherwise.

    Readings: The mixture is uniform at first, as in `Agnostic`; in the paper it is :math:`n_i /
    \sum_j n_j`. Reported losses are over all training examples of a client; in the paper they are
    of a minibatch. The last model is evaluated.

    A snapshot is as large as an update, and ``bytes_up`` of participants contains both. What the
    reporting clients receive and send, the average snapshot and a loss, it does not contain.

    Info, non-finite losses and privacy are as for `Agnostic`.

    Args:
        mixture_learning_rate: As for `Agnostic`.
        cohort_size: Clients per round.
        local_steps: Local steps of the solver, which must be equal.

    Raises:
        ValueError: If a setting is out of range, if (at ``init``) ``cohort_size`` exceeds the
            number of clients, or if (in a round) the solver reports no ``snapshot``.

    References:
        Deng, Kamani, Mahdavi, *Distributionally Robust Federated Averaging*, 2020,
        https://arxiv.org/abs/2102.12660

    Examples:
        >>> DRFA(mixture_learning_rate=0.01, local_steps=5)
        DRFA(mixture_learning_rate=0.01, local_steps=5)
    """

    server_view = "scalars"

    mixture_learning_rate: Number = setting(checks.non_negative, default=0.1)
    cohort_size: int = setting(checks.positive_int, default=10)
    local_steps: int = setting(checks.positive_int, default=1)

    def init(self, context):
        checks.positive_int("cohort_size", self.cohort_size, at_most=context.num_clients)
        reporting = jnp.arange(self.cohort_size, dtype=jnp.int32)
        return _State(uniform_weights(context.num_clients), reporting)

    def select(self, key, state, context):
        key_clients, key_snapshot, key_reporting = jax.random.split(key, 3)
        size, mixture = self.cohort_size, state.mixture
        probabilities = mixture
        if context.available is not None:
            probabilities = jnp.where(context.available, mixture, 0)
            probabilities = jnp.where(jnp.sum(probabilities) > 0, probabilities, mixture)
        clients = jax.random.choice(key_clients, context.num_clients, (size,), p=probabilities)
        snapshot_step = jax.random.randint(key_snapshot, (), 1, self.local_steps + 1, jnp.int32)
        cohort = uniform_cohort(clients.astype(jnp.int32))._replace(
            instructions={"snapshot_step": jnp.broadcast_to(snapshot_step, (size,))}
        )
        reporting = sample_clients(key_reporting, size, context)
        return cohort, _State(mixture, reporting), mixture_info(mixture)

    def observe(self, state, cohort, results, context):
        snapshots = results.sent("snapshot", "solvers.SGD")
        weights = cohort.renormalize_weights(cohort.weights)
        average = context.weighted_sum(weights, snapshots)
        snapshot = jax.tree.map(jnp.add, context.variables, average)
        losses = context.losses(snapshot, state.reporting)
        losses = losses * (context.num_clients / self.cohort_size)
        if context.available is not None:
            losses = jnp.where(context.available[state.reporting], losses, 0)
        reported = jnp.zeros_like(state.mixture).at[state.reporting].set(losses)
        step = self.mixture_learning_rate * self.local_steps
        return _State(ascend(state.mixture, step, reported), state.reporting)
