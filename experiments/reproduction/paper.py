"""What the papers report: the numbers beside which ours are printed.

Castillo J., Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client Selection
in Federated Learning*, 2024, tables I to IV: mean and deviation, accuracy and dissimilarity in %.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SELECTION", "Reported"]


class Reported(NamedTuple):
    """A row of a table.

    A number that the paper does not give is None.

    Attributes:
        accuracy: Test accuracy, mean and deviation.
        dissimilarity: Client dissimilarity, mean and deviation.
        loss: Training loss, mean and deviation.
    """

    accuracy: tuple[float, float] | None = None
    dissimilarity: tuple[float, float] | None = None
    loss: tuple[float, float] | None = None


SELECTION: dict[str, dict[str, Reported]] = {
    "mnist": {
        "fedavg": Reported((82.99, 0.99), (9.16, 0.18), (0.18, 0.02)),
        "power_of_choice": Reported((82.42, 1.97), (8.59, 0.38), (0.21, 0.01)),
        "divfl": Reported((82.16, 0.91), (8.89, 0.59), (0.16, 0.02)),
        "subtrunc:lam=0.01": Reported((82.18, 0.99), (8.90, 0.63)),
        "subtrunc:lam=0.1": Reported((83.13, 1.04), (8.38, 0.56)),
        "subtrunc:lam=0.25": Reported((83.60, 0.78), (8.18, 0.55)),
        "subtrunc:lam=0.5": Reported((83.76, 0.42), (8.14, 0.34)),
        "subtrunc:lam=0.75": Reported((83.94, 0.33), (8.07, 0.41)),
        "subtrunc:lam=0.95": Reported((83.72, 0.81), (7.96, 0.62), (0.21, 0.01)),
        "unionfl:window=2": Reported((83.27, 0.54), (8.77, 0.35)),
        "unionfl:window=5": Reported((83.57, 0.34), (8.59, 0.34), (0.17, 0.01)),
        "unionfl:window=10": Reported((83.74, 0.36), (8.52, 0.18)),
        "subtrunc:lam=0.95,phi=identity": Reported((83.42, 0.12), (7.91, 0.35)),
    },
    "cifar10": {
        "fedavg": Reported((32.55, 0.94), (14.42, 0.18), (0.92, 0.01)),
        "power_of_choice": Reported((30.17, 0.65), (13.82, 0.19), (1.00, 0.01)),
        "divfl": Reported((35.40, 1.28), (12.62, 0.95), (0.88, 0.03)),
        "subtrunc:lam=0.01": Reported((35.40, 1.28), (12.62, 0.95)),
        "subtrunc:lam=0.1": Reported((35.47, 1.33), (12.58, 0.92)),
        "subtrunc:lam=0.25": Reported((35.47, 1.29), (12.47, 0.96)),
        "subtrunc:lam=0.5": Reported((35.53, 1.33), (12.46, 0.94), (0.89, 0.03)),
        "subtrunc:lam=0.75": Reported((35.55, 1.32), (12.46, 1.08)),
        "subtrunc:lam=0.95": Reported((35.50, 1.33), (12.45, 1.05)),
        "unionfl:window=2": Reported((35.62, 0.99), (12.51, 0.68)),
        "unionfl:window=5": Reported((35.63, 1.09), (12.55, 0.79), (0.88, 0.03)),
        "unionfl:window=10": Reported((35.86, 1.06), (12.56, 0.88)),
        "subtrunc:lam=0.5,phi=identity": Reported((35.29, 0.98), (11.93, 0.70)),
    },
}
"""By data set and method, the latter as ``fedjax-fair run --methods`` writes it."""
