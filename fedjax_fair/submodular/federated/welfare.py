"""Welfare: every item is assigned to one agent, and the sum of the agents' values is maximized.

Clients must send gradients, not bases. A base assigns every item to an agent, and since an agent's
gradient is zero outside of its own pairs, its heaviest base assigns all items to itself: the mean
of the bases splits every item equally whatever the valuations are.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.submodular.federated.problem import ClientFunction, Problem, family

__all__ = ["welfare"]


def welfare(valuations: Problem) -> Problem:
    """``f_i(S) = v_i({j : (j, i) in S})`` of pairs of an item and the agent it is assigned to.

    Args:
        valuations: The agents' valuations of sets of items: any problem; its clients are the
            agents.

    Returns:
        A problem over ``items * agents`` pairs, of which ``item * agents + agent`` is one. Use it
        with the matroid ``allocation(items, agents)``, and with ``send="gradient"``.

    Examples:
        >>> from fedjax_fair.submodular.federated import facility_location
        >>> problem = welfare(facility_location([[3.0, 1.0], [2.0, 2.0]]))
        >>> float(problem.value(jnp.array([True, False, False, True])))  # (3 + 2) / 2
        2.5
    """
    agents, items = valuations.num_clients, valuations.size
    numbers = jnp.arange(agents, dtype=jnp.int32)
    own = jax.vmap(valuations.own)(numbers)
    function = valuations.function

    def share(x, agent):
        return x.reshape(items, agents)[:, agent]

    def spread(gains, agent):
        return jnp.zeros((items, agents)).at[:, agent].set(gains).ravel()

    lifted = ClientFunction(
        value=lambda me, mask: function.value(me[0], share(mask, me[1])),
        gains=lambda me, mask: spread(function.gains(me[0], share(mask, me[1])), me[1]),
        extension=lambda me, key, x: function.extension(me[0], key, share(x, me[1])),
        gradient=lambda me, key, x: spread(function.gradient(me[0], key, share(x, me[1])), me[1]),
    )
    data = (own, numbers)
    return family("welfare", data, lifted, size=items * agents, exact=valuations.exact)
