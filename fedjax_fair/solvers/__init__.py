"""What a client does locally."""

from fedjax_fair.solvers.sgd import SGD

__all__ = ["SGD"]
