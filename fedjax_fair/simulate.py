"""A round as a pure function, and a run as a scan over rounds."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY
from enum import IntEnum
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair import checks
from fedjax_fair.base import (
    Aggregator,
    Cohort,
    Context,
    Faults,
    Info,
    Model,
    Selector,
    Solver,
    Variables,
)
from fedjax_fair.client_evaluation import client_gradients, client_means, client_performance
from fedjax_fair.communication import apply as communication
from fedjax_fair.communication.compression import Compression
from fedjax_fair.communication.noise import PrivacyMechanism
from fedjax_fair.communication.opaque import restrict_context, restrict_results
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.faults import apply
from fedjax_fair.local_training import occurrences_of, train_cohort
from fedjax_fair.metrics.communication import bytes_per_round
from fedjax_fair.numerics.secure_sum import SecureAggregation, as_secure
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.parallel import collectives
from fedjax_fair.tree import Tree

__all__ = [
    "BaseRound",
    "Purpose",
    "Round",
    "RoundInfo",
    "RoundState",
    "derive_key",
    "make_context",
    "run",
]


class Purpose(IntEnum):
    """Purposes of random numbers, each of which has a separate stream."""

    INIT = 0
    SELECT = 1
    SOLVE = 2
    FAULTS = 3
    COMMUNICATION = 4


class RoundState(NamedTuple):
    """State between rounds.

    Attributes:
        key: The root key of the run, which never changes.
        round: Number of completed rounds, which is the index of the next one.
        variables: The global model.
        selector: State of the selector.
        aggregator: State of the aggregator.
        participation: Rounds each client has trained in, ``[clients]``.
        communication: State of compression and privacy; empty if participants send plain updates.
        model_history: Past global models, ``[history_length, ...]``, with that of round ``r`` at
            ``r % history_length``; empty unless a fault needs them.
    """

    key: Key[Array, ""]
    round: Int[Array, ""]
    variables: Variables
    selector: PyTree
    aggregator: PyTree
    participation: Int[Array, " clients"]
    communication: PyTree = ()
    model_history: Variables | tuple[()] = ()


class RoundInfo(NamedTuple):
    """Diagnostics of one round.

    Attributes:
        clients: Ids of the selected clients, ``[cohort]``.
        weights: Their weights in the update, ``[cohort]``.
        loss: Their mean minibatch losses during local training, ``[cohort]``, nats.
        steps: Their numbers of local steps, ``[cohort]``.
        finite: Whether the update was finite and therefore applied.
        responded: Whether each result has arrived, ``[cohort]``.
        nonfinite: Whether each sent update had a NaN or an infinity, ``[cohort]``.
        selector: Info of the selector.
        aggregator: Info of the aggregator and of privacy.
    """

    clients: Int[Array, " cohort"]
    weights: Float[Array, " cohort"]
    loss: Float[Array, " cohort"]
    steps: Int[Array, " cohort"]
    finite: Bool[Array, ""]
    responded: Bool[Array, " cohort"]
    nonfinite: Bool[Array, " cohort"]
    selector: Info
    aggregator: Info


def derive_key(
    key: Key[Array, ""], purpose: Purpose, round: Int[Array, ""] | int = 0
) -> Key[Array, ""]:
    """Returns the key of one purpose in one round.

    With the absolute round a resumed run equals an uninterrupted one. With the purpose the selected
    clients stay the same if a solver draws more random numbers.
    """
    return jax.random.fold_in(jax.random.fold_in(key, purpose), round)


class BaseRound(Tree):
    """A method with a model, as pure functions of state and data.

    Attributes:
        model: The network.
        is_centralized: Whether it trains on the examples of all clients together, with client ids
            of -1 in its ``RoundInfo``.
    """

    model: Model
    is_centralized: ClassVar[bool] = False

    @abstractmethod
    def init(self, key: Key[Array, ""], data: FederatedData) -> RoundState:
        """Returns the state before the first round."""

    @abstractmethod
    def step(
        self, state: RoundState, data: FederatedData, drop_nonfinite: bool = False
    ) -> tuple[RoundState, RoundInfo]:
        """Runs one round.

        Args:
            state: State before the round.
            data: The federated dataset.
            drop_nonfinite: Whether to treat a participant whose update is not finite as one that
                has not responded.
        """

    def bytes_up(self, variables: Variables) -> int:
        """Returns the bytes that a participant sends in a round."""
        return bytes_per_round(variables, cohort_size=1)


class Round(BaseRound):
    """One round of federated learning: a model and three roles.

    Data is an argument of the methods, so that one compiled function serves all partitions of the
    same shape.

    Args:
        model: The network.
        selector: Selects the clients that train.
        solver: Trains each of them.
        aggregator: Combines their updates.
        faults: Failures from `fedjax_fair.faults`, applied in this order. Without any response the
            model and the aggregator do not change.
        aggregation: ``"secure"``, or `fedjax_fair.communication.SecureAggregation` with settings,
            hides single updates from the server. Roles may only read sums or scalars, and all
            updates of the cohort are in memory.
        compression: Compression of updates, from `fedjax_fair.communication`.
        privacy: Clipping and noise from `fedjax_fair.communication`, for a mean of equal weights.
        clients_per_batch: Clients that train in parallel (vmapped). Larger batches take more memory
            and change results only by rounding. Default: all on a GPU; models of 8 MiB together on
            a TPU; on a CPU as many as fit into its cache if all take equally many steps, otherwise
            one, because clients in a batch wait for the slowest.

    Raises:
        ValueError: If a role is not of its type or needs what secure aggregation hides, or
            ``clients_per_batch`` is not positive.

    Examples:
        >>> import fedjax_fair as ff
        >>> fedavg = Round(
        ...     model=ff.models.logistic(num_classes=10),
        ...     selector=ff.selectors.Uniform(cohort_size=10),
        ...     solver=ff.solvers.SGD(learning_rate=0.1, batch_size=10, epochs=1),
        ...     aggregator=ff.aggregators.Mean(),
        ... )
        >>> fedavg.selector
        Uniform(cohort_size=10)
    """

    selector: Selector
    solver: Solver
    aggregator: Aggregator
    _: KW_ONLY
    faults: Faults | Sequence[Faults] = ()
    aggregation: Literal["plain", "secure"] | SecureAggregation = "plain"
    compression: Compression | None = None
    privacy: PrivacyMechanism | None = None
    clients_per_batch: int | None = None

    def __post_init__(self):
        checks.instance("model", self.model, Model, "models.logistic(num_classes=10)")
        checks.instance("selector", self.selector, Selector, "selectors.Uniform(cohort_size=10)")
        checks.instance("solver", self.solver, Solver, "solvers.SGD(0.1, batch_size=10, epochs=1)")
        checks.instance("aggregator", self.aggregator, Aggregator, "aggregators.Mean()")
        if self.clients_per_batch is not None:
            checks.positive_int("clients_per_batch", self.clients_per_batch)
        self._convert(faults=self._faults)
        for fault in self._faults:
            checks.instance("faults: one of them", fault, Faults, "faults.Dropout(0.1)")
        communication.check(self._communication, self.selector, self.aggregator, self._faults)

    @property
    def _faults(self) -> tuple[Faults, ...]:
        return (self.faults,) if isinstance(self.faults, Faults) else tuple(self.faults)

    @property
    def _communication(self) -> communication.Communication:
        return communication.Communication(
            as_secure(self.aggregation), self.compression, self.privacy
        )

    def _visible_context(self, role, context, add=None):
        is_plain = self._communication.secure is None
        return context if is_plain else restrict_context(context, role.server_view, add)

    def _visible_results(self, role, results):
        is_plain = self._communication.secure is None
        return results if is_plain else restrict_results(results, role.server_view)

    def bytes_up(self, variables: Variables) -> int:
        """Returns the bytes that a participant sends in a round."""
        return communication.bytes_up(self._communication, variables)

    def init(self, key: Key[Array, ""], data: FederatedData) -> RoundState:
        """Returns the state before the first round."""
        data = jax.tree.map(jnp.asarray, data)
        variables = self.model.init(derive_key(key, Purpose.INIT), data.train.features[:1])
        round = jnp.zeros((), jnp.int32)
        context = make_context(self.model, round, variables, data)
        return RoundState(
            key=key,
            round=round,
            variables=variables,
            selector=self.selector.init(self._visible_context(self.selector, context)),
            aggregator=self.aggregator.init(self._visible_context(self.aggregator, context)),
            participation=jnp.zeros(data.num_clients, jnp.int32),
            communication=communication.init(self._communication, data.num_clients, variables),
            model_history=apply.init_model_history(self._faults, variables),
        )

    def step(
        self, state: RoundState, data: FederatedData, drop_nonfinite: bool = False
    ) -> tuple[RoundState, RoundInfo]:
        """Runs one round; see `BaseRound.step`."""
        selector, aggregator, settings = self.selector, self.aggregator, self._communication
        data = jax.tree.map(jnp.asarray, data)
        key_select, key_solve, key_faults, key_communication = (
            derive_key(state.key, purpose, state.round)
            for purpose in (Purpose.SELECT, Purpose.SOLVE, Purpose.FAULTS, Purpose.COMMUNICATION)
        )
        context = make_context(self.model, state.round, state.variables, data)._replace(
            available=apply.available(self._faults, key_faults, state.round, data.num_clients)
        )

        # Selection
        selector_context = self._visible_context(selector, context)
        cohort, selector_state, selector_info = selector.select(
            key_select, state.selector, selector_context
        )
        cohort = _check_cohort(cohort, data.num_clients)
        aggregator_context = self._visible_context(aggregator, context)
        cohort = aggregator.prepare(state.aggregator, cohort, aggregator_context)
        weights = None
        if aggregator.compute_weights is not None:
            weights = aggregator.compute_weights(state.aggregator, cohort, aggregator_context)

        # Local training
        responded = send = None
        if self._faults or drop_nonfinite:
            cohort, responded = apply.apply_faults(self._faults, key_faults, cohort, context)
            send = partial(apply.send, self._faults, key_faults, drop_nonfinite, context)
        occurrences = occurrences_of(cohort.clients)
        # Masked updates are summed after training, when the responding clients are known.
        streaming_weights = weights if settings.secure is None else None
        cohort, results, nonfinite, residuals = train_cohort(
            self.solver,
            key_solve,
            context,
            cohort,
            occurrences,
            streaming_weights,
            model_history=state.model_history,
            clients_per_batch=self.clients_per_batch,
            encode_update=partial(
                communication.send, settings, key_communication, state.communication
            ),
            responded=responded,
            send=send,
        )
        results = apply.collude(self._faults, cohort, results, streaming_weights, context)
        received = communication.receive(
            settings,
            key_communication,
            state.communication,
            cohort,
            occurrences,
            weights,
            results,
            residuals,
            context,
        )
        results, add = received.results, received.add

        # Aggregation
        update, aggregator_state, aggregation = aggregator.aggregate(
            state.aggregator,
            cohort,
            self._visible_results(aggregator, results),
            self._visible_context(aggregator, context, add),
        )
        finite = is_applied = all_finite(update)
        if cohort.responded is not None:
            any_responded = jnp.any(cohort.responded)
            # Without any response there is no update that could be non-finite.
            finite, is_applied = finite | ~any_responded, finite & any_responded
            aggregator_state = jax.tree.map(
                partial(jnp.where, any_responded), aggregator_state, state.aggregator
            )
        update = jax.tree.map(
            lambda leaf: jnp.where(is_applied, leaf, jnp.zeros_like(leaf)), update
        )
        new_state = RoundState(
            key=state.key,
            round=state.round + 1,
            variables=jax.tree.map(jnp.add, state.variables, update),
            selector=selector.observe(
                selector_state,
                cohort,
                self._visible_results(selector, results),
                self._visible_context(selector, context, add),
            ),
            aggregator=aggregator_state,
            participation=state.participation.at[cohort.responder_ids].add(1, mode="drop"),
            communication=received.state,
            model_history=apply.append_model(state.model_history, state.round, state.variables),
        )
        return new_state, RoundInfo(
            clients=cohort.clients,
            weights=aggregation.weights,
            loss=results.loss,
            steps=results.steps,
            finite=finite,
            responded=cohort.responded_mask,
            nonfinite=nonfinite,
            selector=selector_info,
            aggregator=aggregation.info | received.info,
        )


def _check_cohort(cohort: Cohort, num_clients: int) -> Cohort:
    """Returns a selector's cohort as arrays, after checking shapes and concrete ids."""
    checks.instance("selector: what it selects", cohort, Cohort, "Cohort(clients, weights)")
    clients, weights = cohort.clients, jnp.asarray(cohort.weights)
    if not isinstance(clients, Tracer):
        ids = np.asarray(clients)
        invalid = ids[(ids < 0) | (ids >= num_clients)]
        if invalid.size:
            raise ValueError(
                f"selector: the cohort names client {invalid[0]}: expected ids in "
                f"[0, {num_clients})."
            )
        clients = jnp.asarray(ids)
    is_integer = jnp.issubdtype(clients.dtype, jnp.integer)
    if not is_integer or clients.ndim != 1 or not clients.size or weights.shape != clients.shape:
        raise ValueError(
            f"selector: a cohort of clients {clients.dtype}{list(clients.shape)} with weights "
            f"{weights.dtype}{list(weights.shape)}: expected integers [cohort] and as many weights."
        )
    return cohort._replace(clients=clients, weights=weights)


