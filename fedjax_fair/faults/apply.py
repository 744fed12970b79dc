"""How a round applies faults: who is available, who answers, and what is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.base import Cohort, Context, FaultContext, Faults, LocalResult, Variables
from fedjax_fair.numerics.finite import all_finite

__all__ = [
    "UploadStatus",
    "append_model",
    "apply_faults",
    "available",
    "collude",
    "init_model_history",
    "received",
    "renormalize_sum",
    "send",
]


class UploadStatus(NamedTuple):
    """What became of the update of a participant.

    Attributes:
        responded: Whether it has arrived; None where nothing can go wrong.
        nonfinite: Whether it was sent with a number that is not finite.
    """

    responded: Bool[Array, "..."] | None
    nonfinite: Bool[Array, "..."]


def available(
    faults: Sequence[Faults], key: Key[Array, ""], round: Int[Array, ""], num_clients: int
) -> Bool[Array, " clients"] | None:
    """Who can be selected; None where nothing says otherwise."""
    masks = [
        fault.available(jax.random.fold_in(key, place), round, num_clients)
        for place, fault in enumerate(faults)
        if fault.available is not None
    ]
    return None if not masks else jnp.all(jnp.stack(masks), axis=0)


def apply_faults(
    faults: Sequence[Faults], key: Key[Array, ""], cohort: Cohort, context: Context
) -> tuple[Cohort, Bool[Array, " cohort"]]:
    """Instructs the participants, and says who will answer."""
    responded = jnp.ones(cohort.clients.shape, bool)
    if context.available is not None:
        responded = context.available[cohort.clients]
    instructions = dict(cohort.instructions)
    for place, fault in enumerate(faults):

        def of_cohort(function, place=place):
            def of_client(client):
                return function(*_of(key, place, client, context))

            return jax.vmap(of_client)(cohort.clients)

        if fault.responds is not None:
            responded &= of_cohort(fault.responds)
        if fault.instruct is not None:
            for name, value in of_cohort(fault.instruct).items():
                known = instructions.get(name)
                instructions[name] = value if known is None else jnp.minimum(known, value)
    return cohort._replace(instructions=instructions), responded


def init_model_history(faults: Sequence[Faults], variables: Variables) -> Variables | tuple[()]:
    """Room for the global models of the past, ``[history_length, ...]``; nothing where no fault has any."""
    history_length = max((fault.history_length for fault in faults), default=0)
    if not history_length:
        return ()
    return jax.tree.map(
        lambda leaf: jnp.zeros((history_length, *leaf.shape), leaf.dtype), variables
    )


def append_model(
    model_history: Variables | tuple[()], round: Int[Array, ""], variables: Variables
) -> Variables | tuple[()]:
    """Keeps the model of a round in the place of the oldest."""
    if not model_history:
        return model_history
    return jax.tree.map(
        lambda old, new: old.at[round % len(old)].set(new), model_history, variables
    )


def received(
    model_history: Variables | tuple[()],
    round: Int[Array, ""],
    variables: Variables,
    instructions: dict[str, PyTree],
) -> Variables:
    """The model that a participant trains from, the current one unless it is stale."""
    if not model_history or "model_round" not in instructions:
        return variables
    given = instructions["model_round"]

    def of_leaf(old, new):
        return jnp.where(given == round, new, old[given % len(old)])

    return jax.tree.map(of_leaf, model_history, variables)


def send(
    faults: Sequence[Faults],
    key: Key[Array, ""],
    drop_nonfinite: bool,
    context: Context,
    client: Int[Array, ""],
    result: LocalResult,
    responded: Bool[Array, ""],
) -> tuple[LocalResult, UploadStatus]:
    """What arrives of a participant's result, zeros if nothing does, and what became of it."""
    update = result.update
    for place, fault in enumerate(faults):
        if fault.send is not None:
            update = fault.send(*_of(key, place, client, context), update)
    nonfinite = responded & ~all_finite(update)
    if drop_nonfinite:
        responded &= ~nonfinite

    def arriving(leaf):
        return jnp.where(responded, leaf, jnp.zeros_like(leaf))

    result = jax.tree.map(arriving, result._replace(update=update))
    result = result._replace(loss=jnp.where(responded, result.loss, jnp.nan))
    return result, UploadStatus(responded, nonfinite)


def collude(
    faults: Sequence[Faults],
    cohort: Cohort,
    results: LocalResult,
    weights: Float[Array, " cohort"] | None,
    context: Context,
) -> LocalResult:
    """Replaces the updates of those who know all others, and sums those who answered."""
    updates = results.update
    for fault in faults:
        if fault.collude is not None:
            updates = fault.collude(cohort, updates, context)
    if weights is None or cohort.responded is None:
        return results._replace(update=updates)
    if updates is not results.update:
        total = context.weighted_sum(cohort.renormalize_weights(weights), updates)
        return results._replace(update=updates, weighted_sum=total)
    return results._replace(weighted_sum=renormalize_sum(cohort, weights, results.weighted_sum))


def renormalize_sum(cohort: Cohort, weights: Float[Array, " cohort"], total: PyTree) -> PyTree:
    """What a sum over those who answered is with weights that they have among themselves.

    The weights were known before it was who would answer.
    """
    if cohort.responded is None:
        return total
    arrived = jnp.sum(jnp.where(cohort.responded, weights, 0))
    whole = jnp.all(cohort.responded) | (arrived == 0)
    share = jnp.where(whole, 1, arrived)
    return jax.tree.map(lambda leaf: leaf / share.astype(leaf.dtype), total)


def _of(
    key: Key[Array, ""], place: int, client: Int[Array, ""], context: Context
) -> tuple[Key[Array, ""], FaultContext]:
    """The key of a client for one of the faults of a round, and who it is."""
    own = jax.random.fold_in(jax.random.fold_in(key, place), client)
    return own, FaultContext(client, context.round, context.num_clients)
