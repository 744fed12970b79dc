"""Local training of one client."""

from fedjax_fair.solvers.sgd import SGD

__all__ = ["SGD"]
