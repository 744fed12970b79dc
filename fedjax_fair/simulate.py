"""One round is a function; a run is a scan over rounds."""

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
from fedjax_fair.communication import applied as communication
from fedjax_fair.communication.compression import Compression
from fedjax_fair.communication.noise import PrivacyMechanism
from fedjax_fair.communication.opaque import restrict_context, restrict_results
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.faults import apply
from fedjax_fair.local_training import occurrences_of, train_cohort
from fedjax_fair.metrics.communication import bytes_per_round
from fedjax_fair.numerics.finite import all_finite
from fedjax_fair.numerics.secure_sum import SecureAggregation, as_secure
from fedjax_fair.numerics.sketch import ravel
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
    """What randomness is used for; each purpose has a stream of its own."""

    INIT = 0
    SELECT = 1
    SOLVE = 2
    FAULTS = 3
    COMMUNICATION = 4


class RoundState(NamedTuple):
    """What one round hands to the next.

    Attributes:
        key: The root key of the run; it never changes.
        round: Rounds done so far, which is the number of the next one.
        variables: The global model.
        selector: State of the selector.
        aggregator: State of the aggregator.
        participation: Rounds each client has trained in, ``[clients]``.
        communication: State of what participants send, empty if they send their update as it is.
        model_history: The global models of some rounds before this one, ``[history_length, ...]``, that of round
            ``r`` in place ``r % history_length``; empty unless a fault needs them.
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
        clients: Ids of the clients that were chosen to train, ``[cohort]``.
        weights: The weight each had in the update, ``[cohort]``.
        loss: Mean minibatch loss of each during local training, ``[cohort]``, nats.
        steps: Local steps of each, ``[cohort]``.
        finite: Whether the update was finite. One that is not leaves the global model as it was.
        responded: Whether the result of each has arrived, ``[cohort]``.
        nonfinite: Whether what each sent had a number that is not finite, ``[cohort]``.
        selector: Info of the selector, scalars by name.
        aggregator: Info of the aggregator, scalars or ``[cohort]`` by name.
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
    """The key of one purpose in one round.

    Folding in the absolute round makes a resumed run equal an uninterrupted one, and folding in the
    purpose keeps the choice of clients from changing when a solver uses more randomness.
    """
    return jax.random.fold_in(jax.random.fold_in(key, purpose), round)


class BaseRound(Tree):
    """What can be trained: a method with a model, as pure functions of state and data.

    Attributes:
        model: The network.
        is_centralized: Whether it trains on the examples of all clients in one place, with -1 for the
            clients of its ``RoundInfo``.
    """

    model: Model
    is_centralized: ClassVar[bool] = False

    @abstractmethod
    def init(self, key: Key[Array, ""], data: FederatedData) -> RoundState:
        """Returns the state before the first round."""
        raise NotImplementedError

    @abstractmethod
    def step(
        self, state: RoundState, data: FederatedData, drop_nonfinite: bool = False
    ) -> tuple[RoundState, RoundInfo]:
        """Returns the state after one more round, and what the round recorded.

        Args:
            state: The state so far.
            data: The federation.
            drop_nonfinite: Whether a participant whose update is not finite counts as one that has not
                answered.
        """
        raise NotImplementedError

    def bytes_up(self, variables: Variables) -> int:
        """Returns the bytes that a participant sends in a round."""
        return bytes_per_round(variables, cohort_size=1)


class Round(BaseRound):
    """One round of federated learning: a model and three roles.

    A round selects a cohort, lets each participant train from the global model, and adds the aggregated
    update to it. The data is an argument of its methods, so that one compilation serves every
    partition of the same shape.

    Args:
        model: The network.
        selector: Chooses the clients that train.
        solver: Trains each of them.
        aggregator: Weighs their updates.
        faults: Failures of clients from `fedjax_fair.faults`, one or several, in this order. A
            round in which no participant answers leaves the model and the aggregator as they were.
        aggregation: ``"secure"``, or `fedjax_fair.communication.SecureAggregation` with its setting, hides single
            updates from the server, and goes with roles that need their sum alone. The cohort's
            updates are then kept in memory at once.
        compression: Fewer bytes for updates, from `fedjax_fair.communication`.
        privacy: Clipping and noise, from `fedjax_fair.communication`, for the mean with equal weights.
        clients_per_batch: Clients that train in parallel (in a ``vmap``); such batches follow
            each other. More use more memory. It changes results only by floating-point
            reassociation. The default is all of them on a GPU, and on a TPU as many as have models
            of 8 MiB together. On a CPU it is as many as fit into its cache if all take equally
            many steps (fewer where each core is a device), and one if not, because the others would
            wait for the one that takes most.

    Raises:
        ValueError: If a role is not of its type or needs to see what secure aggregation hides, or
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
        self._convert(faults=self._plan)
        for fault in self._plan:
            checks.instance("faults: one of them", fault, Faults, "faults.Dropout(0.1)")
        communication.check(self._communication, self.selector, self.aggregator, self._plan)

    @property
    def _plan(self) -> tuple[Faults, ...]:
        return (self.faults,) if isinstance(self.faults, Faults) else tuple(self.faults)

    @property
    def _communication(self) -> communication.Communication:
        return communication.Communication(
            as_secure(self.aggregation), self.compression, self.privacy
        )

    def _seen_by(self, role, context, add=None):
        secure = self._communication.secure
        return context if secure is None else restrict_context(context, role.server_view, add)

    def _shown_to(self, role, results):
        return (
            results
            if self._communication.secure is None
            else restrict_results(results, role.server_view)
        )

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
            selector=self.selector.init(self._seen_by(self.selector, context)),
            aggregator=self.aggregator.init(self._seen_by(self.aggregator, context)),
            participation=jnp.zeros(data.num_clients, jnp.int32),
            communication=communication.init(self._communication, data.num_clients, variables),
            model_history=apply.init_model_history(self._plan, variables),
        )

    def step(
        self, state: RoundState, data: FederatedData, drop_nonfinite: bool = False
    ) -> tuple[RoundState, RoundInfo]:
        """Returns the state after one more round, and what the round recorded."""
        selector, aggregator, settings = self.selector, self.aggregator, self._communication
        data = jax.tree.map(jnp.asarray, data)
        key_faults = derive_key(state.key, Purpose.FAULTS, state.round)
        context = make_context(self.model, state.round, state.variables, data)._replace(
            available=apply.available(self._plan, key_faults, state.round, data.num_clients)
        )
        cohort, selector_state, selector_info = selector.select(
            derive_key(state.key, Purpose.SELECT, state.round),
            state.selector,
            self._seen_by(selector, context),
        )
        cohort = _checked(cohort, data.num_clients)
        known = self._seen_by(aggregator, context)
        cohort = aggregator.prepare(state.aggregator, cohort, known)
        weights = None
        if aggregator.compute_weights is not None:
            weights = aggregator.compute_weights(state.aggregator, cohort, known)
        key_solve = derive_key(state.key, Purpose.SOLVE, state.round)
        key_communication = derive_key(state.key, Purpose.COMMUNICATION, state.round)
        train = partial(
            train_cohort,
            self.model,
            self.solver,
            key_solve,
            state,
            data,
            self.clients_per_batch,
            partial(communication.send, settings, key_communication, state.communication),
        )
        occurrences = occurrences_of(cohort.clients)
        # Masked updates are summed once it is known who answered.
        streaming_weights = weights if settings.secure is None else None
        if self._plan or drop_nonfinite:
            cohort, responded = apply.apply_faults(self._plan, key_faults, cohort, context)
            send = partial(apply.send, self._plan, key_faults, drop_nonfinite, context)
            cohort, results, nonfinite, residuals = train(
                cohort, occurrences, streaming_weights, responded, send
            )
            results = apply.collude(self._plan, cohort, results, streaming_weights, context)
        else:
            cohort, results, nonfinite, residuals = train(cohort, occurrences, streaming_weights)
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
        update, aggregator_state, aggregated = aggregator.aggregate(
            state.aggregator,
            cohort,
            self._shown_to(aggregator, results),
            self._seen_by(aggregator, context, add),
        )
        finite = changes = all_finite(update)
        if cohort.responded is not None:
            somebody = jnp.any(cohort.responded)
            finite, changes = finite | ~somebody, finite & somebody
            aggregator_state = jax.tree.map(
                partial(jnp.where, somebody), aggregator_state, state.aggregator
            )
        update = jax.tree.map(lambda leaf: jnp.where(changes, leaf, jnp.zeros_like(leaf)), update)
        new_state = RoundState(
            key=state.key,
            round=state.round + 1,
            variables=jax.tree.map(jnp.add, state.variables, update),
            selector=selector.observe(
                selector_state,
                cohort,
                self._shown_to(selector, results),
                self._seen_by(selector, context, add),
            ),
            aggregator=aggregator_state,
            participation=state.participation.at[cohort.responder_ids].add(1, mode="drop"),
            communication=received.state,
            model_history=apply.append_model(state.model_history, state.round, state.variables),
        )
        return new_state, RoundInfo(
            clients=cohort.clients,
            weights=aggregated.weights,
            loss=results.loss,
            steps=results.steps,
            finite=finite,
            responded=_known(cohort),
            nonfinite=nonfinite,
            selector=selector_info,
            aggregator=aggregated.info | received.info,
        )


