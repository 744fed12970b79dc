"""Simulated secure sum: pairwise masks over the integers mod 2^32.

A participant encodes its values as multiples of a step, so large that sums stay below
:math:`2^{31}`, and adds a mask for every other participant, who subtracts it. If a participant
drops out, the others reveal the keys of its pairs, and the server removes the remaining masks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree, setting

__all__ = ["SLACK", "SecureAggregation", "as_secure", "mask_values", "secure_sum", "unmask_sum"]

_MAX_PARTICIPANTS = 2**15  # Pairs are counted in 32 bits.
_MIN_EXPONENT = -100  # Float32 resolves no less.
SLACK = 1e-3  # Weights add up to 1 only up to rounding.


class SecureAggregation(Tree):
    """Aggregation of masked updates, of which the server learns only the sum (`secure_sum`).

    ``Round(..., aggregation="secure")`` stands for ``SecureAggregation()``.

    Args:
        max_abs_value: The largest absolute value of an element of an update, > 0, before weighting.
            An update out of range makes the update of the round NaN.

    Examples:
        >>> aggregation = SecureAggregation(max_abs_value=4.0)
    """

    # With 16 the step is 2^-26. Sums are of integers, hence equal on any number of devices. An
    # element out of range makes the sum NaN, which ends the run, instead of wrapping.
    max_abs_value: float = setting(checks.positive, default=16.0)


def as_secure(aggregation: str | SecureAggregation) -> SecureAggregation | None:
    """Converts ``"secure"`` to ``SecureAggregation()`` and ``"plain"`` to None."""
    if isinstance(aggregation, SecureAggregation):
        return aggregation
    checks.one_of("aggregation", aggregation, ("plain", "secure"))
    return SecureAggregation() if aggregation == "secure" else None


class Masked(NamedTuple):
    """Message of one participant, or a sum of messages (by field).

    Attributes:
        words: Encoded and masked values, ``[width]``.
        num_out_of_range: Number of participants with a value out of range.
    """

    words: UInt32[Array, " width"]
    num_out_of_range: UInt32[Array, ""]


def quantization_step(total: float, participants: int) -> float:
    """Returns the smallest power of two of which a sum has at most 31 bits.

    Args:
        total: The largest absolute value of the exact sum.
        participants: Number of participants, whose values are rounded.

    Raises:
        ValueError: If there are more than 2**15 participants.

    Examples:
        >>> quantization_step(total=1.0, participants=10) == 2.0**-30
        True
    """
    checks.positive_int("participants", participants, at_most=_MAX_PARTICIPANTS)
    exponent = math.ceil(math.log2(total * (1 + SLACK) / (2**31 - participants)))
    return 2.0 ** max(exponent, _MIN_EXPONENT)


def mask_values(
    key: Key[Array, ""],
    participant: Int[Array, ""],
    participants: int,
    values: Float[Array, " width"],
    max_abs_value: Float[Array, ""] | float,
    step: float,
) -> Masked:
    """Encodes and masks the values of one participant, with an index in ``[0, participants)``.

    Args:
        key: Key of this sum, never used for another.
        participant: Index of the participant.
        participants: Number of participants.
        values: The values.
        max_abs_value: The largest absolute value of this participant.
        step: From `quantization_step`.
    """
    # The product of a weight and a value is rounded, and may exceed the limit by that.
    in_range = jnp.all(jnp.abs(values) <= max_abs_value * (1 + SLACK / 2))
    encoded = jnp.where(in_range, jnp.round(values / step), 0).astype(jnp.int32)

    def add_mask(index, words):
        other = index + (index >= participant).astype(index.dtype)
        return words + _mask(key, participant, other, words.shape)

    words = jax.lax.bitcast_convert_type(encoded, jnp.uint32)
    words = jax.lax.fori_loop(0, participants - 1, add_mask, words)
    return Masked(words, (~in_range).astype(jnp.uint32))


def unmask_sum(
    key: Key[Array, ""],
    total: Masked,
    step: float,
    responded: Bool[Array, " participants"] | None = None,
) -> Float[Array, " width"]:
    """Removes masks shared with participants that dropped out, and decodes a sum of messages.

    Args:
        key: As for `mask_values`.
        total: The sum of the messages of the responding participants.
        step: As for `mask_values`.
        responded: Mask of the responding participants; all if None.

    Returns:
        The sum of their values; NaN if one is out of range.
    """
    words = total.words
    if responded is not None:
        participants = responded.shape[0]

        def remove_mask(pair, words):
            one, other = jnp.divmod(pair, participants)
            return jax.lax.cond(
                responded[one] & ~responded[other] & (one != other),
                lambda: words - _mask(key, one, other, words.shape),
                lambda: words,
            )

        words = jax.lax.fori_loop(0, participants * participants, remove_mask, words)
    values = jax.lax.bitcast_convert_type(words, jnp.int32).astype(jnp.float32) * step
    return jnp.where(total.num_out_of_range == 0, values, jnp.nan)


def secure_sum(
    key: Key[Array, ""],
    values: Float[Array, "participants width"],
    responded: Bool[Array, " participants"] | None = None,
    *,
    max_abs_value: float,
) -> Float[Array, " width"]:
    """Adds vectors of which the server sees only masked messages.

    Time grows with the square of the number of participants.

    Args:
        key: Random key, never used for another sum.
        values: One vector per participant.
        responded: Mask of the participants whose message arrives; all if None.
        max_abs_value: The largest absolute value of an element, > 0.

    Returns:
        The sum over the responding participants, with an error of half a `quantization_step` for
        each, and rounding. NaN if one of their values exceeds ``max_abs_value``.

    References:
        Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*,
        2017, https://eprint.iacr.org/2017/281

    Examples:
        >>> values = jnp.array([[0.5, -1.0], [0.25, 3.0], [9.0, 9.0]])
        >>> responded = jnp.array([True, True, False])
        >>> secure_sum(jax.random.key(0), values, responded, max_abs_value=10.0).tolist()
        [0.75, 2.0]
    """
    checks.positive("max_abs_value", max_abs_value)
    participants = values.shape[0]
    step = quantization_step(max_abs_value * participants, participants)

    def add(index, total):
        message = mask_values(key, index, participants, values[index], max_abs_value, step)
        arrives = True if responded is None else responded[index]
        return jax.tree.map(lambda sum, leaf: sum + jnp.where(arrives, leaf, 0), total, message)

    zero = Masked(jnp.zeros(values.shape[1], jnp.uint32), jnp.zeros((), jnp.uint32))
    return unmask_sum(key, jax.lax.fori_loop(0, participants, add, zero), step, responded)


def _mask(key: Key[Array, ""], one: Array, other: Array, shape: tuple[int, ...]) -> Array:
    """Returns the mask that participant ``one`` of a pair adds; the other adds its negative."""
    pair = jax.random.fold_in(key, jnp.minimum(one, other))
    mask = jax.random.bits(jax.random.fold_in(pair, jnp.maximum(one, other)), shape, jnp.uint32)
    return jnp.where(one < other, mask, -mask)
