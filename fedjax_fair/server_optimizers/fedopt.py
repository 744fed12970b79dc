r"""Interface of server optimizers, momentum, and adaptive ones (Reddi et al., 2021, algorithm 2).

With the aggregated update :math:`\Delta`, step :math:`\eta` and :math:`v_{-1} = \tau^2`, the
adaptive ones compute, elementwise and without bias correction,

.. math::
    m \leftarrow \beta_1 m + (1 - \beta_1) \Delta, \qquad
    x \leftarrow x + \eta\, m / (\sqrt{v} + \tau),

where :math:`v` is updated before the step. The authors' experiments instead start at :math:`v_{-1}
= 0` and correct the bias of Adam and Yogi, :math:`\eta_t = \eta \sqrt{1 - \beta_2^t} / (1 -
\beta_1^t)` in the :math:`t`-th round with a response, from 1; so do ``v0=0`` and
``bias_correction=True``.

References:
    Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan, *Adaptive Federated
    Optimization*, 2021, https://arxiv.org/abs/2003.00295
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree

from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Number, Tree, setting

__all__ = ["FedAdagrad", "FedAdam", "FedAvgM", "FedYogi", "Optax", "ServerOptimizer"]


class ServerOptimizer(Tree):
    """Turns the aggregated update into the step of the global parameters.

    A subclass is a frozen dataclass with hyperparameters as fields, as roles are.
    """

    @abstractmethod
    def init(self, params: PyTree) -> PyTree:
        """Returns the state at the initial parameters."""

    @abstractmethod
    def step(self, update: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns what is added to the parameters, and the new state.

        The update is new minus old parameters, the negative of a gradient.
        """


class Moments(NamedTuple):
    """State of the adaptive optimizers.

    Attributes:
        first: Mean of updates, m.
        second: Mean or sum of their squares, v.
        count: Number of steps.
    """

    first: PyTree
    second: PyTree
    count: Int[Array, ""]


class FedAvgM(ServerOptimizer):
    r"""Server momentum: the step is a geometric sum of all updates so far.

    .. math:: u \leftarrow \beta_1 u + \Delta, \qquad x \leftarrow x + \eta u.

    Args:
        learning_rate: Step size of the server, >= 0.
        beta1: Decay of the first moment, in ``[0, 1)``; 0 with a learning rate of 1 applies the
            update unchanged.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Hsu, Qi, Brown, *Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification*, 2019, https://arxiv.org/abs/1909.06335

    Examples:
        >>> FedAvgM(learning_rate=0.3)
        FedAvgM(learning_rate=0.3)
    """

    learning_rate: Number = setting(checks.non_negative, default=1.0)
    beta1: Number = setting(checks.unit_interval, default=0.9)

    def init(self, params):
        return jax.tree.map(jnp.zeros_like, params)

    def step(self, update, state, params):
        total = jax.tree.map(lambda u, new: self.beta1 * u + new, state, update)
        return jax.tree.map(lambda u: self.learning_rate * u, total), total


class FedAdagrad(ServerOptimizer):
    r"""Adagrad at the server: steps shrink with the sum of all squared updates.

    .. math:: v \leftarrow v + \Delta^2.

    Args:
        learning_rate: Step size of the server, >= 0, which needs tuning.
        beta1: Decay of the first moment, in ``[0, 1)``.
        tau: Degree of adaptivity, > 0; smaller values are more adaptive.
        v0: Initial second moment, >= 0; by default ``tau**2``.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Reddi et al., *Adaptive Federated Optimization*, 2021, algorithm 2,
        https://arxiv.org/abs/2003.00295

    Examples:
        >>> FedAdagrad(learning_rate=0.03)
        FedAdagrad(learning_rate=0.03)
    """

    learning_rate: Number = setting(checks.non_negative, default=0.1)
    beta1: Number = setting(checks.unit_interval, default=0.0)
    tau: Number = setting(checks.positive, default=1e-3)
    v0: Number | None = setting(checks.non_negative, default=None)

    def init(self, params):
        return _init_moments(self, params)

    def step(self, update, state, params):
        moments = _next_moments(self, update, state, lambda v, square: v + square)
        return _scaled(self, moments, self.learning_rate), moments


