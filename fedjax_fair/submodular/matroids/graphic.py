"""The graphic matroid: sets of edges without a cycle."""

from __future__ import annotations

from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.submodular.checked_arrays import as_host
from fedjax_fair.submodular.matroids.matroid import Matroid, check_rank, take_by_weight

__all__ = ["Graphic"]


class Graphic(Matroid):
    """Sets of edges without a cycle; a base is a spanning forest.

    Args:
        edges: Both ends of each edge, ``[n, 2]``, as vertices from 0; loops and parallel edges are
            allowed.

    Raises:
        ValueError: If the shape differs, an end is negative, or all edges are loops.

    Examples:
        >>> Graphic([[0, 1], [1, 2], [2, 0]]).rank
        2
    """

    edges: Int[Array, "size 2"] | Int[np.ndarray, "size 2"]
    _num_vertices: int = field(init=False, repr=False)
    _rank: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        ends = as_host("edges", self.edges)
        if ends.ndim != 2 or ends.shape[1:] != (2,) or not np.issubdtype(ends.dtype, np.integer):
            raise ValueError(
                f"edges: expected integers of shape [n, 2], got {ends.dtype}{ends.shape}; pass a "
                "pair of vertices per edge."
            )
        if ends.size and ends.min() < 0:
            raise ValueError(
                f"edges: expected ends >= 0, got {ends.min()}; number vertices from 0."
            )
        check_rank(int((ends[:, 0] != ends[:, 1]).sum()))
        # Numbers of vertices may have gaps, for which there is no need of memory.
        vertices, ends = np.unique(ends, return_inverse=True)
        ends, num_vertices = ends.reshape(-1, 2).astype(np.int32), vertices.size
        rank = _forest_size(ends, num_vertices)
        self._convert(edges=ends, _num_vertices=num_vertices, _rank=rank)

    @property
    def size(self) -> int:
        return self.edges.shape[-2]

    # The state of a set is the component of each vertex.
    @property
    def _empty(self) -> Int[Array, " vertices"]:
        return jnp.arange(self._num_vertices, dtype=jnp.int32)

    def _join(self, component: Array, item: Array) -> tuple[Array, Array]:
        """Adds an edge, and returns whether it closes no cycle."""
        first, second = jnp.asarray(self.edges).T
        one, other = component[first[item]], component[second[item]]
        return jnp.where(component == other, one, component), one != other

    def _components(self, mask: Array) -> tuple[Array, Array]:
        """Returns the component of each vertex, and whether each edge closes no cycle."""

        def step(component, item):
            joined, free = self._join(component, item)
            return jnp.where(mask[item], joined, component), free | ~mask[item]

        return jax.lax.scan(step, self._empty, jnp.arange(self.size, dtype=jnp.int32))

    def independent(self, mask: Bool[Array, " size"]) -> Bool[Array, ""]:
        return self._components(mask)[1].all()

    def feasible_items(self, mask: Bool[Array, " size"]) -> Bool[Array, " size"]:
        component, _ = self._components(mask)
        first, second = jnp.asarray(self.edges).T
        return ~mask & (component[first] != component[second])

    def max_weight_base(self, weights: Float[Array, " size"]) -> Bool[Array, " size"]:
        return take_by_weight(self._empty, self._join, weights)


def _forest_size(ends: Int[np.ndarray, "n 2"], num_vertices: int) -> int:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    edges = coo_array((np.ones(len(ends), bool), ends.T), shape=(num_vertices, num_vertices))
    return num_vertices - connected_components(edges, directed=False, return_labels=False)
