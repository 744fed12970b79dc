"""The roles of a simulation and what they hand to each other.

A role is a NamedTuple of pure functions made by a factory: the factory takes the settings, checks
the plain ones and returns closures. State goes in and comes out; nothing is kept on the side.
State is what the next round needs, info is what a person wants to look at.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from fedjax_fair.data.federated import ClientExamples

__all__ = [
    "Aggregation",
    "Aggregator",
    "Client",
    "ClientGradients",
    "ClientMetrics",
    "Cohort",
    "Context",
    "Extra",
    "LocalResult",
    "Metric",
    "Model",
    "Selector",
    "Solver",
    "Variables",
]


class Variables(NamedTuple):
    """What a model holds.

    Attributes:
        params: What is trained.
        state: Running statistics of normalisation layers; an empty dict for most models. They are
            averaged like parameters, but no distance or server optimiser sees them.
    """

    params: PyTree
    state: PyTree


class Model(NamedTuple):
    """A network as pure functions.

    Attributes:
        init: ``init(key, x) -> Variables`` for a batch ``x`` of inputs, of which only the shape and
            dtype matter.
        apply: ``apply(params, state, x, *, train, key) -> (logits, state)``. ``x`` is a batch of
            raw inputs (``uint8`` images are scaled inside), ``train`` a Python bool, ``key`` feeds
            dropout and may be None when ``train`` is false.
        features: ``features(params, state, x) -> activations`` of the last hidden layer, ``[batch,
            width]``, in evaluation mode.
    """

    init: Callable[..., Variables]
    apply: Callable[..., tuple[Float[Array, "batch classes"], PyTree]]
    features: Callable[..., Float[Array, "batch width"]]


class Client(NamedTuple):
    """One client, as its local solver sees it.

    Attributes:
        model: The network that everyone trains.
        examples: The examples of all clients; a solver reads only its own.
        offset: Where this client's run in ``examples.order`` starts.
        size: Number of its examples.
    """

    model: Model
    examples: ClientExamples
    offset: Int[Array, ""]
    size: Int[Array, ""]


class Extra(NamedTuple):
    """What the server tells a client besides the model.

    Attributes:
        round: The absolute round, counted from 0.
        loss_weight: Factor of the client's loss in its own training, or None for 1. It leaves the
            proximal term and the decay alone.
        snapshot: Number of local steps after which to keep a copy of the model, or None.
    """

    round: Int[Array, ""]
    loss_weight: Float[Array, ""] | None = None
    snapshot: Int[Array, ""] | None = None


class LocalResult(NamedTuple):
    """What a client sends back (with a leading axis ``cohort`` once stacked).

    Where clients are dealt to several devices, ``loss`` and ``steps`` of all are known everywhere.
    The rest stays on the member's own device, zeros stand for it elsewhere, and `Context.total` and
    `Context.each` are the ways to it.

    Attributes:
        update: New minus old variables.
        loss: Mean of the minibatch losses seen during local training, nats per example.
        steps: Number of local steps taken.
        last_batch: Rows of the examples in the last minibatch, -1 in lanes without one; None from
            a solver that does not tell.
        snapshot: The update after as many steps as ``Extra.snapshot`` says, at most all; None if
            nobody asked.
        total: Sum of the cohort's updates with the weights of ``Aggregator.weigh``, known
            everywhere; None from a solver, and where the aggregator weighs afterwards.
    """

    update: Variables
    loss: Float[Array, "..."]
    steps: Int[Array, "..."]
    last_batch: Int[Array, "... batch"] | None = None
    snapshot: Variables | None = None
    total: Variables | None = None


class Cohort(NamedTuple):
    """Who trains in a round, and what they are told.

    Attributes:
        clients: Client ids; a repeated id trains independently each time.
        weights: The selector's own aggregation weights, non-negative, summing to 1.
        loss_weights: Factor of each member's loss in its own training, or None for 1.
        snapshot: Number of local steps after which everyone keeps a copy of its model, or None.
    """

    clients: Int[Array, " cohort"]
    weights: Float[Array, " cohort"]
    loss_weights: Float[Array, " cohort"] | None = None
    snapshot: Int[Array, ""] | None = None


class ClientGradients(NamedTuple):
    """What the server learns when it asks clients for their gradients at one model.

    Attributes:
        loss: Mean training loss of each client asked, nats.
        gradient: Gradient of that loss, one row a client, projected to a vector.
    """

    loss: Float[Array, " clients"]
    gradient: Float[Array, "clients width"]


class Context(NamedTuple):
    """What a selector or an aggregator may ask for.

    Functions rather than values: what nobody calls is never traced. Each takes variables and, if
    not everybody is asked, the ids of those who are.

    Attributes:
        round: The absolute round, counted from 0.
        variables: The global model at the start of the round.
        model: The network.
        examples: Training examples of all clients.
        groups: Planted group of each client, or None.
        losses: ``losses(variables, clients=None) -> [clients]``, mean training losses.
        accuracies: ``accuracies(variables, clients=None) -> [clients]``, training accuracies.
        gradients: ``gradients(variables, clients=None, project=ravel) -> ClientGradients`` of the
            mean training losses; ``project`` makes a vector of a gradient shaped like the
            parameters, for one client at a time.
        means: ``means(measure, clients, updates=None)``: what ``measure(variables, features,
            labels)`` says of a batch, ``[batch, ...]``, averaged over all training examples of each
            client, ``[asked, ...]``; at the global model, or with each one's own of the stacked
            ``updates`` added to it.
        total: ``total(weights, updates)``: the sum of stacked updates of a cohort, weighted.
        each: ``each(function, clients, values=None) -> [asked, ...]``: what ``function(client,
            value)`` says of each one asked, for example of its examples or its own of the stacked
            updates.
    """

    round: Int[Array, ""]
    variables: Variables
    model: Model
    examples: ClientExamples
    groups: Int[Array, " clients"] | None
    losses: Callable[..., Float[Array, " clients"]]
    accuracies: Callable[..., Float[Array, " clients"]]
    gradients: Callable[..., ClientGradients]
    means: Callable[..., PyTree]
    total: Callable[[Float[Array, " cohort"], PyTree], PyTree]
    each: Callable[..., PyTree]

    @property
    def sizes(self) -> Int[Array, " clients"]:
        """Training examples of each client."""
        return self.examples.sizes

    @property
    def num_clients(self) -> int:
        """Number of clients."""
        return self.examples.num_clients


class Selector(NamedTuple):
    """Chooses who trains.

    Attributes:
        init: ``init(context) -> state``, at the initial model.
        select: ``select(key, state, context) -> (Cohort, state, info)``. ``info`` is a dict of
            scalars that results keep for every round; empty where there is nothing to tell.
        observe: ``observe(state, cohort, local_results, context) -> state``, after local training;
            the context is still that of the start of the round.
    """

    init: Callable[[Context], PyTree]
    select: Callable[
        [Key[Array, ""], PyTree, Context], tuple[Cohort, PyTree, dict[str, Shaped[Array, ""]]]
    ]
    observe: Callable[[PyTree, Cohort, LocalResult, Context], PyTree]


class Solver(NamedTuple):
    """Trains one client.

    Attributes:
        solve: ``solve(key, variables, client, extra) -> LocalResult``.
        same_steps: Whether all clients take equally many steps, so that none of those that train
            side by side waits for another.
    """

    solve: Callable[[Key[Array, ""], Variables, Client, Extra], LocalResult]
    same_steps: bool = False


class Aggregation(NamedTuple):
    """What an aggregator has to tell about a round, for people.

    Attributes:
        weights: Weight given to each member of the cohort, non-negative, summing to 1.
        told: Anything else by name, scalars or one number a member, ``[cohort]``; results keep it
            as ``aggregation_<name>``. Empty where there is nothing to tell.
    """

    weights: Float[Array, " cohort"]
    told: dict[str, Shaped[Array, "..."]]


def _as_chosen(state: PyTree, cohort: Cohort, context: Context) -> Cohort:
    return cohort


class Aggregator(NamedTuple):
    """Turns the cohort's results into one update of the global model.

    Attributes:
        init: ``init(context) -> state``, at the initial model.
        aggregate: ``aggregate(state, cohort, results, context) -> (update, state, Aggregation)``;
            the update is added to the global variables.
        prepare: ``prepare(state, cohort, context) -> cohort``, before local training: completes
            what the members are told. By default they are told nothing.
        weigh: ``weigh(state, cohort, context) -> [cohort]``, before local training, for weights
            that depend on nothing it tells. Updates are then added up as they come, in
            ``LocalResult.total``, and take memory only if something else asks for them. None for
            an aggregator that weighs afterwards.
    """

    init: Callable[[Context], PyTree]
    aggregate: Callable[
        [PyTree, Cohort, LocalResult, Context], tuple[Variables, PyTree, Aggregation]
    ]
    prepare: Callable[[PyTree, Cohort, Context], Cohort] = _as_chosen
    weigh: Callable[[PyTree, Cohort, Context], Float[Array, " cohort"]] | None = None


class ClientMetrics(NamedTuple):
    """How well the global model serves every client, and what the clients have been through.

    Attributes:
        test_accuracy: Fraction correct on each client's test examples; NaN for a client without.
        test_loss: Mean cross-entropy on each client's test examples, nats; NaN without.
        train_loss: The same on its training examples; NaN where it was not measured.
        test_sizes: Test examples of each client.
        train_sizes: Training examples of each client.
        participation: Number of rounds each client has trained in so far.
        cohort: Ids of the clients that trained last; -1 in every slot before the first round.
        groups: Planted group of each client, or None.
    """

    test_accuracy: Float[Array, " clients"]
    test_loss: Float[Array, " clients"]
    train_loss: Float[Array, " clients"]
    test_sizes: Int[Array, " clients"]
    train_sizes: Int[Array, " clients"]
    participation: Int[Array, " clients"]
    cohort: Int[Array, " cohort"]
    groups: Int[Array, " clients"] | None = None


class Metric(NamedTuple):
    """One number that summarises a federation.

    Attributes:
        name: Name of the variable in results.
        description: One line for people.
        unit: Unit of the value, "1" for a dimensionless one.
        population: Who is counted, for example "clients with test examples" or "cohort".
        weighting: "uniform" over the population or "examples".
        function: Pure function from ``ClientMetrics`` to a scalar.
    """

    name: str
    description: str
    unit: str
    population: str
    weighting: str
    function: Callable[[ClientMetrics], Float[Array, ""]]
