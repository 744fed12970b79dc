"""Parts of selection: distances between gradients, and greedy on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_fair.numerics.distances import pairwise_distances, renewed_distances
from fedjax_fair.submodular import facility_location_from_distances, greedy

__all__ = ["CHOICES", "Choice"]

_WIDTH = 61_706  # Parameters of LeNet.
_COHORT = 10


class Choice(NamedTuple):
    """A part of a choice among many clients.

    Attributes:
        function: Computes it.
        shapes: Of its arguments.
    """

    function: Callable
    shapes: tuple[Any, ...]


def _greedy(distances):
    return greedy(facility_location_from_distances(distances), _COHORT)


def _choices(clients: int) -> dict[str, Choice]:
    gradients = jax.ShapeDtypeStruct((clients, _WIDTH), np.float32)
    distances = jax.ShapeDtypeStruct((clients, clients), np.float32)
    rows = jax.ShapeDtypeStruct((_COHORT,), np.int32)
    return {
        f"distances_{clients}": Choice(pairwise_distances, (gradients,)),
        f"renewed_{clients}": Choice(renewed_distances, (distances, gradients, rows)),
        f"greedy_{clients}": Choice(_greedy, (distances,)),
    }


CHOICES = {name: each for count in (100, 1000, 10_000) for name, each in _choices(count).items()}
"""All distances, new distances of ten clients, and greedy for ten clients, by number of clients."""
