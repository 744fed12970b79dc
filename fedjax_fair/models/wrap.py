"""Models of Flax modules."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.errors import FlaxError
from jaxtyping import Array, Key, PyTree, Shaped
from optax import softmax_cross_entropy_with_integer_labels

from fedjax_fair.models import masking
from fedjax_fair.roles import Model, Variables, is_correct
from fedjax_fair.roles.model import refuse_statistics, takes_mask
from fedjax_fair.roles.role_errors import NEEDS_VALUE
from fedjax_fair.utils import checks
from fedjax_fair.utils.terminal import one_line

__all__ = ["LinenModel", "NNXModel", "classifier", "from_flax", "scale_bytes"]


def scale_bytes(x: Shaped[Any, "batch ..."]) -> Shaped[Array, "batch ..."]:
    """Converts ``uint8`` inputs to ``float32`` in ``[0, 1]``; returns others unchanged."""
    x = jnp.asarray(x)  # Eager calls may have arrays of NumPy.
    return x.astype(jnp.float32) / 255 if x.dtype == jnp.uint8 else x


def from_flax(
    module: nn.Module | Callable[..., nnx.Module],
    loss: Callable[..., Array] = softmax_cross_entropy_with_integer_labels,
    accuracy: Callable[..., Array] = is_correct,
) -> Model:
    """Makes a `Model` of a Linen module, or of an NNX module class or factory.

    ``uint8`` inputs are divided by 255; other integers, such as tokens, reach the module unchanged.
    The module's call takes the batch and returns logits. An optional method ``features`` returns
    the activations of the last hidden layer, ``[batch, width]``. `fedjax_fair.models.Conv` replaces
    Flax's convolutions, which are slow in a simulation.

    Linen: methods with a parameter ``train`` receive it; the random stream is ``dropout``; every
    collection except ``params`` is state. NNX: ``train`` chooses between ``Module.train()`` and
    ``Module.eval()``; all random streams are seeded at every call; ``nnx.BatchStat`` is state.

    Flax's ``BatchNorm`` does not count the padding of a minibatch that is smaller than the batch
    size. Other statistics of the batch need a call with the parameter ``example_mask``, which is
    true for the examples that count, ``[batch]``, or None if all do; the module then also gives
    it to each ``BatchNorm``.

    Args:
        module: A ``flax.linen.Module``, or a callable from ``rngs`` to a ``flax.nnx.Module``.
        loss: ``loss(outputs, labels) -> [batch]`` per example; cross-entropy by default. With
            sequences of labels ``[batch, length]``, one per label.
        accuracy: ``accuracy(outputs, labels) -> [batch]``, the fraction of an example's labels that
            is correct; by default whether the largest output belongs to the label. With sequences
            of labels ``[batch, length]``.

    Raises:
        ValueError: If ``module`` is neither, or an NNX module holds variables other than
            parameters, batch statistics and random streams.

    Examples:
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x):
        ...         return nn.Dense(3)(x)
        >>> model = from_flax(Net())
        >>> x = jnp.ones((2, 4))
        >>> variables = model.init(jax.random.key(0), x)
        >>> logits, _ = model.apply(*variables, x, train=False, key=None)
        >>> logits.shape
        (2, 3)
    """
    if isinstance(module, nn.Module):
        return LinenModel(module, loss=loss, accuracy=accuracy)
    linen_class = isinstance(module, type) and issubclass(module, nn.Module)
    if linen_class or isinstance(module, nnx.Module) or not callable(module):
        raise ValueError(
            f"{module=!r}: expected a linen module, or an NNX class or factory that takes rngs; "
            "pass Linen modules as instances, and NNX modules as classes."
        )
    return NNXModel(module, loss=loss, accuracy=accuracy)


@contextlib.contextmanager
def _explain_input(module: type, x: Shaped[Any, "batch ..."]) -> Iterator[None]:
    """Adds the shape of the input to errors of a module, which often expects another shape."""
    try:
        yield
    except NEEDS_VALUE:
        raise
    except (TypeError, ValueError, FlaxError) as error:
        message = one_line(error)
        raise ValueError(
            f"module {module.__name__}: {type(error).__name__} for an input of shape "
            f"{list(x.shape)}; examples have the shape {list(x.shape[1:])} in the data. {message}"
        ) from error


def _check_features(module: type) -> None:
    if not hasattr(module, "features"):
        raise ValueError(
            f"module={module.__name__}: expected a method `features` that returns the activations "
            "of the last hidden layer, [batch, width]; define it, and call it in __call__."
        )


class LinenModel(Model):
    """A model of a Linen module, from `from_flax`.

    Args:
        module: The module. Equal modules make equal models.
    """

    module: nn.Module | _ByContents

    def __post_init__(self):
        try:
            hash(self.module)
        except TypeError:
            self._convert(module=_ByContents(self._flax))

    @property
    def _flax(self) -> Any:
        return self.module.module if isinstance(self.module, _ByContents) else self.module

    def init(self, key, x):
        key_params, key_dropout = jax.random.split(key)
        rngs = {"params": key_params, "dropout": key_dropout}
        settings = _mode(self._flax.__call__, False)
        with _explain_input(type(self._flax), x):
            variables = dict(self._flax.init(rngs, scale_bytes(x), **settings))
        return Variables(variables.pop("params", {}), variables)

    def apply(self, params, state, x, *, train, key, example_mask=None):
        call = self._flax.__call__
        settings = _mode(call, train)
        if takes_mask(call):
            settings["example_mask"], example_mask = example_mask, None

        def apply(x):
            with masking.masked_linen(example_mask) as paths:
                logits, new = self._flax.apply(
                    {"params": params, **state},
                    scale_bytes(x),
                    rngs={} if key is None else {"dropout": key},
                    mutable=list(state) if train else [],
                    **settings,
                )
            return logits, {**state, **new}, masking.unmasked(new, paths, depth=1)

        with _explain_input(type(self._flax), x):
            logits, new, others = apply(x)
        if example_mask is not None and others:
            refuse_statistics(f"module {type(self._flax).__name__}", lambda x: apply(x)[2], x)
        return logits, new

    def features(self, params, state, x):
        _check_features(type(self._flax))
        settings = _mode(self._flax.features, False)
        variables = {"params": params, **state}
        return self._flax.apply(variables, scale_bytes(x), method="features", **settings)


@dataclasses.dataclass(frozen=True, eq=False)
class _ByContents:
    """A module with unhashable fields, such as lists or arrays, compared by its fields."""

    module: nn.Module

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByContents):
            return NotImplemented
        try:
            return self.module is other.module or bool(self.module == other.module)
        except (TypeError, ValueError):  # The comparison of arrays is an array.
            return False

    def __hash__(self) -> int:
        return hash(type(self.module))


def _mode(method: Callable[..., Any], train: bool) -> dict[str, Any]:
    return {"train": train} if "train" in inspect.signature(method).parameters else {}


class NNXModel(Model):
    """A model of an NNX module, from `from_flax`.

    Args:
        factory: Called as ``factory(rngs=nnx.Rngs(key))``. Equal factories make equal models; a
            ``functools.partial`` of hashable arguments is compared by them.
    """

    factory: Callable[..., Any]

    def __post_init__(self):
        self._convert(factory=_comparable(self.factory))
        _abstract.cache_clear()  # Globals of a factory may have changed.
        _abstract(self.factory)

    def init(self, key, x):
        _, params, state, _ = nnx.split(self.factory(rngs=nnx.Rngs(key)), *_KINDS[:3])
        return Variables(nnx.to_pure_dict(params), nnx.to_pure_dict(state))

    def apply(self, params, state, x, *, train, key, example_mask=None):
        kind, settings = _abstract(self.factory).kind, {}
        if takes_mask(kind.__call__):
            settings["example_mask"], example_mask = example_mask, None

        def apply(x):
            module = _rebuilt(self.factory, params, state, key)
            (module.train if train else module.eval)()
            with masking.masked_nnx(module, example_mask) as paths:
                logits = module(scale_bytes(x), **settings)
            new = nnx.to_pure_dict(nnx.state(module, nnx.BatchStat))
            return logits, new, masking.unmasked(new, paths)

        with _explain_input(kind, x):
            logits, new, others = apply(x)
        if example_mask is not None and others:
            refuse_statistics(f"module {kind.__name__}", lambda x: apply(x)[2], x)
        return logits, new

    def features(self, params, state, x):
        _check_features(_abstract(self.factory).kind)
        module = _rebuilt(self.factory, params, state, None)
        module.eval()
        return module.features(scale_bytes(x))


_KINDS = (nnx.Param, nnx.BatchStat, nnx.RngState)


class _Abstract(NamedTuple):
    """Class, graph and templates of parameters, batch statistics and random streams."""

    kind: type
    graph: Any
    templates: list[Any]


@functools.lru_cache(maxsize=32)
def _abstract(factory: Callable[..., Any]) -> _Abstract:
    module = nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))
    masking.make_maskable(module)
    graph, *templates, other = nnx.split(module, *_KINDS, ...)
    if jax.tree.leaves(other):
        raise ValueError(
            f"module={type(module).__name__} has {nnx.to_pure_dict(other)}: expected only "
            "parameters, batch statistics and random streams; convert other variables to one of "
            "these types."
        )
    return _Abstract(type(module), graph, templates)


def _rebuilt(factory: Callable[..., Any], params: PyTree, state: PyTree, key: Any) -> Any:
    _, graph, templates = _abstract(factory)
    # Templates are filled in place, so copy them.
    filled = [jax.tree.map(lambda leaf: leaf, template) for template in templates[:2]]
    for template, values in zip(filled, (params, state), strict=True):
        nnx.replace_by_pure_dict(template, values)
    key = jax.random.key(0) if key is None else key
    return nnx.merge(graph, *filled, _streams(templates[2], key))


def _streams(template: Any, key: Key[Array, ""]) -> Any:
    """Seeds every random stream of a module from ``key`` and its index."""
    leaves, tree = jax.tree.flatten(template)
    fresh = [
        jax.random.fold_in(key, index)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else jnp.zeros(leaf.shape, leaf.dtype)
        for index, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(tree, fresh)


class _Partial(functools.partial):
    """A partial function, compared by its function and arguments."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Partial):
            return NotImplemented
        fields = [(one.func, one.args, one.keywords) for one in (self, other)]
        return fields[0] == fields[1]

    def __hash__(self) -> int:
        return hash((self.func, self.args, frozenset(self.keywords.items())))


def _comparable(factory: Callable[..., Any]) -> Callable[..., Any]:
    if type(factory) is not functools.partial:
        return factory
    comparable = _Partial(factory.func, *factory.args, **factory.keywords)
    try:
        hash(comparable)
    except TypeError:  # Its arguments contain arrays or lists: it is compared by identity.
        return factory
    return comparable


class _Classifier(nn.Module):
    body: nn.Module
    num_classes: int

    def setup(self):
        self.head = nn.Dense(self.num_classes)

    def features(self, x, train):
        if jnp.issubdtype(x.dtype, jnp.integer):
            x = x.astype(jnp.float32)
        return self.body(x, train)

    def __call__(self, x, train):
        return self.head(self.features(x, train))


def classifier(body: nn.Module, num_classes: int) -> Model:
    """Adds a linear layer to a Linen module whose call ``(x, train)`` returns features."""
    checks.positive_int("num_classes", num_classes)
    return from_flax(_Classifier(body, num_classes))
