r"""Differential privacy of clients: clipped updates, and Gaussian noise on their mean.

Every member shortens its update to a length, and the server adds noise to the mean of a cohort
whose members weigh the same. Replacing all data of one client moves the sum by at most twice
the length, whatever the data were; `fedjax_fair.uploads.epsilon` turns this into a guarantee.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, Key

from fedjax_fair import checks
from fedjax_fair.base import Aggregator, Cohort, Number, Variables
from fedjax_fair.numerics.finite import all_finite

__all__ = ["Privacy", "adaptive_privacy", "privacy"]


class Privacy(NamedTuple):
    """Settings of clipping and noise.

    Attributes:
        clip: The length that updates are shortened to, in the first round if it adapts.
        noise_multiplier: Standard deviation of the noise on the sum, over that length.
        quantile: Part of the updates that is to be shorter than the length, or None to keep it.
        learning_rate: How fast it adapts.
        count_noise: Standard deviation of the noise on the number of shorter updates.
    """

    clip: Number
    noise_multiplier: Number
    quantile: Number | None = None
    learning_rate: Number = 0.2
    count_noise: Number | None = None


def privacy(clip: Number, noise_multiplier: Number) -> Privacy:
    r"""Updates shortened to one length, and noise on their mean.

    With the updates :math:`u_k` of :math:`m` members the server learns

    .. math:: \frac{1}{m} \Big(\sum_k u_k \min(1, C / \lVert u_k \rVert) + z\,C\,\xi\Big), \qquad
        \xi \sim N(0, I).

    An update that is not finite counts as zero. Where members drop out the mean is over those who
    answered, and the noise on the sum stays.

    Args:
        clip: The length :math:`C` > 0; may be traced.
        noise_multiplier: :math:`z` >= 0; may be traced. With 0 updates are only shortened.

    Returns:
        ``Privacy``, for ``make_round(..., privacy=privacy(clip, noise_multiplier))``. It goes with
        aggregators of equal weights, ``mean("uniform")``.

    Raises:
        ValueError: If a number is out of range.

    References:
        McMahan, Ramage, Talwar, Zhang, *Learning Differentially Private Recurrent Language Models*,
        2018, https://arxiv.org/abs/1710.06963

    Examples:
        >>> private = privacy(clip=1.0, noise_multiplier=1.0)
    """
    checks.positive("clip", clip)
    checks.non_negative("noise_multiplier", noise_multiplier)
    return Privacy(clip, noise_multiplier)


def adaptive_privacy(
    noise_multiplier: Number,
    *,
    initial_clip: Number = 0.1,
    quantile: Number = 0.5,
    learning_rate: Number = 0.2,
    count_noise: Number | None = None,
) -> Privacy:
    r"""Updates shortened to a length that follows their lengths.

    Each member says whether its update was shorter than :math:`C`; the server learns the part
    :math:`b` of the :math:`m` members that say so, with noise :math:`N(0, (\sigma_b/m)^2)`, and
    :math:`C \leftarrow C \exp(-\eta (b - \gamma))`. The noise on updates is a little larger, so
    that both together are as private as the noise multiplier :math:`z` says:
    :math:`z_\Delta = (z^{-2} - (2 \sigma_b)^{-2})^{-1/2}`.

    Args:
        noise_multiplier: :math:`z` > 0 of both together; may be traced.
        initial_clip: :math:`C` > 0 in the first round; may be traced.
        quantile: :math:`\gamma` in ``[0, 1]``; may be traced.
        learning_rate: :math:`\eta` >= 0; may be traced.
        count_noise: :math:`\sigma_b`, more than half of :math:`z`; a twentieth of the cohort, or
            :math:`z` if that is more, by default. May be traced.

    Returns:
        ``Privacy``, as `privacy` does. Info of a round: the ``clip`` that it had.

    Raises:
        ValueError: If a number is out of range.

    References:
        Andrew, Thakkar, McMahan, Ramaswamy, *Differentially Private Learning with Adaptive
        Clipping*, 2021, https://arxiv.org/abs/1905.03871

    Examples:
        >>> private = adaptive_privacy(1.0, quantile=0.5)
    """
    checks.positive("noise_multiplier", noise_multiplier)
    checks.positive("initial_clip", initial_clip)
    checks.probability("quantile", quantile)
    checks.non_negative("learning_rate", learning_rate)
    if count_noise is not None:
        checks.positive("count_noise", count_noise)
        known = not isinstance(count_noise, Tracer) and not isinstance(noise_multiplier, Tracer)
        if known and 2 * float(count_noise) <= float(noise_multiplier):
            raise ValueError(
                f"count_noise={count_noise!r}: expected more than half of {noise_multiplier=!r}."
            )
    return Privacy(initial_clip, noise_multiplier, quantile, learning_rate, count_noise)


def require_equal_weights(privacy: Privacy, aggregator: Aggregator) -> None:
    """Requires a mean whose sensitivity is known.

    Raises:
        ValueError: If ``privacy`` is no such setting, or weights may differ.
    """
    checks.instance("privacy", privacy, Privacy, "uploads.privacy(1.0, 1.0)")
    if not aggregator.equal_weights:
        raise ValueError(
            "privacy: an aggregator whose weights may differ; expected aggregators.mean('uniform')."
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


def initial_clip(settings: Privacy) -> Float[Array, ""]:
    """The length in the first round."""
    return jnp.asarray(settings.clip, jnp.float32)


def noisy(
    key: Key[Array, ""],
    settings: Privacy,
    clip: Float[Array, ""],
    cohort: Cohort,
    mean: Variables,
) -> Variables:
    """The mean over those who answered, with noise."""
    deviation = _update_noise(settings, cohort) * clip / _answered(cohort)
    leaves, structure = jax.tree.flatten(mean)
    noises = [
        jax.random.normal(jax.random.fold_in(key, place), leaf.shape, leaf.dtype)
        for place, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(
        structure, [leaf + deviation * noise for leaf, noise in zip(leaves, noises, strict=True)]
    )


def adapted(
    key: Key[Array, ""],
    settings: Privacy,
    clip: Float[Array, ""],
    cohort: Cohort,
    shorter: Float[Array, ""],
) -> Float[Array, ""]:
    """The length of the next round, from the part of those who answered whose update was shorter.

    It stays where no member has answered, or the part is not known.
    """
    assert settings.quantile is not None
    answered = _answered(cohort)
    noise = _count_noise(settings, cohort) * jax.random.normal(key) / answered
    moved = clip * jnp.exp(-settings.learning_rate * (shorter + noise - settings.quantile))
    known = jnp.isfinite(moved)
    if cohort.answers is not None:
        known &= jnp.any(cohort.answers)
    return jnp.where(known, moved, clip)


def _answered(cohort: Cohort) -> Float[Array, ""]:
    if cohort.answers is None:
        return jnp.float32(cohort.clients.shape[0])
    return jnp.maximum(jnp.sum(cohort.answers), 1).astype(jnp.float32)


def _count_noise(settings: Privacy, cohort: Cohort) -> Number:
    if settings.count_noise is not None:
        return settings.count_noise
    return jnp.maximum(cohort.clients.shape[0] / 20, settings.noise_multiplier)


def _update_noise(settings: Privacy, cohort: Cohort) -> Number:
    """The noise multiplier of updates, if that of counts takes part of the guarantee."""
    if settings.quantile is None:
        return settings.noise_multiplier
    share = settings.noise_multiplier / (2 * _count_noise(settings, cohort))
    return settings.noise_multiplier / jnp.sqrt(1 - share**2)
