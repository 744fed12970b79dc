r"""Differential privacy of clients: clipped updates, and Gaussian noise on their mean.

Every member shortens its update to a length, and the server adds noise to the mean of a cohort
whose members weigh the same. Replacing all data of one client moves the sum by at most twice
the length, whatever the data were; `fedjax_fair.communication.epsilon` turns this into a guarantee.
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

__all__ = ["AdaptivePrivacy", "Privacy", "PrivacyMechanism"]


class PrivacyMechanism(Tree):
    """Clipping and noise, the interface of `Privacy` and `AdaptivePrivacy`.

    Attributes:
        adapt: None for a clip that stays. A mechanism whose clip changes defines a method
            ``adapt(key, clip, cohort, shorter) -> clip``, from the part of those who answered whose
            update was shorter.
    """

    adapt: ClassVar[Callable[..., Float[Array, ""]] | None] = None

    @abstractmethod
    def first_clip(self) -> Float[Array, ""]:
        """Returns the length that updates are shortened to in the first round."""
        raise NotImplementedError

    @abstractmethod
    def update_noise(self, cohort: Cohort) -> Number:
        """Returns the standard deviation of the noise on the sum of updates, over the clip."""
        raise NotImplementedError

    @abstractmethod
    def total_noise(self) -> Number:
        """Returns the noise multiplier of updates alone that is as private as a whole round."""
        raise NotImplementedError


class Privacy(PrivacyMechanism):
    r"""Updates shortened to one length, and noise on their mean.

    With the updates :math:`u_k` of :math:`m` members the server learns

    .. math:: \frac{1}{m} \Big(\sum_k u_k \min(1, C / \lVert u_k \rVert) + z\,C\,\xi\Big), \qquad
        \xi \sim N(0, I).

    An update that is not finite counts as zero. Where members drop out the mean is over those who
    answered, and the noise on the sum stays. It goes with aggregators of equal weights,
    ``Mean("uniform")``.

    Args:
        clip: The length :math:`C` > 0.
        noise_multiplier: :math:`z` >= 0. With 0 updates are only shortened.

    Raises:
        ValueError: If a number is out of range.

    References:
        McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language Models*,
        2018, https://arxiv.org/abs/1710.06963

    Examples:
        >>> private = Privacy(clip=1.0, noise_multiplier=1.0)
    """

    clip: Number
    noise_multiplier: Number

    def __post_init__(self):
        checks.positive("clip", self.clip)
        checks.non_negative("noise_multiplier", self.noise_multiplier)

    def first_clip(self):
        return jnp.asarray(self.clip, jnp.float32)

    def update_noise(self, cohort):
        return self.noise_multiplier

    def total_noise(self):
        return self.noise_multiplier


class AdaptivePrivacy(PrivacyMechanism):
    r"""Updates shortened to a length that follows their lengths.

    Each member says whether its update was shorter than :math:`C`; the server learns the part
    :math:`b` of the :math:`m` members that say so, with noise :math:`N(0, (\sigma_b/m)^2)`, and
    :math:`C \leftarrow C \exp(-\eta (b - \gamma))`. The noise on updates is a little larger, so
    that both together are as private as the noise multiplier :math:`z` says:
    :math:`z_\Delta = (z^{-2} - (2 \sigma_b)^{-2})^{-1/2}`. Everything else is as for `Privacy`.
    Info: the ``clip`` that a round had.

    Args:
        noise_multiplier: :math:`z` > 0 of both together.
        initial_clip: :math:`C` > 0 in the first round.
        quantile: :math:`\gamma` in ``[0, 1]``.
        learning_rate: :math:`\eta` >= 0.
        count_noise: :math:`\sigma_b`, more than half of :math:`z`; a twentieth of the cohort, or
            :math:`z` if that is more, by default.

    Raises:
        ValueError: If a number is out of range.

    References:
        Andrew, Thakkar, McMahan, Ramaswamy, *Differentially Private Learning with Adaptive
        Clipping*, 2021, https://arxiv.org/abs/1905.03871

    Examples:
        >>> private = AdaptivePrivacy(1.0, quantile=0.5)
    """

    noise_multiplier: Number
    _: KW_ONLY
    initial_clip: Number = 0.1
    quantile: Number = 0.5
    learning_rate: Number = 0.2
    count_noise: Number | None = None

    def __post_init__(self):
        checks.positive("noise_multiplier", self.noise_multiplier)
        checks.positive("initial_clip", self.initial_clip)
        checks.probability("quantile", self.quantile)
        checks.non_negative("learning_rate", self.learning_rate)
        if self.count_noise is not None:
            checks.positive("count_noise", self.count_noise)
            both = count_noise, noise_multiplier = self.count_noise, self.noise_multiplier
            known = not any(isinstance(one, Tracer) for one in both)
            if known and 2 * float(count_noise) <= float(noise_multiplier):
                raise ValueError(
                    f"{count_noise=!r}: expected more than half of {noise_multiplier=!r}."
                )

    def first_clip(self):
        return jnp.asarray(self.initial_clip, jnp.float32)

    def update_noise(self, cohort):
        # Noise on the count takes a part of what is guaranteed.
        share = self.noise_multiplier / (2 * self._count_noise(cohort))
        return self.noise_multiplier / jnp.sqrt(1 - share**2)

    def total_noise(self):
        return self.noise_multiplier

    def adapt(
        self, key: Key[Array, ""], clip: Float[Array, ""], cohort: Cohort, shorter: Float[Array, ""]
    ) -> Float[Array, ""]:
        """Returns the length of the next round.

        It stays where no member has answered, or the part of shorter updates is not known.
        """
        noise = self._count_noise(cohort) * jax.random.normal(key) / _answered(cohort)
        moved = clip * jnp.exp(-self.learning_rate * (shorter + noise - self.quantile))
        known = jnp.isfinite(moved)
        if cohort.answers is not None:
            known &= jnp.any(cohort.answers)
        return jnp.where(known, moved, clip)

    def _count_noise(self, cohort: Cohort) -> Number:
        if self.count_noise is not None:
            return self.count_noise
        return jnp.maximum(cohort.clients.shape[0] / 20, self.noise_multiplier)


def require_equal_weights(privacy: PrivacyMechanism, aggregator: Aggregator) -> None:
    """Requires a mean whose sensitivity is known.

    Raises:
        ValueError: If ``privacy`` is no such setting, or weights may differ.
    """
    checks.instance("privacy", privacy, PrivacyMechanism, "communication.Privacy(1.0, 1.0)")
    if not aggregator.equal_weights:
        raise ValueError(
            "privacy: an aggregator whose weights may differ; expected aggregators.Mean('uniform')."
        )


def require_no_statistics(variables: Variables) -> None:
    """Requires a model without running statistics, which noise would spoil.

    Raises:
        ValueError: If it has some.
    """
    if jax.tree.leaves(variables.state):
        raise ValueError(
            "privacy: a model with running statistics; expected one without, such as norm='group'."
        )


def clipped(update: Variables, clip: Float[Array, ""]) -> tuple[Variables, Bool[Array, ""]]:
    """An update shortened to a length, and whether it was shorter; zeros if it is not finite."""
    # Scaled first: squares of numbers above 1e19 are infinite.
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(update)]))
    unit = jnp.where(largest > 0, largest, 1)
    length = unit * optax.tree.norm(jax.tree.map(lambda leaf: leaf / unit, update))
    factor = jnp.minimum(1, clip / jnp.where(length > 0, length, 1))
    finite = all_finite(update)
    short = jax.tree.map(lambda leaf: jnp.where(finite, leaf * factor, 0), update)
    return short, length <= clip


def noisy(
    key: Key[Array, ""],
    mechanism: PrivacyMechanism,
    clip: Float[Array, ""],
    cohort: Cohort,
    mean: Variables,
) -> Variables:
    """The mean over those who answered, with noise."""
    deviation = mechanism.update_noise(cohort) * clip / _answered(cohort)
    leaves, structure = jax.tree.flatten(mean)
    noises = [
        jax.random.normal(jax.random.fold_in(key, place), leaf.shape, leaf.dtype)
        for place, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(
        structure, [leaf + deviation * noise for leaf, noise in zip(leaves, noises, strict=True)]
    )


def _answered(cohort: Cohort) -> Float[Array, ""]:
    if cohort.answers is None:
        return jnp.float32(cohort.clients.shape[0])
    return jnp.maximum(jnp.sum(cohort.answers), 1).astype(jnp.float32)
