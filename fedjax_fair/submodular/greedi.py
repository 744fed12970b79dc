"""Greedy in two rounds on items that are distributed over machines."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Key

from fedjax_fair import checks
from fedjax_fair.submodular.base import MaximizationResult, SetFunction
from fedjax_fair.submodular.constraints import Constraints
from fedjax_fair.submodular.greedy import grow_greedily
from fedjax_fair.submodular.selection import begin

__all__ = ["greedi"]

_PARTS = "parts"


def greedi(
    function: SetFunction,
    k: int,
    parts: int,
    *,
    key: Key[Array, ""] | None = None,
    mesh: Mesh | None = None,
) -> MaximizationResult:
    """Greedy in every part of the items, then greedy among what all parts chose.

    The result is the best of the sets of the parts and that of the second round. For a monotone
    submodular function its value is at least ``(1 - 1/e) / min(parts, k)`` of the largest that
    ``k`` items can have, and where items are drawn into parts at random at least
    ``(1 - 1/e) / 2`` in expectation. Only ``parts * k`` items are communicated.

    Args:
        function: Monotone and submodular.
        k: Items to choose.
        parts: Number of parts.
        key: Draws a part for every item; by default item ``i`` is in part ``i % parts``.
        mesh: Devices, along whatever axes, that share the parts; each of them holds the whole
            function. What is chosen is the same.

    Returns:
        The items, ``[k]``: -1, with gain 0, in places that stay empty, for which all parts have to
        be small.

    Raises:
        ValueError: If there are fewer items than ``k`` or than parts, or the mesh is none.

    References:
        Mirzasoleiman, Karbasi, Sarkar, Krause, *Distributed Submodular Maximization*, NeurIPS 2013;
        Barbosa, Ene, Nguyen, Ward, *The Power of Randomization*, ICML 2015

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> greedi(Modular(jnp.array([2.0, 5.0, 3.0, 4.0])), 2, parts=2).items.tolist()
        [1, 3]
    """
    size = function.size
    checks.positive_int("k", k, at_most=size)
    checks.positive_int("parts", parts, at_most=size)
    if mesh is not None:
        checks.instance("mesh", mesh, Mesh, "jax.make_mesh((4,), ('devices',))")
    return _greedi(function, key, k, parts, mesh)


@partial(jax.jit, static_argnums=(2, 3, 4))
def _greedi(
    function: SetFunction, key: Key[Array, ""] | None, k: int, parts: int, mesh: Mesh | None
) -> MaximizationResult:
    size = function.size
    owners = jnp.arange(size, dtype=jnp.int32) % parts
    if key is not None:
        owners = jax.random.randint(key, (size,), 0, parts)

    def rounds(numbers, function, owners):
        empty, _ = begin(function)

        def among(allowed):
            items, gains, num_evaluations = grow_greedily(
                function, k, empty, Constraints(allowed=allowed), None
            )
            return MaximizationResult(items, gains, jnp.sum(gains), num_evaluations)

        own = jax.lax.map(lambda part: among(owners == part), numbers)
        if mesh is not None:
            own = jax.lax.all_gather(own, _PARTS, tiled=True)
        # Empty places are outside of the items.
        places = jnp.where(own.items < 0, size, own.items)
        merged = among(jnp.zeros(size, bool).at[places.ravel()].set(True, mode="drop"))
        best = jax.tree.map(lambda leaf: leaf[jnp.argmax(own.value)], own)
        found = jax.tree.map(lambda a, b: jnp.where(best.value > merged.value, a, b), best, merged)
        return found._replace(num_evaluations=merged.num_evaluations + jnp.sum(own.num_evaluations))

    if mesh is None:
        return rounds(jnp.arange(parts, dtype=jnp.int32), function, owners)
    line = Mesh(mesh.devices.ravel(), (_PARTS,))
    # Devices that would be short of a part have one without items.
    numbers = jnp.arange(-(-parts // line.size) * line.size, dtype=jnp.int32)
    # Loops differ in length between devices, which only meet where they gather.
    shared = jax.shard_map(
        rounds,
        mesh=line,
        in_specs=(PartitionSpec(_PARTS), PartitionSpec(), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return shared(numbers, function, owners)
