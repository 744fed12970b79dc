"""The networks that all programs train, as ours."""

import flax.linen as nn

import fedjax_fair as ff
from fedjax_fair.models import Conv, from_flax

__all__ = ["CHARACTERS", "NETWORKS"]

CHARACTERS = 79
"""Different characters of Shakespeare's plays."""


class _Cnn(nn.Module):
    """The network of pfl's CIFAR-10 benchmark."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.relu(Conv(32, (3, 3), padding="VALID")(x))
        x = Conv(64, (3, 3), padding="VALID", relu_pool=True)(x)
        x = nn.Dropout(0.25, deterministic=not train)(x)
        x = nn.relu(nn.Dense(128)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(nn.Dropout(0.5, deterministic=not train)(x))


NETWORKS = {
    "lenet": lambda: ff.models.lenet(10),
    "cnn": lambda: from_flax(_Cnn()),
    "resnet18": lambda: ff.models.resnet18(10),
    "char_lstm": lambda: ff.models.char_lstm(CHARACTERS, width=128, layers=1),
}
