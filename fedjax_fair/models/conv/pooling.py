"""Max-pooling, in a form for each kind of device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

__all__ = ["max_pool", "shared_by_largest", "vjp_of_windows", "windows_max"]


def max_pool(
    x: Float[Array, "batch height width channels"],
) -> Float[Array, "batch rows columns channels"]:
    """Takes the maximum over 2 x 2 windows, stride 2.

    Equals ``flax.linen.max_pool(x, (2, 2), (2, 2))``: the last row or column of an odd side is
    dropped. On CPU it costs half of ``reduce_window`` with its gradient. The one difference is the
    gradient where entries of a window are equal: each comparison halves it, whereas Flax gives all
    of it to one entry. On a constant background the parameters' gradients agree all the same.

    Args:
        x: Images, ``[batch, height, width, channels]``.

    Returns:
        The pooled images, ``[batch, height // 2, width // 2, channels]``.

    Examples:
        >>> max_pool(jnp.arange(9.0).reshape(1, 3, 3, 1)).ravel().tolist()
        [4.0]
    """
    batch, height, width, channels = x.shape
    rows, columns = height // 2, width // 2
    x = x[:, : 2 * rows, : 2 * columns].reshape(batch, rows, 2, columns, 2, channels)
    x = jnp.maximum(x[:, :, 0], x[:, :, 1])
    return jnp.maximum(x[:, :, :, 0], x[:, :, :, 1])


def shared_by_largest(
    x: Float[Array, "batch height width channels"],
    largest: Float[Array, "batch rows columns channels"],
    cotangent: Float[Array, "batch rows columns channels"],
) -> Float[Array, "batch height width channels"]:
    """A gradient of ``max_pool`` in which equal entries of a window share alike.

    One comparison of all entries, where that of ``max_pool`` itself is one for each of its steps: a
    GPU makes one pass of it.

    Args:
        x: What was pooled.
        largest: ``max_pool(x)``.
        cotangent: By it.
    """
    batch, rows, columns, channels = largest.shape
    odd = ((0, 0), (0, x.shape[1] - 2 * rows), (0, x.shape[2] - 2 * columns), (0, 0))
    windows = x[:, : 2 * rows, : 2 * columns].reshape(batch, rows, 2, columns, 2, channels)
    are = [[windows[:, :, row, :, column] == largest for column in (0, 1)] for row in (0, 1)]
    share = cotangent / sum(each.astype(cotangent.dtype) for pair in are for each in pair)
    by_rows = [jnp.stack([jnp.where(each, share, 0) for each in pair], axis=3) for pair in are]
    by_windows = jnp.stack(by_rows, axis=2)
    return jnp.pad(by_windows.reshape(batch, 2 * rows, 2 * columns, channels), odd)


def windows_max(
    x: Float[Array, "batch height width channels"],
) -> Float[Array, "batch rows columns channels"]:
    """``max_pool`` by XLA's own operation, which a TPU computes in half the cycles."""
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")


def vjp_of_windows(
    x: Float[Array, "batch height width channels"],
    largest: Float[Array, "batch rows columns channels"],
    cotangent: Float[Array, "batch rows columns channels"],
) -> Float[Array, "batch height width channels"]:
    """XLA's own gradient of it, which goes to one entry of equals; arguments as above."""
    del largest
    return jax.vjp(windows_max, x)[1](cotangent)[0]
