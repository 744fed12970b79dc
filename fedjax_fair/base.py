"""The roles of a simulation and the containers that they exchange.

A role is a `fedjax_fair.tree.Tree`: a frozen dataclass whose fields are settings and whose methods
are pure. State goes in and comes out; nothing is kept on the side. State is what the next round
needs, info is diagnostics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from fedjax_fair.data.federated import ClientExamples
from fedjax_fair.tree import Integer, Number, Tree

__all__ = [
    "Aggregation",
    "Aggregator",
    "Client",
    "ClientGradients",
    "ClientMetric",
    "ClientMetrics",
    "Cohort",
    "Context",
    "FaultContext",
    "Faults",
    "Info",
    "Integer",
    "LocalResult",
    "Metric",
    "Model",
    "Number",
    "Predictions",
    "Sampling",
    "Selector",
    "ServerView",
    "Solver",
    "Variables",
    "empty_state",
    "is_correct",
    "keep_state",
]

ServerView = Literal["aggregate", "scalars", "vectors"]
"""What a role needs to see of a single client, besides its id and the number of its examples.

Nothing but sums over the cohort; a few numbers, such as its loss; or something as long as a vector:
its update, its gradient, its activations. Secure aggregation hides vectors.
"""

Info = dict[str, Shaped[Array, "..."]]
"""Diagnostics of a round: scalars, or one number a participant, by name."""


class Variables(NamedTuple):
    """The variables of a model.

    Attributes:
        params: What is trained.
        state: Running statistics of normalization layers; an empty dict for most models. They are
            averaged like parameters, but no distance or server optimizer sees them.
    """

    params: PyTree
    state: PyTree


def is_correct(
    logits: Float[Array, "batch classes"], labels: Int[Array, " batch"]
) -> Float[Array, " batch"]:
    """1 where the largest logit is that of the label, 0 elsewhere."""
    return (jnp.argmax(logits, axis=-1) == labels).astype(logits.dtype)


def largest(logits: Float[Array, "batch classes"]) -> Int[Array, " batch"]:
    """The class of the largest logit."""
    return jnp.argmax(logits, axis=-1)


class Model(Tree):
    """A network and its loss as pure functions.

    Attributes:
        loss: ``loss(outputs, labels) -> [batch]``, the loss of each example; cross-entropy of
            logits and integer labels, in nats, unless another one is given.
        accuracy: ``accuracy(outputs, labels) -> [batch]``, the share of an example's labels that is
            right, in ``[0, 1]``; NaN where there is no such share, as in regression.
        predict: ``predict(outputs) -> [batch, ...]``, labels; by default the largest logit's class.
        probabilities: ``probabilities(outputs) -> [batch, classes]``; by default the softmax of
            logits, None where outputs are no logits.
    """

    _: KW_ONLY
    loss: Callable[..., Float[Array, " batch"]] = optax.softmax_cross_entropy_with_integer_labels
    accuracy: Callable[..., Float[Array, " batch"]] = is_correct
    predict: Callable[..., Shaped[Array, "batch ..."]] = largest
    probabilities: Callable[..., Float[Array, "batch classes"]] | None = jax.nn.softmax

    @abstractmethod
    def init(self, key: Key[Array, ""] | Any, x: Shaped[Any, "batch ..."]) -> Variables:
        """Returns initial variables; of the inputs only shape and dtype matter."""
        raise NotImplementedError

    @abstractmethod
    def apply(
        self,
        params: PyTree,
        state: PyTree,
        x: Shaped[Any, "batch ..."],
        *,
        train: bool,
        key: Key[Array, ""] | None,
    ) -> tuple[Float[Array, "batch ..."], PyTree]:
        """Returns outputs and the new state.

        Args:
            params: What is trained.
            state: Running statistics.
            x: Raw inputs (``uint8`` images are scaled inside).
            train: Whether the network is in training mode.
            key: Feeds dropout; may be None when ``train`` is false.
        """
        raise NotImplementedError

    @abstractmethod
    def features(
        self, params: PyTree, state: PyTree, x: Shaped[Any, "batch ..."]
    ) -> Float[Array, "batch width"]:
        """Returns activations of the last hidden layer, in evaluation mode."""
        raise NotImplementedError

    @staticmethod
    def from_functions(
        init: Callable[..., Variables],
        apply: Callable[..., Any],
        features: Callable[..., Any],
        **settings: Any,
    ) -> Model:
        """Makes a model of three functions, and of the settings of any model.

        Args:
            init: As the method of this name.
            apply: As the method of this name.
            features: As the method of this name.
            **settings: ``loss``, ``accuracy``, ``predict``, ``probabilities``.
        """
        return FunctionModel(init, apply, features, **settings)


class FunctionModel(Model):
    """A model of three functions, from `Model.from_functions`."""

    init_fn: Callable[..., Variables]
    apply_fn: Callable[..., Any]
    features_fn: Callable[..., Any]

    def init(self, key, x):
        return self.init_fn(key, x)

    def apply(self, params, state, x, *, train, key):
        return self.apply_fn(params, state, x, train=train, key=key)

    def features(self, params, state, x):
        return self.features_fn(params, state, x)


class Client(NamedTuple):
    """One participant of a cohort, as its local solver sees it.

    Attributes:
        model: The network.
        examples: The examples of all clients; a solver reads only its own.
        offset: Where this client's run in ``examples.order`` starts.
        size: Number of its examples.
        round: The absolute round, counted from 0.
        instructions: This participant's own entries of ``Cohort.instructions``.
    """

    model: Model
    examples: ClientExamples
    offset: Int[Array, ""]
    size: Int[Array, ""]
    round: Int[Array, ""]
    instructions: dict[str, PyTree]


class LocalResult(NamedTuple):
    """The result of one client's local training (with a leading axis ``cohort`` once stacked).

    Where clients are assigned to several devices, ``loss`` and ``steps`` are all-reduced. The rest
    stays on the device of the client, with zeros elsewhere; `Context.weighted_sum` and
    `Context.map_clients` are the ways to it.

    Attributes:
        update: New minus old variables.
        loss: Mean of the minibatch losses seen during local training.
        steps: Number of local steps taken.
        reports: Anything else that the client sends, by name. `fedjax_fair.solvers.SGD` lists what
            it reports, and on which instruction.
        weighted_sum: Sum of the cohort's updates with the weights of ``Aggregator.compute_weights``, on all
            devices; None from a solver, and where the aggregator weighs afterwards.
    """

    update: Variables
    loss: Float[Array, "..."]
    steps: Int[Array, "..."]
    reports: dict[str, PyTree] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    weighted_sum: Variables | None = None


class Cohort(NamedTuple):
    """The clients that train in a round, and their instructions.

    Attributes:
        clients: Client ids; a repeated id trains independently each time.
        weights: The selector's own aggregation weights, non-negative, summing to 1.
        instructions: What participants receive besides the model, by name, leaves ``[cohort, ...]``. A
            solver follows the instructions that it knows; see `fedjax_fair.solvers.SGD`.
        responded: Whether the result of each participant has arrived; None where nothing can go wrong
            (`fedjax_fair.faults`). Results of the others are zeros, and weights, states and
            histories are of those who answered alone. None have arrived before local training.
    """

    clients: Int[Array, " cohort"]
    weights: Float[Array, " cohort"]
    instructions: dict[str, PyTree] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)
    responded: Bool[Array, " cohort"] | None = None

    @property
    def responder_ids(self) -> Int[Array, " cohort"]:
        """Ids of those who answered, and one that no client has for the others.

        What is written at these places with ``mode="drop"`` leaves the others as they were.
        """
        if self.responded is None:
            return self.clients
        return jnp.where(self.responded, self.clients, jnp.iinfo(self.clients.dtype).max)

    def renormalize_weights(self, weights: Float[Array, " cohort"]) -> Float[Array, " cohort"]:
        """Weights divided by the sum over those who answered; zeros for the others, or all."""
        if self.responded is None:
            return weights
        kept = jnp.where(self.responded, weights, 0)
        total = jnp.sum(kept)
        renormalized = kept / jnp.where(total > 0, total, 1)
        # Not by a sum that is nearly 1 where all answered.
        return jnp.where(jnp.all(self.responded), weights, renormalized)


class ClientGradients(NamedTuple):
    """Losses and gradients of clients at one model.

    Attributes:
        loss: Mean training loss of each client.
        gradient: Gradient of that loss, one row a client, projected to a vector.
    """

    loss: Float[Array, " clients"]
    gradient: Float[Array, "clients width"]


class ClientValuesFn(Protocol):
    """Measures one number a client at a model."""

    def __call__(
        self, variables: Variables, clients: Int[Array, " ids"] | None = None
    ) -> Float[Array, " ids"]:
        """Measures the given clients, all by default."""
        ...


class ClientGradientsFn(Protocol):
    """Computes losses and gradients of clients at a model."""

    def __call__(
        self,
        variables: Variables,
        clients: Int[Array, " ids"] | None = None,
        project: Callable[[PyTree], Float[Array, " width"]] = ...,
    ) -> ClientGradients:
        """Makes a vector of each gradient, shaped like the parameters, by ``project``."""
        ...


class ClientMeansFn(Protocol):
    """Averages a measurement over all training examples of each client."""

    def __call__(
        self,
        metric_fn: Callable[..., PyTree],
        clients: Int[Array, " ids"],
        updates: Variables | None = None,
    ) -> PyTree:
        """Averages ``metric_fn(variables, features, labels)``, ``[batch, ...]``, to ``[ids, ...]``.

        At the global model, or with each client's own of the stacked ``updates`` added to it.
        """
        ...


class MapClientsFn(Protocol):
    """Maps a function over clients, each on a device that holds its examples."""

    def __call__(
        self, function: Callable[..., PyTree], clients: Int[Array, " ids"], values: PyTree = None
    ) -> PyTree:
        """Maps ``function(client, value)`` to ``[ids, ...]``, known on all devices."""
        ...


class Context(NamedTuple):
    """What a selector or an aggregator can compute at the start of a round.

    Functions rather than values: what no role calls is never traced.

    Attributes:
        round: The absolute round, counted from 0.
        variables: The global model at the start of the round.
        model: The network.
        examples: Training examples of all clients.
        groups: Planted group of each client, or None.
        losses: ``losses(variables, clients=None) -> [ids]``, mean training losses.
        accuracies: ``accuracies(variables, clients=None) -> [ids]``, training accuracies.
        gradients: ``gradients(variables, clients=None, project=ravel) -> ClientGradients`` of the
            mean training losses.
        client_means: ``client_means(metric_fn, clients, updates=None) -> [ids, ...]``, means of a
            measurement over the training examples of each client.
        weighted_sum: ``weighted_sum(weights, updates)``: the sum of stacked updates of a cohort.
        map_clients: ``map_clients(function, clients, values=None) -> [ids, ...]``: a function of
            each client, for example of its examples or its own of the stacked updates.
        available: Which clients can take part, or None where all can. A selector that chooses
            another one gets no answer from it.
    """

    round: Int[Array, ""]
    variables: Variables
    model: Model
    examples: ClientExamples
    groups: Int[Array, " clients"] | None
    losses: ClientValuesFn
    accuracies: ClientValuesFn
    gradients: ClientGradientsFn
    client_means: ClientMeansFn
    weighted_sum: Callable[[Float[Array, " cohort"], PyTree], PyTree]
    map_clients: MapClientsFn
    available: Bool[Array, " clients"] | None = None

    @property
    def sizes(self) -> Int[Array, " clients"]:
        """Training examples of each client."""
        return self.examples.sizes

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.examples.num_clients


def empty_state(context: Context) -> tuple[()]:
    """The state of a role that remembers nothing."""
    return ()


def keep_state(state: PyTree, cohort: Cohort, results: LocalResult, context: Context) -> PyTree:
    """The state of a selector that learns nothing from local training."""
    return state


class Sampling(NamedTuple):
    """How a selector draws cohorts, if that does not depend on what clients have.

    Attributes:
        kind: ``"uniform"`` draws distinct clients, each equally likely, anew in every round;
            ``"round_robin"`` takes all in turn; ``"full"`` takes all in every round.
        cohort_size: Clients per round, or None for all.
    """

    kind: Literal["uniform", "round_robin", "full"]
    cohort_size: int | None = None


class Selector(Tree):
    """Chooses the clients that train.

    A selector is a subclass with its settings as fields and a method ``select``; one with state or
    that learns from local training defines ``init`` or ``observe`` too.

    Attributes:
        server_view: What it needs to see of a single client.

    Examples:
        >>> class Loudest(Selector):
        ...     cohort_size: int  # structure
        ...     penalty: Number = 0.0  # a number: another one does not recompile
        ...
        ...     def select(self, key, state, context):
        ...         losses = context.losses(context.variables) - self.penalty * context.sizes
        ...         _, clients = jax.lax.top_k(losses, self.cohort_size)
        ...         weights = jnp.full(self.cohort_size, 1 / self.cohort_size)
        ...         return Cohort(clients, weights), state, {}
        >>> Loudest(10, penalty=0.5)
        Loudest(cohort_size=10, penalty=0.5)
    """

    server_view: ClassVar[ServerView] = "vectors"

    @property
    def sampling(self) -> Sampling | None:
        """How it draws cohorts; None where that depends on what clients have.

        No guarantee of privacy covers a selector without.
        """
        return None

    def init(self, context: Context) -> PyTree:
        """Returns the state at the initial model."""
        return ()

    @abstractmethod
    def select(
        self, key: Key[Array, ""], state: PyTree, context: Context
    ) -> tuple[Cohort, PyTree, Info]:
        """Returns the cohort, the new state, and info.

        Results keep the scalars of the info for every round, as ``selection_<name>``.
        """
        raise NotImplementedError

    def observe(
        self, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> PyTree:
        """Returns the new state after local training; the context is that before it."""
        return state

    @staticmethod
    def from_functions(
        init: Callable[..., PyTree],
        select: Callable[..., tuple[Cohort, PyTree, Info]],
        observe: Callable[..., PyTree] = keep_state,
        *,
        server_view: ServerView = "vectors",
    ) -> Selector:
        """Makes a selector of functions, which have the arguments of the methods of their names.

        Another function compiles again, so that this is for quick use.
        """
        return FunctionSelector(init, select, observe, server_view=server_view)


class FunctionSelector(Selector):
    """A selector of functions, from `Selector.from_functions`."""

    init_fn: Callable[..., PyTree]
    select_fn: Callable[..., Any]
    observe_fn: Callable[..., PyTree] = keep_state
    _: KW_ONLY
    server_view: ServerView = "vectors"  # pyright: ignore[reportIncompatibleVariableOverride]

    def init(self, context):
        return self.init_fn(context)

    def select(self, key, state, context):
        return self.select_fn(key, state, context)

    def observe(self, state, cohort, results, context):
        return self.observe_fn(state, cohort, results, context)


class Solver(Tree):
    """Trains one client.

    Attributes:
        fixed_num_steps: Whether all clients take equally many steps, so that clients in parallel do not
            wait for each other.
    """

    fixed_num_steps: ClassVar[bool] = False

    @abstractmethod
    def solve(self, key: Key[Array, ""], variables: Variables, client: Client) -> LocalResult:
        """Trains from the given variables on the client's own examples."""
        raise NotImplementedError

    @staticmethod
    def from_functions(solve: Callable[..., LocalResult]) -> Solver:
        """Makes a solver of a function ``solve(key, variables, client) -> LocalResult``."""
        return FunctionSolver(solve)


