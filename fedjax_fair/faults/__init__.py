"""What goes wrong with clients: they drop out, are slow or late, lie, or are not there.

Faults are given to `fedjax_fair.make_round` as a list, and go with every selector, solver and
aggregator. Weights are renormalized over those who answer; states, histories and participation
record only them.
"""

from fedjax_fair.faults.availability import diurnal, trace
from fedjax_fair.faults.byzantine import byzantine
from fedjax_fair.faults.dropout import dropout
from fedjax_fair.faults.late import late
from fedjax_fair.faults.stragglers import stragglers

__all__ = ["byzantine", "diurnal", "dropout", "late", "stragglers", "trace"]
