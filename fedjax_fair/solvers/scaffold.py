r"""SCAFFOLD: control variates against the drift of local training."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["Scaffold"]


class Scaffold(WrappedSGD):
    r"""SGD along gradients corrected by control variates; with `aggregators.ScaffoldMean`.

    With the control variates :math:`c` of the server and :math:`c_i` of the client, a step is
    :math:`y \leftarrow y - \eta (\nabla f_i(y; B) - c_i + c)`, and the client then keeps

    .. math:: c_i^+ = c_i - c + \frac{x - y}{K_i \eta}

    (option II), with its own number :math:`K_i` of steps. In place of :math:`K_i \eta` stands
    `SGD.displacement`, which equals it for plain SGD and also covers momentum, where division by
    :math:`K_i \eta` diverges. After steps of length 0, the client keeps :math:`c_i`. Sends:
    ``control``, the change :math:`c_i^+ - c_i`.

    Args:
        solver: SGD without ``optimizer``.

    Raises:
        ValueError: If the solver is no `SGD`, or has an ``optimizer``.

    References:
        Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, *SCAFFOLD: Stochastic Controlled Averaging
        for Federated Learning*, 2020, https://arxiv.org/abs/1910.06378

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> scaffold = Scaffold(SGD(0.1, batch_size=10, epochs=1))
    """

    needs = ("control",)

    accepts_optimizer = False

    def init(self, key, variables, client):
        return jax.tree.map(jnp.zeros_like, variables.params)

    def solve(self, key, variables, client):
        control = client.broadcast["control"]
        offset = jax.tree.map(jnp.subtract, control, client.state)
        result = self.solver.solve(key, variables, client, gradient_offset=offset)
        displacement = self.solver.displacement(client.round, result.steps)
        is_moved = displacement != 0
        divisor = jnp.where(is_moved, displacement, 1)
        change = jax.tree.map(
            lambda u, c: jnp.where(is_moved, -u / divisor - c, 0), result.update.params, control
        )
        state = jax.tree.map(jnp.add, client.state, change)
        return result._replace(state=state, sends=result.sends | {"control": change})