class FunctionSolver(Solver):
    """A solver of a function, from `Solver.from_functions`."""

    solve_fn: Callable[..., LocalResult]

    def solve(self, key, variables, client):
        return self.solve_fn(key, variables, client)


class Aggregation(NamedTuple):
    """Info of an aggregator.

    Attributes:
        weights: Weight given to each participant of the cohort, non-negative, summing to 1.
        info: Anything else by name, scalars or one number a participant, ``[cohort]``; results keep it
            as ``aggregation_<name>``.
    """

    weights: Float[Array, " cohort"]
    info: Info


class Aggregator(Tree):
    """Turns the cohort's results into one update of the global model.

    Attributes:
        server_view: What it needs to see of a single client.
        equal_weights: Whether all participants weigh the same, whatever they have.
        compute_weights: None for an aggregator that weighs after local training. One whose weights do not
            depend on its results defines a method ``compute_weights(state, cohort, context) -> [cohort]``.
            Updates are then added up one by one, in ``LocalResult.weighted_sum``, and take memory
            only if something else reads them.
    """

    server_view: ClassVar[ServerView] = "vectors"
    equal_weights: ClassVar[bool] = False
    compute_weights: ClassVar[Callable[..., Float[Array, " cohort"]] | None] = None

    def init(self, context: Context) -> PyTree:
        """Returns the state at the initial model."""
        return ()

    def prepare(self, state: PyTree, cohort: Cohort, context: Context) -> Cohort:
        """Completes the instructions of the cohort before local training; by default none."""
        return cohort

    @abstractmethod
    def aggregate(
        self, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> tuple[Variables, PyTree, Aggregation]:
        """Returns the update of the global variables, which is added, the new state, and info."""
        raise NotImplementedError

    @staticmethod
    def from_functions(
        init: Callable[..., PyTree],
        aggregate: Callable[..., tuple[Variables, PyTree, Aggregation]],
        *,
        server_view: ServerView = "vectors",
    ) -> Aggregator:
        """Makes an aggregator of functions, which have the arguments of the methods."""
        return FunctionAggregator(init, aggregate, server_view=server_view)


class FunctionAggregator(Aggregator):
    """An aggregator of functions, from `Aggregator.from_functions`."""

    init_fn: Callable[..., PyTree]
    aggregate_fn: Callable[..., Any]
    _: KW_ONLY
    server_view: ServerView = "vectors"  # pyright: ignore[reportIncompatibleVariableOverride]

    def init(self, context):
        return self.init_fn(context)

    def aggregate(self, state, cohort, results, context):
        return self.aggregate_fn(state, cohort, results, context)


class FaultContext(NamedTuple):
    """Whom a fault befalls, and when.

    Attributes:
        client: Its id.
        round: The absolute round.
        num_clients: Clients of the federation.
    """

    client: Int[Array, ""]
    round: Int[Array, ""]
    num_clients: int


class Faults(Tree):
    """Failures of clients. A subclass defines some of the methods; the others are None.

    A key belongs to a client and a round, so that the faults of a client do not depend on the rest
    of the cohort.

    Attributes:
        available: ``available(key, round, num_clients) -> [clients]``: who can be selected.
        responds: ``responds(key, context) -> bool``: whether a participant's result arrives.
        instruct: ``instruct(key, context) -> dict``: instructions to the solver of a participant, numbers
            of which the smallest counts if several faults give one.
        send: ``send(key, context, update) -> update``: what a participant sends in place of its update.
        collude: ``collude(cohort, updates, context) -> updates``, with all updates, stacked, known.
        history_length: Global models of the past to keep. A participant whose instruction ``model_round`` is one
            of their rounds trains from that model.
    """

    available: ClassVar[Callable[..., Bool[Array, " clients"]] | None] = None
    responds: ClassVar[Callable[..., Bool[Array, ""]] | None] = None
    instruct: ClassVar[Callable[..., dict[str, PyTree]] | None] = None
    send: ClassVar[Callable[..., Variables] | None] = None
    collude: ClassVar[Callable[..., Variables] | None] = None
    history_length: ClassVar[int] = 0


class ClientMetrics(NamedTuple):
    """How well the global model serves every client, and the clients' participation so far.

    Attributes:
        test_accuracy: Fraction correct on each client's test examples; NaN for a client without.
        test_loss: Mean loss on each client's test examples; NaN without.
        train_loss: The same on its training examples; NaN where it was not measured.
        test_sizes: Test examples of each client.
        train_sizes: Training examples of each client.
        participation: Number of rounds each client has trained in so far.
        cohort: Ids of the clients that trained last; -1 in every slot before the first round.
        groups: Planted group of each client, or None.
        class_accuracy: Fraction correct on all test examples of each class, whoever owns them; NaN
            for a class without. Targets, which have no class, are all of one. None if not measured.
        validation_accuracy: Fraction correct on each client's validation examples; NaN for a client
            without. None, as the next two, where none are held out.
        validation_loss: Mean loss on them; NaN without.
        validation_sizes: Validation examples of each client.
        custom: Metrics of predictions that were requested, ``[clients]``, by the name they have in
            results.
    """

    test_accuracy: Float[Array, " clients"]
    test_loss: Float[Array, " clients"]
    train_loss: Float[Array, " clients"]
    test_sizes: Int[Array, " clients"]
    train_sizes: Int[Array, " clients"]
    participation: Int[Array, " clients"]
    cohort: Int[Array, " cohort"]
    groups: Int[Array, " clients"] | None = None
    class_accuracy: Float[Array, " classes"] | None = None
    validation_accuracy: Float[Array, " clients"] | None = None
    validation_loss: Float[Array, " clients"] | None = None
    validation_sizes: Int[Array, " clients"] | None = None
    custom: dict[str, Float[Array, " clients"]] = {}  # noqa: RUF012 (never changed)


class Metric(Tree):
    """One number that summarizes a federation.

    Attributes:
        name: Name of the variable in results.
        description: One-line description.
        unit: Unit of the value, "1" for a dimensionless one.
        population: The clients that are counted, for example "clients with test examples".
        weighting: "uniform" over the population or "examples".
        function: Pure function from ``ClientMetrics`` to a scalar.
    """

    name: str
    description: str
    unit: str
    population: str
    weighting: str
    function: Callable[[ClientMetrics], Float[Array, ""]]


class Predictions(NamedTuple):
    """What a model makes of the examples of all clients, in the order of their owners.

    Attributes:
        model: The network.
        outputs: What it computes for each example, ``[examples, ...]``.
        labels: Labels or targets of the examples, ``[examples, ...]``.
        owners: The client that owns each, ``[examples]``, ascending; ``num_clients`` where none
            does, as in a sum over clients nothing is added then.
        num_clients: Number of clients.
    """

    model: Model
    outputs: Float[Array, "examples ..."]
    labels: Shaped[Array, "examples ..."]
    owners: Int[Array, " examples"]
    num_clients: int

    @property
    def predicted(self) -> Shaped[Array, "examples ..."]:
        """Predicted labels, by ``Model.predict``."""
        return self.model.predict(self.outputs)

    @property
    def probabilities(self) -> Float[Array, "examples classes"]:
        """Predicted probabilities, by ``Model.probabilities``."""
        if self.model.probabilities is None:
            raise ValueError("metrics: expected none of probabilities, which this model lacks.")
        return self.model.probabilities(self.outputs)

    def sum(self, values: Shaped[Array, " examples"]) -> Shaped[Array, " clients"]:
        """Sums a number of each example over the examples of each client."""
        return jax.ops.segment_sum(values, self.owners, self.num_clients, indices_are_sorted=True)

    def mean(self, values: Float[Array, " examples"]) -> Float[Array, " clients"]:
        """Means over the examples of each client; NaN for a client without."""
        return self.sum(values) / self.sum(jnp.ones_like(values))


class ClientMetric(Tree):
    """One number for each client, of what the model predicts for its examples.

    Attributes:
        name: Name of the variable in results, behind ``test_`` or ``validation_``.
        description: Short description.
        unit: Unit of the value, "1" for a dimensionless one.
        function: Pure function from ``Predictions`` to ``[clients]``; clients without examples get
            NaN, whatever it returns.
    """

    name: str
    description: str
    unit: str
    function: Callable[[Predictions], Float[Array, " clients"]]
