"""Local training of a cohort: how many clients at once, what each starts from and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.base import Client, Cohort, LocalResult, Model, Solver, Variables
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.faults import apply
from fedjax_fair.numerics import target
from fedjax_fair.numerics.finite import all_finite
from fedjax_fair.parallel import collectives

if TYPE_CHECKING:
    from fedjax_fair.simulate import RoundState

__all__ = ["default_clients_per_batch", "occurrences_of", "train_cohort"]


def train_cohort(
    model: Model,
    solver: Solver,
    key: Key[Array, ""],
    state: RoundState,
    data: FederatedData,
    clients_per_batch: int | None,
    encode_update: Callable[..., tuple[LocalResult, PyTree]],
    cohort: Cohort,
    occurrences: Int[Array, " cohort"],
    weights: Float[Array, " cohort"] | None,
    responded: Bool[Array, " cohort"] | None = None,
    send: Callable[..., tuple[LocalResult, apply.UploadStatus]] | None = None,
) -> tuple[Cohort, LocalResult, Bool[Array, " cohort"], PyTree]:
    """Trains every participant of a cohort from the global model.

    Args:
        model: The network.
        solver: Trains each of them.
        key: Of all local training of this round.
        state: Of the round.
        data: The federation.
        clients_per_batch: How many train side by side; None for the default.
        encode_update: ``encode_update(client, occurrence, result)`` is what a participant sends of its result, and what
            it keeps of it.
        cohort: Who trains, with instructions.
        occurrences: How often each was in an earlier slot, from ``occurrences_of``.
        weights: Those of the update, ``[cohort]``, if they are known before training: updates are
            then summed on the way.
        responded: Whether each responded as far as is known before training, ``[cohort]``.
        send: ``send(client, result, responded)`` is what arrives of what a participant sends; by default
            all of it.

    Returns:
        The cohort with its answers; results with a leading axis ``cohort``, of a participant that does
        not answer zeros and no loss; whether what each sent was not finite, ``[cohort]``; and what
        participants keep.
    """
    examples = data.train

    def train(client, own):
        occurrence, instructions, responded = own
        participant = Client(
            model=model,
            examples=examples,
            offset=examples.offsets[client],
            size=examples.sizes[client],
            round=state.round,
            instructions=instructions,
        )
        key_client = jax.random.fold_in(jax.random.fold_in(key, client), occurrence)
        start = apply.received(state.model_history, state.round, state.variables, instructions)
        result = solver.solve(key_client, start, participant)
        result, residual = encode_update(client, occurrence, result)
        if send is None:
            return result, apply.UploadStatus(None, ~all_finite(result.update)), residual
        return *send(client, result, responded), residual

    own = (occurrences, cohort.instructions, responded)
    size = collectives.per_device(examples, cohort.clients.shape[0])
    if clients_per_batch is None:
        clients_per_batch = default_clients_per_batch(solver, state.variables, size)
    # Batches of one size: twice nine clients rather than sixteen and two.
    side_by_side = -(-size // -(-size // clients_per_batch))
    batch_size = side_by_side if side_by_side > 1 else None
    total = None
    if weights is None:
        results, status, residuals = collectives.map_local_clients(
            examples, train, cohort.clients, own, batch_size
        )
    else:

        def train_and_weigh(client, own):
            trained = train(client, own)
            return trained, trained[0].update

        (results, status, residuals), total = collectives.map_and_sum(
            examples, train_and_weigh, weights, cohort.clients, own, batch_size
        )
    loss, steps, counts = collectives.all_reduce(
        examples, (results.loss, results.steps, jax.tree.map(jnp.int32, status))
    )
    results = results._replace(loss=loss, steps=steps, weighted_sum=total)
    status = jax.tree.map(lambda count: count > 0, counts)
    return cohort._replace(responded=status.responded), results, status.nonfinite, residuals


def default_clients_per_batch(solver: Solver, variables: Variables, cohort_size: int) -> int:
    """How many clients train side by side by default: as many as the target has room for.

    Args:
        solver: Trains each of them.
        variables: The model; only its size counts.
        cohort_size: Participants that one device trains.

    Returns:
        At least one.
    """
    here = target.current()
    if here.is_cpu and not solver.fixed_num_steps:
        return 1
    most = cohort_size if here.clients_trained is None else here.clients_trained
    model_bytes = max(1, sum(leaf.nbytes for leaf in jax.tree.leaves(variables)))
    if here.model_bytes is not None and model_bytes > here.model_bytes:
        return 1
    if here.models_bytes is not None:
        most = min(most, here.models_bytes // model_bytes)
    return max(1, most)


def occurrences_of(clients: Int[Array, " cohort"]) -> Int[Array, " cohort"]:
    """How many earlier slots of the cohort hold the same client.

    It keeps the random numbers of a repeated client apart, while those of a client do not depend on
    the other participants.

    Args:
        clients: Ids of the participants, ``[cohort]``.

    Returns:
        ``[cohort]``.

    Examples:
        >>> occurrences_of(jnp.array([3, 1, 3])).tolist()
        [0, 0, 1]
    """
    order = jnp.argsort(clients, stable=True)
    ranked = clients[order]
    slots = jnp.arange(clients.shape[0], dtype=jnp.int32)
    since_first = slots - jnp.searchsorted(ranked, ranked, side="left").astype(jnp.int32)
    return jnp.zeros_like(slots).at[order].set(since_first)
