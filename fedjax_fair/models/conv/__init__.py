"""Convolution and max-pooling that are fast inside a federated simulation."""

from fedjax_fair.models.conv.layer import Conv
from fedjax_fair.models.conv.pooling import max_pool

__all__ = ["Conv", "max_pool"]
