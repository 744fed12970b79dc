"""Networks as pure functions, and layers that are fast inside a simulation."""

from fedjax_fair.models.classic import cifar100_cnn, cifar_cnn, femnist_cnn, lenet, logistic, mlp
from fedjax_fair.models.conv import Conv, max_pool
from fedjax_fair.models.frozen import freeze
from fedjax_fair.models.lora import lora
from fedjax_fair.models.resnet import resnet18
from fedjax_fair.models.tasks import as_multi_label, as_regression
from fedjax_fair.models.text import char_lstm, char_transformer
from fedjax_fair.models.wrap import from_flax
from fedjax_fair.models.wrappers import in_bfloat16, pretrained

__all__ = [
    "Conv",
    "as_multi_label",
    "as_regression",
    "char_lstm",
    "char_transformer",
    "cifar100_cnn",
    "cifar_cnn",
    "femnist_cnn",
    "freeze",
    "from_flax",
    "in_bfloat16",
    "lenet",
    "logistic",
    "lora",
    "max_pool",
    "mlp",
    "pretrained",
    "resnet18",
]
