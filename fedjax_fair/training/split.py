"""Splits rounds into structure, which decides what is compiled, and hyperparameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_fair.utils.tree import stacked_leaves

__all__ = ["Split", "Structure", "split"]


class Structure(NamedTuple):
    """The hashable part of one or several trees, which compiled functions depend on.

    Attributes:
        treedef: Their common structure.
        varies: Whether each leaf differs between runs.
    """

    treedef: Any
    varies: tuple[bool, ...]

    def fill(self, shared: Sequence[Any], per_run: Sequence[Any]) -> Any:
        """Returns the tree with the given leaves, which are as in `Split`."""
        return jax.tree.unflatten(self.treedef, self._merge(shared, per_run))

    def _merge(self, shared: Sequence[Any], per_run: Sequence[Any]) -> list[Any]:
        shared_leaves, run_leaves = iter(shared), iter(per_run)
        return [next(run_leaves if varies else shared_leaves) for varies in self.varies]


class Split(NamedTuple):
    """Trees of one structure, and their leaves.

    Attributes:
        structure: Equal for trees that share compiled functions.
        shared: Leaves that are equal in all runs.
        per_run: Leaves that differ, ``[runs, ...]``.
    """

    structure: Structure
    shared: tuple[Any, ...]
    per_run: tuple[np.ndarray, ...]

    @property
    def stacked(self) -> Any:
        """The tree with all leaves; those in ``per_run`` have a leading axis ``[runs]``."""
        return self.structure.fill(self.shared, self.per_run)

    @property
    def first(self) -> Any:
        """The tree of the first run."""
        return self.structure.fill(self.shared, [leaf[0] for leaf in self.per_run])

    def field(self, name: str) -> Split:
        """Returns the split of one field of the trees, such as the models of rounds."""
        treedef, varies = self.structure
        leaves = self.structure._merge(self.shared, self.per_run)
        indices, field_def = jax.tree.flatten(
            getattr(jax.tree.unflatten(treedef, range(len(leaves))), name)
        )
        return Split(
            Structure(field_def, tuple(varies[i] for i in indices)),
            tuple(leaves[i] for i in indices if not varies[i]),
            tuple(leaves[i] for i in indices if varies[i]),
        )


def split(trees: Sequence[Any]) -> Split:
    """Splits one tree for all runs, or the tree of each run.

    Raises:
        ValueError: If the trees differ in structure.

    Examples:
        >>> from fedjax_fair import solvers
        >>> both = split([solvers.SGD(rate, 10, steps=5) for rate in (0.1, 0.2)])
        >>> both.per_run[0].shape, both.per_run[0].dtype
        ((2,), dtype('float32'))
    """
    treedef, leaves, varies = stacked_leaves(trees)
    pairs = list(zip(leaves, varies, strict=True))
    # On the host, because another process could not use an array of one device.
    shared = tuple(
        np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf
        for leaf, differs in pairs
        if not differs
    )
    return Split(
        Structure(treedef, varies), shared, tuple(leaf for leaf, differs in pairs if differs)
    )
