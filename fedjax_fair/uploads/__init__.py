"""What a member of a cohort sends, and what the server sees of it.

Uploads are settings of `fedjax_fair.make_round`: secure aggregation hides single updates from the
server.
"""

from fedjax_fair.uploads.secure import secure

__all__ = ["secure"]
