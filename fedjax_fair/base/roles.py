"""The roles of a round: selector, solver, aggregator and faults.

A role is a `fedjax_fair.tree.Tree`: its fields are settings, its methods are pure. State is what
the next round needs; info is diagnostics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.base.context import Client, Cohort, Context, Info, LocalResult, ServerView
from fedjax_fair.base.models import Variables
from fedjax_fair.tree import Tree


def empty_state(context: Context) -> tuple[()]:
    """Returns the state of a role without one."""
    return ()


class Sampling(NamedTuple):
    """The distribution of cohorts of a selector that does not read the clients' data.

    Attributes:
        kind: ``"uniform"`` draws distinct clients with equal probabilities, independently in every
            round; ``"round_robin"`` takes clients in turn; ``"full"`` takes all.
        cohort_size: Clients per round, or None for all.
    """

    kind: Literal["uniform", "round_robin", "full"]
    cohort_size: int | None = None


class Selector(Tree):
    """Selects the clients that train.

    A subclass has settings as fields and defines ``select``. One with state or that learns from
    local training also defines ``init`` or ``observe``.

    Attributes:
        server_view: What the server needs of a single client.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> import fedjax_fair as ff
        >>> class Loudest(ff.Selector):
        ...     cohort_size: int  # structure
        ...     penalty: ff.Number = 0.0  # another value does not recompile
        ...
        ...     def select(self, key, state, context):
        ...         losses = context.losses(context.variables) - self.penalty * context.sizes
        ...         _, clients = jax.lax.top_k(losses, self.cohort_size)
        ...         weights = jnp.full(self.cohort_size, 1 / self.cohort_size)
        ...         return ff.Cohort(clients, weights), state, {}
        >>> Loudest(10, penalty=0.5)
        Loudest(cohort_size=10, penalty=0.5)
    """

    server_view: ClassVar[ServerView] = "vectors"

    @property
    def sampling(self) -> Sampling | None:
        """The distribution of cohorts; None if it depends on the clients' data.

        Privacy guarantees need one.
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

        Results hold the scalars of the info for every round, as ``selection_<name>``.
        """

    def observe(
        self, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> PyTree:
        """Returns the new state after local training; the context is that before it."""
        return state

    @staticmethod
    def from_functions(
        init: Callable[..., PyTree],
        select: Callable[..., tuple[Cohort, PyTree, Info]],
        observe: Callable[..., PyTree] | None = None,
        *,
        server_view: ServerView = "vectors",
    ) -> Selector:
        """Makes a selector of functions in place of the methods; new functions compile again."""
        return FunctionSelector(init, select, observe, server_view=server_view)


class FunctionSelector(Selector):
    """A selector from `Selector.from_functions`."""

    init_fn: Callable[..., PyTree]
    select_fn: Callable[..., Any]
    observe_fn: Callable[..., PyTree] | None = None
    _: KW_ONLY
    server_view: ServerView = "vectors"  # pyright: ignore[reportIncompatibleVariableOverride]

    def init(self, context):
        return self.init_fn(context)

    def select(self, key, state, context):
        return self.select_fn(key, state, context)

    def observe(self, state, cohort, results, context):
        if self.observe_fn is None:
            return state
        return self.observe_fn(state, cohort, results, context)


class Solver(Tree):
    """Trains one client.

    Attributes:
        fixed_num_steps: Whether all clients take equally many steps, so that clients in a batch do
            not wait for each other.
    """

    fixed_num_steps: ClassVar[bool] = False

    @abstractmethod
    def solve(self, key: Key[Array, ""], variables: Variables, client: Client) -> LocalResult:
        """Trains from the given variables on the client's examples."""

    @staticmethod
    def from_functions(solve: Callable[..., LocalResult]) -> Solver:
        """Makes a solver of a function ``solve(key, variables, client) -> LocalResult``."""
        return FunctionSolver(solve)


