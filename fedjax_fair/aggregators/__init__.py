"""Fair and robust aggregation of updates."""

from fedjax_fair.aggregators.equitable import Equitable
from fedjax_fair.aggregators.fairfed import FairFed
from fedjax_fair.aggregators.fltrust import FLTrust
from fedjax_fair.aggregators.gifair import GIFAIR
from fedjax_fair.aggregators.mean import Mean
from fedjax_fair.aggregators.q_fedavg import QFedAvg
from fedjax_fair.aggregators.robust import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    Median,
    NormClipping,
    TrimmedMean,
)
from fedjax_fair.aggregators.tilted import Tilted

__all__ = [
    "GIFAIR",
    "CenteredClipping",
    "Equitable",
    "FLTrust",
    "FairFed",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "NormClipping",
    "QFedAvg",
    "Tilted",
    "TrimmedMean",
]
