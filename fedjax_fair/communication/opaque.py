"""Access of the server to updates under secure aggregation.

Selector and aggregator can compute weighted sums of opaque updates and, with the server view
``"scalars"`` (`fedjax_fair.roles.ServerView`), request scalars from each client. Other access
raises an error when a round is traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key, PyTree

from fedjax_fair.numerics import secure_sum
from fedjax_fair.numerics.secure_sum import SecureAggregation
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import Cohort, Context, LocalResult, ServerView

__all__ = ["Opaque", "masked_sum", "restrict_context", "restrict_results", "secure_sums"]


# Roles declare what they need, so that a wrong declaration fails during tracing. This is not a
# security boundary: a role can still read `context.examples`.
class Opaque:
    """Values of the participants that the server cannot read."""

    __slots__ = ("_value",)

    def __init__(self, value: PyTree) -> None:
        self._value = value

    def __getattr__(self, name: str) -> Opaque:
        if name not in ("params", "state"):
            raise _access_error("single updates")
        return Opaque(getattr(self._value, name))


def masked_sum(
    key: Key[Array, ""],
    context: Context,
    cohort: Cohort,
    max_abs_value: float,
    weights: Float[Array, " cohort"],
    updates: PyTree,
) -> PyTree:
    """Computes a weighted sum of stacked updates over integers, equal on any number of devices.

    Args:
        key: Key of this sum.
        context: Context at the start of the round.
        cohort: The cohort, with the mask of the responding clients.
        max_abs_value: The largest absolute value of an element, before weighting.
        weights: Non-negative weights, whose sum is at most 1.
        updates: Stacked updates, each on the device of its client.

    Returns:
        The sum over the responding clients; NaN if a value exceeds ``max_abs_value`` or the sum of
        the weights exceeds 1.
    """
    size = cohort.clients.shape[0]
    step = secure_sum.quantization_step(max_abs_value, size)
    responded = jnp.ones(size, bool) if cohort.responded is None else cohort.responded

    def encode(client, values):
        slot, weight, responded, update = values
        vector = weight * ravel(update).astype(jnp.float32)
        sent = secure_sum.mask_values(key, slot, size, vector, weight * max_abs_value, step)
        return (), jax.tree.map(lambda leaf: jnp.where(responded, leaf, 0), sent)

    values = (jnp.arange(size, dtype=jnp.int32), weights, responded, updates)
    ones = jnp.ones(size)
    _, total = collectives.map_and_sum(context.examples, encode, ones, cohort.clients, values)
    recovered = secure_sum.unmask_sum(key, total, step, cohort.responded)
    is_bounded = jnp.sum(jnp.abs(weights), where=responded) <= 1 + secure_sum.SLACK / 4
    example, unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], updates))
    return unravel(jnp.where(is_bounded, recovered, jnp.nan).astype(example.dtype))


def restrict_context(
    context: Context,
    server_view: ServerView,
    add: Callable[[Float[Array, " cohort"], PyTree], PyTree] | None = None,
) -> Context:
    """Restricts a context to what a role declares as its server view.

    Args:
        context: The unrestricted context.
        server_view: ``"aggregate"`` or ``"scalars"``.
        add: Weighted sum of opaque updates, once there are updates.
    """

    def weighted_sum(weights, updates):
        if add is None or not isinstance(updates, Opaque):
            return context.weighted_sum(weights, updates)
        return add(weights, updates._value)

    def refuse(values):
        def raise_error(*args, **kwargs):
            raise _access_error(values)

        return raise_error

    def scalars_of(function):
        return lambda value_fn, clients, updates=None: _check_scalars(
            function(value_fn, clients, _unwrap(updates))
        )

    if server_view == "aggregate":
        names = ("gradients", "losses", "accuracies", "client_means", "map_clients")
        limited = {name: refuse(f"{name} of clients") for name in names}
    else:
        limited = {"gradients": refuse("gradients of clients")} | {
            name: scalars_of(getattr(context, name)) for name in ("client_means", "map_clients")
        }
    return context._replace(weighted_sum=weighted_sum, **limited)


def restrict_results(results: LocalResult, server_view: ServerView) -> LocalResult:
    """Makes what clients send opaque, and for the view ``"aggregate"`` losses and steps too."""
    hidden: dict[str, Any] = {"update": Opaque(results.update)}
    for field in ("reports", "sends"):
        hidden[field] = {name: Opaque(value) for name, value in getattr(results, field).items()}
    if server_view == "aggregate":
        hidden |= {"loss": Opaque(results.loss), "steps": Opaque(results.steps)}
    return results._replace(**hidden)


# Masks depend on slots only, so that masked updates could be summed while clients train. This would
# need a second path in aggregators.
def secure_sums(
    key: Key[Array, ""], context: Context, cohort: Cohort, secure: SecureAggregation
) -> Callable[..., PyTree]:
    """Returns ``add(weights, updates)`` for a round, which uses a new key for every sum.

    A third argument replaces the largest absolute value of the settings.
    """
    counter = itertools.count()

    def add(weights, updates, max_abs_value=secure.max_abs_value):
        key_sum = jax.random.fold_in(key, next(counter))
        return masked_sum(key_sum, context, cohort, max_abs_value, weights, updates)

    return add


def _unwrap(values: PyTree) -> PyTree:
    # Opaque is no pytree, and therefore a leaf.
    return jax.tree.map(lambda leaf: leaf._value if isinstance(leaf, Opaque) else leaf, values)


def _check_scalars(measured: PyTree) -> PyTree:
    if any(leaf.ndim > 1 for leaf in jax.tree.leaves(measured)):
        raise _access_error("vectors of single clients")
    return measured


def _access_error(hidden: str) -> ValueError:
    return ValueError(
        f"aggregation='secure' hides {hidden} from a role whose server_view does not include them; "
        "use context.weighted_sum, or declare the server_view that the role needs."
    )
