"""What goes wrong with clients: they drop out, are slow or stale, Byzantine, or are not there.

Faults are given to `fedjax_fair.Round` as a list, and go with every selector, solver and
aggregator. Weights are renormalized over those who answer; states, histories and participation
record only them.
"""

from fedjax_fair.faults.availability import Diurnal, Trace
from fedjax_fair.faults.byzantine import Byzantine
from fedjax_fair.faults.dropout import Dropout
from fedjax_fair.faults.staleness import Staleness
from fedjax_fair.faults.stragglers import Stragglers

__all__ = ["Byzantine", "Diurnal", "Dropout", "Staleness", "Stragglers", "Trace"]
