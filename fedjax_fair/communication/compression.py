"""Updates of fewer bytes: the largest numbers alone, or fewer bits for each."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedjax_fair import checks
from fedjax_fair.tree import Tree

__all__ = ["Compression", "StochasticQuantization", "TopK"]


class Compression(Tree):
    """What a participant sends in place of its update.

    Attributes:
        error_feedback: Whether a participant keeps what it could not send, and adds it to its next update.
    """

    error_feedback: ClassVar[bool] = False

    @abstractmethod
    def compress(
        self, key: Key[Array, ""], vector: Float[Array, " width"]
    ) -> Float[Array, " width"]:
        """Returns what arrives of all numbers of an update."""
        raise NotImplementedError

    @abstractmethod
    def num_bytes(self, size: int) -> int:
        """Returns the bytes of a compressed vector of so many numbers."""
        raise NotImplementedError


class TopK(Compression):
    r"""Sends the numbers of the largest absolute values, and keeps the others for later.

    A participant sends the :math:`k` largest of :math:`u + e`, its update plus what it has kept, and
    keeps the rest as :math:`e` for the next round in which it takes part. That takes memory of a
    model for every client of the federation. What a participant keeps stays as it is when its result
    does not arrive. A number takes four bytes, and its place four.

    Args:
        fraction: Part of the numbers that is sent, in (0, 1], at least one number.

    Raises:
        ValueError: If ``fraction`` is out of range.

    References:
        Stich, Cordonnier, Jaggi, *Sparsified SGD with Memory*, 2018,
        https://arxiv.org/abs/1809.07599

    Examples:
        >>> compression = TopK(0.1)
        >>> compression.compress(jax.random.key(0), jnp.array([1.0, -3.0, 2.0])).tolist()
        [0.0, -3.0, 0.0]
        >>> compression.num_bytes(1000)
        800
    """

    error_feedback: ClassVar[bool] = True

    fraction: float

    def __post_init__(self):
        checks.positive("fraction", self.fraction)
        checks.probability("fraction", self.fraction)

    def _count(self, size: int) -> int:
        return max(1, round(float(self.fraction) * size))

    def compress(self, key, vector):
        # A number that is not finite is sent, as plain updates are.
        magnitude = jnp.where(jnp.isnan(vector), jnp.inf, jnp.abs(vector))
        _, places = jax.lax.top_k(magnitude, self._count(vector.shape[0]))
        return jnp.zeros_like(vector).at[places].set(vector[places])

    def num_bytes(self, size):
        return 8 * self._count(size)


class StochasticQuantization(Compression):
    r"""Rounds numbers up or down at random, so that they are right on average.

    With the largest absolute value :math:`s` of an update and :math:`L = 2^{b - 1} - 1`, a
    number is sent as one of the :math:`2 L + 1` multiples of :math:`s / L` in :math:`[-s, s]`. An
    update takes its bits, and four bytes for :math:`s`.

    Args:
        bits: :math:`b`, the bits of a number, 2 to 16.

    Raises:
        ValueError: If ``bits`` is out of range.

    References:
        Alistarh, Grubic, Li, Tomioka, Vojnovic, *QSGD: Communication-Efficient SGD via Gradient
        Quantization and Encoding*, 2017, https://arxiv.org/abs/1610.02132

    Examples:
        >>> compression = StochasticQuantization(2)
        >>> compression.compress(jax.random.key(0), jnp.array([4.0, 0.0, -4.0])).tolist()
        [4.0, 0.0, -4.0]
        >>> compression.num_bytes(1000)
        254
    """

    bits: int

    def __post_init__(self):
        checks.positive_int("bits", self.bits, at_most=16)
        if self.bits < 2:
            raise ValueError(f"bits={self.bits}: expected an integer >= 2 and <= 16.")

    def compress(self, key, vector):
        levels = 2 ** (self.bits - 1) - 1
        largest = jnp.max(jnp.abs(vector))
        unit = jnp.where(largest > 0, largest, 1) / levels
        scaled = jnp.clip(vector / unit, -levels, levels)
        lower = jnp.floor(scaled)
        up = jax.random.uniform(key, vector.shape, vector.dtype) < scaled - lower
        return (lower + up.astype(vector.dtype)) * unit

    def num_bytes(self, size):
        return -(-self.bits * size // 8) + 4
