r"""Differential privacy of clients: clipped updates, and Gaussian noise on their mean.

Every participant clips its update to a norm, and the server adds noise to the mean of a cohort
whose participants weigh the same. Replacing all data of one client moves the sum by at most twice
the norm, whatever the data were; `fedjax_fair.communication.epsilon` turns this into a guarantee.
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

from fedjax_fair import checks
from fedjax_fair.base import Aggregator, Cohort, Number, Variables
from fedjax_fair.numerics.finite import all_finite
from fedjax_fair.tree import Tree

__all__ = ["AdaptiveClipping", "DifferentialPrivacy", "PrivacyMechanism"]


class PrivacyMechanism(Tree):
    """Clipping and noise, the interface of `DifferentialPrivacy` and `AdaptiveClipping`.

    Attributes:
        adapt: None for a clip that stays. A mechanism whose clip changes defines a method
            ``adapt(key, clipping_norm, cohort, unclipped) -> clipping_norm``, from the part of those who answered whose
            update was not clipped.
    """

    adapt: ClassVar[Callable[..., Float[Array, ""]] | None] = None

    @abstractmethod
    def init_clipping_norm(self) -> Float[Array, ""]:
        """Returns the norm that updates are clipped to in the first round."""
        raise NotImplementedError

    @abstractmethod
    def update_noise(self, cohort: Cohort) -> Number:
        """Returns the standard deviation of the noise on the sum of updates, over the clip."""
        raise NotImplementedError

    @abstractmethod
    def total_noise(self) -> Number:
        """Returns the noise multiplier of updates alone that is as private as a whole round."""
        raise NotImplementedError


class DifferentialPrivacy(PrivacyMechanism):
    r"""Updates clipped to one norm, and noise on their mean.

    With the updates :math:`u_k` of :math:`m` participants the server learns

    .. math:: \frac{1}{m} \Big(\sum_k u_k \min(1, C / \lVert u_k \rVert) + z\,C\,\xi\Big), \qquad
        \xi \sim N(0, I).

    An update that is not finite counts as zero. Where participants drop out the mean is over those who
    answered, and the noise on the sum stays. It goes with aggregators of equal weights,
    ``Mean("uniform")``.

    Args:
        clipping_norm: The norm :math:`C` > 0.
        noise_multiplier: :math:`z` >= 0. With 0 updates are only clipped.

    Raises:
        ValueError: If a number is out of range.

    References:
        McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language Models*,
        2018, https://arxiv.org/abs/1710.06963

    Examples:
        >>> private = DifferentialPrivacy(clipping_norm=1.0, noise_multiplier=1.0)
    """

    clipping_norm: Number
    noise_multiplier: Number

    def __post_init__(self):
        checks.positive("clipping_norm", self.clipping_norm)
        checks.non_negative("noise_multiplier", self.noise_multiplier)

    def init_clipping_norm(self):
        return jnp.asarray(self.clipping_norm, jnp.float32)

    def update_noise(self, cohort):
        return self.noise_multiplier

    def total_noise(self):
        return self.noise_multiplier


class AdaptiveClipping(PrivacyMechanism):
    r"""Updates clipped to a norm that follows their norms.

    Each participant says whether its update norm was at most :math:`C`; the server learns the part
    :math:`b` of the :math:`m` participants that say so, with noise :math:`N(0, (\sigma_b/m)^2)`, and
    :math:`C \leftarrow C \exp(-\eta (b - \gamma))`. The noise on updates is a little larger, so
    that both together are as private as the noise multiplier :math:`z` says:
    :math:`z_\Delta = (z^{-2} - (2 \sigma_b)^{-2})^{-1/2}`. Everything else is as for `DifferentialPrivacy`.
    Info: the ``clipping_norm`` that a round had.

    Args:
        noise_multiplier: :math:`z` > 0 of both together.
        initial_clipping_norm: :math:`C` > 0 in the first round.
        target_unclipped_quantile: :math:`\gamma` in ``[0, 1]``.
        learning_rate: :math:`\eta` >= 0.
        clipped_count_stddev: :math:`\sigma_b`, more than half of :math:`z`; a twentieth of the cohort, or
            :math:`z` if that is more, by default.

    Raises:
        ValueError: If a number is out of range.

    References:
        Andrew, Thakkar, McMahan, Ramaswamy, *Differentially Private Learning with Adaptive
        Clipping*, 2021, https://arxiv.org/abs/1905.03871

    Examples:
        >>> private = AdaptiveClipping(1.0, target_unclipped_quantile=0.5)
    """

    noise_multiplier: Number
    _: KW_ONLY
    initial_clipping_norm: Number = 0.1
    target_unclipped_quantile: Number = 0.5
    learning_rate: Number = 0.2
    clipped_count_stddev: Number | None = None

    def __post_init__(self):
        checks.positive("noise_multiplier", self.noise_multiplier)
        checks.positive("initial_clipping_norm", self.initial_clipping_norm)
        checks.probability("target_unclipped_quantile", self.target_unclipped_quantile)
        checks.non_negative("learning_rate", self.learning_rate)
        if self.clipped_count_stddev is not None:
            checks.positive("clipped_count_stddev", self.clipped_count_stddev)
            both = clipped_count_stddev, noise_multiplier = (
                self.clipped_count_stddev,
                self.noise_multiplier,
            )
            known = not any(isinstance(one, Tracer) for one in both)
            if known and 2 * float(clipped_count_stddev) <= float(noise_multiplier):
                raise ValueError(
                    f"{clipped_count_stddev=!r}: expected more than half of {noise_multiplier=!r}."
                )

    def init_clipping_norm(self):
        return jnp.asarray(self.initial_clipping_norm, jnp.float32)

    def update_noise(self, cohort):
        # Noise on the count takes a part of what is guaranteed.
        share = self.noise_multiplier / (2 * self._clipped_count_stddev(cohort))
        return self.noise_multiplier / jnp.sqrt(1 - share**2)

    def total_noise(self):
        return self.noise_multiplier

    def adapt(
        self,
        key: Key[Array, ""],
        clipping_norm: Float[Array, ""],
        cohort: Cohort,
        unclipped: Float[Array, ""],
    ) -> Float[Array, ""]:
        """Returns the norm of the next round.

        It stays where no participant has answered, or the part of unclipped updates is not known.
        """
        noise = self._clipped_count_stddev(cohort) * jax.random.normal(key) / _answered(cohort)
        moved = clipping_norm * jnp.exp(
            -self.learning_rate * (unclipped + noise - self.target_unclipped_quantile)
        )
        known = jnp.isfinite(moved)
        if cohort.responded is not None:
            known &= jnp.any(cohort.responded)
        return jnp.where(known, moved, clipping_norm)

    def _clipped_count_stddev(self, cohort: Cohort) -> Number:
        if self.clipped_count_stddev is not None:
            return self.clipped_count_stddev
        return jnp.maximum(cohort.clients.shape[0] / 20, self.noise_multiplier)


def check_equal_weights(privacy: PrivacyMechanism, aggregator: Aggregator) -> None:
    """Requires a mean whose sensitivity is known.

    Raises:
        ValueError: If ``privacy`` is no such setting, or weights may differ.
    """
    checks.instance(
        "privacy", privacy, PrivacyMechanism, "communication.DifferentialPrivacy(1.0, 1.0)"
    )
    if not aggregator.equal_weights:
        raise ValueError(
            "privacy: an aggregator whose weights may differ; expected aggregators.Mean('uniform')."
        )


def check_no_statistics(variables: Variables) -> None:
    """Requires a model without running statistics, which noise would spoil.

    Raises:
        ValueError: If it has some.
    """
    if jax.tree.leaves(variables.state):
        raise ValueError(
            "privacy: a model with running statistics; expected one without, such as norm='group'."
        )


def clipped(
    update: Variables, clipping_norm: Float[Array, ""]
) -> tuple[Variables, Bool[Array, ""]]:
    """An update clipped to a norm, and whether it was not clipped; zeros if it is not finite."""
    # Scaled first: squares of numbers above 1e19 are infinite.
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(update)]))
    unit = jnp.where(largest > 0, largest, 1)
    norm = unit * optax.tree.norm(jax.tree.map(lambda leaf: leaf / unit, update))
    factor = jnp.minimum(1, clipping_norm / jnp.where(norm > 0, norm, 1))
    finite = all_finite(update)
    short = jax.tree.map(lambda leaf: jnp.where(finite, leaf * factor, 0), update)
    return short, norm <= clipping_norm


def noisy(
    key: Key[Array, ""],
    mechanism: PrivacyMechanism,
    clipping_norm: Float[Array, ""],
    cohort: Cohort,
    mean: Variables,
) -> Variables:
    """The mean over those who answered, with noise."""
    deviation = mechanism.update_noise(cohort) * clipping_norm / _answered(cohort)
    leaves, structure = jax.tree.flatten(mean)
    noises = [
        jax.random.normal(jax.random.fold_in(key, place), leaf.shape, leaf.dtype)
        for place, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(
        structure, [leaf + deviation * noise for leaf, noise in zip(leaves, noises, strict=True)]
    )


def _answered(cohort: Cohort) -> Float[Array, ""]:
    if cohort.responded is None:
        return jnp.float32(cohort.clients.shape[0])
    return jnp.maximum(jnp.sum(cohort.responded), 1).astype(jnp.float32)
