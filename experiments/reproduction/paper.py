"""Values that the papers report.

Castillo J., Kaya, Ye, Hashemi, *Submodular Maximization Approaches for Equitable Client Selection
in Federated Learning*, 2024, tables I to IV: mean and deviation, accuracy and dissimilarity in %.

*Equitable Federated Learning with Activation Clustering*, table 2: accuracy of the global model
and its distance to the accuracies of clients, sigma_Acc, in %.
"""

from __future__ import annotations

__all__ = ["EQUITABLE", "SELECTION"]

Reported = tuple[float, float]


def _selection(accuracy: Reported, dissimilarity: Reported, loss: Reported | None = None):
    numbers = {"accuracy": accuracy, "dissimilarity": dissimilarity}
    return numbers if loss is None else numbers | {"loss": loss}


SELECTION: dict[str, dict[str, dict[str, Reported]]] = {
    "mnist": {
        "fedavg": _selection((82.99, 0.99), (9.16, 0.18), (0.18, 0.02)),
        "power_of_choice": _selection((82.42, 1.97), (8.59, 0.38), (0.21, 0.01)),
        "divfl": _selection((82.16, 0.91), (8.89, 0.59), (0.16, 0.02)),
        "subtrunc:lam=0.01": _selection((82.18, 0.99), (8.90, 0.63)),
        "subtrunc:lam=0.1": _selection((83.13, 1.04), (8.38, 0.56)),
        "subtrunc:lam=0.25": _selection((83.60, 0.78), (8.18, 0.55)),
        "subtrunc:lam=0.5": _selection((83.76, 0.42), (8.14, 0.34)),
        "subtrunc:lam=0.75": _selection((83.94, 0.33), (8.07, 0.41)),
        "subtrunc:lam=0.95": _selection((83.72, 0.81), (7.96, 0.62), (0.21, 0.01)),
        "unionfl:window=2": _selection((83.27, 0.54), (8.77, 0.35)),
        "unionfl:window=5": _selection((83.57, 0.34), (8.59, 0.34), (0.17, 0.01)),
        "unionfl:window=10": _selection((83.74, 0.36), (8.52, 0.18)),
        "subtrunc:lam=0.95,phi=identity": _selection((83.42, 0.12), (7.91, 0.35)),
    },
    "cifar10": {
        "fedavg": _selection((32.55, 0.94), (14.42, 0.18), (0.92, 0.01)),
        "power_of_choice": _selection((30.17, 0.65), (13.82, 0.19), (1.00, 0.01)),
        "divfl": _selection((35.40, 1.28), (12.62, 0.95), (0.88, 0.03)),
        "subtrunc:lam=0.01": _selection((35.40, 1.28), (12.62, 0.95)),
        "subtrunc:lam=0.1": _selection((35.47, 1.33), (12.58, 0.92)),
        "subtrunc:lam=0.25": _selection((35.47, 1.29), (12.47, 0.96)),
        "subtrunc:lam=0.5": _selection((35.53, 1.33), (12.46, 0.94), (0.89, 0.03)),
        "subtrunc:lam=0.75": _selection((35.55, 1.32), (12.46, 1.08)),
        "subtrunc:lam=0.95": _selection((35.50, 1.33), (12.45, 1.05)),
        "unionfl:window=2": _selection((35.62, 0.99), (12.51, 0.68)),
        "unionfl:window=5": _selection((35.63, 1.09), (12.55, 0.79), (0.88, 0.03)),
        "unionfl:window=10": _selection((35.86, 1.06), (12.56, 0.88)),
        "subtrunc:lam=0.5,phi=identity": _selection((35.29, 0.98), (11.93, 0.70)),
    },
}
"""By dataset and method, named as in ``fedjax-fair run --methods``."""


EQUITABLE: dict[str, dict[str, dict[str, Reported]]] = {
    "mnist": {
        "centralized": {"accuracy": (99.22, 0.03), "sigma": (0.17, 0.03)},
        "fedprox": {"accuracy": (96.97, 0.2), "sigma": (2.26, 0.21)},
        "clustered_by_similarity": {"accuracy": (95.38, 0.18), "sigma": (4.51, 0.23)},
        "power_of_choice": {"accuracy": (96.03, 0.33), "sigma": (3.61, 0.4)},
        "fairfed": {"accuracy": (82.10, 1.75), "sigma": (20.20, 2.12)},
        "gifair": {"accuracy": (96.98, 0.12), "sigma": (2.34, 0.13)},
        "equitable": {"accuracy": (97.75, 0.2), "sigma": (1.17, 0.25)},
    },
    "cifar10": {
        "centralized": {"accuracy": (58.74, 0.75), "sigma": (7.18, 0.28)},
        "fedprox": {"accuracy": (47.36, 0.5), "sigma": (18.01, 0.68)},
        "clustered_by_similarity": {"accuracy": (47.17, 0.8), "sigma": (25.52, 0.38)},
        "power_of_choice": {"accuracy": (47.08, 0.5), "sigma": (22.04, 0.68)},
        "fairfed": {"accuracy": (44.74, 0.84), "sigma": (33.52, 3.01)},
        "gifair": {"accuracy": (47.41, 0.83), "sigma": (18.88, 0.98)},
        "equitable": {"accuracy": (49.74, 0.56), "sigma": (6.07, 0.31)},
    },
    "cifar100": {
        "centralized": {"accuracy": (47.01, 0.18), "sigma": (2.27, 0.16)},
        "fedprox": {"accuracy": (33.04, 0.14), "sigma": (13.90, 0.43)},
        "clustered_by_similarity": {"accuracy": (32.66, 0.13), "sigma": (15.37, 0.21)},
        "power_of_choice": {"accuracy": (33.07, 0.41), "sigma": (14.50, 0.22)},
        "fairfed": {"accuracy": (26.79, 1.63), "sigma": (17.57, 1.8)},
        "gifair": {"accuracy": (33.26, 0.43), "sigma": (14.28, 0.48)},
        "equitable": {"accuracy": (33.34, 0.1), "sigma": (10.57, 0.13)},
    },
    "femnist": {
        "centralized": {"accuracy": (91.18, 0.015), "sigma": (11.70, 0.08)},
        "fedprox": {"accuracy": (74.18, 0.12), "sigma": (22.99, 0.08)},
        "clustered_by_similarity": {"accuracy": (76.12, 0.01), "sigma": (21.37, 0.13)},
        "power_of_choice": {"accuracy": (74.34, 0.14), "sigma": (22.80, 0.13)},
        "fairfed": {"accuracy": (54.41, 0.61), "sigma": (41.56, 1.05)},
        "gifair": {"accuracy": (74.13, 0.12), "sigma": (22.96, 0.25)},
        "equitable": {"accuracy": (75.54, 0.25), "sigma": (16.21, 0.04)},
    },
}
"""By setting and method, without settings of the method."""
