"""What a participant of a cohort sends, and what the server sees of it.

Uploads are settings of `fedjax_fair.Round`. Privacy clips what a participant sends, and adds noise
to the mean; secure aggregation hides single updates from the server; compression takes fewer
bytes. `fedjax_fair.uploads.applied` says in which order.
"""

from fedjax_fair.numerics.secure_sum import Secure
from fedjax_fair.uploads.accounting import epsilon
from fedjax_fair.uploads.compression import Quantized, TopK
from fedjax_fair.uploads.noise import AdaptivePrivacy, Privacy

__all__ = ["AdaptivePrivacy", "Privacy", "Quantized", "Secure", "TopK", "epsilon"]
