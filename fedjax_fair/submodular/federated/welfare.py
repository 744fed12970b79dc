"""Welfare: every item is assigned to one agent, and the sum of the agents' values is maximized.

Clients must send gradients. An agent's gradient is zero outside of its pairs, so its heaviest base
assigns all items to itself, and the mean of the bases splits every item equally.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.submodular.federated.problem import ClientFunction, DenseProblem, Problem
from fedjax_fair.utils import checks

__all__ = ["Welfare"]


class Welfare(DenseProblem):
    """``f_i(S) = v_i({j : (j, i) in S})`` of pairs of an item and its agent.

    Pairs are numbered ``item * agents + agent``. Use the matroid ``allocation(items, agents)`` and
    ``send="gradient"``.

    Args:
        valuations: Any problem; its clients are the agents.

    Examples:
        >>> from fedjax_fair.submodular.federated import facility_location
        >>> problem = Welfare(facility_location([[3.0, 1.0], [2.0, 2.0]]))
        >>> float(problem.value(jnp.array([True, False, False, True])))  # (3 + 2) / 2
        2.5
    """

    valuations: Problem

    name = "welfare"

    def __post_init__(self) -> None:
        checks.instance("valuations", self.valuations, Problem, "facility_location(scores)")

    @property
    def exact(self) -> bool:
        return self.valuations.exact

    @property
    def num_clients(self) -> int:
        return self.valuations.num_clients

    @property
    def size(self) -> int:
        return self.valuations.size * self.valuations.num_clients

    @property
    def function(self) -> ClientFunction:
        valuation, shape = self.valuations.function, (self.valuations.size, self.num_clients)

        # The data of an agent are the data of its valuation, and its number.
        def items_of(x, agent):
            return x.reshape(shape)[:, agent[1]]

        def pairs_of(gains, agent):
            return jnp.zeros(shape).at[:, agent[1]].set(gains).ravel()

        return ClientFunction(
            value=lambda agent, mask: valuation.value(agent[0], items_of(mask, agent)),
            gains=lambda agent, mask: pairs_of(
                valuation.gains(agent[0], items_of(mask, agent)), agent
            ),
            extension=lambda agent, key, x: valuation.extension(agent[0], key, items_of(x, agent)),
            gradient=lambda agent, key, x: pairs_of(
                valuation.gradient(agent[0], key, items_of(x, agent)), agent
            ),
        )

    def data(self):
        agents = jnp.arange(self.num_clients, dtype=jnp.int32)
        return jax.vmap(self.valuations.client_data)(agents), agents