class FunctionSolver(Solver):
    """A solver from `Solver.from_functions`."""

    solve_fn: Callable[..., LocalResult]

    def solve(self, key, variables, client):
        return self.solve_fn(key, variables, client)


class Aggregation(NamedTuple):
    """Weights and info of an aggregation.

    Attributes:
        weights: Weight of each participant, non-negative, summing to 1.
        info: Diagnostics, scalars or ``[cohort]``; results hold them as ``aggregation_<name>``.
    """

    weights: Float[Array, " cohort"]
    info: Info


class Aggregator(Tree):
    """Turns the cohort's results into one update of the global model.

    Attributes:
        server_view: What the server needs of a single client.
        equal_weights: Whether all participants have equal weights in every round.
        compute_weights: A method ``compute_weights(state, cohort, context) -> [cohort]`` of
            aggregators whose weights do not depend on the results; None for others. Updates are
            then summed during local training, into ``LocalResult.weighted_sum``, and take memory
            only if another role reads them.
    """

    server_view: ClassVar[ServerView] = "vectors"
    equal_weights: ClassVar[bool] = False
    compute_weights: ClassVar[Callable[..., Float[Array, " cohort"]] | None] = None

    def init(self, context: Context) -> PyTree:
        """Returns the state at the initial model."""
        return ()

    def prepare(self, state: PyTree, cohort: Cohort, context: Context) -> Cohort:
        """Adds instructions to the cohort before local training; by default none."""
        return cohort

    @abstractmethod
    def aggregate(
        self, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> tuple[Variables, PyTree, Aggregation]:
        """Returns the update that is added to the global variables, the new state, and info."""

    @staticmethod
    def from_functions(
        init: Callable[..., PyTree],
        aggregate: Callable[..., tuple[Variables, PyTree, Aggregation]],
        *,
        server_view: ServerView = "vectors",
    ) -> Aggregator:
        """Makes an aggregator of functions in place of the methods."""
        return FunctionAggregator(init, aggregate, server_view=server_view)


class FunctionAggregator(Aggregator):
    """An aggregator from `Aggregator.from_functions`."""

    init_fn: Callable[..., PyTree]
    aggregate_fn: Callable[..., Any]
    _: KW_ONLY
    server_view: ServerView = "vectors"  # pyright: ignore[reportIncompatibleVariableOverride]

    def init(self, context):
        return self.init_fn(context)

    def aggregate(self, state, cohort, results, context):
        return self.aggregate_fn(state, cohort, results, context)


class FaultContext(NamedTuple):
    """Client and round for which a fault is evaluated.

    Attributes:
        client: Client id.
        round: The absolute round.
        num_clients: Number of clients.
    """

    client: Int[Array, ""]
    round: Int[Array, ""]
    num_clients: int


class Faults(Tree):
    """Failures of clients. A subclass defines some of the methods; the others are None.

    Keys belong to a client and a round, so that the faults of a client do not depend on the rest of
    the cohort. The context is a `FaultContext`, except in ``collude``.

    Attributes:
        available: ``available(key, round, num_clients) -> [clients]``, the clients that can be
            selected.
        responds: ``responds(key, context) -> bool``, whether a participant's result arrives.
        instruct: ``instruct(key, context) -> dict``, instructions to a participant's solver. If
            several faults give one, the smallest value counts.
        send: ``send(key, context, update) -> update``, sent in place of a participant's update.
        collude: ``collude(cohort, updates, context) -> updates``, computed from all stacked
            updates.
        history_length: Past global models to keep. A participant trains from the model of the
            round in its instruction ``model_round``, if that is one of them.
    """

    available: ClassVar[Callable[..., Bool[Array, " clients"]] | None] = None
    responds: ClassVar[Callable[..., Bool[Array, ""]] | None] = None
    instruct: ClassVar[Callable[..., dict[str, PyTree]] | None] = None
    send: ClassVar[Callable[..., Variables] | None] = None
    collude: ClassVar[Callable[..., Variables] | None] = None
    history_length: ClassVar[int] = 0
