"""Local training of a cohort."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from fedjax_fair.faults import injection
from fedjax_fair.numerics import target
from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import Client, Cohort, Context, LocalResult, Solver, Variables, checked_calls
from fedjax_fair.rounds import client_state
from fedjax_fair.schedules.schedule import Models

__all__ = ["Trained", "default_clients_per_batch", "train_cohort"]


class Trained(NamedTuple):
    """Results of the local training of a cohort.

    Attributes:
        cohort: The cohort with the mask of responding clients.
        results: Stacked results, which are zeros with a loss of NaN where there is no response.
        status: Status of the uploads.
        rows: New rows of the store of client states.
        bytes_up: Bytes of each update by `Solver.is_sent`; None without this method.
        bytes_down: Bytes of the model that each participant receives by `Solver.is_received`.
    """

    cohort: Cohort
    results: LocalResult
    status: injection.UploadStatus
    rows: dict[str, Array]
    bytes_up: Int[Array, " cohort"] | None
    bytes_down: Int[Array, " cohort"] | None


def train_cohort(
    solver: Solver,
    key: Key[Array, ""],
    context: Context,
    cohort: Cohort,
    weights: Float[Array, " cohort"] | None,
    *,
    broadcast: dict[str, PyTree],
    store: client_state.Store | tuple[()],
    model_history: Variables | tuple[()],
    models_sent: Models | None = None,
    uses_local_models: bool = False,
    clients_per_batch: int | None,
    encode_update: Callable[..., tuple[LocalResult, PyTree]],
    send: Callable[..., tuple[LocalResult, injection.UploadStatus]] | None = None,
) -> Trained:
    """Trains every participant of a cohort from the global model.

    Args:
        solver: Trains each participant.
        key: Key of the local training of this round.
        context: Context of the start of the round.
        cohort: The participants, with instructions; ``responded`` is whether each responds as far
            as is known before training.
        weights: Weights of the sum of updates that is computed during training, or None.
        broadcast: From ``Aggregator.broadcast``.
        store: State of the clients.
        model_history: See ``RoundState``.
        models_sent: Models and broadcast values that the participants were sent, if not the present
            ones.
        uses_local_models: Whether updates are relative to the global model of the context.
        clients_per_batch: Clients per vmapped batch; None for the default.
        encode_update: ``encode_update(client, occurrence, result, residual)``: the result as the
            participant sends it, and its new residual.
        send: ``send(client, result, responded)``: the result as it arrives, and its status. By
            default everything arrives unchanged.
    """
    examples = context.examples

    def train(client, arguments):
        occurrence, instructions, responded, row_sent, version = arguments
        row, seen, values = client_state.read_row(store, examples, client), context, broadcast
        start = injection.initial_model(
            model_history, context.round, context.variables, instructions
        )
        if models_sent is not None:
            seen = context._replace(round=version)
            start, values = jax.tree.map(lambda models: models[row_sent], models_sent.models)
        participant = client_state.make_client(seen, client, row.state, values, instructions)
        key_client = jax.random.fold_in(jax.random.fold_in(key, client), occurrence)
        trained = checked_calls.solve(solver, key_client, start, participant)
        state = trained.state  # It stays on the client, so that no other role sees it.
        received = _mask(solver.is_received, start, participant)
        sent = _mask(solver.is_sent, start, participant._replace(state=state))
        # A client that is drawn repeatedly adds its residual once.
        used = jax.tree.map(lambda leaf: jnp.where(occurrence == 0, leaf, 0), row.residual)
        result, residual = encode_update(client, occurrence, trained._replace(state=()), used)
        if send is None:
            status = injection.UploadStatus(None, ~all_finite((result.update, result.sends)))
        else:
            result, status = send(client, result, responded)
            assert status.responded is not None
            residual = optax.tree.where(status.responded, residual, used)
            if sent is not None:  # Faults change all elements of an update.
                lost = ~status.responded
                update = jax.tree.map(
                    lambda is_sent, arrived, trained: jnp.where(is_sent | lost, arrived, trained),
                    sent,
                    result.update,
                    trained.update,
                )
                result = result._replace(update=update)
        if uses_local_models:
            # The client cannot know it, so that neither compression nor faults see it.
            arrives = True if status.responded is None else status.responded
            update = jax.tree.map(
                lambda update, start, now: jnp.where(arrives, update + (start - now), update),
                result.update,
                start,
                context.variables,
            )
            result = result._replace(update=update)
        if jax.tree.leaves(state):
            status = status._replace(state_nonfinite=~all_finite(state))
        rows = client_state.pack_row(client_state.ClientRow(state, residual))
        traffic = _num_bytes(sent, start), _num_bytes(received, start)
        return (result, status, rows, traffic), result.update

    arguments = (_occurrences_of(cohort.clients), cohort.instructions, cohort.responded)
    arguments += (None, None) if models_sent is None else (models_sent.row, models_sent.version)
    num_local = collectives.per_device(examples, cohort.clients.shape[0])
    if clients_per_batch is None:
        model_bytes = context.model.client_bytes(context.variables)
        clients_per_batch = default_clients_per_batch(solver, model_bytes, num_local)
    batch_size = collectives.equal_batch_size(examples, cohort.clients.shape[0], clients_per_batch)
    batch_size = batch_size if batch_size > 1 else None
    weighted_sum = None
    if weights is None:
        results, status, rows, traffic = collectives.map_local_clients(
            examples,
            lambda client, arguments: train(client, arguments)[0],
            cohort.clients,
            arguments,
            batch_size,
        )
    else:
        (results, status, rows, traffic), weighted_sum = collectives.map_and_sum(
            examples, train, weights, cohort.clients, arguments, batch_size
        )
    loss, steps, counts, traffic = collectives.all_reduce(
        examples, (results.loss, results.steps, jax.tree.map(jnp.int32, status), traffic)
    )
    results = results._replace(loss=loss, steps=steps, weighted_sum=weighted_sum)
    status = jax.tree.map(lambda count: count > 0, counts)
    return Trained(cohort._replace(responded=status.responded), results, status, rows, *traffic)


def _mask(
    method: Callable[..., Variables] | None, variables: Variables, client: Client
) -> Variables | None:
    if method is None:
        return None
    masks = method(variables, client)
    return jax.tree.map(lambda mask, leaf: jnp.broadcast_to(mask, leaf.shape), masks, variables)


def _num_bytes(mask: Variables | None, variables: Variables) -> Int[Array, ""] | None:
    if mask is None:
        return None
    pairs = zip(jax.tree.leaves(mask), jax.tree.leaves(variables), strict=True)
    sizes = [jnp.sum(mask, dtype=jnp.int32) * leaf.dtype.itemsize for mask, leaf in pairs]
    return jnp.sum(jnp.stack(sizes), dtype=jnp.int32)


def default_clients_per_batch(solver: Solver, model_bytes: int, cohort_size: int) -> int:
    """Returns the default number of clients per vmapped batch on the target device.

    Args:
        solver: Trains each client.
        model_bytes: Bytes of the arrays that a client has copies of (`Model.client_bytes`).
        cohort_size: Participants that one device trains.
    """
    device = target.current()
    # With equally many steps, training in parallel on a CPU is up to a quarter faster, because
    # small matrix products use two cores badly. With `epochs=` a batch would wait for its largest
    # client.
    if device.is_cpu and not solver.fixed_num_steps:
        return 1
    limit = cohort_size if device.clients_trained is None else device.clients_trained
    model_bytes = max(1, model_bytes)
    if device.model_bytes is not None and model_bytes > device.model_bytes:
        return 1
    if device.models_bytes is not None:
        limit = min(limit, device.models_bytes // model_bytes)
    return max(1, limit)


def _occurrences_of(clients: Int[Array, " cohort"]) -> Int[Array, " cohort"]:
    """Counts how many earlier slots of the cohort hold the same client.

    It separates the random keys of a repeated client.

    Examples:
        >>> _occurrences_of(jnp.array([3, 1, 3])).tolist()
        [0, 0, 1]
    """
    order = jnp.argsort(clients, stable=True)
    ranked = clients[order]
    slots = jnp.arange(clients.shape[0], dtype=jnp.int32)
    since_first = slots - jnp.searchsorted(ranked, ranked, side="left").astype(jnp.int32)
    return jnp.zeros_like(slots).at[order].set(since_first)
