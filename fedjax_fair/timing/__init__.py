"""Virtual time: a clock, and how long clients take for a task."""

from fedjax_fair.timing.clock import Clock

__all__ = ["Clock"]
