"""What a member of a cohort sends, and what the server sees of it.

Uploads are settings of `fedjax_fair.make_round`. Privacy clips what a member sends, and adds noise
to the mean; secure aggregation hides single updates from the server; compression takes fewer
bytes. `fedjax_fair.uploads.applied` says in which order.
"""

from fedjax_fair.uploads.accounting import epsilon
from fedjax_fair.uploads.compression import quantized, top_k
from fedjax_fair.uploads.noise import adaptive_privacy, privacy
from fedjax_fair.uploads.secure import secure

__all__ = ["adaptive_privacy", "epsilon", "privacy", "quantized", "secure", "top_k"]
