"""Ranges of the settings of methods that a benchmark tunes in addition to the learning rate.

They contain the default of the setting and the grids of the papers, and exclude zero, which would
change what is compiled. Settings are named as on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedjax_fair.app.settings.method import Range

__all__ = ["RANGES"]

# Half-decades from 10^-2.5 to 10 (Reddi et al., 2021, arXiv:2003.00295), for all four optimizers.
_SERVER_RATES = Range(0.003, 10.0)

RANGES: Mapping[str, Mapping[str, Range]] = {
    "subtrunc": {"lam": Range(0.05, 5.0)},
    "unionfl": {"mu": Range(0.1, 10.0)},
    "agnostic": {"mixture_learning_rate": Range(0.001, 1.0)},
    "drfa": {"mixture_learning_rate": Range(0.001, 1.0)},
    "oort": {"exploration": Range(0.3, 0.95, "linear")},
    "fedcor": {"annealing": Range(0.5, 0.99, "linear")},
    "gifair": {"aggregator.strength": Range(0.1, 0.9, "linear")},
    # The grid of q-FFL (Li et al., 2020, arXiv:1905.10497).
    "q_fedavg": {"q": Range(0.001, 15.0)},
    # The grid of TERM (Li et al., 2021, arXiv:2007.01162), with 0.01 for images of ten classes.
    "tilted": {"tilt": Range(0.01, 10.0)},
    "propfair": {"baseline": Range(2.0, 5.0, "linear")},
    "adafed": {"gamma": Range(0.01, 5.0)},
    "fedmgda": {"epsilon": Range(0.01, 1.0)},
    "fedfv": {"keep_fraction": Range(0.1, 0.67, "linear")},
    "fedfa": {"beta": Range(0.1, 0.9, "linear")},
    "fairfed": {"beta": Range(0.01, 5.0)},
    "fedfb": {"aggregator.alpha": Range(0.001, 2.0)},
    "fedminmax": {"step_size": Range(0.001, 1.0)},
    "group_penalty": {"solver.strength": Range(0.1, 10.0)},
    "fedavgm": {"server_learning_rate": _SERVER_RATES, "beta1": Range(0.5, 0.97, "linear")},
    "fedadagrad": {"server_learning_rate": _SERVER_RATES, "tau": Range(1e-5, 0.1)},
    "fedadam": {"server_learning_rate": _SERVER_RATES, "tau": Range(1e-5, 0.1)},
    "fedyogi": {"server_learning_rate": _SERVER_RATES, "tau": Range(1e-5, 0.1)},
    "fedprox": {"prox": Range(0.001, 1.0)},
    "feddyn": {"solver.alpha": Range(0.001, 0.1)},
    "mime_lite": {"beta": Range(0.5, 0.99, "linear")},
    "ditto": {"personal_prox": Range(0.05, 2.0)},
    "per_fedavg": {"inner_learning_rate": Range(0.001, 0.1)},
    "pfedme": {"personal_prox": Range(5.0, 30.0), "inner_learning_rate": Range(0.005, 0.1)},
    "apfl": {"mixing_weight": Range(0.1, 0.9, "linear")},
    "trimmed_mean": {"trim": Range(0.05, 0.4, "linear")},
    "norm_clipping": {"bound": Range(0.1, 10.0)},
    "centered_clipping": {"bound": Range(0.1, 10.0)},
}
"""Ranges by method and setting."""
