"""Virtual time: a clock, and how long clients take for a task."""

from fedjax_fair.timing.client_times import ClientTimes, lognormal
from fedjax_fair.timing.clock import Clock
from fedjax_fair.timing.online import Online, online_from_table
from fedjax_fair.timing.table import from_table

__all__ = ["ClientTimes", "Clock", "Online", "from_table", "lognormal", "online_from_table"]