def _checked(cohort: Cohort, num_clients: int) -> Cohort:
    """What a selector chose, as arrays.

    Raises:
        ValueError: If it is no cohort, or (where that is known while tracing) names a client that
            does not exist.
    """
    checks.instance("selector: what it selects", cohort, Cohort, "Cohort(clients, weights)")
    clients, weights = cohort.clients, jnp.asarray(cohort.weights)
    if not isinstance(clients, Tracer):
        ids = np.asarray(clients)
        if ids.size and not 0 <= ids.min() <= ids.max() < num_clients:
            outside = ids[(ids < 0) | (ids >= num_clients)][0]
            raise ValueError(
                f"selector: the cohort names client {outside}: expected ids in [0, {num_clients})."
            )
        clients = jnp.asarray(ids)
    whole = jnp.issubdtype(clients.dtype, jnp.integer)
    if not whole or clients.ndim != 1 or not clients.size or weights.shape != clients.shape:
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
    """Runs rounds one after another, as one ``lax.scan``.

    Args:
        round: What a round does.
        state: Where to start, from ``round.init`` or an earlier ``run``.
        data: The federation.
        num_rounds: How many rounds.
        drop_nonfinite: Whether a participant whose update is not finite counts as one that has not
            answered. Otherwise the update of its round is not finite either.

    Returns:
        The new state, and a ``RoundInfo`` with a leading axis ``rounds``.

    Raises:
        ValueError: If ``num_rounds`` is not a whole number >= 0.
    """
    checks.non_negative_int("num_rounds", num_rounds)

    def step(state, _):
        return round.step(state, data, drop_nonfinite=drop_nonfinite)

    return jax.lax.scan(step, state, length=num_rounds)


def make_context(
    model: Model, round: Int[Array, ""], variables: Variables, data: FederatedData
) -> Context:
    """What selectors and aggregators can compute at the start of a round.

    Args:
        model: The network.
        round: The absolute round.
        variables: The global model.
        data: The federation, of which they see the training examples and the groups.

    Returns:
        A ``Context``.
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


def _known(cohort: Cohort) -> Bool[Array, " cohort"]:
    return jnp.ones(cohort.clients.shape, bool) if cohort.responded is None else cohort.responded
