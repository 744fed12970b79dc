"""A round as a pure function, and a run as a scan over rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from functools import partial
from typing import Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.communication import pipeline as communication
from fedjax_fair.communication.compression import Compression
from fedjax_fair.communication.differential_privacy import PrivacyMechanism
from fedjax_fair.communication.opaque import restrict_context, restrict_results
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.faults import injection
from fedjax_fair.numerics.secure_sum import SecureAggregation, as_secure
from fedjax_fair.numerics.trees import all_finite, tree_bytes
from fedjax_fair.roles import (
    Aggregation,
    Aggregator,
    Cohort,
    Context,
    Faults,
    Model,
    Selector,
    ServerView,
    Solver,
    Variables,
    checked_calls,
)
from fedjax_fair.roles.interfaces import FAULT_METHODS
from fedjax_fair.rounds import client_state, round_schedule
from fedjax_fair.rounds.base_round import BaseRound
from fedjax_fair.rounds.local_training import Trained, train_cohort
from fedjax_fair.rounds.round_context import make_context
from fedjax_fair.rounds.round_state import Keys, Purpose, RoundInfo, RoundState, Traffic, derive_key
from fedjax_fair.schedules import Asynchronous, Schedule, Synchronous
from fedjax_fair.schedules.schedule import Arrived, Work
from fedjax_fair.utils import checks

__all__ = ["Round", "run"]


class Round(BaseRound):
    """One round of federated learning: a model and three roles.

    Data is an argument of the methods, so that partitions of equal shape share a compiled function.

    Args:
        model: The network.
        selector: Selects the clients that train.
        solver: Trains each of them.
        aggregator: Combines their updates.
        faults: Failures from `fedjax_fair.faults`, applied in this order. If no client responds,
            the round leaves the model and the aggregator unchanged.
        aggregation: ``"secure"``, or `fedjax_fair.communication.SecureAggregation`, hides single
            updates from the server. Roles may only read sums or scalars, and all updates of the
            cohort are in memory.
        compression: Compression of updates, from `fedjax_fair.communication`.
        privacy: Clipping and noise from `fedjax_fair.communication`, for a mean of equal weights.
        schedule: When results arrive in virtual time, from `fedjax_fair.schedules`.
        clients_per_batch: Number of clients trained at once by `vmap`. Trades memory for speed;
            results change only by rounding. Default: all on a GPU, or one if a model exceeds 16
            MiB; models of 8 MiB together on a TPU; on a CPU as many as fit into its cache if all
            take equally many steps, otherwise one.
        client_state_dtype: Type to which float32 vectors of stored client states and residuals are
            rounded; "bfloat16" halves their memory and keeps 8 bits of precision. Default: none.

    Raises:
        ValueError: If a role is not of its type or needs what secure aggregation hides,
            ``clients_per_batch`` is not positive, or ``client_state_dtype`` is another type.

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
    schedule: Schedule | None = None
    clients_per_batch: int | None = None
    # A setting of the round and not of a solver, since it concerns memory, every solver with a
    # state, and residuals.
    client_state_dtype: Literal["bfloat16"] | None = None

    def __post_init__(self):
        checks.instance("model", self.model, Model, "models.logistic(num_classes=10)")
        checks.instance("selector", self.selector, Selector, "selectors.Uniform(cohort_size=10)")
        checks.instance("solver", self.solver, Solver, "solvers.SGD(0.1, batch_size=10, epochs=1)")
        checks.instance("aggregator", self.aggregator, Aggregator, "aggregators.Mean()")
        self.aggregator.check_solver(self.solver)
        for role in (self.selector, self.aggregator):
            name = f"{type(role).__name__}.server_view"
            checks.one_of(name, role.server_view, get_args(ServerView))
        if self.clients_per_batch is not None:
            checks.positive_int("clients_per_batch", self.clients_per_batch)
        if self.client_state_dtype is not None:
            checks.one_of("client_state_dtype", self.client_state_dtype, ("bfloat16",))
        self._convert(faults=self._faults)
        for fault in self._faults:
            checks.instance("faults: one of them", fault, Faults, "faults.Dropout(0.1)")
            if all(getattr(fault, name) is None for name in FAULT_METHODS):
                raise ValueError(
                    f"faults: {type(fault).__name__} defines none of {', '.join(FAULT_METHODS)}; "
                    "define at least one of these methods."
                )
        # Its reasons come before the conditions of communication.
        round_schedule.check(
            self.schedule, self.model, self.solver, self.aggregator, self._faults, self.privacy
        )
        communication.check(
            self._communication, self.selector, self.solver, self.aggregator, self._faults
        )
        self.solver.check_model(self.model)
        self.aggregator.check_model(self.model)
        if self.model.bind_state is not None and any(f.history_length for f in self._faults):
            raise ValueError(
                f"faults: stale clients would train from past models with the present state of "
                f"{type(self.model).__name__}; use faults.Dropout or faults.Stragglers."
            )

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

    @property
    def is_personalized(self) -> bool:
        """True if clients have personalized models."""
        return self.solver.personalize is not None

    @property
    def has_global_model(self) -> bool:
        """True if the global model is a result."""
        return self.solver.has_global_model

    def _context(self, round: Int[Array, ""], variables: Variables, data: FederatedData) -> Context:
        """Returns the context, whose model holds the state that only the server changes."""
        model = self.model
        if model.bind_state is not None:
            model, variables = model.bind_state(variables.state), Variables(variables.params, {})
        return make_context(model, round, variables, data)

    def init(self, key: Key[Array, ""], data: FederatedData) -> RoundState:
        """Returns the state before the first round."""
        data = jax.tree.map(jnp.asarray, data)
        variables = self.model.init(derive_key(key, Purpose.INIT), data.train.features[:1])
        round = jnp.zeros((), jnp.int32)
        context = self._context(round, variables, data)._replace(key=derive_key(key, Purpose.ROLES))
        shared = context.variables
        aggregator = checked_calls.init(
            self.aggregator, self._visible_context(self.aggregator, context)
        )
        broadcast = self._broadcast(aggregator, context)
        state = RoundState(
            key=key,
            round=round,
            variables=variables,
            selector=checked_calls.init(
                self.selector, self._visible_context(self.selector, context)
            ),
            aggregator=aggregator,
            participation=jnp.zeros(data.num_clients, jnp.int32),
            communication=communication.init(self._communication, shared),
            model_history=injection.init_model_history(self._faults, shared),
            clients=client_state.init_store(
                self.solver,
                derive_key(key, Purpose.CLIENTS),
                context,
                broadcast,
                communication.residual_width(
                    self._communication,
                    communication.shared_leaves(shared, self._is_personal(context)),
                ),
                self.client_state_dtype,
            ),
        )
        if self.schedule is None:
            return state
        visible = self._visible_context(self.selector, context)
        cohort = jax.eval_shape(
            lambda: checked_calls.select(self.selector, key, state.selector, visible)[0]
        )
        return state._replace(schedule=self.schedule.init((variables, broadcast), cohort))

    def check_tasks(self, data: FederatedData, traffic: Traffic) -> None:
        """Checks the durations of tasks; see `BaseRound.check_tasks`.

        Raises:
            ValueError: If a task takes more than 24 days.
        """
        if self.schedule is None:
            return
        sizes = jnp.asarray(data.train.sizes)
        examples = checked_calls.call(self.solver, "num_examples", sizes, None)
        self.schedule.times.check_tasks(
            np.reshape(examples, (-1, data.num_clients)).max(axis=0),  # Of all partitions.
            traffic.down,
            traffic.up,
            can_abort=self.schedule.offline == "abort",
        )

    def personalize(
        self, state: RoundState, data: FederatedData
    ) -> Callable[[Int[Array, ""]], Variables]:
        """Returns a function from a client's id to its model; see `BaseRound.personalize`."""
        key = derive_key(state.key, Purpose.PERSONALIZE, state.round)
        context = self._context(state.round, state.variables, data)
        broadcast = self._broadcast(state.aggregator, context)

        def model_of(client):
            row = client_state.read_row(state.clients, data.train, client)
            participant = client_state.make_client(context, client, row.state, broadcast)
            key_client = jax.random.fold_in(key, client)
            personalized = checked_calls.personalize(
                self.solver, key_client, context.variables, participant
            )
            if self.model.bind_state is None:
                return personalized
            return Variables(personalized.params, state.variables.state)

        return model_of

    def step(
        self,
        state: RoundState,
        data: FederatedData,
        drop_nonfinite: bool = False,
        skip_nonfinite: bool = False,
    ) -> tuple[RoundState, RoundInfo]:
        """Runs one round; see `BaseRound.step`."""
        data = jax.tree.map(jnp.asarray, data)
        keys = {purpose: derive_key(state.key, purpose, state.round) for purpose in Purpose}
        context = self._available(keys, state, data)
        visible = self._visible_context(self.selector, context)
        selected, selector_state, selection = checked_calls.select(
            self.selector, keys[Purpose.SELECT], state.selector, visible
        )
        arrived = self._arrive(state, selected, context)
        if self.schedule is not None:
            # It decides who responds.
            context = context._replace(available=None, unavailable=None)
        prepared, weights = checked_calls.prepare(
            self.aggregator,
            state.aggregator,
            arrived.cohort._replace(responded=None),
            self._visible_context(self.aggregator, context),
        )
        broadcast = self._broadcast(state.aggregator, context)
        is_personal = self._is_personal(context)
        arrived = self._respond(keys, state, arrived, prepared, broadcast, context, drop_nonfinite)
        trained = self._train(
            keys, state, arrived, weights, broadcast, is_personal, context, drop_nonfinite
        )
        cohort, is_unwritten = trained.cohort, trained.status.state_nonfinite
        received = communication.receive(
            self._communication,
            keys[Purpose.COMMUNICATION],
            state.communication,
            cohort,
            weights,
            trained.results,
            context,
        )
        update, aggregator, is_finite, aggregation = self._aggregate(
            state, cohort, received, is_personal, context
        )
        selector = checked_calls.observe(
            self.selector,
            selector_state,
            cohort,
            self._visible_results(self.selector, received.results),
            self._visible_context(self.selector, context, received.add),
        )
        if skip_nonfinite:
            is_skipped = jnp.full(cohort.clients.shape, ~is_finite)
            aggregator = optax.tree.where(is_finite, aggregator, state.aggregator)
            selector = optax.tree.where(is_finite, selector, selector_state)
            is_unwritten = is_skipped if is_unwritten is None else is_unwritten | is_skipped
        new_state = RoundState(
            key=state.key,
            round=state.round + 1,
            variables=jax.tree.map(jnp.add, state.variables, update),
            selector=selector,
            aggregator=aggregator,
            participation=state.participation.at[cohort.responder_ids].add(1, mode="drop"),
            communication=received.state,
            model_history=injection.append_model(
                state.model_history, state.round, context.variables
            ),
            clients=client_state.write_rows(
                state.clients, data.train, cohort, trained.rows, is_unwritten
            ),
            schedule=arrived.state,
        )
        times = arrived.times
        available = None if context.available is None else context.available[cohort.clients]
        sends = tree_bytes(trained.results.sends) // cohort.clients.shape[0]
        received_bytes = tree_bytes(broadcast) + aggregation.bytes_down
        return new_state, RoundInfo(
            clients=cohort.clients,
            weights=aggregation.weights,
            loss=received.results.loss,
            steps=received.results.steps,
            finite=is_finite,
            responded=cohort.responded_mask,
            nonfinite=trained.status.nonfinite,
            selector=selection,
            aggregator=aggregation.info | received.info,
            traffic=self._traffic(context.variables, is_personal, sends, received_bytes),
            state_nonfinite=trained.status.state_nonfinite,
            available=available if times is None else times.started,
            bytes_up=None if trained.bytes_up is None else trained.bytes_up + sends,
            bytes_down=None if trained.bytes_down is None else trained.bytes_down + received_bytes,
            timing=times,
        )

    def _available(self, keys: Keys, state: RoundState, data: FederatedData) -> Context:
        """Returns the context of the round, with the mask of available clients."""
        context = self._context(state.round, state.variables, data)
        if self.schedule is not None:
            return context._replace(
                available=self.schedule.available(state.schedule),
                unavailable=self.schedule.unavailable(state.schedule),
            )
        available = injection.available(
            self._faults, keys[Purpose.FAULTS], state.round, data.num_clients
        )
        return context._replace(available=available)

    def _arrive(self, state: RoundState, cohort: Cohort, context: Context) -> Arrived:
        """Returns the cohort whose results arrive next, which is the selected one without times."""
        if not isinstance(self.schedule, Asynchronous):
            return Arrived(cohort._replace(responded=None), None, None, state.schedule)
        broadcast = self._broadcast(state.aggregator, context)
        tasks = self.schedule.add_model(
            state.schedule, (context.variables, broadcast), context.round
        )
        key = derive_key(state.key, Purpose.SCHEDULE)
        work = self._work(state, cohort, broadcast, context)
        return self.schedule.arrive(key, tasks, cohort, work, context.round)

    def _work(
        self, state: RoundState, cohort: Cohort, broadcast: dict[str, PyTree], context: Context
    ) -> Work:
        """Returns what the tasks of a cohort consist of, without training."""

        def sends():
            visible = self._visible_context(self.aggregator, context)
            prepared = checked_calls.call(
                self.aggregator, "prepare", state.aggregator, cohort, visible
            )
            client = prepared.clients[0]
            row = client_state.read_row(state.clients, context.examples, client)
            instructions = jax.tree.map(lambda leaf: leaf[0], prepared.instructions)
            participant = client_state.make_client(
                context, client, row.state, broadcast, instructions
            )
            return checked_calls.solve(self.solver, state.key, context.variables, participant).sends

        max_steps = cohort.instructions.get("max_steps")
        sizes = context.sizes[cohort.clients]
        examples = checked_calls.call(self.solver, "num_examples", sizes, max_steps)
        traffic = self._traffic(
            context.variables,
            self._is_personal(context),
            tree_bytes(jax.eval_shape(sends)),
            tree_bytes(broadcast),
        )
        return Work(jnp.asarray(examples, jnp.int32), traffic.down, traffic.up)

    def _broadcast(self, aggregator_state: PyTree, context: Context) -> dict[str, PyTree]:
        visible = self._visible_context(self.aggregator, context)
        broadcast = checked_calls.broadcast(self.aggregator, aggregator_state, visible)
        if missing := [name for name in self.solver.needs if name not in broadcast]:
            raise ValueError(
                f"aggregator: {type(self.aggregator).__name__} does not broadcast "
                f"{', '.join(map(repr, missing))}, which {type(self.solver).__name__} needs; use "
                "the aggregator that belongs to this solver."
            )
        return broadcast

    def _respond(
        self,
        keys: Keys,
        state: RoundState,
        arrived: Arrived,
        cohort: Cohort,
        broadcast: dict[str, PyTree],
        context: Context,
        drop_nonfinite: bool,
    ) -> Arrived:
        """Returns who of a prepared cohort is expected to respond, and when."""
        responded = arrived.cohort.responded
        if self._faults or drop_nonfinite:
            key = keys[Purpose.FAULTS]
            cohort, expected = injection.apply_faults(self._faults, key, cohort, context)
            responded = expected if responded is None else responded & expected
        arrived = arrived._replace(cohort=cohort._replace(responded=responded))
        if not isinstance(self.schedule, Synchronous):
            return arrived
        key = derive_key(state.key, Purpose.SCHEDULE)
        work = self._work(state, cohort, broadcast, context)
        return self.schedule.respond(key, state.schedule, arrived.cohort, work)

    def _train(
        self,
        keys: Keys,
        state: RoundState,
        arrived: Arrived,
        weights: Float[Array, " cohort"] | None,
        broadcast: dict[str, PyTree],
        is_personal: Variables,
        context: Context,
        drop_nonfinite: bool,
    ) -> Trained:
        """Returns the results of local training, with the attacks of colluding clients."""
        settings, send = self._communication, None
        if arrived.cohort.responded is not None:
            key = keys[Purpose.FAULTS]
            send = partial(injection.send, self._faults, key, drop_nonfinite, context)
        # Masked updates are summed after training, when the responding clients are known.
        streaming_weights = weights if settings.secure is None else None
        trained = train_cohort(
            self.solver,
            keys[Purpose.SOLVE],
            context,
            arrived.cohort,
            streaming_weights,
            broadcast=broadcast,
            store=state.clients,
            model_history=state.model_history,
            models_sent=arrived.models,
            uses_local_models=self.aggregator.uses_local_models,
            clients_per_batch=self.clients_per_batch,
            encode_update=partial(
                communication.send,
                settings,
                keys[Purpose.COMMUNICATION],
                state.communication,
                is_personal,
            ),
            send=send,
        )
        results = injection.collude(
            self._faults, trained.cohort, trained.results, streaming_weights, context
        )
        return trained._replace(results=results)

    def _aggregate(
        self,
        state: RoundState,
        cohort: Cohort,
        received: communication.Received,
        is_personal: Variables,
        context: Context,
    ) -> tuple[Variables, PyTree, Bool[Array, ""], Aggregation]:
        """Returns the applied update, the new state, whether the update is finite, and info.

        The applied update is zero if it is not finite or no client responded.
        """
        update, new_state, aggregation = checked_calls.aggregate(
            self.aggregator,
            state.aggregator,
            cohort,
            self._visible_results(self.aggregator, received.results),
            self._visible_context(self.aggregator, context, received.add),
        )
        # Faults and noise change all arrays of an update, also those that are not communicated.
        update = jax.tree.map(
            lambda stays, leaf: jnp.zeros_like(leaf) if stays else leaf, is_personal, update
        )
        if self.model.bind_state is not None:
            change = aggregation.state_update
            if change is None:
                change = jax.tree.map(jnp.zeros_like, state.variables.state)
            update = Variables(update.params, change)
            checked_calls.check_update(self.aggregator, "aggregate", update, state.variables)
        finite = is_applied = all_finite(update)
        if cohort.responded is not None:
            any_responded = jnp.any(cohort.responded)
            # Without any response there is no update that could be non-finite.
            finite, is_applied = finite | ~any_responded, finite & any_responded
            if not self.aggregator.keeps_state:
                new_state = optax.tree.where(any_responded, new_state, state.aggregator)
        update = jax.tree.map(
            lambda leaf: jnp.where(is_applied, leaf, jnp.zeros_like(leaf)), update
        )
        return update, new_state, finite, aggregation

    def _is_personal(self, context: Context) -> Variables:
        if self.solver.is_personal is None:
            return jax.tree.map(lambda leaf: False, context.variables)
        x = context.examples.features[:1]
        return self.solver.is_personal(context.variables, context.model, x)

    def _traffic(
        self, variables: Variables, is_personal: Variables, sends: int, broadcast: int
    ) -> Traffic:
        """Adds the bytes of the model to those that a participant sends and receives otherwise."""
        shared = communication.shared_leaves(variables, is_personal)
        return Traffic(
            up=communication.bytes_up(self._communication, shared) + sends,
            down=tree_bytes(shared) + broadcast,
        )


def run(
    round: BaseRound,
    state: RoundState,
    data: FederatedData,
    num_rounds: int,
    *,
    drop_nonfinite: bool = False,
    skip_nonfinite: bool = False,
) -> tuple[RoundState, RoundInfo]:
    """Runs rounds sequentially, as one ``lax.scan``.

    Args:
        round: The round function.
        state: From ``round.init`` or an earlier ``run``.
        data: The federated dataset.
        num_rounds: Number of rounds, >= 0.
        drop_nonfinite: See `BaseRound.step`. Without it, one non-finite update makes that of the
            round non-finite.
        skip_nonfinite: See `BaseRound.step`.

    Returns:
        The new state, and a ``RoundInfo`` with a leading axis ``rounds``.
    """
    checks.non_negative_int("num_rounds", num_rounds)

    def step(state, _):
        return round.step(state, data, drop_nonfinite, skip_nonfinite)

    return jax.lax.scan(step, state, length=num_rounds)
