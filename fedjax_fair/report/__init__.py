"""Pictures of results."""

from fedjax_fair.report.plots import accuracy_distribution, learning_curves, partition

__all__ = ["accuracy_distribution", "learning_curves", "partition"]
