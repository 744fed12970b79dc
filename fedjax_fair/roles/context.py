"""Containers that a round and its roles exchange."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.sensitive import SensitiveFeature
from fedjax_fair.roles.model import Model, Variables

ServerView = Literal["aggregate", "scalars", "vectors"]
"""Information on a single client that the server needs: only its part in sums over the cohort;
scalars, such as its loss; or vectors, such as its update, which secure aggregation hides."""

Info = dict[str, Shaped[Array, "..."]]
"""Diagnostics by name: scalars or ``[cohort]``."""


class Client(NamedTuple):
    """One participant, as given to its local solver.

    Attributes:
        model: The network.
        examples: Examples of all clients.
        offset: Start of the client's examples in ``examples.order``.
        size: Number of the client's examples.
        round: The absolute round, from 0.
        instructions: The client's entries of ``Cohort.instructions``.
        id: The client's id.
        state: The client's state, from ``Solver.init`` or its last ``LocalResult``.
        broadcast: Values from ``Aggregator.broadcast``.
        sensitive_names: Names and values of the sensitive features of examples, or None.
    """

    model: Model
    examples: ClientExamples
    offset: Int[Array, ""]
    size: Int[Array, ""]
    round: Int[Array, ""]
    instructions: dict[str, PyTree]
    id: Int[Array, ""]
    state: PyTree = ()
    broadcast: dict[str, PyTree] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    sensitive_names: tuple[SensitiveFeature, ...] | None = None


class LocalResult(NamedTuple):
    """The result of one client's local training; stacked, with a leading axis ``cohort``.

    On several devices ``update``, ``sends`` and ``reports`` are on the client's device, zeros
    elsewhere; read them with `Context.weighted_sum` and `Context.map_clients`.

    Attributes:
        update: New minus old variables.
        loss: Mean minibatch loss during local training.
        steps: Number of local steps.
        reports: Values of the simulation by name, which count as no communication; see
            `fedjax_fair.solvers.SGD`.
        weighted_sum: Sum of the cohort's updates with ``Aggregator.compute_weights``; None from a
            solver, and without this method.
        state: The client's new state, which it keeps for its next round if the result arrives;
            of the structure that ``Solver.init`` returns. Other roles do not see it.
        sends: What the client sends in addition to its update, by name.
    """

    update: Variables
    loss: Float[Array, "..."]
    steps: Int[Array, "..."]
    reports: dict[str, PyTree] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    weighted_sum: Variables | None = None
    state: PyTree = ()
    # Open dicts, here and in `Cohort.instructions` and `Aggregator.broadcast`: fields with fixed
    # names would make the roles depend on a few methods. Sends are counted in bytes, attacked by
    # Byzantine clients and masked; reports are not.
    sends: dict[str, PyTree] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)

    def sent(self, name: str, example: str) -> PyTree:
        """Returns what a solver sends in addition to updates.

        Raises:
            ValueError: If it sends nothing of this name; an example of a solver is recommended.
        """
        if name not in self.sends:
            raise ValueError(
                f"sends={sorted(self.sends)}: expected a solver that sends {name!r}, such as "
                f"{example}."
            )
        return self.sends[name]


class Timing(NamedTuple):
    """Staleness and durations of the results of a cohort in virtual time.

    Attributes:
        staleness: Updates of the global model since the version that each participant was sent.
        milliseconds: Duration of its task, >= 1.
    """

    staleness: Int[Array, " cohort"]
    milliseconds: Int[Array, " cohort"]


class Cohort(NamedTuple):
    """The clients that train in a round, and their instructions.

    Attributes:
        clients: Client ids; a repeated id trains independently each time.
        weights: Weights proposed by the selector, non-negative, summing to 1.
        instructions: Arrays ``[cohort, ...]`` by name for the solver, such as
            `fedjax_fair.solvers.SGD`.
        responded: Whether each result has arrived; other results are zeros. None before local
            training and without `fedjax_fair.faults`.
        timing: Durations and staleness; None without a schedule.
    """

    clients: Int[Array, " cohort"]
    weights: Float[Array, " cohort"]
    instructions: dict[str, PyTree] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    responded: Bool[Array, " cohort"] | None = None
    timing: Timing | None = None

    @property
    def responded_mask(self) -> Bool[Array, " cohort"]:
        """The mask ``responded``, all true in place of None."""
        if self.responded is None:
            return jnp.ones(self.clients.shape, bool)
        return jnp.asarray(self.responded)

    @property
    def responder_ids(self) -> Int[Array, " cohort"]:
        """Ids of the responding clients; other places have an invalid id, for ``mode="drop"``."""
        if self.responded is None:
            return self.clients
        return jnp.where(self.responded, self.clients, jnp.iinfo(self.clients.dtype).max)

    def is_present(self, num_clients: int) -> Bool[Array, " clients"]:
        """Returns which of all clients have responded."""
        return jnp.zeros(num_clients, bool).at[self.responder_ids].set(True, mode="drop")

    @property
    def last_slots(self) -> Int[Array, " cohort"]:
        """The slot of the last response of each slot's client; its last slot without response.

        Examples:
            >>> clients, responded = jnp.array([3, 1, 3]), jnp.array([True, True, False])
            >>> Cohort(clients, jnp.ones(3) / 3, responded=responded).last_slots.tolist()
            [0, 1, 0]
        """
        order = jnp.lexsort((self.responded_mask, self.clients)).astype(jnp.int32)
        ranked = self.clients[order]
        last = order[jnp.searchsorted(ranked, ranked, side="right") - 1]
        return jnp.zeros_like(order).at[order].set(last)

    @property
    def is_last_response(self) -> Bool[Array, " cohort"]:
        """The mask of the last response of each client, for clients that are drawn repeatedly."""
        slots = jnp.arange(self.clients.shape[0], dtype=jnp.int32)
        return self.responded_mask & (self.last_slots == slots)

    def renormalize_weights(self, weights: Float[Array, " cohort"]) -> Float[Array, " cohort"]:
        """Returns weights of the responding clients that sum to 1, or zeros if there are none."""
        if self.responded is None:
            return weights
        masked = jnp.where(self.responded, weights, 0)
        total = jnp.sum(masked)
        renormalized = masked / jnp.where(total > 0, total, 1)
        # If all responded, dividing by a sum of nearly 1 would change the weights by rounding.
        return jnp.where(jnp.all(self.responded), weights, renormalized)


class ClientGradients(NamedTuple):
    """Losses and gradients of clients at one model.

    Attributes:
        loss: Mean training loss of each client.
        gradient: Its gradient, projected to a vector.
    """

    loss: Float[Array, "*clients"]
    gradient: Float[Array, "*clients width"]

    def mask_nonfinite(self) -> ClientGradients:
        """Returns zeros for gradients that are not finite, and NaN for the losses of these clients.

        Examples:
            >>> gradients = jnp.array([[1.0, 2.0], [jnp.inf, 0.0]])
            >>> masked = ClientGradients(jnp.ones(2), gradients).mask_nonfinite()
            >>> masked.loss.tolist(), masked.gradient.tolist()
            ([1.0, nan], [[1.0, 2.0], [0.0, 0.0]])
        """
        finite = jnp.isfinite(self.gradient).all(axis=-1)
        return ClientGradients(
            jnp.where(finite, self.loss, jnp.nan),
            jnp.where(finite[..., None], self.gradient, 0.0),
        )


class Context(NamedTuple):
    """Data and functions of the start of a round, for selectors and aggregators.

    Measurements are functions, so that unused ones are not traced. ``clients=None`` means all.

    Attributes:
        round: The absolute round, from 0.
        variables: The global model.
        model: The network.
        examples: Training examples of all clients.
        groups: Ground-truth group of each client, or None.
        losses: ``losses(variables, clients=None) -> [ids]``, mean training losses of all labels.
        accuracies: ``accuracies(variables, clients=None) -> [ids]``, training accuracies.
        gradients: ``gradients(variables, clients=None, project=ravel) -> ClientGradients``;
            ``project`` maps a gradient, shaped like the parameters, to a vector. Vectors that are
            not finite are masked (`ClientGradients.mask_nonfinite`).
        client_means: ``client_means(metric_fn, clients, updates=None) -> [ids, ...]``, means of
            ``metric_fn(variables, features, labels) -> [batch, ...]`` over training examples, at
            the global model plus the stacked ``updates``.
        weighted_sum: ``weighted_sum(weights, updates)``, of the cohort's stacked updates.
        map_clients: ``map_clients(function, clients, values=None) -> [ids, ...]``, results of
            ``function(client, value)`` on all devices, computed where the client's examples are.
        available: Mask of available clients, or None for all. Others never respond.
        unavailable: Ids of the other clients in ascending order, followed by the number of clients,
            if they are a few of many; a selector may read them in place of the mask.
        key: Key of random initial states, for ``init``; None in rounds.
        sensitive_names: Names and values of the sensitive features of examples, or None.
        validation: Validation examples of all clients, or None.
    """

    round: Int[Array, ""]
    variables: Variables
    model: Model
    examples: ClientExamples
    groups: Int[Array, " clients"] | None
    # Functions of variables and ids instead of arrays: Power-of-Choice measures its pool only.
    losses: Callable[..., Float[Array, " ids"]]
    accuracies: Callable[..., Float[Array, " ids"]]
    gradients: Callable[..., ClientGradients]
    client_means: Callable[..., PyTree]
    weighted_sum: Callable[[Float[Array, " cohort"], PyTree], PyTree]
    map_clients: Callable[..., PyTree]
    available: Bool[Array, " clients"] | None = None
    unavailable: Int[Array, " unavailable"] | None = None
    key: Key[Array, ""] | None = None
    sensitive_names: tuple[SensitiveFeature, ...] | None = None
    validation: ClientExamples | None = None

    @property
    def sizes(self) -> Int[Array, " clients"]:
        """Training examples of each client."""
        return self.examples.sizes

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.examples.num_clients
