"""Frozen dataclasses that are pytrees: the base class of roles, rounds, models and set functions.

JAX traces the children of an instance. The rest is structure; instances of equal structure share a
compiled function.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from fedjax_fair.utils import checks
from fedjax_fair.utils.printing import format_value

__all__ = ["Integer", "Number", "Tree", "child_fields", "setting", "stacked_leaves"]

Number = float | Float[Array, ""]
"""A scalar that only enters arithmetic. Such a field is a child: new values never recompile, and
`stacked_leaves` makes it a batch axis."""

Integer = int | Int[Array, ""]
"""An integer that only enters arithmetic."""

# Not `Self`, which beartype supports for decorated classes only, not for decorated methods.
_Same = TypeVar("_Same", bound="Tree")

# A field is a child by the text of its annotation. An `int` determines shapes in nearly all roles,
# so it needs no mark; a forgotten annotation only causes another compilation, where Equinox, which
# traces every field that is not marked as static, raises an error.
_CHILD_TYPES = ("Number", "Integer", "Array", "PyTree")
_CHILDREN = "__children__"


def setting(
    check: Callable[..., Any],
    *arguments: Any,
    default: Any = dataclasses.MISSING,
    **options: Any,
) -> Any:
    """Declares a field of a `Tree` whose value the constructor checks, before ``__post_init__``.

    Args:
        check: A function such as those of `utils.checks`, called with the name of the field, its
            value, and the arguments and options. The field is set to what it returns, if anything.
        *arguments: Further arguments of the check.
        default: The default value, if there is one. None passes where it is the default.
        **options: Further options of the check.

    Examples:
        >>> class Scale(Tree):
        ...     factor: Number = setting(checks.positive, default=1.0)
        >>> Scale(factor=-1)
        Traceback (most recent call last):
        ValueError: factor=-1: expected a number > 0.
    """
    return dataclasses.field(default=default, metadata={_CHECK: (check, arguments, options)})


_CHECK = "check"


# `flax.struct` and `register_dataclass` call the constructor when JAX rebuilds an instance, so that
# its checks would see tracers and stacked arrays, and `stack`, `vmap` and `eval_shape` would fail.
# Equinox does not, but is another dependency and takes 0.2 s to import.
@dataclass_transform(
    frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field, setting)
)
class Tree:
    """Base class that makes subclasses frozen dataclasses and pytrees, without a decorator.

    A field is a child if its annotation names ``Number``, ``Integer``, an array type or ``PyTree``,
    or if its value is a registered pytree (another ``Tree``, a ``jax.tree_util.Partial``) or a
    tuple of such values. Everything else is structure and has to be hashable. None, strings,
    functions and a plain zero are structure under any annotation, so that a term with a factor of
    zero is not computed. A missing annotation therefore only recompiles.

    The constructor checks fields that are annotated as ``Literal`` or declared by `setting`, and
    calls ``__post_init__``. None of this happens when JAX rebuilds an instance, whose children can
    be any objects.

    Raises:
        ValueError: If a structure field is traced, an array, or not hashable; if an ``int`` field
            is not an integer; if a value is not valid; or if an abstract method is not defined.

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

    if TYPE_CHECKING:  # Type checkers add this to decorated classes only.
        __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        _check_names(cls)
        dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
        _wrap_constructor(cls)
        jax.tree_util.register_pytree_with_keys(
            cls, _flatten_with_keys, functools.partial(_unflatten, cls), _flatten
        )

    def replace(self: _Same, **changes: Any) -> _Same:
        """Returns a copy with new values of some fields, checked by ``__post_init__``."""
        return dataclasses.replace(self, **changes)

    def _convert(self, **values: Any) -> None:
        """Sets fields to converted values; only for ``__post_init__``."""
        self.__dict__.update(values)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        mine, tree = jax.tree.flatten(self)
        others, other_tree = jax.tree.flatten(other)
        return tree == other_tree and all(map(_equal, mine, others))

    def __hash__(self) -> int:
        return hash((type(self), jax.tree.structure(self)))

    def __repr__(self) -> str:
        return format_value(self)


