"""How updates are weighed."""

from fedjax_fair.aggregators.equitable import equitable
from fedjax_fair.aggregators.fairfed import fairfed
from fedjax_fair.aggregators.fltrust import fltrust
from fedjax_fair.aggregators.gifair import gifair
from fedjax_fair.aggregators.mean import mean
from fedjax_fair.aggregators.q_fedavg import q_fedavg
from fedjax_fair.aggregators.robust import (
    centered_clipping,
    geometric_median,
    krum,
    median,
    norm_clipping,
    trimmed_mean,
)
from fedjax_fair.aggregators.tilted import tilted

__all__ = [
    "centered_clipping",
    "equitable",
    "fairfed",
    "fltrust",
    "geometric_median",
    "gifair",
    "krum",
    "mean",
    "median",
    "norm_clipping",
    "q_fedavg",
    "tilted",
    "trimmed_mean",
]
