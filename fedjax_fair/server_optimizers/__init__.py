"""Optimizers of the server, for `fedjax_fair.aggregators.WithServerOptimizer`."""

from fedjax_fair.server_optimizers.fedopt import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    Optax,
    ServerOptimizer,
)

__all__ = ["FedAdagrad", "FedAdam", "FedAvgM", "FedYogi", "Optax", "ServerOptimizer"]
