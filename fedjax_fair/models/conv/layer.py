"""The convolutional layer."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from flax.linen.linear import canonicalize_padding
from jax import lax
from jaxtyping import Array, Float

from fedjax_fair.models.conv.choice import choose
from fedjax_fair.models.conv.geometry import Padding, Pair

__all__ = ["Conv"]


def _explicit_padding(
    padding: str | int | Sequence[int | Pair], shape: Pair, window: Pair, strides: Pair
) -> Padding:
    """Returns the zeros before and after rows and columns for any padding that Flax accepts."""
    pads = canonicalize_padding(padding, rank=2)
    if isinstance(pads, str):
        if pads not in ("SAME", "VALID"):
            raise ValueError(
                f"{padding=}: expected 'SAME', 'VALID', an int, ints or pairs; use 'SAME' to keep "
                "the image's size."
            )
        pads = lax.padtype_to_pads(shape, window, strides, pads)
    (top, bottom), (left, right) = pads
    # Older versions of JAX return integers of NumPy.
    return (int(top), int(bottom)), (int(left), int(right))


class Conv(nn.Module):
    """Two-dimensional convolution with the parameters and results of ``flax.linen.Conv``.

    Images are ``[batch, height, width, channels]``, parameters are ``kernel [kh, kw, in, out]`` and
    ``bias [out]``. `choice` describes its implementations. Reverse mode works once, and forward
    mode only on its gradient.

    Attributes:
        features: Output channels.
        kernel_size: Height and width of the kernel.
        strides: Step between windows, along height and width.
        padding: "SAME", "VALID", an int for all sides, an int per axis or a pair per axis.
        use_bias: Whether a bias is added.
        relu_pool: Whether ReLU and ``max_pool`` follow, which is faster in one layer.
        kernel_init: Initializer of the kernel.
        bias_init: Initializer of the bias.

    Raises:
        ValueError: If the padding is none of the above, or the kernel is larger than the padded
            image.

    Examples:
        >>> import jax
        >>> import jax.numpy as jnp
        >>> layer = Conv(features=6, kernel_size=(5, 5), padding="VALID")
        >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((2, 28, 28, 1)))
        >>> y.shape, variables["params"]["kernel"].shape
        ((2, 24, 24, 6), (5, 5, 1, 6))
    """

    features: int
    kernel_size: Pair
    strides: Pair = (1, 1)
    padding: str | int | Sequence[int | Pair] = "SAME"
    use_bias: bool = True
    relu_pool: bool = False
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch rows columns features"]:
        """Convolves a batch of images."""
        shape = (x.shape[1], x.shape[2])
        padding = _explicit_padding(self.padding, shape, self.kernel_size, self.strides)
        if any(n + sum(p) < k for n, p, k in zip(shape, padding, self.kernel_size, strict=True)):
            raise ValueError(
                f"kernel_size={self.kernel_size}: expected at most the image {shape} with its "
                f"padding {padding}; use a smaller kernel, more padding or fewer layers."
            )
        kernel = self.param(
            "kernel", self.kernel_init, (*self.kernel_size, x.shape[-1], self.features)
        )
        bias = self.param("bias", self.bias_init, (self.features,)) if self.use_bias else None
        x, kernel, bias = promote_dtype(x, kernel, bias)
        layer = choose(x, kernel, self.strides, padding, self.relu_pool)
        if self.relu_pool:
            return layer(x, kernel, jnp.zeros(self.features, x.dtype) if bias is None else bias)
        y = layer(x, kernel)
        return y if bias is None else y + bias.reshape(1, 1, 1, -1)
