"""Optimizers of the server, for `fedjax_fair.aggregators.WithServerOptimizer`."""

from fedjax_fair.server_optimizers.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from fedjax_fair.server_optimizers.optax_factory import Optax
from fedjax_fair.server_optimizers.server_optimizer import ServerOptimizer

__all__ = ["FedAdagrad", "FedAdam", "FedAvgM", "FedYogi", "Optax", "ServerOptimizer"]
