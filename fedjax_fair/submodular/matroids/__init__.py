"""Matroids: constraints that decide which sets a maximizer may return."""

from fedjax_fair.submodular.matroids.counts import Laminar, Partition, Uniform, allocation
from fedjax_fair.submodular.matroids.graphic import Graphic
from fedjax_fair.submodular.matroids.matroid import Matroid, heaviest_base
from fedjax_fair.submodular.matroids.oracle import Oracle

__all__ = [
    "Graphic",
    "Laminar",
    "Matroid",
    "Oracle",
    "Partition",
    "Uniform",
    "allocation",
    "heaviest_base",
]
