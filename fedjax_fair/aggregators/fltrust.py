"""FLTrust: updates count as far as they point where a trusted one does (Cao et al., 2021)."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jax.typing import ArrayLike

from fedjax_fair import checks
from fedjax_fair.aggregators.whole_cohort import gathered, normalized, weighted
from fedjax_fair.base import Aggregation, Aggregator, Client, Context, Solver, Variables
from fedjax_fair.data.federated import ClientExamples
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.sketch import ravel

__all__ = ["FLTrust"]


class FLTrust(Aggregator):
    r"""The mean of updates, weighed by their agreement with one that the server trains itself.

    The server holds a few trusted examples, and trains from the global model on them in every
    round. With :math:`u_0` its update and :math:`u_k` those of the participants,

    .. math::
        u = \frac{1}{\sum_k s_k} \sum_k s_k \frac{\lVert u_0 \rVert}{\lVert u_k \rVert} u_k,
        \qquad s_k = \max\left(0, \frac{u_0 \cdot u_k}
        {\lVert u_0 \rVert \lVert u_k \rVert}\right).

    Whichever clients are Byzantine, and however many, the model moves by no more than the norm of :math:`u_0`,
    and never against it. It does not move where no participant agrees with the server.

    It takes memory for the updates of the whole cohort. The root examples are arrays, so that this
    is for Python alone and no method of the command line.

    Its weights are the :math:`s_k`, divided by their sum. Statistics of normalization are averaged
    with them. Info: the ``trust`` :math:`s_k` of every participant, and ``root_norm``, the norm of
    :math:`u_0`.

    Args:
        root: The trusted examples, features ``[n, ...]`` and labels ``[n]``, of the federation's
            shapes and types. They are kept in the types that federations have.
        solver: How the server trains on them; usually as the clients do.
        seed: Of its minibatches.

    Raises:
        ValueError: If a setting is out of range, or (when a round is traced) the root examples are
            of other shapes or types than the clients'.

    References:
        Cao, Fang, Liu, Gong, *FLTrust: Byzantine-robust Federated Learning via Trust
        Bootstrapping*, 2021, https://arxiv.org/abs/2012.13995

    Examples:
        >>> from fedjax_fair import data, solvers
        >>> train = data.load("digits").train
        >>> trusted = train.features[:100], train.labels[:100]
        >>> aggregator = FLTrust(trusted, solvers.SGD(0.1, batch_size=10, epochs=1))
    """

    root: tuple[ArrayLike, ArrayLike]
    solver: Solver
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self):
        checks.instance("solver", self.solver, Solver, "solvers.SGD(0.1, batch_size=10, epochs=1)")
        checks.non_negative_int("seed", self.seed)
        self._convert(root=_checked(self.root))

    def aggregate(self, state, cohort, results, context):
        own = _trusted_update(self.root, self.solver, self.seed, context)
        updates, participants = gathered(cohort, results, context)
        root_norm = jnp.linalg.norm(ravel(own.params))
        directions = jax.vmap(_direction)(updates.params)
        agreement = product(directions, _direction(own.params))
        trust = jnp.where(participants, jnp.maximum(agreement, 0), 0)
        weights = normalized(participants, trust)
        _, restore = ravel_pytree(own.params)
        update = Variables(
            restore(root_norm * product(weights, directions)), weighted(updates.state, weights)
        )
        info = {"trust": trust, "root_norm": root_norm}
        return update, state, Aggregation(weights, info)


def _checked(root: Any) -> tuple[Any, Any]:
    """The root examples in the types that federations have."""
    if not isinstance(root, (tuple, list)) or len(root) != 2:
        raise ValueError(f"root is a {type(root).__name__}: expected a pair (features, labels).")
    if any(isinstance(part, Tracer) for part in root):
        return root[0], root[1]
    features, labels = np.asarray(root[0]), np.asarray(root[1])
    if features.ndim < 2 or not labels.ndim or len(features) != len(labels) or not len(labels):
        raise ValueError(
            f"root of features {list(features.shape)} and labels {list(labels.shape)}: expected "
            "[n, ...] and [n], with one example or more."
        )
    features, labels = _plain(features, keep=np.uint8), _plain(labels)
    for name, array in {"features": features, "labels": labels}.items():
        if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise ValueError(f"root: expected finite numbers as {name}, got {array.dtype}.")
    return features, labels


def _plain(array: np.ndarray, keep: Any = None) -> Any:
    """Numbers of the types that federations have."""
    if array.dtype == keep or array.dtype.kind not in "fiu":
        return array
    return array.astype(np.float32 if array.dtype.kind == "f" else np.int32)


def _trusted_update(
    root: tuple[Any, Any], solver: Solver, seed: int, context: Context
) -> Variables:
    features, labels = map(jnp.asarray, root)
    for name, own in {"features": features, "labels": labels}.items():
        theirs = getattr(context.examples, name)
        if own.shape[1:] != theirs.shape[1:] or own.dtype != theirs.dtype:
            raise ValueError(
                f"root: {name} {own.dtype}{list(own.shape[1:])} of an example, expected the "
                f"clients' {theirs.dtype}{list(theirs.shape[1:])}."
            )
    size = jnp.int32(len(labels))
    order = jnp.arange(len(labels), dtype=jnp.int32)
    server = Client(
        model=context.model,
        examples=ClientExamples(features, labels, order, jnp.zeros(1, jnp.int32), size[None]),
        offset=jnp.int32(0),
        size=size,
        round=context.round,
        instructions={},
    )
    key = jax.random.fold_in(jax.random.key(seed), context.round)
    return solver.solve(key, context.variables, server).update


def _direction(params):
    """A vector of norm 1, or zeros; norms whose square is infinite are no obstacle."""
    vector = ravel(params)
    vector = vector / jnp.maximum(jnp.max(jnp.abs(vector)), 1e-30)
    return vector / jnp.maximum(jnp.linalg.norm(vector), 1e-30)
