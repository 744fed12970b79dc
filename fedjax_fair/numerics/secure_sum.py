r"""A sum of which the server sees nothing but the sum: pairwise masks over the integers mod 2^32.

A participant encodes its numbers as multiples of a step, and adds a mask for every other participant; two
participants have drawn the mask of their pair from the same key, and one of them subtracts what the
other one adds. What a participant sends is then uniform whatever it encoded, and masks cancel in
the sum. A participant that drops out leaves the masks of its pairs behind; the others reveal
the keys of these pairs, and the server takes them away.

Nothing wraps that should not: the step is so large that the sum of what participants may encode stays
below :math:`2^{31}`, and a number out of this range makes the sum not a number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from fedjax_fair import checks
from fedjax_fair.tree import Tree

__all__ = [
    "SLACK",
    "Masked",
    "SecureAggregation",
    "as_secure",
    "masked",
    "quantization_step",
    "recovered",
    "secure_sum",
]

_MAX_PARTICIPANTS = 2**15  # Pairs are counted in 32 bits.
_LEAST_EXPONENT = -100  # Float32 resolves no less.
SLACK = 1e-3  # Weights that add up to 1 do so up to rounding.


class SecureAggregation(Tree):
    """Masked updates, of which the server learns the sum alone.

    Participants multiply their update by their weight and round it to whole multiples of a step; masks
    of all pairs hide it, and cancel in the sum. Where participants drop out, the masks that they leave
    behind are recovered. ``Round(..., aggregation="secure")`` stands for ``SecureAggregation()``.

    Args:
        max_abs_value: The largest absolute value of a number in an update, > 0, before it is weighted. The
            step is ``max_abs_value`` over about 2**30. An update beyond it is not wrapped: the update of
            the round is then not finite, which ends a run as divergence does.

    Raises:
        ValueError: If ``max_abs_value`` is not a number > 0.

    References:
        Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*,
        2017, https://eprint.iacr.org/2017/281

    Examples:
        >>> aggregation = SecureAggregation(max_abs_value=4.0)
    """

    max_abs_value: float = 16.0

    def __post_init__(self):
        checks.positive("max_abs_value", self.max_abs_value)


def as_secure(aggregation: str | SecureAggregation) -> SecureAggregation | None:
    """What the word ``"secure"`` stands for; None for ``"plain"``.

    Raises:
        ValueError: If it is neither one of the two words nor ``SecureAggregation``.
    """
    if isinstance(aggregation, SecureAggregation):
        return aggregation
    checks.one_of("aggregation", aggregation, ("plain", "secure"))
    return SecureAggregation() if aggregation == "secure" else None


class Masked(NamedTuple):
    """What one participant sends, or the sum of what several did (add them field by field).

    Attributes:
        words: Its encoded and masked numbers, ``[width]``.
        beyond: Participants that could not encode a number, because it was beyond max_abs_value.
    """

    words: UInt32[Array, " width"]
    beyond: UInt32[Array, ""]


def quantization_step(total: float, participants: int) -> float:
    """The least power of two of which a sum takes at most 31 bits.

    Args:
        total: The largest absolute value of the sum, of exact numbers.
        participants: How many round their numbers to multiples of the step.

    Raises:
        ValueError: If there are more than 2**15 participants.

    Examples:
        >>> quantization_step(total=1.0, participants=10) == 2.0**-30
        True
    """
    checks.positive_int("participants", participants, at_most=_MAX_PARTICIPANTS)
    exponent = math.ceil(math.log2(total * (1 + SLACK) / (2**31 - participants)))
    return 2.0 ** max(exponent, _LEAST_EXPONENT)


def masked(
    key: Key[Array, ""],
    participant: Int[Array, ""],
    participants: int,
    values: Float[Array, " width"],
    max_abs_value: Float[Array, ""] | float,
    step: float,
) -> Masked:
    """What a participant sends.

    Args:
        key: Of this sum, never used for another one; keys of pairs follow from it.
        participant: The participant's number, in ``[0, participants)``.
        participants: How many there are.
        values: The participant's numbers.
        max_abs_value: Its share of the range: the largest absolute value of a number.
        step: From ``quantization_step``.
    """
    # A weight times a number is rounded, and may exceed the product of their limits by that.
    fits = jnp.all(jnp.abs(values) <= max_abs_value * (1 + SLACK / 2))
    encoded = jnp.where(fits, jnp.round(values / step), 0).astype(jnp.int32)

    def add_mask(place, words):
        other = place + (place >= participant).astype(place.dtype)
        mask = _mask(key, participant, other, words.shape)
        return words + jnp.where(participant < other, mask, -mask)

    words = jax.lax.bitcast_convert_type(encoded, jnp.uint32)
    words = jax.lax.fori_loop(0, participants - 1, add_mask, words)
    return Masked(words, (~fits).astype(jnp.uint32))


def recovered(
    key: Key[Array, ""],
    total: Masked,
    step: float,
    answered: Bool[Array, " participants"] | None = None,
) -> Float[Array, " width"]:
    """The sum, once masks that participants share with those who dropped out are taken away.

    Args:
        key: As in ``masked``.
        total: The sum of what those who answered have sent.
        step: As in ``masked``.
        answered: Who did; all if None.

    Returns:
        The sum of their numbers; not a number if one of them was beyond max_abs_value.
    """
    words = total.words
    if answered is not None:
        participants = answered.shape[0]

        def remove(pair, words):
            one, other = jnp.divmod(pair, participants)

            def less_a_mask():
                mask = _mask(key, one, other, words.shape)
                return words - jnp.where(one < other, mask, -mask)

            left = answered[one] & ~answered[other] & (one != other)
            return jax.lax.cond(left, less_a_mask, lambda: words)

        words = jax.lax.fori_loop(0, participants * participants, remove, words)
    numbers = jax.lax.bitcast_convert_type(words, jnp.int32).astype(jnp.float32) * step
    return jnp.where(total.beyond == 0, numbers, jnp.nan)


def secure_sum(
    key: Key[Array, ""],
    values: Float[Array, "participants width"],
    answered: Bool[Array, " participants"] | None = None,
    *,
    max_abs_value: float,
) -> Float[Array, " width"]:
    """Adds vectors as a server does that sees only masked ones.

    Memory is that of a few vectors, whatever the number of participants; time grows with its square.

    Args:
        key: Random key, never used for another sum.
        values: A vector of each participant.
        answered: Whose vectors arrive; all if None.
        max_abs_value: The largest absolute value of a number.

    Returns:
        The sum over those who answered, to half a step of ``quantization_step(participants * max_abs_value,
        participants)`` for each of them and to rounding; not a number if one of theirs exceeds the
        max_abs_value.

    Raises:
        ValueError: If ``max_abs_value`` is not positive.

    References:
        Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*,
        2017, https://eprint.iacr.org/2017/281

    Examples:
        >>> values = jnp.array([[0.5, -1.0], [0.25, 3.0], [9.0, 9.0]])
        >>> arrives = jnp.array([True, True, False])
        >>> secure_sum(jax.random.key(0), values, arrives, max_abs_value=10.0).tolist()
        [0.75, 2.0]
    """
    checks.positive("max_abs_value", max_abs_value)
    participants = values.shape[0]
    step = quantization_step(max_abs_value * participants, participants)

    def add(participant, total):
        sent = masked(key, participant, participants, values[participant], max_abs_value, step)
        arrives = True if answered is None else answered[participant]
        return jax.tree.map(lambda sum, own: sum + jnp.where(arrives, own, 0), total, sent)

    none = Masked(jnp.zeros(values.shape[1], jnp.uint32), jnp.zeros((), jnp.uint32))
    return recovered(key, jax.lax.fori_loop(0, participants, add, none), step, answered)


def _mask(key: Key[Array, ""], one: Array, other: Array, shape: tuple[int, ...]) -> Array:
    """The mask of a pair of participants, from the key that only these two know."""
    pair = jax.random.fold_in(key, jnp.minimum(one, other))
    return jax.random.bits(jax.random.fold_in(pair, jnp.maximum(one, other)), shape, jnp.uint32)
