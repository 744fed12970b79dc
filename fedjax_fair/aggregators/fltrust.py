"""FLTrust: weights by agreement with an update that the server trains (Cao et al., 2021)."""

from __future__ import annotations

from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from fedjax_fair.aggregators.root_examples import as_root, check_types
from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, weighted_sum
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator, Client, Context, Solver, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["FLTrust"]


class FLTrust(Aggregator):
    r"""Weights updates by agreement with an update that the server trains on trusted examples.

    With :math:`u_0` the update of the server, trained from the global model in every round, and
    :math:`u_k` the updates of the participants,

    .. math::
        u = \frac{1}{\sum_k s_k} \sum_k s_k \frac{\lVert u_0 \rVert}{\lVert u_k \rVert} u_k,
        \qquad s_k = \max\left(0, \frac{u_0 \cdot u_k}
        {\lVert u_0 \rVert \lVert u_k \rVert}\right).

    However many clients are Byzantine, the model moves by at most the norm of :math:`u_0` and never
    against it. The updates of the whole cohort are in memory. This is not a method of the command
    line, because the root examples are arrays.

    The weights are :math:`s_k / \sum_j s_j`, also for normalization statistics. Info: the ``trust``
    :math:`s_k` of every participant, and ``root_norm``, the norm of :math:`u_0`.

    Args:
        root: The trusted examples, features ``[n, ...]`` and labels ``[n]``, of the clients' shapes
            and types (floats become float32, integers other than uint8 features int32).
        solver: Trains the server's update.
        seed: Seed of its minibatches.

    Raises:
        ValueError: If a setting is out of range, or (when traced) the root examples have other
            shapes or types than the clients'.

    References:
        Cao, Fang, Liu, Gong, *FLTrust: Byzantine-robust Federated Learning via Trust
        Bootstrapping*, 2021, https://arxiv.org/abs/2012.13995

    Examples:
        >>> from fedjax_fair import data, solvers
        >>> train = data.load("digits").train
        >>> trusted = train.features[:100], train.labels[:100]
        >>> aggregator = FLTrust(trusted, solvers.SGD(0.1, batch_size=10, epochs=1))
    """

    root: tuple[ArrayLike, ArrayLike] = setting(as_root)
    solver: Solver = setting(checks.instance, Solver, "solvers.SGD(0.1, batch_size=10, epochs=1)")
    _: KW_ONLY
    seed: int = setting(checks.non_negative_int, default=0)

    def aggregate(self, state, cohort, results, context):
        trusted = self._trusted_update(context)
        updates, valid, _ = gather_updates(cohort, results, context)
        root_norm = jnp.linalg.norm(ravel(trusted.params))
        directions = jax.vmap(_direction)(updates.params)
        agreement = product(directions, _direction(trusted.params))
        trust = jnp.where(valid, jnp.maximum(agreement, 0), 0)
        weights = normalize_weights(valid, trust)
        _, unravel = ravel_pytree(trusted.params)
        update = Variables(
            unravel(root_norm * product(weights, directions)), weighted_sum(updates.state, weights)
        )
        return update, state, Aggregation(weights, {"trust": trust, "root_norm": root_norm})

    def _trusted_update(self, context: Context) -> Variables:
        features, labels = check_types(self.root, context.examples)
        size = jnp.int32(len(labels))
        order = jnp.arange(len(labels), dtype=jnp.int32)
        server = Client(
            model=context.model,
            examples=ClientExamples(features, labels, order, jnp.zeros(1, jnp.int32), size[None]),
            offset=jnp.int32(0),
            size=size,
            round=context.round,
            instructions={},
            id=jnp.int32(0),
        )
        key = jax.random.fold_in(jax.random.key(self.seed), context.round)
        return self.solver.solve(key, context.variables, server).update


def _direction(params):
    """Returns a vector of norm 1, or zeros."""
    vector = ravel(params)
    # Scaling by the maximum first keeps the squared norm finite.
    vector = vector / jnp.maximum(jnp.max(jnp.abs(vector)), 1e-30)
    return vector / jnp.maximum(jnp.linalg.norm(vector), 1e-30)
