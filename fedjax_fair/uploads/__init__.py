"""What a member of a cohort sends, and what the server sees of it.

Uploads are settings of `fedjax_fair.make_round`. Privacy clips what a member sends, and adds noise
to the mean; secure aggregation hides single updates from the server.
"""

from fedjax_fair.uploads.accounting import epsilon
from fedjax_fair.uploads.privacy import adaptive_privacy, privacy
from fedjax_fair.uploads.secure import secure

__all__ = ["adaptive_privacy", "epsilon", "privacy", "secure"]
