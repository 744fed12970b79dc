"""Flax's batch normalization without the padding of minibatches."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, PyTree, Shaped

__all__ = ["make_maskable", "masked_linen", "masked_nnx", "unmasked"]


@contextlib.contextmanager
def masked_linen(example_mask: Bool[Array, " batch"] | None) -> Iterator[set[tuple[str, ...]]]:
    """Masks the batch normalization of Linen modules; yields their paths, after a call."""
    paths = set()
    if example_mask is None:
        yield paths
        return

    def add_mask(method: Callable[..., Any], args: Any, kwargs: Any, context: Any) -> Any:
        is_norm = isinstance(context.module, nn.BatchNorm) and context.method_name == "__call__"
        # Without the parameter, a subclass calls the method of Flax, which has it.
        if is_norm and "mask" in inspect.signature(context.orig_method).parameters:
            x = args[0] if args else kwargs["x"]
            kwargs = kwargs | {"mask": _combine(example_mask, x, kwargs.get("mask"))}
            paths.add(context.module.path)
        return method(*args, **kwargs)

    with nn.intercept_methods(add_mask):
        yield paths


class _Masking(NamedTuple):
    """The mask of a call, and the classes of layers that have used it."""

    example_mask: Bool[Array, " batch"]
    classes: set[type]


_masking: ContextVar[_Masking | None] = ContextVar("masking", default=None)


class _BatchNorm(nnx.BatchNorm):
    """Batch normalization with the mask of `masked_nnx`."""

    def __call__(self, x, use_running_average=None, *, mask=None):
        if (masking := _masking.get()) is not None:
            mask = _combine(masking.example_mask, x, mask)
            masking.classes.add(type(self))
        return super().__call__(x, use_running_average, mask=mask)


@functools.cache
def _maskable(layer: type, index: int) -> type:
    # Methods of a subclass come first, and call that of Flax by super().
    bases = (_BatchNorm,) if layer is nnx.BatchNorm else (layer, _BatchNorm)
    return type(layer.__name__, bases, {})


def make_maskable(module: nnx.Module) -> None:
    """Replaces the classes of batch normalization by ones that `masked_nnx` masks.

    Each layer has a class of its own, which tells it from others also inside transformations.
    """
    for index, (_, layer) in enumerate(nnx.iter_graph(module)):
        if isinstance(layer, nnx.BatchNorm):
            object.__setattr__(layer, "__class__", _maskable(type(layer), index))


@contextlib.contextmanager
def masked_nnx(
    module: nnx.Module, example_mask: Bool[Array, " batch"] | None
) -> Iterator[set[tuple[Any, ...]]]:
    """Masks the batch normalization of an NNX module; yields its paths, after a call."""
    classes, paths = set(), set()
    token = _masking.set(None if example_mask is None else _Masking(example_mask, classes))
    try:
        yield paths
    finally:
        _masking.reset(token)
    paths |= {path for path, layer in nnx.iter_graph(module) if type(layer) in classes}


def _combine(
    example_mask: Bool[Array, " batch"],
    x: Shaped[Array, "batch ..."],
    mask: Shaped[Array, "..."] | None,
) -> Bool[Array, "..."]:
    if x.shape[:1] != example_mask.shape:
        raise ValueError(
            f"BatchNorm of an input of shape {list(x.shape)}: expected the {len(example_mask)} "
            "examples on the first axis, of which padding does not count. Normalize before the "
            "reshape, or give the module's call a parameter example_mask=None, [batch], and "
            "BatchNorm its mask=."
        )
    combined = example_mask.reshape(-1, *[1] * (x.ndim - 1))
    return combined if mask is None else combined & jnp.asarray(mask, bool)


def unmasked(state: PyTree, paths: set[tuple[Any, ...]], depth: int = 0) -> list[Array]:
    """Returns the arrays of a state that are in no module of some paths, below a depth."""
    return [
        leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if tuple(getattr(key, "key", None) for key in path[depth:-1]) not in paths
    ]
