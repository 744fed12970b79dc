"""FLTrust: weights by agreement with an update that the server trains (Cao et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike
from jaxtyping import Array

from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, weighted_sum
from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator, Client, Context, Solver, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["FLTrust"]


def _as_root(name: str, root: Any) -> tuple[Any, Any]:
    """Returns features and labels in the types of federated datasets.

    Raises:
        ValueError: If they are no pair of finite numbers of equal length.
    """
    if not isinstance(root, (tuple, list)) or len(root) != 2:
        raise ValueError(
            f"{name} is a {type(root).__name__}: expected a pair (features, labels); pass both as "
            "arrays."
        )
    if any(isinstance(part, Tracer) for part in root):
        return root[0], root[1]
    features, labels = map(np.asarray, root)
    if features.ndim < 2 or not labels.ndim or len(features) != len(labels) or not len(labels):
        raise ValueError(
            f"{name} of features {list(features.shape)} and labels {list(labels.shape)}: expected "
            "[n, ...] and [n], with n >= 1; pass one label per example."
        )
    return _convert("features", features), _convert("labels", labels)


def _convert(name: str, array: np.ndarray) -> np.ndarray:
    is_number = array.dtype.kind in "fiu"
    if is_number and not (name == "features" and array.dtype == np.uint8):
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int32)
    if not is_number or not np.isfinite(array).all():
        raise ValueError(
            f"root: expected finite numbers as {name}, got {array.dtype}; remove or encode other "
            "values."
        )
    return array


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

    root: tuple[ArrayLike, ArrayLike] = setting(_as_root)
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
        features, labels = _check_types(self.root, context.examples)
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


def _check_types(root: Sequence[Any], examples: ClientExamples) -> tuple[Array, Array]:
    """Returns features and labels as arrays, if they have the shapes and types of the clients'.

    Raises:
        ValueError: If not.
    """
    features, labels = map(jnp.asarray, root)
    for name, array in {"features": features, "labels": labels}.items():
        clients = getattr(examples, name)
        if array.shape[1:] != clients.shape[1:] or array.dtype != clients.dtype:
            raise ValueError(
                f"root: {name} {array.dtype}{list(array.shape[1:])} of an example, expected "
                f"the clients' {clients.dtype}{list(clients.shape[1:])}; prepare root as the "
                "data of clients."
            )
    return features, labels