class _Decayed(ServerOptimizer):
    """Settings and steps of Adam and Yogi, which differ in the change of the second moment."""

    learning_rate: Number = setting(checks.non_negative, default=0.01)
    beta1: Number = setting(checks.unit_interval, default=0.9)
    beta2: Number = setting(checks.unit_interval, default=0.99)
    tau: Number = setting(checks.positive, default=1e-3)
    v0: Number | None = setting(checks.non_negative, default=None)
    bias_correction: bool = False

    def init(self, params):
        return _init_moments(self, params)

    def step(self, update, state, params):
        moments = _next_moments(self, update, state, self.next_second)
        return _scaled(self, moments, _corrected_rate(self, moments.count)), moments

    @abstractmethod
    def next_second(self, v: Array, square: Array) -> Array:
        """Returns the new second moment from the old one and the squared update."""


class FedAdam(_Decayed):
    r"""Adam at the server: the second moment is a moving average.

    .. math:: v \leftarrow \beta_2 v + (1 - \beta_2) \Delta^2.

    Args:
        learning_rate: Step size of the server, >= 0, which needs tuning.
        beta1: Decay of the first moment, in ``[0, 1)``.
        beta2: Decay of the second moment, in ``[0, 1)``.
        tau: Degree of adaptivity, > 0; smaller values are more adaptive.
        v0: Initial second moment, >= 0; by default ``tau**2``.
        bias_correction: Whether to correct the bias of both moments, which the algorithm of the
            paper does not do.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Reddi et al., *Adaptive Federated Optimization*, 2021, algorithm 2,
        https://arxiv.org/abs/2003.00295

    Examples:
        >>> FedAdam(learning_rate=0.03)
        FedAdam(learning_rate=0.03)
    """

    def next_second(self, v, square):
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(_Decayed):
    r"""Yogi at the server: the second moment changes by a bounded amount in every round.

    .. math:: v \leftarrow v - (1 - \beta_2) \Delta^2 \operatorname{sign}(v - \Delta^2).

    Args:
        learning_rate: Step size of the server, >= 0, which needs tuning.
        beta1: Decay of the first moment, in ``[0, 1)``.
        beta2: One minus the factor of the change of the second moment, in ``[0, 1)``.
        tau: Degree of adaptivity, > 0; smaller values are more adaptive.
        v0: Initial second moment, >= 0; by default ``tau**2``.
        bias_correction: Whether to correct the bias of both moments, which the algorithm of the
            paper does not do.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Reddi et al., *Adaptive Federated Optimization*, 2021, algorithm 2,
        https://arxiv.org/abs/2003.00295

    Examples:
        >>> FedYogi(learning_rate=0.03)
        FedYogi(learning_rate=0.03)
    """

    def next_second(self, v, square):
        return v - (1 - self.beta2) * square * jnp.sign(v - square)


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


_Adaptive = FedAdagrad | _Decayed


def _init_moments(optimizer: _Adaptive, params: PyTree) -> Moments:
    v0 = optimizer.tau**2 if optimizer.v0 is None else optimizer.v0
    return Moments(
        first=jax.tree.map(jnp.zeros_like, params),
        second=jax.tree.map(lambda leaf: jnp.full_like(leaf, v0), params),
        count=jnp.zeros((), jnp.int32),
    )


def _next_moments(
    optimizer: _Adaptive, update: PyTree, moments: Moments, second_fn: Callable[..., Array]
) -> Moments:
    beta1 = optimizer.beta1
    return Moments(
        first=jax.tree.map(lambda m, new: beta1 * m + (1 - beta1) * new, moments.first, update),
        second=jax.tree.map(lambda v, new: second_fn(v, new * new), moments.second, update),
        count=moments.count + 1,
    )


def _scaled(optimizer: _Adaptive, moments: Moments, rate: Number) -> PyTree:
    return jax.tree.map(
        lambda m, v: rate * m / (jnp.sqrt(v) + optimizer.tau), moments.first, moments.second
    )


def _corrected_rate(optimizer: _Decayed, count: Int[Array, ""]) -> Number:
    """Returns the learning rate of a step, counted from 1."""
    if not optimizer.bias_correction:
        return optimizer.learning_rate
    steps = count.astype(jnp.float32)
    second = jnp.sqrt(1 - jnp.float32(optimizer.beta2) ** steps)
    return optimizer.learning_rate * second / (1 - jnp.float32(optimizer.beta1) ** steps)
