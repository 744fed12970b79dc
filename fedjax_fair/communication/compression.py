"""Compression of updates: sparsification and quantization."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Tree, setting

__all__ = ["Compression", "StochasticQuantization", "TopK"]


class Compression(Tree):
    """Interface of compressors of updates.

    A vector has all arrays of an update that are communicated (`Solver.is_personal`).

    Attributes:
        error_feedback: Whether a client adds the unsent residual to its next update.
    """

    error_feedback: ClassVar[bool] = False

    @abstractmethod
    def compress(self, key: Key[Array, ""], vector: Float[Array, " n"]) -> Float[Array, " n"]:
        """Returns the decompressed vector that the server receives."""

    @abstractmethod
    def num_bytes(self, size: int) -> int:
        """Returns the bytes of a compressed vector of ``size`` elements."""


class TopK(Compression):
    r"""Sends the elements with the largest absolute values, with error feedback.

    A participant sends the :math:`k` largest elements of :math:`u + e`, its update plus its
    residual, and stores the rest as its new residual :math:`e`, which takes the memory of the
    shared parameters for every client. The residual does not change if the result does not arrive.
    An element takes four bytes, and its index four.

    Args:
        fraction: Fraction of elements that is sent, in (0, 1], at least one element.

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

    error_feedback = True

    fraction: float = setting(checks.positive, at_most=1)

    def _num_sent(self, size: int) -> int:
        return max(1, round(float(self.fraction) * size))

    def compress(self, key, vector):
        # Non-finite elements are sent, so that the server detects them as in plain updates.
        magnitude = jnp.where(jnp.isnan(vector), jnp.inf, jnp.abs(vector))
        _, indices = jax.lax.top_k(magnitude, self._num_sent(vector.shape[0]))
        return jnp.zeros_like(vector).at[indices].set(vector[indices])

    def num_bytes(self, size):
        return 8 * self._num_sent(size)


class StochasticQuantization(Compression):
    r"""Rounds elements up or down at random, without bias.

    With the largest absolute value :math:`s` of an update and :math:`L = 2^{b - 1} - 1`, an element
    is sent as one of the :math:`2 L + 1` multiples of :math:`s / L` in :math:`[-s, s]`. The scale
    :math:`s` takes four bytes.

    Args:
        bits: :math:`b`, bits per element, 2 to 16.

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
        if not (checks.is_int(self.bits) and 2 <= self.bits <= 16):
            raise ValueError(
                f"bits={self.bits!r}: expected an integer >= 2 and <= 16; use 8, or "
                "compression=None to send all 32 bits."
            )

    def compress(self, key, vector):
        levels = 2 ** (self.bits - 1) - 1
        largest = jnp.max(jnp.abs(vector))
        unit = jnp.where(largest > 0, largest, 1) / levels
        # The unit of a tiny update underflows to 0, and the update is sent as zeros.
        scaled = jnp.clip(jnp.where(unit > 0, vector / unit, 0), -levels, levels)
        lower = jnp.floor(scaled)
        round_up = jax.random.uniform(key, vector.shape, vector.dtype) < scaled - lower
        return (lower + round_up.astype(vector.dtype)) * unit

    def num_bytes(self, size):
        return -(-self.bits * size // 8) + 4
