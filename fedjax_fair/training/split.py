"""Rounds split into structure, which decides what is compiled, and numbers, which are arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_fair.tree import stacked_leaves

__all__ = ["Split", "Structure", "split"]


class Structure(NamedTuple):
    """What decides the compiled functions of one or several trees.

    Attributes:
        tree: Their common structure.
        varied: Which leaves differ between runs.
    """

    tree: Any
    varied: tuple[bool, ...]

    def fill(self, shared: Sequence[Any], own: Sequence[Any]) -> Any:
        """Returns the tree with these leaves.

        Args:
            shared: Leaves that are the same in all runs.
            own: The others, those of one run.
        """
        of_all, of_run = iter(shared), iter(own)
        leaves = [next(of_run if varied else of_all) for varied in self.varied]
        return jax.tree.unflatten(self.tree, leaves)


class Split(NamedTuple):
    """Trees of one structure and their numbers.

    Attributes:
        structure: Hashable; equal for equal programs.
        shared: Leaves that are the same in all runs.
        own: Leaves that differ, ``[runs, ...]``.
    """

    structure: Structure
    shared: tuple[Any, ...]
    own: tuple[np.ndarray, ...]

    @property
    def stacked(self) -> Any:
        """The tree with all leaves; those that differ have a leading axis ``[runs]``."""
        return self.structure.fill(self.shared, self.own)

    @property
    def first(self) -> Any:
        """The tree of the first run."""
        return self.structure.fill(self.shared, [leaf[0] for leaf in self.own])

    def of(self, field: str) -> Split:
        """The parts of one field of the trees, such as the models of rounds."""
        tree, varied = self.structure
        of_all, of_run = iter(self.shared), iter(self.own)
        leaves = [next(of_run if one else of_all) for one in varied]
        whole = jax.tree.unflatten(tree, range(len(leaves)))
        places, part = jax.tree.flatten(getattr(whole, field))
        return Split(
            Structure(part, tuple(varied[place] for place in places)),
            tuple(leaves[place] for place in places if not varied[place]),
            tuple(leaves[place] for place in places if varied[place]),
        )


def split(trees: Sequence[Any]) -> Split:
    """Splits one tree, or several of one structure.

    Args:
        trees: One for all runs, or one a run.

    Raises:
        ValueError: If they differ in structure.

    Examples:
        >>> from fedjax_fair import solvers
        >>> both = split([solvers.SGD(rate, 10, steps=5) for rate in (0.1, 0.2)])
        >>> both.own[0].shape, both.own[0].dtype
        ((2,), dtype('float32'))
    """
    tree, leaves, varied = stacked_leaves(trees)
    parts = list(zip(leaves, varied, strict=True))
    # On the host, because another process could not use an array of one device.
    shared = tuple(
        np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf for leaf, own in parts if not own
    )
    return Split(Structure(tree, varied), shared, tuple(leaf for leaf, own in parts if own))
