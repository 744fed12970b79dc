r"""FedNova: updates per effective local step."""

from __future__ import annotations

import jax

from fedjax_fair.roles import Variables
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["FedNova"]


class FedNova(WrappedSGD):
    r"""SGD that sends its update per effective step; with `aggregators.FedNovaMean`.

    The sent update of the parameters is :math:`d_i = \Delta_i / \|a_i\|_1`, where :math:`\|a_i\|_1`
    is the number of effective steps: the local steps of plain SGD, more with momentum and fewer
    with the proximal term (`SGD.displacement` at a step size of 1). Sends: ``effective_steps``.
    Running statistics are not divided.

    Args:
        solver: SGD without ``optimizer``.

    Raises:
        ValueError: If the solver is no `SGD`, or has an ``optimizer``.

    References:
        Wang, Liu, Liang, Joshi, Poor, *Tackling the Objective Inconsistency Problem in
        Heterogeneous Federated Optimization*, 2020, https://arxiv.org/abs/2007.07481

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fednova = FedNova(SGD(0.1, batch_size=10, epochs=1, momentum=0.9))
    """

    needs = ("effective_steps",)

    accepts_optimizer = False

    def solve(self, key, variables, client):
        result = self.solver.solve(key, variables, client)
        # Along a constant gradient, in units of the step size, which may be zero.
        prox = self.solver.rate(client.round) * self.solver.prox
        unit = self.solver.replace(learning_rate=1.0, prox=prox)
        steps = unit.displacement(client.round, result.steps)
        params = jax.tree.map(lambda leaf: leaf / steps, result.update.params)
        return result._replace(
            update=Variables(params, result.update.state),
            sends=result.sends | {"effective_steps": steps},
        )
