r"""Differential privacy of clients: clipped updates and Gaussian noise on their mean.

Replacing all data of one client changes the sum of clipped updates by at most twice the norm, from
which `fedjax_fair.communication.epsilon` computes a guarantee.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key

from fedjax_fair.numerics.trees import all_finite
from fedjax_fair.roles import Cohort, Number, Variables, setting
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree

__all__ = ["AdaptiveClipping", "DifferentialPrivacy", "PrivacyMechanism"]


class PrivacyMechanism(Tree):
    """Interface of mechanisms that clip updates and add noise to their mean.

    Attributes:
        noise_multiplier: Field with the noise multiplier of a mean that has the privacy guarantee
            of all releases of a round.
        adapt: None for a constant clipping norm. Otherwise a method ``adapt(key, clipping_norm,
            cohort, unclipped) -> clipping_norm``, given the fraction of unclipped updates.
    """

    adapt: ClassVar[Callable[..., Float[Array, ""]] | None] = None

    @abstractmethod
    def init_clipping_norm(self) -> Float[Array, ""]:
        """Returns the clipping norm of the first round."""

    @abstractmethod
    def update_noise(self, cohort: Cohort) -> Number:
        """Returns the standard deviation of the noise on the sum, divided by the clipping norm."""


class DifferentialPrivacy(PrivacyMechanism):
    r"""Clipping to a constant norm, and noise on the mean.

    Given the updates :math:`u_k` of :math:`m` participants, the server receives

    .. math:: \frac{1}{m} \Big(\sum_k u_k \min(1, C / \lVert u_k \rVert) + z\,C\,\xi\Big), \qquad
        \xi \sim N(0, I).

    A non-finite update counts as zero. With dropouts the mean is over the responding clients, with
    the same noise on the sum. The aggregator must have equal weights, as ``Mean("uniform")`` has.

    Args:
        clipping_norm: The norm :math:`C` > 0.
        noise_multiplier: :math:`z` >= 0; 0 only clips.

    References:
        McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language Models*,
        2018, https://arxiv.org/abs/1710.06963

    Examples:
        >>> private = DifferentialPrivacy(clipping_norm=1.0, noise_multiplier=1.0)
    """

    clipping_norm: Number = setting(checks.positive)
    noise_multiplier: Number = setting(checks.non_negative)

    def init_clipping_norm(self):
        return jnp.asarray(self.clipping_norm, jnp.float32)

    def update_noise(self, cohort):
        return self.noise_multiplier


class AdaptiveClipping(PrivacyMechanism):
    r"""Clipping to a norm that tracks a quantile of the norms of updates.

    The server receives the fraction :math:`b` of unclipped updates with noise :math:`N(0,
    (\sigma_b/m)^2)`, and sets :math:`C \leftarrow C \exp(-\eta (b - \gamma))`. The noise on updates
    increases to :math:`z_\Delta = (z^{-2} - (2 \sigma_b)^{-2})^{-1/2}`, so that both releases
    together have the privacy guarantee of the noise multiplier :math:`z`. Otherwise as
    `DifferentialPrivacy`. Info: ``clipping_norm``, the one of the round.

    Args:
        noise_multiplier: :math:`z` > 0.
        initial_clipping_norm: :math:`C` > 0 in the first round.
        target_unclipped_quantile: :math:`\gamma` in ``[0, 1]``.
        learning_rate: :math:`\eta` >= 0.
        clipped_count_stddev: :math:`\sigma_b` > :math:`z / 2`. The default is the maximum of
            :math:`z` and a twentieth of the cohort size.

    References:
        Andrew, Thakkar, McMahan, Ramaswamy, *Differentially Private Learning with Adaptive
        Clipping*, 2021, https://arxiv.org/abs/1905.03871

    Examples:
        >>> private = AdaptiveClipping(1.0, target_unclipped_quantile=0.5)
    """

    noise_multiplier: Number = setting(checks.positive)
    _: KW_ONLY
    initial_clipping_norm: Number = setting(checks.positive, default=0.1)
    target_unclipped_quantile: Number = setting(checks.probability, default=0.5)
    learning_rate: Number = setting(checks.non_negative, default=0.2)
    clipped_count_stddev: Number | None = setting(checks.positive, default=None)

    def __post_init__(self):
        stddev, multiplier = self.clipped_count_stddev, self.noise_multiplier
        if stddev is None or isinstance(stddev, Tracer) or isinstance(multiplier, Tracer):
            return
        if 2 * float(stddev) <= float(multiplier):
            raise ValueError(
                f"clipped_count_stddev={stddev!r}: expected more than half of "
                f"noise_multiplier={multiplier!r}; raise it, or lower noise_multiplier."
            )

    def init_clipping_norm(self):
        return jnp.asarray(self.initial_clipping_norm, jnp.float32)

    def update_noise(self, cohort):
        # The release of the count uses this share of the privacy budget.
        share = self.noise_multiplier / (2 * self._count_stddev(cohort))
        return self.noise_multiplier / jnp.sqrt(1 - share**2)

    def adapt(
        self,
        key: Key[Array, ""],
        clipping_norm: Float[Array, ""],
        cohort: Cohort,
        unclipped: Float[Array, ""],
    ) -> Float[Array, ""]:
        """Returns the next clipping norm, unchanged if no client responded."""
        noise = self._count_stddev(cohort) * jax.random.normal(key) / _num_responded(cohort)
        error = unclipped + noise - self.target_unclipped_quantile
        adapted = clipping_norm * jnp.exp(-self.learning_rate * error)
        is_valid = jnp.isfinite(adapted)
        if cohort.responded is not None:
            is_valid &= jnp.any(cohort.responded)
        return jnp.where(is_valid, adapted, clipping_norm)

    def _count_stddev(self, cohort: Cohort) -> Number:
        if self.clipped_count_stddev is not None:
            return self.clipped_count_stddev
        return jnp.maximum(cohort.clients.shape[0] / 20, self.noise_multiplier)


def clip_update(
    update: Variables, clipping_norm: Float[Array, ""]
) -> tuple[Variables, Bool[Array, ""]]:
    """Clips an update (zeros if it is not finite), and returns whether its norm was smaller."""
    # Values are scaled before squaring, which would overflow above 1e19.
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(update)]))
    unit = jnp.where(largest > 0, largest, 1)
    norm = unit * optax.tree.norm(jax.tree.map(lambda leaf: leaf / unit, update))
    factor = jnp.minimum(1, clipping_norm / jnp.where(norm > 0, norm, 1))
    finite = all_finite(update)
    clipped = jax.tree.map(lambda leaf: jnp.where(finite, leaf * factor, 0), update)
    return clipped, norm <= clipping_norm


def add_noise(
    key: Key[Array, ""],
    mechanism: PrivacyMechanism,
    clipping_norm: Float[Array, ""],
    cohort: Cohort,
    mean: Variables,
) -> Variables:
    """Adds noise to the mean over the responding clients."""
    deviation = mechanism.update_noise(cohort) * clipping_norm / _num_responded(cohort)
    leaves, structure = jax.tree.flatten(mean)
    noisy = []
    for index, leaf in enumerate(leaves):
        noise = jax.random.normal(jax.random.fold_in(key, index), leaf.shape, leaf.dtype)
        noisy.append(leaf + deviation * noise)
    return jax.tree.unflatten(structure, noisy)


def _num_responded(cohort: Cohort) -> Float[Array, ""]:
    if cohort.responded is None:
        return jnp.float32(cohort.clients.shape[0])
    return jnp.maximum(jnp.sum(cohort.responded), 1).astype(jnp.float32)
