"""Welfare: every item is assigned to one agent, and the sum of the agents' values is maximized.

Clients must send gradients, not bases. A base assigns every item to an agent, and since an agent's
gradient is zero outside of its own pairs, its heaviest base assigns all items to itself: the mean
of the bases splits every item equally whatever the valuations are.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem

__all__ = ["Welfare"]


class Welfare(DenseProblem):
    """``f_i(S) = v_i({j : (j, i) in S})`` of pairs of an item and the agent it is assigned to.

    Its items are the ``items * agents`` pairs, of which ``item * agents + agent`` is one. Use it
    with the matroid ``allocation(items, agents)``, and with ``send="gradient"``.

    Args:
        valuations: The agents' valuations of sets of items: any problem; its clients are the
            agents.

    Examples:
        >>> from fedjax_fair.submodular.federated import facility_location
        >>> problem = Welfare(facility_location([[3.0, 1.0], [2.0, 2.0]]))
        >>> float(problem.value(jnp.array([True, False, False, True])))  # (3 + 2) / 2
        2.5
    """

    valuations: Problem

    name = "welfare"

    @property
    def exact(self) -> bool:
        """Whether the valuations are."""
        return self.valuations.exact

    @property
    def num_clients(self) -> int:
        """Number of agents."""
        return self.valuations.num_clients

    @property
    def size(self) -> int:
        """Number of pairs."""
        return self.valuations.size * self.valuations.num_clients

    @property
    def function(self) -> ClientFunction:
        """The valuation of an agent, of the pairs that it is in."""
        function, items, agents = self.valuations.function, self.valuations.size, self.num_clients

        def share(x, agent):
            return x.reshape(items, agents)[:, agent]

        def spread(gains, agent):
            return jnp.zeros((items, agents)).at[:, agent].set(gains).ravel()

        return ClientFunction(
            value=lambda me, mask: function.value(me[0], share(mask, me[1])),
            gains=lambda me, mask: spread(function.gains(me[0], share(mask, me[1])), me[1]),
            extension=lambda me, key, x: function.extension(me[0], key, share(x, me[1])),
            gradient=lambda me, key, x: spread(
                function.gradient(me[0], key, share(x, me[1])), me[1]
            ),
        )

    def data(self) -> PyTree:
        """Returns the data of all agents and their numbers."""
        numbers = jnp.arange(self.num_clients, dtype=jnp.int32)
        return jax.vmap(self.valuations.own)(numbers), numbers
