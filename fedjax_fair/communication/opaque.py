"""What the server can do with uploads that it only sees masked.

Under secure aggregation a role is handed opaque updates. It can add them up with weights, which a
secure sum does, and, as far as it says that it does (`fedjax_fair.base.ServerView`), ask each client
for numbers computed from its own. Anything else stops while a round is traced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree

from fedjax_fair.base import Cohort, Context, LocalResult, ServerView
from fedjax_fair.numerics import secure_sum
from fedjax_fair.numerics.secure_sum import SecureAggregation
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.parallel import collectives

__all__ = ["Opaque", "masked_sum", "restrict_context", "restrict_results", "sums_of_round"]


class Opaque:
    """Something of each participant that the server cannot read.

    Attributes:
        _inside: What it is, for functions that run on clients.
    """

    __slots__ = ("_inside",)

    def __init__(self, inside: PyTree) -> None:
        self._inside = inside

    def __getattr__(self, name: str) -> Opaque:
        if name not in ("params", "state"):
            raise _refused("single updates")
        return Opaque(getattr(self._inside, name))


def masked_sum(
    key: Key[Array, ""],
    context: Context,
    cohort: Cohort,
    secure: SecureAggregation,
    weights: Float[Array, " cohort"],
    updates: PyTree,
) -> PyTree:
    """The sum of stacked updates with the given weights, through a secure sum.

    Every participant encodes its update times its weight. Sums over devices are of whole numbers, so
    they are the same on any number of them.

    Args:
        key: Of this sum alone.
        context: That of the start of the round.
        cohort: Who takes part, and who has answered.
        secure: Its settings.
        weights: Of each participant, >= 0; their sum is at most 1.
        updates: Of each participant, on the device that holds it.

    Returns:
        The sum over those who answered; not a number where a value exceeds max_abs_value, or the
        weights add up to more than 1.
    """
    participants = cohort.clients.shape[0]
    step = secure_sum.quantization_step(secure.max_abs_value, participants)
    slots = jnp.arange(participants, dtype=jnp.int32)
    responded = jnp.ones(participants, bool) if cohort.responded is None else cohort.responded

    def send(client, own):
        slot, weight, responded, update = own
        values = weight * ravel(update).astype(jnp.float32)
        sent = secure_sum.masked(
            key, slot, participants, values, weight * secure.max_abs_value, step
        )
        return (), jax.tree.map(lambda leaf: jnp.where(responded, leaf, 0), sent)

    ones = jnp.ones(participants)
    own = (slots, weights, responded, updates)
    _, total = collectives.map_and_sum(context.examples, send, ones, cohort.clients, own)
    summed = secure_sum.recovered(key, total, step, cohort.responded)
    bounded = jnp.sum(jnp.abs(weights), where=responded) <= 1 + secure_sum.SLACK / 4
    return _unraveled(jnp.where(bounded, summed, jnp.nan), updates)


def restrict_context(
    context: Context,
    server_view: ServerView,
    add: Callable[[Float[Array, " cohort"], PyTree], PyTree] | None = None,
) -> Context:
    """A context that gives a role what it says that it sees, and not more.

    Args:
        context: What it could ask for otherwise.
        server_view: ``"aggregate"``, or ``"scalars"`` of each client too.
        add: Sums updates with weights, once there are some.
    """

    def weighted_sum(weights, updates):
        if add is None or not isinstance(updates, Opaque):
            return context.weighted_sum(weights, updates)
        return add(weights, updates._inside)

    def refuse(what):
        def ask(*arguments, **settings):
            raise _refused(what)

        return ask

    limited = {"gradients": refuse("gradients of clients")}
    if server_view == "aggregate":
        names = ("losses", "accuracies", "client_means", "map_clients")
        limited |= {name: refuse(f"{name} of clients") for name in names}
    else:
        limited["client_means"] = lambda metric_fn, clients, updates=None: _numbers(
            context.client_means(metric_fn, clients, _opened(updates))
        )
        limited["map_clients"] = lambda function, clients, values=None: _numbers(
            context.map_clients(function, clients, _opened(values))
        )
    return context._replace(weighted_sum=weighted_sum, **limited)


def restrict_results(results: LocalResult, server_view: ServerView) -> LocalResult:
    """Results whose updates a role cannot read, nor, if it sees sums alone, anything else."""
    hidden: dict[str, Any] = {"update": Opaque(results.update)}
    hidden["reports"] = {name: Opaque(report) for name, report in results.reports.items()}
    if server_view == "aggregate":
        hidden |= {"loss": Opaque(results.loss), "steps": Opaque(results.steps)}
    return results._replace(**hidden)


def sums_of_round(
    key: Key[Array, ""], context: Context, cohort: Cohort, secure: SecureAggregation
) -> Callable[[Float[Array, " cohort"], PyTree], PyTree]:
    """``add(weights, updates)`` for all secure sums of a round, each with a key of its own."""
    number = itertools.count()

    def add(weights, updates):
        own = jax.random.fold_in(key, next(number))
        return masked_sum(own, context, cohort, secure, weights, updates)

    return add


def _opened(values: PyTree) -> PyTree:
    """What a function that runs on clients is given."""
    return jax.tree.map(
        lambda leaf: leaf._inside if isinstance(leaf, Opaque) else leaf,
        values,
        is_leaf=lambda leaf: isinstance(leaf, Opaque),
    )


def _numbers(measured: PyTree) -> PyTree:
    """What clients report, if it is a number each."""
    if any(leaf.ndim > 1 for leaf in jax.tree.leaves(measured)):
        raise _refused("vectors of single clients")
    return measured


def _refused(what: str) -> ValueError:
    return ValueError(
        f"aggregation='secure': it hides {what} from a role that does not say that it sees them; "
        "expected one that takes sums (context.weighted_sum), or says what it sees."
    )


def _unraveled(vector: Float[Array, " width"], stacked: PyTree) -> PyTree:
    """A vector as one of the updates of which a tree is stacked."""
    leaves, structure = jax.tree.flatten(stacked)
    parts, start = [], 0
    for leaf in leaves:
        size = leaf[0].size
        parts.append(vector[start : start + size].reshape(leaf.shape[1:]).astype(leaf.dtype))
        start += size
    return jax.tree.unflatten(structure, parts)
