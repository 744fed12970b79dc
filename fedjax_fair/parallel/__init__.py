"""Devices, cores and processes: where clients are computed and what crosses between them."""

from fedjax_fair.parallel.cores import core_mesh
from fedjax_fair.parallel.mesh import client_mesh
from fedjax_fair.parallel.processes import initialize

__all__ = ["client_mesh", "core_mesh", "initialize"]
