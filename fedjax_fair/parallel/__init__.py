"""Devices, cores and processes that runs and clients are divided over."""

from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import client_mesh
from fedjax_fair.parallel.processes import initialize

__all__ = ["client_mesh", "core_mesh", "initialize"]
