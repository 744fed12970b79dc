"""Frozen dataclasses that are pytrees: the base class of roles, rounds, models and set functions.

An instance splits into children, which JAX traces, and structure, which decides what is compiled.
Two instances of equal structure share a compiled function, whatever their children are.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from fedjax_fair.printing import printed

__all__ = ["Integer", "Number", "Tree", "child_fields", "stack", "stacked_leaves"]

Number = float | Float[Array, ""]
"""A setting that only enters arithmetic. As a field it is a child: another value never recompiles,
and `stack` makes it a batch axis."""

Integer = int | Int[Array, ""]
"""An integer of this kind."""

# Not `Self`: beartype knows it only where it decorates classes, not where it decorates methods.
_Same = TypeVar("_Same", bound="Tree")

_CHILD_TYPES = ("Number", "Integer", "Array", "PyTree")
_CHILDREN = "__children__"


@dataclass_transform(frozen_default=True, eq_default=False)
class Tree:
    """A frozen dataclass and a pytree; a subclass is one without a decorator.

    A field is a child if its annotation names ``Number``, ``Integer``, an array type or ``PyTree``,
    or if its value is a registered pytree (another ``Tree``, a ``jax.tree_util.Partial``) or a
    tuple of such values. Everything else is structure and has to be hashable: sizes, strings,
    functions. None, strings, functions and a plain zero are structure under any annotation, so that
    a term with a factor of zero is not computed. A forgotten annotation therefore only recompiles.

    ``__post_init__`` checks values. It runs in the constructor, never when JAX rebuilds an
    instance, whose children may then be anything.

    Raises:
        ValueError: If a structure field is traced, an array, or not hashable; if an ``int`` field
            is no integer; or if an abstract method is not defined.

    Examples:
        >>> class Scale(Tree):
        ...     size: int
        ...     factor: Number = 1.0
        >>> Scale(3), Scale(3, factor=0.5)
        (Scale(size=3), Scale(size=3, factor=0.5))
        >>> jax.tree.leaves(Scale(3, factor=0.5))
        [0.5]
        >>> Scale(3) == Scale(3), Scale(3) == Scale(3, 0.5)
        (True, False)
    """

    if TYPE_CHECKING:  # Which a type checker knows of decorated classes alone.
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        _check_names(cls)
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        _check_when_made(cls)
        jax.tree_util.register_pytree_with_keys(
            cls, _flatten_with_keys, functools.partial(_unflatten, cls), _flatten
        )

    def replace(self: _Same, **changes: Any) -> _Same:
        """Returns a copy with other values of some fields, which is checked like a new one."""
        return dataclasses.replace(self, **changes)

    def _convert(self, **values: Any) -> None:
        """Sets fields to what their values were converted to; only for ``__post_init__``."""
        self.__dict__.update(values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, tree = jax.tree.flatten(self)
        others, other_tree = jax.tree.flatten(other)
        return tree == other_tree and all(map(_same, mine, others))

    def __hash__(self) -> int:
        return hash((type(self), jax.tree.structure(self)))

    def __copy__(self: _Same) -> _Same:
        return self

    def __deepcopy__(self: _Same, memo: Any) -> _Same:
        return self

    def __repr__(self) -> str:
        return printed(self)


def stack(trees: Sequence[Any]) -> Any:
    """Stacks instances of one structure; children that differ become arrays with a leading axis.

    A zero next to other numbers is stacked with them, so that a sweep may start at zero.

    Args:
        trees: One or more instances.

    Returns:
        An instance in which every child that differs has a leading axis ``[len(trees)]``, and one
        that is the same in all is left as it is.

    Raises:
        ValueError: If they differ in structure; it names the first field that does.

    Examples:
        >>> class Scale(Tree):
        ...     size: int
        ...     factor: Number = 1.0
        >>> stack([Scale(3, 0.0), Scale(3, 0.5)]).factor.tolist()
        [0.0, 0.5]
    """
    tree, leaves, varied = stacked_leaves(trees)
    return jax.tree.unflatten(
        tree,
        [jnp.asarray(leaf) if own else leaf for leaf, own in zip(leaves, varied, strict=True)],
    )


def stacked_leaves(trees: Sequence[Any]) -> tuple[Any, tuple[Any, ...], tuple[bool, ...]]:
    """Returns what ``stack`` makes, in parts.

    Args:
        trees: One or more instances.

    Returns:
        Structure, leaves, and which leaves are NumPy arrays with a leading axis because they differ
        between the instances.

    Raises:
        ValueError: As ``stack``.
    """
    leaves, tree = jax.tree.flatten(_stack("", list(trees)))
    values = tuple(leaf.array if isinstance(leaf, _Varied) else leaf for leaf in leaves)
    return tree, values, tuple(isinstance(leaf, _Varied) for leaf in leaves)


class _Varied:
    """Marks a leaf that differs between the stacked instances."""

    def __init__(self, array: Any) -> None:
        self.array = array


def child_fields(tree: Tree) -> tuple[str, ...]:
    """Returns the names of the fields that are children."""
    known = tree.__dict__.get(_CHILDREN)
    if known is None:
        annotated = _annotated(type(tree))
        names = (field.name for field in dataclasses.fields(tree))
        known = tuple(
            name
            for name in names
            if _is_child(tree.__dict__.get(name), annotated=name in annotated)
        )
        # Kept, because what JAX puts in place of a child need not look like one.
        tree.__dict__[_CHILDREN] = known
    return known


def _stack(place: str, values: list[Any]) -> Any:
    first = values[0]
    kinds = {type(value) for value in values}
    if isinstance(first, Tree) and len(kinds) == 1:
        names = {name for value in values for name in child_fields(value)}
        fields = dataclasses.fields(first)
        stacked = {}
        for field in fields:
            own = [getattr(value, field.name) for value in values]
            here = f"{place or type(first).__name__}.{field.name}"
            join = _stack if field.name in names else _only
            stacked[field.name] = join(here, own)
        made = object.__new__(type(first))
        made.__dict__.update(stacked)
        made.__dict__[_CHILDREN] = tuple(field.name for field in fields if field.name in names)
        return made
    if isinstance(first, tuple) and kinds == {type(first)} and len(set(map(len, values))) == 1:
        parts = [
            _stack(f"{place}[{i}]", list(own)) for i, own in enumerate(zip(*values, strict=True))
        ]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if all(map(_is_number, values)):
        if all(_same(first, value) for value in values[1:]):
            return first
        if len({np.shape(value) for value in values}) == 1:
            return _Varied(_joined(values))
    treedefs = {jax.tree.structure(value) for value in values}
    if len(treedefs) == 1 and not jax.tree_util.treedef_is_leaf(treedefs.pop()):
        return jax.tree.map(lambda *leaves: _stack(place, list(leaves)), *values)
    return _only(place, values)


def _joined(values: list[Any]) -> np.ndarray:
    """Joins scalars or arrays to one array of the type that JAX gives each of them."""
    with jax.numpy_dtype_promotion("standard"):
        kind = jnp.result_type(*(jnp.result_type(value) for value in values))
    return np.stack([np.asarray(value, kind) for value in values])


def _only(place: str, values: list[Any]) -> Any:
    for value in values[1:]:
        if type(value) is not type(values[0]) or not _same(value, values[0]):
            raise ValueError(
                f"{place}: {_in_line(values[0])} and {_in_line(value)} differ in structure and "
                "cannot be stacked; expected one value, or a field annotated as Number or an array."
            )
    return values[0]


@functools.cache
def _annotated(cls: type) -> frozenset[str]:
    """Names of the fields whose annotation makes them children."""
    kinds = {field.name: str(field.type) for field in dataclasses.fields(cls)}
    return frozenset(
        name for name, kind in kinds.items() if any(one in kind for one in _CHILD_TYPES)
    )


def _is_child(value: Any, *, annotated: bool) -> bool:
    if isinstance(value, (Tree, jax.tree_util.Partial)):
        return True
    if annotated:
        plain_zero = isinstance(value, (int, float)) and value == 0
        return not (value is None or plain_zero or isinstance(value, str) or callable(value))
    if isinstance(value, tuple):
        return bool(value) and all(
            _is_child(one, annotated=isinstance(one, (jax.Array, np.ndarray))) for one in value
        )
    builtin = isinstance(value, (list, dict)) or value is None
    return not builtin and not jax.tree_util.all_leaves([value])


def _flatten_with_keys(tree: Tree) -> tuple[list[tuple[Any, Any]], Any]:
    children, structure = _flatten(tree)
    keys = map(jax.tree_util.GetAttrKey, structure[0])
    return list(zip(keys, children, strict=True)), structure


def _flatten(tree: Tree) -> tuple[list[Any], Any]:
    names = child_fields(tree)
    values = tree.__dict__
    rest = tuple(
        (field.name, values[field.name])
        for field in dataclasses.fields(tree)
        if field.name not in names
    )
    return [values[name] for name in names], (names, rest)


def _unflatten(cls: type, structure: Any, children: Any) -> Tree:
    tree = object.__new__(cls)
    names, rest = structure
    tree.__dict__.update(zip(names, children, strict=True))
    tree.__dict__.update(rest)
    tree.__dict__[_CHILDREN] = names
    return tree


def _check_names(cls: type) -> None:
    """Checks that no field hides a method of a base class, which would be its default."""
    for name in vars(cls).get("__annotations__", {}).keys() - vars(cls).keys():
        for base in cls.__mro__[1:]:
            inherited = vars(base).get(name)
            if inspect.isfunction(inherited) or isinstance(inherited, property):
                raise ValueError(
                    f"{cls.__name__}.{name}: {base.__name__} has a method or property of this "
                    "name; expected another name for the field."
                )


def _check_when_made(cls: type) -> None:
    """Makes the constructor of a class check structure before and after its ``__post_init__``."""
    init, post_init = cls.__init__, vars(cls).get("__post_init__")

    @functools.wraps(init)
    def checked(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if not hasattr(cls, "__post_init__"):
            _check_not_traced(self)
        _check_structure(self)

    cls.__init__ = checked
    if post_init is not None:

        @functools.wraps(post_init)
        def checked_first(self):
            _check_not_traced(self)
            post_init(self)

        cls.__post_init__ = checked_first  # pyright: ignore[reportAttributeAccessIssue]


def _check_not_traced(tree: Tree) -> None:
    cls = type(tree)
    if missing := _abstract(cls):
        raise ValueError(f"{cls.__name__}: expected a method {missing[0]}, which is not defined.")
    for field in dataclasses.fields(tree):
        value = tree.__dict__.get(field.name)  # Of `init=False`, `__post_init__` sets it later.
        if isinstance(value, Tracer) and field.name not in _annotated(cls):
            raise ValueError(
                f"{cls.__name__}.{field.name} is traced, but it is structure; annotate it as "
                "Number, Integer or an array type."
            )


def _check_structure(tree: Tree) -> None:
    cls = type(tree)
    tree.__dict__.pop(_CHILDREN, None)
    children = child_fields(tree)
    for field in dataclasses.fields(tree):
        if field.name in children:
            continue
        value, name = tree.__dict__[field.name], f"{cls.__name__}.{field.name}"
        if any(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in jax.tree.leaves(value)):
            raise ValueError(
                f"{name} is an array, but it is structure; annotate it as an array type."
            )
        try:
            hash(value)
        except TypeError:
            raise ValueError(
                f"{name}={_in_line(value)}: a {type(value).__name__} can change and is not "
                "hashable; expected a tuple or another immutable value."
            ) from None
        if str(field.type) in ("int", "<class 'int'>") and isinstance(value, float):
            raise ValueError(f"{name}={value!r}: expected an integer, because it is structure.")


def _in_line(value: Any) -> str:
    return " ".join(printed(value).split())


@functools.cache
def _abstract(cls: type) -> tuple[str, ...]:
    methods = ((name, getattr(cls, name, None)) for name in dir(cls))
    return tuple(name for name, one in methods if getattr(one, "__isabstractmethod__", False))


def _is_number(value: Any) -> bool:
    kinds = (int, float, np.ndarray, np.generic, jax.Array)
    return isinstance(value, kinds) and not isinstance(value, bool)


def _same(mine: Any, other: Any) -> bool:
    if mine is other:
        return True
    if isinstance(mine, (Tracer, jax.ShapeDtypeStruct)) or isinstance(other, Tracer):
        return False
    if _is_number(mine) and _is_number(other):
        if jnp.issubdtype(jnp.result_type(mine), jax.dtypes.prng_key):
            mine, other = jax.random.key_data(mine), jax.random.key_data(other)
        return np.shape(mine) == np.shape(other) and np.array_equal(mine, other)
    return bool(mine == other)
