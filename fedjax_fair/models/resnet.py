"""ResNet-18 for small images (He et al., 2015, arXiv:1512.03385)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_fair.models.conv import Conv
from fedjax_fair.models.wrap import classifier
from fedjax_fair.roles import Model
from fedjax_fair.utils.checks import one_of

__all__ = ["resnet18"]

_conv = partial(Conv, use_bias=False, kernel_init=nn.initializers.he_normal())


class _Block(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is projected if the shape changes."""

    channels: int
    stride: int
    norm: Callable[..., nn.Module]

    @nn.compact
    def __call__(self, x: Array) -> Array:
        strides = (self.stride, self.stride)
        y = nn.relu(self.norm()(_conv(self.channels, (3, 3), strides, padding=1)(x)))
        y = self.norm()(_conv(self.channels, (3, 3), padding=1)(y))
        if x.shape != y.shape:
            x = self.norm()(_conv(self.channels, (1, 1), strides, padding=0)(x))
        return nn.relu(x + y)


class _ResNet18(nn.Module):
    norm: str

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch height width channels"], train: bool
    ) -> Float[Array, "batch 512"]:
        norm = {
            "group": partial(nn.GroupNorm, num_groups=2),
            "batch": partial(nn.BatchNorm, use_running_average=not train, momentum=0.9),
        }[self.norm]
        x = nn.relu(norm()(_conv(64, (3, 3), padding=1)(x)))
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            x = _Block(channels, stride, norm)(x)
            x = _Block(channels, 1, norm)(x)
        return x.mean(axis=(1, 2))


def resnet18(num_classes: int, norm: Literal["group", "batch"] = "group") -> Model:
    """ResNet-18 with a 3 x 3 stem of stride 1 without pooling, as usual for 32 x 32 images.

    `Model.features` are the 512 channels after global average pooling.

    Args:
        num_classes: Number of classes.
        norm: "group" for group normalization with two groups, which has no state; "batch" for batch
            normalization, whose running statistics the server averages.

    Returns:
        The model, for images ``[batch, height, width, channels]``.

    References:
        He et al., Deep Residual Learning for Image Recognition, 2015,
        https://arxiv.org/abs/1512.03385. Wu and He, Group Normalization, 2018,
        https://arxiv.org/abs/1803.08494.

    Examples:
        >>> import jax
        >>> images = jax.numpy.zeros((1, 32, 32, 3))
        >>> variables = jax.eval_shape(resnet18(10).init, jax.random.key(0), images)
        >>> sum(leaf.size for leaf in jax.tree.leaves(variables.params))
        11173962
    """
    one_of("norm", norm, ("group", "batch"))
    return classifier(_ResNet18(norm), num_classes)
