"""Parts of trees of arrays, chosen by paths."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jaxtyping import PyTree

__all__ = [
    "Chosen",
    "check_patterns",
    "insert_part",
    "is_chosen",
    "layers_of",
    "name_of",
    "names_of",
    "part_of",
]

Chosen = Sequence[str] | Callable[[str, Any], bool]
"""Regular expressions of paths, or a function of path and array."""

_MAX_LAYERS = 10


def names_of(tree: PyTree) -> list[str]:
    """Returns the path of each array, its keys joined by ``/``.

    Examples:
        >>> names_of({"body": {"kernel": 1.0}, "heads": [2.0, 3.0]})
        ['body/kernel', 'heads/0', 'heads/1']
    """
    return [name_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def layers_of(names: Sequence[str]) -> str:
    """Lists the layers of paths for messages, or paths that are in none, at most ten."""
    layers = list(dict.fromkeys(name.rpartition("/")[0] or name for name in names))
    return ", ".join(layers[:_MAX_LAYERS]) + (", ..." if len(layers) > _MAX_LAYERS else "")


def is_chosen(chosen: Chosen, name: str, leaf: Any) -> bool:
    """Returns whether an array belongs to a part.

    An expression matches a whole path, or its beginning up to a ``/``.

    Raises:
        ValueError: If a function returns no bool.

    Examples:
        >>> [is_chosen(("head", ".*/bias"), name, None) for name in ("head/kernel", "head2/kernel")]
        [True, False]
    """
    if not callable(chosen):
        return any(re.fullmatch(f"(?:{one})(?:/.*)?", name) for one in chosen)
    answer = chosen(name, leaf)
    if not isinstance(answer, bool):
        raise ValueError(
            f"{getattr(chosen, '__name__', 'function')}({name!r}, ...) returned "
            f"{type(answer).__name__}: expected a bool; return True or False."
        )
    return answer


def check_patterns(argument: str, chosen: Any, names: Sequence[str] | None = None) -> Any:
    """Checks expressions, and that each matches one of ``names`` if they are known.

    Returns:
        A tuple of expressions, or the function.

    Raises:
        ValueError: If it is neither, or an expression is invalid or matches nothing.
    """
    if callable(chosen):
        return chosen
    if not isinstance(chosen, (tuple, list)) or not all(isinstance(one, str) for one in chosen):
        example = (chosen,) if isinstance(chosen, str) else ("head",)
        raise ValueError(
            f"{argument}={chosen!r}: expected expressions such as {example!r}, or a function of "
            "path and array."
        )
    for one in chosen:
        try:
            re.compile(one)
        except re.error as error:
            raise ValueError(
                f"{argument}={one!r}: expected a regular expression, but {error}; escape special "
                "characters."
            ) from None
        if names is not None and not any(is_chosen((one,), name, None) for name in names):
            raise ValueError(
                f"{argument}={one!r} matches no parameter; expected some of {layers_of(names)}."
            )
    return tuple(chosen)


def part_of(tree: PyTree, mask: PyTree) -> Any:
    """Returns the arrays whose ``mask`` is true, as nested dicts by their keys.

    Examples:
        >>> part_of({"a": 1.0, "b": [2.0, 3.0]}, {"a": False, "b": [False, True]})
        {'b': {1: 3.0}}
    """
    part: dict[Any, Any] = {}
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    for (path, leaf), is_part in zip(leaves, jax.tree.leaves(mask), strict=True):
        if is_part and not path:  # The tree is a single array.
            return leaf
        if is_part:
            node = part
            for key in path[:-1]:
                node = node.setdefault(_key(key), {})
            node[_key(path[-1])] = leaf
    return part


def insert_part(tree: PyTree, part: Any) -> PyTree:
    """Puts a part back into a tree that has None, or no entry of a dict, in its place.

    Examples:
        >>> insert_part({"a": 1.0, "b": [2.0, None]}, {"b": {1: 3.0}, "c": 4.0})
        {'a': 1.0, 'b': [2.0, 3.0], 'c': 4.0}
    """
    if tree is None:
        return part
    if type(tree) is dict:
        inserted = {key: insert_part(tree[key], part[key]) for key in part if key in tree}
        return {**tree, **part, **inserted}

    def filled(path: Any, leaf: Any) -> Any:
        return _find(part, path) if leaf is None else leaf

    return jax.tree_util.tree_map_with_path(filled, tree, is_leaf=lambda leaf: leaf is None)


def _find(part: Any, path: Any) -> Any:
    for key in path:
        part = part.get(_key(key)) if isinstance(part, dict) else None
    return part


def _key(key: Any) -> Any:
    """Returns the key of a dict, the index of a sequence or the name of a field."""
    return next(getattr(key, name) for name in ("key", "idx", "name") if hasattr(key, name))


def name_of(path: Any) -> str:
    """Returns the keys of a path, joined by ``/``."""
    return "/".join(jax.tree_util.keystr((key,), simple=True) for key in path)
