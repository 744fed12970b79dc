"""What a client does locally."""

from fedjax_fair.solvers.sgd import sgd

__all__ = ["sgd"]
