"""The same clients under other ids: permuted data, and roles that do not notice.

Random keys of a round belong to ids, so that other ids mean other minibatches and cohorts. The
wrapped solver gets keys that belong to the original ids, and the wrapped selector sees the original
federated dataset.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key, PyTree

from fedjax_fair.data.client_examples import ClientExamples
from fedjax_fair.data.federated import FederatedData
from fedjax_fair.roles import Client, Context, Selector, Solver, Variables
from fedjax_fair.rounds.round_context import make_context

__all__ = ["RelabeledSelector", "RelabeledSolver", "permute_clients"]

_INIT, _SOLVE, _PERSONALIZE = range(3)


def permute_clients(data: FederatedData, order: Int[np.ndarray, " clients"]) -> FederatedData:
    """Returns a federated dataset whose client ``i`` is client ``order[i]`` of the given one.

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits", ff.data.quantity_skew(num_clients=3))
        >>> permuted = permute_clients(data, np.array([2, 0, 1]))
        >>> bool((permuted.train.sizes == data.train.sizes[[2, 0, 1]]).all())
        True
    """

    def permute(part: ClientExamples) -> ClientExamples:
        rows, sizes = part.client_indices, np.asarray(part.sizes)[order]
        offsets = (np.cumsum(sizes) - sizes).astype(np.int32)
        owned = np.concatenate([rows[client] for client in order])
        return part._replace(order=owned, offsets=offsets, sizes=sizes)

    groups = None if data.groups is None else np.asarray(data.groups)[order]
    names = data.client_names and tuple(data.client_names[client] for client in order)
    return data.map_parts(permute)._replace(groups=groups, client_names=names)


class RelabeledSolver(Solver):
    """A solver whose random keys belong to the original ids of clients.

    A client that is drawn repeatedly in one round trains with the same key each time.

    Args:
        solver: The solver.
        original_ids: Original id of each client.
    """

    solver: Solver
    original_ids: Int[Array | np.ndarray, " clients"]

    @property
    def fixed_num_steps(self):
        """True if all clients take equally many steps."""
        return self.solver.fixed_num_steps

    @property
    def needs(self):
        """Names of the values from the aggregator."""
        return self.solver.needs

    @property
    def has_global_model(self):
        """True if the global model is a result."""
        return self.solver.has_global_model

    @property
    def num_examples(self):
        """Method of the solver, or None."""
        return self.solver.num_examples

    @property
    def is_personal(self):
        """Method of the solver, or None."""
        return self.solver.is_personal

    @property
    def personalize(self):
        """Method that returns the model of a client, or None."""
        return None if self.solver.personalize is None else self._personalize

    def init(self, key, variables, client):
        """Returns the state of a client."""
        return self.solver.init(self._key(_INIT, client), variables, client)

    def solve(self, key, variables, client):
        """Trains with the key of the original id."""
        return self.solver.solve(self._key(_SOLVE, client), variables, client)

    def _personalize(self, key: Key[Array, ""], variables: Variables, client: Client) -> Variables:
        assert self.solver.personalize is not None
        return self.solver.personalize(self._key(_PERSONALIZE, client), variables, client)

    def _key(self, purpose: int, client: Client) -> Key[Array, ""]:
        key = jax.random.fold_in(jax.random.key(purpose), client.round)
        return jax.random.fold_in(key, jnp.asarray(self.original_ids)[client.id])


class RelabeledSelector(Selector):
    """A selector that sees the original ids of clients.

    Args:
        selector: The selector.
        original_data: The federated dataset with the original ids.
        original_ids: Original id of each client.
    """

    selector: Selector
    original_data: PyTree
    original_ids: Int[Array | np.ndarray, " clients"]

    def init(self, context):
        """Returns the state of the selector."""
        return self.selector.init(self._original(context))

    def select(self, key, state, context):
        """Returns the cohort with the new ids."""
        cohort, state, info = self.selector.select(key, state, self._original(context))
        new_ids = jnp.argsort(jnp.asarray(self.original_ids)).astype(jnp.int32)
        return cohort._replace(clients=new_ids[cohort.clients]), state, info

    def observe(self, state, cohort, results, context):
        """Observes the cohort with the original ids."""
        clients = jnp.asarray(self.original_ids)[cohort.clients]
        cohort = cohort._replace(clients=clients)
        return self.selector.observe(state, cohort, results, self._original(context))

    def _original(self, context: Context) -> Context:
        data = jax.tree.map(jnp.asarray, self.original_data)
        original = make_context(context.model, context.round, context.variables, data)
        return original._replace(key=context.key)
