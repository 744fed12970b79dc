"""Communication of updates: differential privacy, secure aggregation and compression.

They are settings of `fedjax_fair.Round`. `PrivacyMechanism` and `Compression` are the interfaces of
custom ones. `fedjax_fair.communication.pipeline` describes the order in which they are applied.
"""

from fedjax_fair.communication.accounting import epsilon
from fedjax_fair.communication.compression import Compression, StochasticQuantization, TopK
from fedjax_fair.communication.differential_privacy import (
    AdaptiveClipping,
    DifferentialPrivacy,
    PrivacyMechanism,
)
from fedjax_fair.numerics.secure_sum import SecureAggregation

__all__ = [
    "AdaptiveClipping",
    "Compression",
    "DifferentialPrivacy",
    "PrivacyMechanism",
    "SecureAggregation",
    "StochasticQuantization",
    "TopK",
    "epsilon",
]
