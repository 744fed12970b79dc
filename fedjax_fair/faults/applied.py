"""How a round applies faults: who is available, who answers, and what is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.base import Cohort, Context, Faults, LocalResult, Member, Variables
from fedjax_fair.numerics.finite import all_finite

__all__ = [
    "Arrival",
    "among_answers",
    "available",
    "befall",
    "collude",
    "no_past",
    "received",
    "remember",
    "send",
]


class Arrival(NamedTuple):
    """What became of the update of a member.

    Attributes:
        answers: Whether it has arrived; None where nothing can go wrong.
        nonfinite: Whether it was sent with a number that is not finite.
    """

    answers: Bool[Array, "..."] | None
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


def befall(
    faults: Sequence[Faults], key: Key[Array, ""], cohort: Cohort, context: Context
) -> tuple[Cohort, Bool[Array, " cohort"]]:
    """Instructs the members, and says who will answer."""
    answers = jnp.ones(cohort.clients.shape, bool)
    if context.available is not None:
        answers = context.available[cohort.clients]
    instructions = dict(cohort.instructions)
    for place, fault in enumerate(faults):

        def of_cohort(function, place=place):
            def of_client(client):
                return function(*_of(key, place, client, context))

            return jax.vmap(of_client)(cohort.clients)

        if fault.answers is not None:
            answers &= of_cohort(fault.answers)
        if fault.instruct is not None:
            for name, value in of_cohort(fault.instruct).items():
                known = instructions.get(name)
                instructions[name] = value if known is None else jnp.minimum(known, value)
    return cohort._replace(instructions=instructions), answers


def no_past(faults: Sequence[Faults], variables: Variables) -> Variables | tuple[()]:
    """Room for the global models of the past, ``[memory, ...]``; nothing where no fault has any."""
    memory = max((fault.memory for fault in faults), default=0)
    if not memory:
        return ()
    return jax.tree.map(lambda leaf: jnp.zeros((memory, *leaf.shape), leaf.dtype), variables)


def remember(
    past: Variables | tuple[()], round: Int[Array, ""], variables: Variables
) -> Variables | tuple[()]:
    """Keeps the model of a round in the place of the oldest."""
    if not past:
        return past
    return jax.tree.map(lambda old, new: old.at[round % len(old)].set(new), past, variables)


def received(
    past: Variables | tuple[()],
    round: Int[Array, ""],
    variables: Variables,
    instructions: dict[str, PyTree],
) -> Variables:
    """The model that a member trains from, the current one unless it is stale."""
    if not past or "model_round" not in instructions:
        return variables
    given = instructions["model_round"]

    def of_leaf(old, new):
        return jnp.where(given == round, new, old[given % len(old)])

    return jax.tree.map(of_leaf, past, variables)


def send(
    faults: Sequence[Faults],
    key: Key[Array, ""],
    drop_nonfinite: bool,
    context: Context,
    client: Int[Array, ""],
    result: LocalResult,
    answers: Bool[Array, ""],
) -> tuple[LocalResult, Arrival]:
    """What arrives of a member's result, zeros if nothing does, and what became of it."""
    update = result.update
    for place, fault in enumerate(faults):
        if fault.send is not None:
            update = fault.send(*_of(key, place, client, context), update)
    nonfinite = answers & ~all_finite(update)
    if drop_nonfinite:
        answers &= ~nonfinite

    def arriving(leaf):
        return jnp.where(answers, leaf, jnp.zeros_like(leaf))

    result = jax.tree.map(arriving, result._replace(update=update))
    result = result._replace(loss=jnp.where(answers, result.loss, jnp.nan))
    return result, Arrival(answers, nonfinite)


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
    if weights is None or cohort.answers is None:
        return results._replace(update=updates)
    if updates is not results.update:
        total = context.weighted_sum(cohort.among_answers(weights), updates)
        return results._replace(update=updates, weighted_sum=total)
    return results._replace(weighted_sum=among_answers(cohort, weights, results.weighted_sum))


def among_answers(cohort: Cohort, weights: Float[Array, " cohort"], total: PyTree) -> PyTree:
    """What a sum over those who answered is with weights that they have among themselves.

    The weights were known before it was who would answer.
    """
    if cohort.answers is None:
        return total
    arrived = jnp.sum(jnp.where(cohort.answers, weights, 0))
    whole = jnp.all(cohort.answers) | (arrived == 0)
    share = jnp.where(whole, 1, arrived)
    return jax.tree.map(lambda leaf: leaf / share.astype(leaf.dtype), total)


def _of(
    key: Key[Array, ""], place: int, client: Int[Array, ""], context: Context
) -> tuple[Key[Array, ""], Member]:
    """The key of a client for one of the faults of a round, and who it is."""
    own = jax.random.fold_in(jax.random.fold_in(key, place), client)
    return own, Member(client, context.round, context.num_clients)
