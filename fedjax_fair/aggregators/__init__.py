"""How updates are weighed."""

from fedjax_fair.aggregators.mean import mean, weighted_mean

__all__ = ["mean", "weighted_mean"]
