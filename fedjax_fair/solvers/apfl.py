"""APFL: a learned mixture of a local and the global model."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_fair.roles import Number, Variables, setting
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["APFL"]


class MixedModel(NamedTuple):
    """The state of a client.

    Attributes:
        local: The local model, with the running statistics of the mixed one.
        alpha: Its part in the mixed model.
    """

    local: Variables
    alpha: Float[Array, ""]


class _Training(NamedTuple):
    """A mixed model in training."""

    kept: MixedModel
    optimizer: Any
    is_first: Bool[Array, ""]


class APFL(WrappedSGD):
    r"""Local SGD on the global model, and on a local model that is mixed with it.

    Each client keeps a local model :math:`v_i`, initially the first global model, and
    :math:`\alpha_i`. When drawn it trains the received model :math:`w` as in FedAvg, and on the
    same minibatches

    .. math:: v_i \leftarrow v_i - \eta \alpha_i \nabla f_i(\bar{v}; B), \qquad
        \bar{v} = \alpha_i v_i + (1 - \alpha_i) w.

    The first minibatch of a round also adapts :math:`\alpha_i \leftarrow \alpha_i - \eta \langle
    v_i - w, \nabla f_i(\bar{v}; B) \rangle`, clipped to ``[0, 1]``. The personalized model mixes
    :math:`v_i` with the current global model. Parameters are mixed, as in the paper; the authors'
    code mixes outputs, and has a decay of :math:`\alpha_i`, which is left out here.

    Args:
        solver: SGD of both models; its proximal term applies to the global model.
        mixing_weight: The first :math:`\alpha_i`, in ``[0, 1]``. Without ``adaptive``, 0 is the
            global model and 1 is training alone.
        adaptive: Whether :math:`\alpha_i` adapts.

    Raises:
        ValueError: If the solver is no `SGD`, or ``mixing_weight`` is out of range.

    References:
        Deng, Kamani, Mahdavi, *Adaptive Personalized Federated Learning*, 2020,
        https://arxiv.org/abs/2003.13461

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> apfl = APFL(SGD(0.1, batch_size=10, epochs=1), mixing_weight=0.25)
    """

    mixing_weight: Number = setting(checks.fraction, default=0.5)
    adaptive: bool = True

    def init(self, key, variables, client):
        return MixedModel(variables, jnp.asarray(self.mixing_weight, jnp.float32))

    def solve(self, key, variables, client):
        rate = self.solver.rate(client.round)
        optimizer = self.solver.make_optimizer(client.round)

        def batch_gradient(gradient_fn, variables, memory):
            (local, alpha), optimizer_state, is_first = memory
            mixed = _mix(alpha, local.params, variables.params)
            found = gradient_fn(Variables(mixed, local.state))
            gradient = jax.tree.map(lambda g: alpha * g, found.gradient)
            change, optimizer_state = optimizer.update(gradient, optimizer_state, local.params)
            params = jax.tree.map(jnp.add, local.params, change)
            if self.adaptive:
                products = jax.tree.map(
                    lambda v, w, g: jnp.sum((v - w) * g),
                    local.params,
                    variables.params,
                    found.gradient,
                )
                slope = jnp.sum(jnp.stack(jax.tree.leaves(products)))
                adapted = jnp.clip(alpha - rate * slope, 0, 1)
                alpha = jnp.where(is_first, adapted, alpha)
            kept = MixedModel(Variables(params, found.state), alpha)
            memory = _Training(kept, optimizer_state, jnp.zeros_like(is_first))
            return gradient_fn(variables), memory

        start = optimizer.init(client.state.local.params)
        result = self.solver.solve(
            key,
            variables,
            client,
            batch_gradient=batch_gradient,
            memory=_Training(client.state, start, jnp.array(True)),
        )
        return result._replace(state=result.state.kept)

    def num_examples(self, sizes, max_steps=None):
        return 2 * self.solver.num_examples(sizes, max_steps)

    def personalize(self, key, variables, client):
        return _mix(client.state.alpha, client.state.local, variables)


def _mix(alpha, local, other):
    return jax.tree.map(lambda v, w: alpha * v + (1 - alpha) * w, local, other)