def run(
    round: BaseRound,
    state: RoundState,
    data: FederatedData,
    num_rounds: int,
    *,
    drop_nonfinite: bool = False,
) -> tuple[RoundState, RoundInfo]:
    """Runs rounds sequentially, as one ``lax.scan``.

    Args:
        round: The round function.
        state: Initial state, from ``round.init`` or an earlier ``run``.
        data: The federated dataset.
        num_rounds: Number of rounds.
        drop_nonfinite: See `BaseRound.step`. Without it, one non-finite update makes the update of
            the round non-finite.

    Returns:
        The new state, and a ``RoundInfo`` with a leading axis ``rounds``.

    Raises:
        ValueError: If ``num_rounds`` is not an integer >= 0.
    """
    checks.non_negative_int("num_rounds", num_rounds)

    def step(state, _):
        return round.step(state, data, drop_nonfinite=drop_nonfinite)

    return jax.lax.scan(step, state, length=num_rounds)


def make_context(
    model: Model, round: Int[Array, ""], variables: Variables, data: FederatedData
) -> Context:
    """Makes the context of selectors and aggregators at the start of a round.

    Args:
        model: The network.
        round: The absolute round.
        variables: The global model.
        data: The federated dataset; only training examples and groups are read.
    """
    performance = partial(client_performance, model, examples=data.train)
    return Context(
        round=round,
        variables=variables,
        model=model,
        examples=data.train,
        groups=data.groups,
        losses=lambda variables, clients=None: performance(variables, clients=clients).loss,
        accuracies=lambda variables, clients=None: performance(variables, clients=clients).accuracy,
        gradients=lambda variables, clients=None, project=ravel: client_gradients(
            model, variables, data.train, clients, project
        ),
        client_means=lambda metric_fn, clients, updates=None: client_means(
            metric_fn, variables, data.train, clients, updates
        ),
        weighted_sum=partial(collectives.weighted_sum, data.train),
        map_clients=partial(collectives.map_clients, data.train),
    )
