"""The roles of a round: selector, solver, aggregator and faults.

The fields of a role are settings, its methods are pure. State is what the next round needs; info is
diagnostics.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

from jaxtyping import Array, Bool, Float, Int, Key, PyTree

from fedjax_fair.roles.context import Client, Cohort, Context, Info, LocalResult, ServerView
from fedjax_fair.roles.model import Model, Variables
from fedjax_fair.utils.tree import Tree


class Sampling(NamedTuple):
    """A distribution of cohorts that does not depend on the clients' data.

    Attributes:
        kind: ``"uniform"`` draws distinct clients independently in every round; ``"round_robin"``
            takes clients in turn; ``"full"`` takes all.
        cohort_size: Clients per round, or None for all.
    """

    kind: Literal["uniform", "round_robin", "full"]
    cohort_size: int | None = None


class Selector(Tree):
    """Selects the clients that train.

    A subclass defines ``select``, and ``init`` and ``observe`` if it has state.

    Attributes:
        server_view: See ``ServerView``.

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
        """The distribution of cohorts, for privacy; None if it depends on the clients' data."""
        return None

    def init(self, context: Context) -> PyTree:
        """Returns the state at the initial model."""
        return ()

    @abstractmethod
    def select(
        self, key: Key[Array, ""], state: PyTree, context: Context
    ) -> tuple[Cohort, PyTree, Info]:
        """Returns the cohort, the new state, and info (``selection_<name>`` in results)."""

    def observe(
        self, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> PyTree:
        """Updates the selector's state after local training.

        ``context`` still holds the global model from the start of the round.
        """
        return state

    @staticmethod
    def from_functions(
        select: Callable[..., tuple[Cohort, PyTree, Info]],
        init: Callable[..., PyTree] | None = None,
        observe: Callable[..., PyTree] | None = None,
    ) -> Selector:
        """Makes a selector of functions in place of the methods; new functions compile again."""
        return FunctionSelector(select, init, observe)


class FunctionSelector(Selector):
    """A selector from `Selector.from_functions`."""

    select_fn: Callable[..., Any]
    init_fn: Callable[..., PyTree] | None = None
    observe_fn: Callable[..., PyTree] | None = None

    def init(self, context):
        return () if self.init_fn is None else self.init_fn(context)

    def select(self, key, state, context):
        return self.select_fn(key, state, context)

    def observe(self, state, cohort, results, context):
        if self.observe_fn is None:
            return state
        return self.observe_fn(state, cohort, results, context)


class Solver(Tree):
    """Local training of one client.

    Override ``solve``; override ``init`` too if clients keep state between rounds.

    Attributes:
        fixed_num_steps: Whether all clients take equally many steps, as is best in batches.
        needs: Names of the values from ``Aggregator.broadcast`` that it reads.
        num_examples: Method ``num_examples(sizes, max_steps=None)``: examples that local training
            of clients of these sizes processes, for durations; with the instruction ``max_steps``.
        personalize: Method ``personalize(key, variables, client) -> Variables`` that returns the
            model of one client at the global model ``variables``, if clients have personalized
            models. Evaluations then measure both.
        has_global_model: Whether the global model is a result; if not, its metrics are NaN.
        is_personal: Method ``is_personal(variables, model, x) -> Variables`` of booleans, one for
            each array, true for those that are not communicated: the server never changes them. Of
            the batch ``x`` only the shape and dtype matter.
        is_sent: Method ``is_sent(variables, client) -> Variables`` of booleans that broadcast to
            each array, if clients do not send all elements of an update, because the server knows
            the others. ``client`` has the state after training.
        is_received: As ``is_sent``, if clients do not receive all elements of the model.
            ``client`` has the state before training.
    """

    fixed_num_steps: ClassVar[bool] = False
    needs: ClassVar[tuple[str, ...]] = ()
    num_examples: ClassVar[Callable[..., Int[Array, "..."]] | None] = None
    # `personalize` receives the client, not only its state, because fine-tuning and the choice
    # among models of the server need its examples.
    personalize: ClassVar[Callable[..., Variables] | None] = None
    # An average of models that are never used is no result, so its metrics are NaN.
    has_global_model: ClassVar[bool] = True
    is_personal: ClassVar[Callable[..., PyTree] | None] = None
    is_sent: ClassVar[Callable[..., PyTree] | None] = None
    is_received: ClassVar[Callable[..., PyTree] | None] = None

    def check_model(self, model: Model) -> None:
        """Raises a ``ValueError`` if the model is not of the kind that this solver trains."""

    def init(self, key: Key[Array, ""], variables: Variables, client: Client) -> PyTree:
        """Returns the state of one client before its first round; by default none."""
        return ()

    @abstractmethod
    def solve(self, key: Key[Array, ""], variables: Variables, client: Client) -> LocalResult:
        """Trains from the given variables on the client's examples."""


class Aggregation(NamedTuple):
    """Weights and info of an aggregation.

    Attributes:
        weights: Weight of each participant, non-negative, summing to 1.
        info: Diagnostics (``aggregation_<name>`` in results).
        state_update: Change of the state that only the server changes (`Model.bind_state`); None
            for no change.
        bytes_down: Bytes of this change that each participant receives.
    """

    weights: Float[Array, " cohort"]
    info: Info
    state_update: PyTree = None
    bytes_down: int = 0


class Aggregator(Tree):
    """Turns the cohort's results into one update of the global model.

    Attributes:
        server_view: See ``ServerView``.
        equal_weights: Whether all participants always have equal weights.
        needs_schedule: Whether it reads the staleness of results, which
            `fedjax_fair.schedules.Asynchronous` defines.
        uses_local_models: Whether updates are relative to the present global model, not to the one
            that a participant was sent.
        keeps_state: Whether ``aggregate`` returns its state unchanged if no client has responded.
            For other aggregators the round restores the state, which copies it.
        compute_weights: Method ``compute_weights(state, cohort, context) -> [cohort]``, if weights
            do not depend on results. Updates are then summed during local training, into
            ``LocalResult.weighted_sum``, and take memory only if another role reads them.
    """

    server_view: ClassVar[ServerView] = "vectors"
    equal_weights: ClassVar[bool] = False
    needs_schedule: ClassVar[bool] = False
    uses_local_models: ClassVar[bool] = False
    keeps_state: ClassVar[bool] = False
    # The round also returns all updates, but the compiler removes arrays that nothing reads, so no
    # role declares whether it needs them. For pfl's CIFAR-10 benchmark, sums during training save
    # 320 MB and a tenth of the time of a round.
    compute_weights: ClassVar[Callable[..., Float[Array, " cohort"]] | None] = None

    def check_solver(self, solver: Solver) -> None:
        """Raises a ``ValueError`` if the local solver has other settings than this one assumes."""

    def check_model(self, model: Model) -> None:
        """Raises a ``ValueError`` if the model is not of the kind whose updates it combines."""

    def check_buffer(self, size: int) -> None:
        """Raises a ``ValueError`` if it cannot combine so many results of asynchronous rounds."""

    def init(self, context: Context) -> PyTree:
        """Returns the state at the initial model."""
        return ()

    # One copy for all participants. As instructions, `[cohort, ...]`, the values would be repeated:
    # 154 instead of 104 models of temporary memory for a control variate and a cohort of 50.
    def broadcast(self, state: PyTree, context: Context) -> dict[str, PyTree]:
        """Returns what all participants receive in addition to the model; by default nothing."""
        return {}

    def prepare(self, state: PyTree, cohort: Cohort, context: Context) -> Cohort:
        """Adds instructions to the cohort before local training; by default none."""
        return cohort

    @abstractmethod
    def aggregate(
        self, state: PyTree, cohort: Cohort, results: LocalResult, context: Context
    ) -> tuple[Variables, PyTree, Aggregation]:
        """Returns the update that is added to the global variables, the new state, and info."""


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


FAULT_METHODS = ("available", "responds", "instruct", "send", "collude")
"""Methods of `Faults`."""


class Faults(Tree):
    """Failures of clients.

    Subclass and define any of ``available``, ``responds``, ``instruct``, ``send`` and ``collude``.
    Keys belong to a client and a round, so that faults do not depend on the cohort. ``context`` is
    a `FaultContext`, except in ``collude``.

    Attributes:
        available: ``available(key, round, num_clients) -> [clients]``, mask of available clients.
        responds: ``responds(key, context) -> bool``, whether the result arrives.
        instruct: ``instruct(key, context) -> dict``, instructions to the solver. Of several values
            for one name the smallest counts.
        send: ``send(key, context, update) -> update``, sent in place of the update.
        collude: ``collude(cohort, updates, context) -> updates``, from all stacked updates.
        history_length: Number of past global models to store; participants train from that of the
            round in the instruction ``model_round``.
    """

    available: ClassVar[Callable[..., Bool[Array, " clients"]] | None] = None
    responds: ClassVar[Callable[..., Bool[Array, ""]] | None] = None
    instruct: ClassVar[Callable[..., dict[str, PyTree]] | None] = None
    send: ClassVar[Callable[..., Variables] | None] = None
    collude: ClassVar[Callable[..., Variables] | None] = None
    history_length: ClassVar[int] = 0

    def check(self, num_clients: int) -> None:
        """Raises ``ValueError`` if the fields do not fit a dataset; called before compilation."""
