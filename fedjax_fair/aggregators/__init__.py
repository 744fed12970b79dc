"""How updates are weighed."""

from fedjax_fair.aggregators.mean import mean

__all__ = ["mean"]
