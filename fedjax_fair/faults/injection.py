"""Application of faults in a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.roles import (
    Cohort,
    Context,
    FaultContext,
    Faults,
    LocalResult,
    Variables,
    checked_calls,
)

_SENDS = 2**16
"""Key of values that are sent in addition to updates, behind the indices of their arrays."""


# Shapes are fixed, so a client that drops out keeps its slot, and its update is zero. Without
# faults `Cohort.responded` is None, and the compiled function is unchanged. Histories and stale
# gradients are written after training, when the responding clients are known.
class UploadStatus(NamedTuple):
    """Status of a participant's upload.

    Attributes:
        responded: Whether it has arrived; None without faults.
        nonfinite: Whether it had a NaN or an infinity when it was sent.
        state_nonfinite: Whether the new state of the client has one; None without state.
    """

    responded: Bool[Array, "..."] | None
    nonfinite: Bool[Array, "..."]
    state_nonfinite: Bool[Array, "..."] | None = None


def check_faults(tree: PyTree, num_clients: int) -> None:
    """Checks the faults in a tree, such as a round.

    Compiled functions cannot check values, such as client ids, because these are traced.

    Raises:
        ValueError: If one does not fit the number of clients.
    """

    def is_fault_inside(node):
        return node is not tree and isinstance(node, Faults)

    if isinstance(tree, Faults):
        checked_calls.call(tree, "check", num_clients)
    for node in jax.tree.leaves(tree, is_leaf=is_fault_inside):
        if is_fault_inside(node):
            check_faults(node, num_clients)


def available(
    faults: Sequence[Faults], key: Key[Array, ""], round: Int[Array, ""], num_clients: int
) -> Bool[Array, " clients"] | None:
    """Returns the mask of available clients; None for all."""
    masks = [
        checked_calls.available(fault, jax.random.fold_in(key, index), round, num_clients)
        for index, fault in enumerate(faults)
        if fault.available is not None
    ]
    return None if not masks else jnp.all(jnp.stack(masks), axis=0)


def apply_faults(
    faults: Sequence[Faults], key: Key[Array, ""], cohort: Cohort, context: Context
) -> tuple[Cohort, Bool[Array, " cohort"]]:
    """Returns the cohort with the faults' instructions, and the mask of expected responses."""

    def map_cohort(method, index):
        def of_client(client):
            return checked_calls.call(
                faults[index], method, *_arguments(key, index, client, context)
            )

        return jax.vmap(of_client)(cohort.clients)

    responded = jnp.ones(cohort.clients.shape, bool)
    if context.available is not None:
        responded = context.available[cohort.clients]
    instructions = dict(cohort.instructions)
    for index, fault in enumerate(faults):
        if fault.responds is not None:
            responded &= map_cohort("responds", index)
        if fault.instruct is not None:
            for name, value in map_cohort("instruct", index).items():
                earlier = instructions.get(name)
                instructions[name] = value if earlier is None else jnp.minimum(earlier, value)
    return cohort._replace(instructions=instructions), responded


def init_model_history(faults: Sequence[Faults], variables: Variables) -> Variables | tuple[()]:
    """Returns zeros ``[history_length, ...]``, or ``()`` if no fault needs past models."""
    length = max((fault.history_length for fault in faults), default=0)
    if not length:
        return ()
    return jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), variables)


def append_model(
    model_history: Variables | tuple[()], round: Int[Array, ""], variables: Variables
) -> Variables | tuple[()]:
    """Replaces the oldest model of the history by the model of a round."""
    if not model_history:
        return model_history
    return jax.tree.map(
        lambda models, new: models.at[round % len(models)].set(new), model_history, variables
    )


def initial_model(
    model_history: Variables | tuple[()],
    round: Int[Array, ""],
    variables: Variables,
    instructions: dict[str, PyTree],
) -> Variables:
    """Returns the model that a participant trains from: a past one if it is stale."""
    if not model_history or "model_round" not in instructions:
        return variables
    model_round = instructions["model_round"]
    return jax.tree.map(
        lambda models, new: jnp.where(model_round == round, new, models[model_round % len(models)]),
        model_history,
        variables,
    )


def send(
    faults: Sequence[Faults],
    key: Key[Array, ""],
    drop_nonfinite: bool,
    context: Context,
    client: Int[Array, ""],
    result: LocalResult,
    responded: Bool[Array, ""],
) -> tuple[LocalResult, UploadStatus]:
    """Returns a participant's result as it arrives, zeros if it does not, and its status."""
    update, sends = result.update, result.sends
    for index, fault in enumerate(faults):
        if fault.send is None:
            continue
        key_client, fault_context = _arguments(key, index, client, context)
        update = checked_calls.call(fault, "send", key_client, fault_context, update)
        checked_calls.check_update(fault, "send", update, result.update)
        # An index, such as of a cluster, has no sign and no noise.
        if reals := {name: values for name, values in sends.items() if _is_floating(values)}:
            key_sends = jax.random.fold_in(key_client, _SENDS)
            values = Variables(params=reals, state={})
            sent = checked_calls.call(fault, "send", key_sends, fault_context, values)
            checked_calls.check_update(fault, "send", sent, values)
            sends = sends | sent.params
    nonfinite = responded & ~all_finite((update, sends))
    if drop_nonfinite:
        responded &= ~nonfinite
    result = jax.tree.map(
        lambda leaf: jnp.where(responded, leaf, jnp.zeros_like(leaf)),
        result._replace(update=update, sends=sends),
    )
    result = result._replace(loss=jnp.where(responded, result.loss, jnp.nan))
    return result, UploadStatus(responded, nonfinite)


def collude(
    faults: Sequence[Faults],
    cohort: Cohort,
    results: LocalResult,
    weights: Float[Array, " cohort"] | None,
    context: Context,
) -> LocalResult:
    """Applies the attacks of colluding clients, and renormalizes the sum of updates."""
    updates = results.update
    for fault in faults:
        if fault.collude is not None:
            if results.sends:
                raise ValueError(
                    f"faults={fault!r}: colluding attacks change updates only, but the solver also "
                    f"sends {', '.join(sorted(results.sends))}; use 'sign_flip', 'scaling', "
                    "'noise' or 'nan'."
                )
            updates = checked_calls.call(fault, "collude", cohort, updates, context)
            checked_calls.check_update(fault, "collude", updates, results.update)
    if weights is None or cohort.responded is None:
        return results._replace(update=updates)
    if updates is not results.update:
        total = context.weighted_sum(cohort.renormalize_weights(weights), updates)
        return results._replace(update=updates, weighted_sum=total)
    return results._replace(weighted_sum=renormalize_sum(cohort, weights, results.weighted_sum))


def renormalize_sum(cohort: Cohort, weights: Float[Array, " cohort"], total: PyTree) -> PyTree:
    """Rescales a weighted sum so that the responding clients' weights sum to 1."""
    if cohort.responded is None:
        return total
    responded_weight = jnp.sum(jnp.where(cohort.responded, weights, 0))
    is_complete = jnp.all(cohort.responded) | (responded_weight == 0)
    divisor = jnp.where(is_complete, 1, responded_weight)
    return jax.tree.map(lambda leaf: leaf / divisor.astype(leaf.dtype), total)


def _is_floating(values: PyTree) -> bool:
    return all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(values))


def _arguments(
    key: Key[Array, ""], index: int, client: Int[Array, ""], context: Context
) -> tuple[Key[Array, ""], FaultContext]:
    """Returns the key and context of a client for one of the faults of a round."""
    key_client = jax.random.fold_in(jax.random.fold_in(key, index), client)
    return key_client, FaultContext(client, context.round, context.num_clients)
