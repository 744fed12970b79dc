"""Convolution and max-pooling that stay fast where a federated simulation runs them."""

from fedjax_fair.models.conv.layer import Conv
from fedjax_fair.models.conv.pooling import max_pool

__all__ = ["Conv", "max_pool"]
