"""Failures of clients: dropout, slow, stale, unavailable and Byzantine clients.

They combine with all roles of a `fedjax_fair.Round`. Weights are renormalized over the responding
clients, and states, histories and participation record only these.
"""

from fedjax_fair.faults.availability import Diurnal, Trace
from fedjax_fair.faults.byzantine import Byzantine
from fedjax_fair.faults.dropout import Dropout
from fedjax_fair.faults.stragglers import Staleness, Stragglers

__all__ = ["Byzantine", "Diurnal", "Dropout", "Staleness", "Stragglers", "Trace"]
