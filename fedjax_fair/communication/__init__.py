"""What a participant of a cohort sends, and what the server sees of it.

Communication settings are arguments of `fedjax_fair.Round`. Privacy clips what a participant sends, and adds noise
to the mean; secure aggregation hides single updates from the server; compression takes fewer
bytes. `fedjax_fair.communication.applied` says in which order.
"""

from fedjax_fair.communication.accounting import epsilon
from fedjax_fair.communication.compression import StochasticQuantization, TopK
from fedjax_fair.communication.noise import AdaptiveClipping, DifferentialPrivacy
from fedjax_fair.numerics.secure_sum import SecureAggregation

__all__ = [
    "AdaptiveClipping",
    "DifferentialPrivacy",
    "SecureAggregation",
    "StochasticQuantization",
    "TopK",
    "epsilon",
]
