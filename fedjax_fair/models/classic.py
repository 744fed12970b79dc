"""Networks of the federated learning literature: convolutional layers, then dense layers."""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
from jaxtyping import Array, Float

from fedjax_fair.models.conv import Conv
from fedjax_fair.models.wrap import classifier
from fedjax_fair.roles import Model
from fedjax_fair.utils.checks import positive_int

__all__ = ["cifar100_cnn", "cifar_cnn", "femnist_cnn", "lenet", "logistic", "mlp"]


class _Body(nn.Module):
    """Convolutions with optional pooling, then dense layers; ReLU after each.

    Attributes:
        hidden: Widths of the dense layers.
        convolutions: Output channels of each convolution, and whether 2 x 2 max-pooling follows.
        kernel: Height and width of the kernels.
        padding: Padding of the convolutions.
        min_side: If not 0, smaller images are padded with zeros to this height and width instead.
        dropout: Dropout rate of the flattened activations in training.
    """

    hidden: tuple[int, ...] = ()
    convolutions: tuple[tuple[int, bool], ...] = ()
    kernel: int = 5
    padding: str = "VALID"
    min_side: int = 0
    dropout: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "batch ..."], train: bool) -> Float[Array, "batch width"]:
        if self.convolutions and x.ndim != 4:
            raise ValueError(
                f"x has shape {x.shape}: expected [batch, height, width, channels]; use an MLP for "
                "examples without image axes."
            )
        padding = self.padding
        if self.min_side:
            missing = [max(0, self.min_side - side) for side in x.shape[1:3]]
            padding = tuple((n // 2, n - n // 2) for n in missing)
        for channels, pool in self.convolutions:
            shape = (self.kernel, self.kernel)
            x = Conv(channels, shape, padding=padding, relu_pool=pool)(x)
            x, padding = x if pool else nn.relu(x), self.padding
        x = x.reshape(x.shape[0], -1)
        x = nn.Dropout(self.dropout, deterministic=not train)(x)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return x


def logistic(num_classes: int) -> Model:
    """Multinomial logistic regression on the flattened input, which `Model.features` returns.

    Args:
        num_classes: Number of classes.

    Examples:
        >>> import jax
        >>> x = jax.numpy.zeros((1, 28, 28, 1))
        >>> variables = jax.eval_shape(logistic(10).init, jax.random.key(0), x)
        >>> sum(leaf.size for leaf in jax.tree.leaves(variables.params))
        7850
    """
    return mlp(num_classes, hidden=())


def mlp(num_classes: int, hidden: Sequence[int] = (200, 200)) -> Model:
    """Multilayer perceptron with ReLU on the flattened input.

    Args:
        num_classes: Number of classes.
        hidden: Widths of the hidden layers.

    References:
        McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
        2017, https://arxiv.org/abs/1602.05629 (two hidden layers of 200 on MNIST).

    Examples:
        >>> mlp(10, hidden=(50,)) == mlp(10, hidden=[50]), mlp(10, hidden=()) == logistic(10)
        (True, True)
    """
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise ValueError(f"{hidden=}: expected a sequence of widths, such as (200, 200).")
    for layer, width in enumerate(hidden):
        positive_int(f"hidden[{layer}]", width)
    return classifier(_Body(tuple(hidden)), num_classes)


def lenet(num_classes: int) -> Model:
    """LeNet-5 with ReLU and max-pooling: 6 and 16 channels of 5 x 5, dense 120 and 84.

    Images smaller than 32 x 32 are padded with zeros.

    Args:
        num_classes: Number of classes.

    Returns:
        The model, for images ``[batch, height, width, channels]``. For 10 classes, 61,706
        parameters on 28 x 28 x 1 and 62,006 on 32 x 32 x 3.

    References:
        LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998.

    Examples:
        >>> import jax
        >>> model, images = lenet(10), jax.numpy.zeros((2, 28, 28, 1))
        >>> variables = jax.eval_shape(model.init, jax.random.key(0), images)
        >>> jax.eval_shape(model.features, *variables, images).shape
        (2, 84)
    """
    return classifier(_Body((120, 84), ((6, True), (16, True)), min_side=32), num_classes)


def cifar_cnn(num_classes: int = 10) -> Model:
    """The CIFAR-10 network of the Equitable-FL paper: `lenet` on images ``[batch, 32, 32, 3]``.

    The paper does not specify the dense widths; 120 and 84 are from LeNet-5.

    Examples:
        >>> cifar_cnn() == lenet(10)
        True
    """
    return lenet(num_classes)


def cifar100_cnn(num_classes: int = 100) -> Model:
    """Five 3 x 3 convolutions in the proportions of AlexNet, then a dense layer of 512.

    Channels 64, 192, 384, 256 and 256, with 2 x 2 max-pooling after the first, second and last. The
    Equitable-FL paper specifies the kinds of layers but not these channels.

    Args:
        num_classes: Number of classes.

    Returns:
        The model, for images ``[batch, 32, 32, 3]``; 4,400,548 parameters for 100 classes.

    Examples:
        >>> import jax
        >>> init, images = cifar100_cnn().init, jax.numpy.zeros((1, 32, 32, 3))
        >>> jax.eval_shape(init, jax.random.key(0), images).params["head"]["kernel"].shape
        (512, 100)
    """
    convolutions = ((64, True), (192, True), (384, False), (256, False), (256, True))
    return classifier(_Body((512,), convolutions, kernel=3, padding="SAME"), num_classes)


def femnist_cnn(num_classes: int = 62) -> Model:
    """Two 5 x 5 convolutions of 32 and 64 channels, dropout 0.2 and a dense layer of 512.

    The FEMNIST network of the Equitable-FL paper, without padding.

    Args:
        num_classes: Number of classes.

    Returns:
        The model, for images ``[batch, 28, 28, 1]``; 608,702 parameters for 62 classes.

    Examples:
        >>> import jax
        >>> init, images = femnist_cnn().init, jax.numpy.zeros((1, 28, 28, 1))
        >>> jax.eval_shape(init, jax.random.key(0), images).params["head"]["kernel"].shape
        (512, 62)
    """
    return classifier(_Body((512,), ((32, True), (64, True)), dropout=0.2), num_classes)
