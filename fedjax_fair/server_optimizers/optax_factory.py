"""Optimizers of optax at the server."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from fedjax_fair.server_optimizers.server_optimizer import ServerOptimizer
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Number, setting

__all__ = ["Optax"]


class Optax(ServerOptimizer):
    """An optimizer of optax that takes the negative update as gradient.

    Another learning rate does not recompile, nor do other hyperparameters that are set by
    ``jax.tree_util.Partial``. Those of ``functools.partial`` are structure.

    Args:
        optimizer: A function from a learning rate to an optimizer of optax.
        learning_rate: Its argument, >= 0.

    Raises:
        ValueError: If ``optimizer`` is not a function or ``learning_rate`` is negative.

    Examples:
        >>> adam = Optax(optax.adam, 0.01)
        >>> with_momentum = Optax(jax.tree_util.Partial(optax.sgd, momentum=0.9), 0.5)
    """

    optimizer: Callable[..., optax.GradientTransformation] = setting(
        checks.function, "from a learning rate, such as optax.adam"
    )
    learning_rate: Number = setting(checks.non_negative)

    def init(self, params):
        return self.optimizer(self.learning_rate).init(params)

    def step(self, update, state, params):
        gradient = jax.tree.map(jnp.negative, update)
        return self.optimizer(self.learning_rate).update(gradient, state, params)
