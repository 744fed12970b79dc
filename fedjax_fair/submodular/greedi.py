"""Greedy in two rounds on items that are partitioned over machines."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Key

from fedjax_fair.submodular.checked_arrays import check_key
from fedjax_fair.submodular.greedy import grow_greedily
from fedjax_fair.submodular.greedy_selection import Constraints, begin, check_function
from fedjax_fair.submodular.set_function import MaximizationResult, SetFunction
from fedjax_fair.utils import checks

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
    """Runs greedy in every part of the items, then on the union of the selected items.

    The result is the best of all these sets. For a monotone submodular function its value is at
    least ``(1 - 1/e) / min(parts, k)`` of the optimum over ``k`` items, and with random parts ``(1
    - 1/e) / 2`` in expectation. Slots stay unused only if all parts are small.

    Args:
        function: Monotone and submodular.
        k: Number of items.
        parts: Number of parts.
        key: Assigns items to random parts; by default item ``i`` is in part ``i % parts``.
        mesh: Devices that share the parts; each holds the complete function.

    Raises:
        ValueError: If there are fewer items than ``k`` or ``parts``, or ``mesh`` is no mesh.

    References:
        Mirzasoleiman, Karbasi, Sarkar, Krause, *Distributed Submodular Maximization*, NeurIPS 2013;
        Barbosa, Ene, Nguyen, Ward, *The Power of Randomization*, ICML 2015

    Examples:
        >>> from fedjax_fair.submodular import Modular
        >>> greedi(Modular([2.0, 5.0, 3.0, 4.0]), 2, parts=2).items.tolist()
        [1, 3]
    """
    checks.positive_int("k", k, at_most=check_function(function))
    checks.positive_int("parts", parts, at_most=function.size)
    if key is not None:
        check_key(key)
    if mesh is not None:
        checks.instance("mesh", mesh, Mesh, "jax.make_mesh((4,), ('devices',))")
    return _greedi(function, key, k, parts, mesh)


@partial(jax.jit, static_argnums=(2, 3, 4))
def _greedi(function, key, k, parts, mesh) -> MaximizationResult:
    size = function.size
    owners = jnp.arange(size, dtype=jnp.int32) % parts
    if key is not None:
        owners = jax.random.randint(key, (size,), 0, parts)

    def rounds(part_ids, function, owners):
        empty, _ = begin(function)

        def greedy_on(allowed):
            return grow_greedily(function, k, empty, Constraints(allowed=allowed), None)

        first = jax.lax.map(lambda part: greedy_on(owners == part), part_ids)
        if mesh is not None:
            first = jax.lax.all_gather(first, _PARTS, tiled=True)
        places = jnp.where(first.items < 0, size, first.items)  # Unused slots are dropped.
        second = greedy_on(jnp.zeros(size, bool).at[places.ravel()].set(True, mode="drop"))
        best = jax.tree.map(lambda leaf: leaf[jnp.argmax(first.value)], first)
        result = jax.tree.map(lambda a, b: jnp.where(best.value > second.value, a, b), best, second)
        evaluations = second.num_evaluations + jnp.sum(first.num_evaluations)
        return result._replace(num_evaluations=evaluations)

    if mesh is None:
        return rounds(jnp.arange(parts, dtype=jnp.int32), function, owners)
    line = Mesh(mesh.devices.ravel(), (_PARTS,))
    # The number of parts is rounded up to a multiple of the devices; the last parts are empty.
    part_ids = jnp.arange(-(-parts // line.size) * line.size, dtype=jnp.int32)
    # Loops differ in length between devices, which only communicate where they gather.
    on_devices = jax.shard_map(
        rounds,
        mesh=line,
        in_specs=(PartitionSpec(_PARTS), PartitionSpec(), PartitionSpec()),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return on_devices(part_ids, function, owners)