def stacked_leaves(trees: Sequence[Any]) -> tuple[Any, tuple[Any, ...], tuple[bool, ...]]:
    """Stacks one or more instances of equal structure.

    A zero is stacked with other scalars, although it is structure, so that a sweep may start at
    zero.

    Returns:
        The structure; the leaves, of which those that differ are NumPy arrays with a leading axis
        ``[len(trees)]``; and whether each differs.

    Raises:
        ValueError: If instances differ in structure; the message names the first such field.

    Examples:
        >>> class Scale(Tree):
        ...     size: int
        ...     factor: Number = 1.0
        >>> _, (factors,), _ = stacked_leaves([Scale(3, 0.0), Scale(3, 0.5)])
        >>> factors.tolist()
        [0.0, 0.5]
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
    children = tree.__dict__.get(_CHILDREN)
    if children is None:
        annotated = _annotated_children(type(tree))
        names = (field.name for field in dataclasses.fields(tree))
        children = tuple(
            name
            for name in names
            if _is_child(tree.__dict__.get(name), annotated=name in annotated)
        )
        # Stored, because the objects that JAX puts in place of children may not look like children.
        tree.__dict__[_CHILDREN] = children
    return children


def _stack(place: str, values: list[Any]) -> Any:
    first = values[0]
    kinds = {type(value) for value in values}
    if isinstance(first, Tree) and len(kinds) == 1:
        names = {name for value in values for name in child_fields(value)}
        fields = dataclasses.fields(first)
        stacked = {}
        for field in fields:
            field_place = f"{place or type(first).__name__}.{field.name}"
            combine = _stack if field.name in names else _check_equal
            stacked[field.name] = combine(field_place, [getattr(v, field.name) for v in values])
        tree = object.__new__(type(first))
        tree.__dict__.update(stacked)
        tree.__dict__[_CHILDREN] = tuple(field.name for field in fields if field.name in names)
        return tree
    if isinstance(first, tuple) and kinds == {type(first)} and len(set(map(len, values))) == 1:
        parts = [
            _stack(f"{place}[{i}]", list(part)) for i, part in enumerate(zip(*values, strict=True))
        ]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if all(map(_is_number, values)):
        if all(_equal(first, value) for value in values[1:]):
            return first
        if len({np.shape(value) for value in values}) == 1:
            return _Varied(_stack_arrays(values))
    treedefs = {jax.tree.structure(value) for value in values}
    if len(treedefs) == 1 and not jax.tree_util.treedef_is_leaf(treedefs.pop()):
        return jax.tree.map(lambda *leaves: _stack(place, list(leaves)), *values)
    return _check_equal(place, values)


def _stack_arrays(values: list[Any]) -> np.ndarray:
    """Stacks scalars or arrays in the type that JAX gives them."""
    with jax.numpy_dtype_promotion("standard"):
        kind = jnp.result_type(*(jnp.result_type(value) for value in values))
    return np.stack([np.asarray(value, kind) for value in values])


def _check_equal(place: str, values: list[Any]) -> Any:
    for value in values[1:]:
        if type(value) is not type(values[0]) or not _equal(value, values[0]):
            raise ValueError(
                f"{place}: {_one_line(values[0])} and {_one_line(value)} differ in structure and "
                "cannot be stacked; pass equal values, or annotate the field as Number or an array."
            )
    return values[0]


@functools.cache
def _annotated_children(cls: type) -> frozenset[str]:
    """Returns the names of the fields whose annotation makes them children."""
    return frozenset(
        field.name
        for field in dataclasses.fields(cls)
        if any(child_type in str(field.type) for child_type in _CHILD_TYPES)
    )


def _is_child(value: Any, *, annotated: bool) -> bool:
    if isinstance(value, (Tree, jax.tree_util.Partial)):
        return True
    if annotated:
        # A proximal term, weight decay or momentum of 0 is the usual case. As traced scalars the
        # three add 40% to the time of a round of the logistic model; as structure their terms are
        # not computed. The step from 0 to another value compiles once more.
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
                    "name; expected another name for the field; rename the field."
                )


def _wrap_constructor(cls: type) -> None:
    """Makes the constructor of a class check structure before and after ``__post_init__``."""
    init, post_init = cls.__init__, vars(cls).get("__post_init__")

    @functools.wraps(init)
    def checked(self, *args, **kwargs):
        init(self, *args, **kwargs)
        if not hasattr(cls, "__post_init__"):
            _check_values(self)
        _check_structure(self)

    cls.__init__ = checked
    if post_init is not None:

        @functools.wraps(post_init)
        def checked_first(self):
            if type(self).__post_init__ is checked_first:  # Not called by that of a subclass.
                _check_values(self)
            post_init(self)

        cls.__post_init__ = checked_first  # pyright: ignore[reportAttributeAccessIssue]


def _check_values(tree: Tree) -> None:
    """Checks that structure is not traced, and the values of fields that declare what is valid."""
    cls = type(tree)
    if missing := _abstract_methods(cls):
        raise ValueError(f"{cls.__name__}: expected a method {missing[0]}, which is not defined.")
    for field in dataclasses.fields(tree):
        value = tree.__dict__.get(field.name)  # `__post_init__` sets `init=False` fields later.
        if isinstance(value, Tracer) and field.name not in _annotated_children(cls):
            raise ValueError(
                f"{cls.__name__}.{field.name} is traced, but it is structure; annotate it as "
                "Number, Integer or an array type."
            )
        if _CHECK in field.metadata and not (value is None and field.default is None):
            check, arguments, options = field.metadata[_CHECK]
            if (converted := check(field.name, value, *arguments, **options)) is not None:
                tree._convert(**{field.name: converted})
    for name, choices in _choices(cls).items():
        checks.one_of(name, tree.__dict__[name], choices)


@functools.cache
def _choices(cls: type) -> dict[str, tuple[str, ...]]:
    """Returns the valid values of the fields that are annotated as ``Literal`` of strings."""
    names = {field.name for field in dataclasses.fields(cls)}
    try:
        hints = get_type_hints(cls)
    except NameError:  # An annotation names what is local to a function.
        return {}
    choices = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    return {
        name: words
        for name, words in choices.items()
        if name in names and all(isinstance(word, str) for word in words)
    }


# An array in a structure field is refused when the instance is constructed, because the later error
# of JAX would not name the field.
def _check_structure(tree: Tree) -> None:
    cls = type(tree)
    tree.__dict__.pop(_CHILDREN, None)
    children = child_fields(tree)
    for field in dataclasses.fields(tree):
        value, name = tree.__dict__[field.name], f"{cls.__name__}.{field.name}"
        if isinstance(value, (float, np.floating)):
            checks.representable(name, value)
        if field.name in children:
            continue
        if any(isinstance(leaf, (np.ndarray, jax.Array)) for leaf in jax.tree.leaves(value)):
            raise ValueError(
                f"{name} is an array, but it is structure; pass a Python value, or annotate it as "
                "an array type."
            )
        try:
            hash(value)
        except TypeError:
            raise ValueError(
                f"{name}={_one_line(value)}: a {type(value).__name__} can change and is not "
                "hashable; pass a tuple or another immutable value."
            ) from None
        if str(field.type) in ("int", "<class 'int'>") and isinstance(value, float):
            raise ValueError(
                f"{name}={value!r}: expected an integer, because it is structure; pass an int, or "
                "annotate the field as Number."
            )


def _one_line(value: Any) -> str:
    return " ".join(format_value(value).split())


@functools.cache
def _abstract_methods(cls: type) -> tuple[str, ...]:
    methods = ((name, getattr(cls, name, None)) for name in dir(cls))
    return tuple(name for name, one in methods if getattr(one, "__isabstractmethod__", False))


def _is_number(value: Any) -> bool:
    kinds = (int, float, np.ndarray, np.generic, jax.Array)
    return isinstance(value, kinds) and not isinstance(value, bool)


def _equal(mine: Any, other: Any) -> bool:
    if mine is other:
        return True
    if isinstance(mine, (Tracer, jax.ShapeDtypeStruct)) or isinstance(other, Tracer):
        return False
    if _is_number(mine) and _is_number(other):
        if jnp.issubdtype(jnp.result_type(mine), jax.dtypes.prng_key):
            mine, other = jax.random.key_data(mine), jax.random.key_data(other)
        return np.shape(mine) == np.shape(other) and np.array_equal(mine, other)
    return bool(mine == other)
