"""Low-rank adapters of kernels (LoRA) that are trained, sent and stored instead of the network."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Key, PyTree

from fedjax_fair.models.conv import Conv
from fedjax_fair.models.frozen import Frozen, check_network, split_network
from fedjax_fair.models.wrap import LinenModel, NNXModel
from fedjax_fair.models.wrappers import functions_of
from fedjax_fair.numerics.tree_paths import Chosen, check_patterns, is_chosen, layers_of, name_of
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.roles import Model, Variables
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import Number

__all__ = ["LoRA", "inside", "lora"]


def lora(
    model: Model,
    variables: Variables,
    *,
    rank: int,
    alpha: float | None = None,
    targets: Chosen | None = None,
    trainable: Chosen = (),
    train: Literal["both", "b"] = "both",
    in_axes: Mapping[str, int] | None = None,
    merged: bool = False,
) -> LoRA:
    r"""Returns a frozen network with trained low-rank adapters of its kernels.

    .. math:: y = x W + \frac{\alpha}{r} (x A) B

    for each target kernel :math:`W`, with :math:`A` ``[in, rank]``, uniform on
    :math:`\pm 1 / \sqrt{in}`, and :math:`B` ``[rank, out]``, zeros, so that the first model is
    exactly the network. A kernel of a convolution counts as the matrix ``[height * width * in,
    out]``. The user's module does not change. Running statistics are frozen as in `freeze`.

    Dense layers of Linen add the product of their input with the factors. Other targets add the
    product of the factors to their kernels, which costs as much as training the kernels.

    Args:
        model: The network.
        variables: Variables of the whole network, of one seed, as of `freeze`.
        rank: Width r of the factors, at most the smaller side of each target.
        alpha: Scale, positive; by default the rank, which gives the factor 1.
        targets: Expressions or function that choose kernels, as ``trainable`` of `freeze`; by
            default all arrays named ``kernel`` with two or more axes that are not in ``trainable``.
        trainable: Arrays that are trained as a whole, such as ``("head",)``.
        train: ``"both"`` factors, or ``"b"``: A then stays at its random start, which is the same
            for all seeds (FFA-LoRA).
        in_axes: Number of input axes of kernels with more than two axes, by path, where the layer
            is no ``Conv``, ``DenseGeneral`` or ``LinearGeneral`` of Flax.
        merged: Whether dense layers add the product to their kernels, too.

    Returns:
        The model. Its parameters are ``{"adapters": {path of a kernel: {"a", "b"}}, "trained":
        arrays trained as a whole}``.

    Raises:
        ValueError: If an argument is out of range, an expression matches nothing, or a kernel is
            chosen twice; in ``init``, if a rank exceeds a kernel's, or the input axes of a kernel
            are unknown.

    References:
        Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, *LoRA: Low-Rank Adaptation of Large
        Language Models*, 2022, https://arxiv.org/abs/2106.09685, section 4.1

        Sun, Li, Li, Ding, *Improving LoRA in Privacy-preserving Federated Learning*, 2024,
        https://arxiv.org/abs/2403.12313 (``train="b"``)

    Examples:
        >>> import fedjax_fair as ff
        >>> network = ff.models.mlp(10, hidden=(32,))
        >>> base = network.init(jax.random.key(0), jnp.zeros((1, 64)))
        >>> model = lora(network, base, rank=4, trainable=("head",))
        >>> model.targets
        ('body/Dense_0/kernel',)
        >>> params = model.init(jax.random.key(0), jnp.zeros((1, 64))).params
        >>> jax.tree.map(jnp.shape, params["adapters"])
        {'body/Dense_0/kernel': {'a': (64, 4), 'b': (4, 32)}}
        >>> jax.tree.map(jnp.shape, params["trained"])
        {'head': {'bias': (10,), 'kernel': (32, 10)}}
    """
    check_network("lora", model)
    checks.positive_int("rank", rank)
    checks.one_of("train", train, ("both", "b"))
    if alpha is not None:
        checks.positive("alpha", alpha)
    given = tuple(_checked_axes(in_axes).items())
    base, start, trainable = split_network(variables, trainable)
    kernels = _choose_targets(variables.params, targets, trainable)
    check_patterns("in_axes", [path for path, _ in given], list(kernels))
    layers = _nnx_layers(model)
    sides = {path: _sides(path, kernel, given, layers) for path, kernel in kernels.items()}
    for path, both in sides.items():
        if both is not None:
            _check_rank(rank, path, both)
        elif train == "b":  # The fixed factors are drawn here.
            raise _unknown_axes(path, kernels[path])
    factors = None
    if train == "b":
        drawn = _draw_factors(jax.random.key(0), sides, rank)  # pyright: ignore[reportArgumentType]
        factors = {path: {"a": a} for path, a in drawn.items()}
    return LoRA(
        model,
        base,
        start,
        trainable,
        targets=tuple(kernels),
        rank=rank,
        alpha=float(rank if alpha is None else alpha),
        in_axes=given,
        factors=factors,
        merged=merged,
        **functions_of(model),
    )


class LoRA(Frozen):
    """A frozen network with low-rank adapters, from `lora`.

    Args:
        model: The network.
        base: As of `Frozen`.
        start: As of `Frozen`, for the arrays that are trained as a whole.
        trainable: As of `Frozen`.
        targets: Paths of the kernels with adapters.
        rank: Width of the factors.
        alpha: Factor of the product, times the rank.
        in_axes: Pairs of an expression of paths and the number of input axes.
        factors: Fixed factors, ``{path: {"a"}}``; None if both are trained.
        merged: Whether all products are added to kernels.
    """

    targets: tuple[str, ...]
    rank: int
    alpha: Number
    in_axes: tuple[tuple[str, int], ...] = ()
    factors: PyTree | None = dataclasses.field(default=None, repr=False)
    merged: bool = False

    @property
    def scale(self) -> Number:
        """The factor of the products, alpha / rank."""
        return self.alpha / self.rank

    @property
    def frozen(self):
        return self.base, self.factors

    def init(self, key, x):
        start, layers = super().init(key, x), self._layers(x)
        kernels = _by_name(jax.eval_shape(self.model.init, key, x).params)
        sides: dict[str, tuple[int, int]] = {}
        for path in self.targets:
            both = _sides(path, kernels[path], self.in_axes, layers)
            if both is None:
                raise _unknown_axes(path, kernels[path])
            _check_rank(self.rank, path, both)
            sides[path] = both
        drawn = {} if self.factors else _draw_factors(key, sides, self.rank)
        params: dict[str, Any] = {
            "adapters": {
                path: ({"a": drawn[path]} if path in drawn else {})
                | {"b": jnp.zeros((self.rank, out))}
                for path, (_, out) in sides.items()
            }
        }
        if start.params:
            params["trained"] = start.params
        return Variables(params, start.state)

    def merge(self, variables):
        return self._with_products(variables, self.targets)

    def client_bytes(self, variables):
        """Adds the kernels to which products are added."""
        is_copied = self.merged or inside(self.model, LinenModel) is None
        kernels = _by_name(self.base.params)
        copied = [kernels[path] for path in self.targets if is_copied or kernels[path].ndim > 3]
        return tree_bytes(variables) + tree_bytes(copied)

    def apply(self, params, state, x, *, train, key, example_mask=None):
        with self._adapted(Variables(params, state), x) as whole:
            return self._run(whole, state, x, train, key, example_mask)

    def features(self, params, state, x):
        with self._adapted(Variables(params, state), x) as whole:
            return self.model.features(*whole, x)

    @contextlib.contextmanager
    def _adapted(self, variables: Variables, x: Any) -> Iterator[Variables]:
        """Yields the variables of the network, while its dense layers add their products."""
        layers = {} if self.merged else self._layers(x)
        dense = [path for path in self.targets if path in layers and layers[path].is_dense]
        whole = self._with_products(variables, set(self.targets).difference(dense))
        if not dense:
            yield whole
            return
        factors = {path: self._factors(variables.params, path) for path in dense}
        with nn.intercept_methods(functools.partial(_add_product, factors, self.scale)):
            yield whole

    def _with_products(self, variables: Variables, paths: Collection[str]) -> Variables:
        params, state = variables
        whole = super().merge(Variables(params.get("trained", {}), state))

        def added(path: Any, kernel: Array) -> Array:
            if (name := name_of(path)) not in paths:
                return kernel
            a, b = self._factors(params, name)
            return kernel + (self.scale * (a @ b)).reshape(kernel.shape)

        return whole._replace(params=jax.tree_util.tree_map_with_path(added, whole.params))

    def _factors(self, params: PyTree, path: str) -> tuple[Array, Array]:
        pair = params["adapters"][path]
        fixed = self.factors[path] if self.factors else pair
        return jnp.asarray(fixed["a"]), jnp.asarray(pair["b"])

    def _layers(self, x: Any) -> dict[str, _Layer]:
        linen = inside(self.model, LinenModel)
        if linen is None:
            return _nnx_layers(self.model)
        return _linen_layers(linen, tuple(x.shape), jnp.dtype(x.dtype))

    def _describe(self):
        kernels, layers = _by_name(self.base.params), _nnx_layers(self.model)
        sides = [_sides(path, kernels[path], self.in_axes, layers) for path in self.targets]
        known = [both[1] if self.factors else sum(both) for both in sides if both is not None]
        size = f"{self.rank * sum(known):,} parameters"
        if len(known) < len(sides):
            size += f", and those of {len(sides) - len(known)} kernels with more axes"
        return f"{super()._describe()}\nadapters of rank {self.rank}, trained and sent: {size}"


class _Layer(NamedTuple):
    """Number of input axes of a kernel, and whether its layer can add a product to its output."""

    in_axes: int
    is_dense: bool


def _checked_axes(in_axes: Any) -> Mapping[str, int]:
    if in_axes is None:
        return {}
    is_mapping = isinstance(in_axes, Mapping)
    if not is_mapping or not all(checks.is_int(num) and num > 0 for num in in_axes.values()):
        raise ValueError(
            f"in_axes={in_axes!r}: expected numbers of input axes by path, such as "
            "{'attention/query/kernel': 1}."
        )
    return in_axes


def _choose_targets(params: PyTree, targets: Chosen | None, trainable: Chosen) -> dict[str, Any]:
    """Returns the kernels with adapters by path."""
    leaves = _by_name(params)
    kernels = [name for name, leaf in leaves.items() if _is_kernel(name, leaf)]
    if targets is None:
        chosen = [name for name in kernels if not is_chosen(trainable, name, leaves[name])]
    else:
        patterns = check_patterns("targets", targets, list(leaves))
        chosen = [name for name, leaf in leaves.items() if is_chosen(patterns, name, leaf)]
        # An expression for a layer means its kernel.
        chosen = [name for name in chosen if leaves[name].ndim > 1 or patterns == (name,)]
    for name in chosen:
        if leaves[name].ndim < 2:
            raise ValueError(
                f"targets: {name} has {leaves[name].ndim} axis: expected kernels, such as "
                f"{', '.join(kernels[:3])}; train other arrays as a whole with trainable."
            )
        if is_chosen(trainable, name, leaves[name]):
            raise ValueError(
                f"{name} is in targets and in trainable: expected one of the two; remove it from "
                "one of them."
            )
    if not chosen:
        raise ValueError(
            f"targets={targets!r} chooses no kernel: expected some of "
            f"{layers_of(kernels) or 'none'}; name a layer that is not in trainable."
        )
    return {name: leaves[name] for name in sorted(chosen)}


def _is_kernel(name: str, leaf: Any) -> bool:
    return name.rpartition("/")[2] == "kernel" and leaf.ndim > 1


def _by_name(tree: PyTree) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {name_of(path): leaf for path, leaf in leaves}


def _sides(
    path: str, kernel: Any, given: tuple[tuple[str, int], ...], layers: dict[str, _Layer]
) -> tuple[int, int] | None:
    """Returns the sides of a kernel as a matrix ``[in, out]``; None if they are not known."""
    axes = [num for pattern, num in given if is_chosen((pattern,), path, kernel)]
    if not axes and path in layers:
        axes = [layers[path].in_axes]
    if not axes and kernel.ndim == 2:
        axes = [1]
    if not axes:
        return None
    return math.prod(kernel.shape[: axes[0]]), math.prod(kernel.shape[axes[0] :])


def _unknown_axes(path: str, kernel: Any) -> ValueError:
    return ValueError(
        f"targets: the number of input axes of {path} {list(kernel.shape)} is unknown; pass "
        f"in_axes={{{path!r}: 1}} if only its first axis is input."
    )


def _check_rank(rank: int, path: str, sides: tuple[int, int]) -> None:
    if rank > min(sides):
        layer = path.rpartition("/")[0] or path
        raise ValueError(
            f"rank={rank}: expected at most {min(sides)}, the smaller side of {path} "
            f"{list(sides)}; exclude it from targets, or train it as a whole with "
            f"trainable=({layer!r},)."
        )


def _draw_factors(
    key: Key[Array, ""], sides: dict[str, tuple[int, int]], rank: int
) -> dict[str, Float[Array, "in rank"]]:
    """Draws A of each target as the authors' code does, which is not the paper's normal one."""
    key, drawn = jax.random.fold_in(key, _ADAPTERS), {}
    for index, (path, (num_inputs, _)) in enumerate(sides.items()):
        bound = 1 / math.sqrt(num_inputs)
        shape = num_inputs, rank
        own = jax.random.fold_in(key, index)
        drawn[path] = jax.random.uniform(own, shape, minval=-bound, maxval=bound)
    return drawn


_ADAPTERS = 0x10A
"""Separates the keys of factors from the keys of other initial values."""


def _add_product(
    factors: dict[str, tuple[Array, Array]], scale: Number, call: Any, args: Any, kwargs: Any,
    context: nn.module.InterceptorContext,
) -> Any:  # fmt: skip
    """Adds the product of an input with the factors to the output of a layer."""
    outputs = call(*args, **kwargs)
    path = _kernel_path(context.module)
    if context.method_name != "__call__" or path not in factors:
        return outputs
    inputs = args[0] if args else kwargs["inputs"]
    a, b = (factor.astype(inputs.dtype) for factor in factors[path])
    # Flax sorts the axes.
    axes = sorted(axis % inputs.ndim for axis in _dense_axes(context.module))
    rows = jnp.moveaxis(inputs, axes, range(-len(axes), 0))
    rows = rows.reshape(*rows.shape[: rows.ndim - len(axes)], -1)
    return outputs + (scale * ((rows @ a) @ b)).reshape(outputs.shape).astype(outputs.dtype)


def _dense_axes(module: nn.Module) -> tuple[int, ...]:
    axis = getattr(module, "axis", -1)
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _kernel_path(module: nn.Module) -> str:
    return "/".join((*module.path, "kernel"))


def inside(model: Any, kind: type) -> Any:
    """Returns the model of a kind inside wrappers, or None."""
    while isinstance(model, Model) and not isinstance(model, kind):
        model = getattr(model, "model", None)
    return model


@functools.lru_cache(maxsize=32)
def _linen_layers(model: LinenModel, shape: tuple[int, ...], dtype: Any) -> dict[str, _Layer]:
    """Returns the layers of a Linen module that are known, by the paths of their kernels."""
    found: dict[str, tuple[tuple[int, ...], _Layer]] = {}

    def record(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        outputs, module = call(*args, **kwargs), context.module
        # Subclasses may do more than multiply by their kernel.
        if context.method_name == "__call__" and type(module) in _LINEN_LAYERS:
            kernel = module.get_variable("params", "kernel")
            is_dense = type(module) in (nn.Dense, nn.DenseGeneral)
            if not getattr(module, "batch_dims", ()):
                in_axes = len(_dense_axes(module)) if is_dense else kernel.ndim - 1
                found[_kernel_path(module)] = kernel.shape, _Layer(in_axes, is_dense)
        return outputs

    x = jax.ShapeDtypeStruct(shape, dtype)
    with nn.intercept_methods(record):
        params = jax.eval_shape(model.init, jax.random.key(0), x).params
    kernels = _by_name(params)
    # Layers of a scan have one stacked kernel.
    return {
        path: layer
        for path, (size, layer) in found.items()
        if path in kernels and kernels[path].shape == size
    }


_LINEN_LAYERS = (nn.Dense, nn.DenseGeneral, nn.Conv, Conv)


def _nnx_layers(model: Model) -> dict[str, _Layer]:
    """Returns the layers of an NNX module that are known, by the paths of their kernels."""
    layers: dict[str, _Layer] = {}
    if (inner := inside(model, NNXModel)) is None:
        return layers
    module = nnx.eval_shape(lambda: inner.factory(rngs=nnx.Rngs(0)))
    for path, node in nnx.iter_graph(module):
        name = "/".join((*map(str, path), "kernel"))
        if isinstance(node, nnx.Conv):
            layers[name] = _Layer(node.kernel.ndim - 1, False)
        elif isinstance(node, nnx.LinearGeneral):
            layers[name] = _Layer(len(node.axis), False)
    return layers
