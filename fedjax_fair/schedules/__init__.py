"""Rounds in virtual time: which results arrive, when, and from which models."""

from fedjax_fair.schedules.asynchronous import Asynchronous
from fedjax_fair.schedules.schedule import Schedule
from fedjax_fair.schedules.synchronous import Synchronous

__all__ = ["Asynchronous", "Schedule", "Synchronous"]
