"""Low-rank adapters for federated methods: with a fixed factor, or a residual of the base."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedjax_fair.models.frozen import Frozen
from fedjax_fair.models.lora import LoRA, inside, lora
from fedjax_fair.models.wrappers import functions_of
from fedjax_fair.numerics.tree_paths import name_of
from fedjax_fair.roles import Model, Variables

__all__ = ["ResidualLoRA", "adapter_masks", "check_lora", "with_fixed_a", "with_residual"]


def check_lora(user: str, model: Model) -> LoRA:
    """Returns a model with low-rank adapters, without its wrappers.

    Args:
        user: Name of what needs adapters, for errors.
        model: The model.

    Raises:
        ValueError: If it has no adapters, or a factor is fixed.
    """
    inner = inside(model, LoRA)
    if inner is None:
        raise ValueError(
            f"{user} needs a model with low-rank adapters, not {type(model).__name__}; use "
            "models.lora(model, variables, rank=4), which is --model.lora 4 on the command line."
        )
    if inner.factors is not None:
        raise ValueError(
            f"{user} needs both factors of the adapters, of which train='b' fixes one, so that "
            "the mean of B is exact; use train='both', or aggregators.Mean."
        )
    return inner


def adapter_masks(variables: Variables, factors: Callable[[dict[str, Any]], Any]) -> Variables:
    """Returns masks of the factors of adapters, and True for all else.

    Args:
        variables: Variables of a model with low-rank adapters.
        factors: Function from the factors ``{"a": ..., "b": ...}`` of an adapter to their masks.
    """
    masks: Variables = jax.tree.map(lambda leaf: True, variables)
    adapters = {path: factors(pair) for path, pair in variables.params["adapters"].items()}
    return masks._replace(params=masks.params | {"adapters": adapters})


def with_fixed_a(model: Model) -> LoRA:
    """Returns a model with adapters of which only B is trained, as of ``lora(..., train="b")``.

    Args:
        model: From `lora`.

    Raises:
        ValueError: If it has no adapters.

    References:
        Sun, Li, Li, Ding, *Improving LoRA in Privacy-preserving Federated Learning*, 2024,
        https://arxiv.org/abs/2403.12313

    Examples:
        >>> import fedjax_fair as ff
        >>> network = ff.models.mlp(10, hidden=(32,))
        >>> x = jnp.zeros((1, 64))
        >>> adapted = ff.models.lora(network, network.init(jax.random.key(0), x), rank=4)
        >>> params = with_fixed_a(adapted).init(jax.random.key(1), x).params
        >>> jax.tree.map(jnp.shape, params["adapters"])
        {'body/Dense_0/kernel': {'b': (4, 32)}, 'head/kernel': {'b': (4, 10)}}
    """
    adapted = check_lora("with_fixed_a", model)
    assert adapted.start is not None
    return lora(
        adapted.model,
        Frozen.merge(adapted, adapted.start),
        rank=adapted.rank,
        alpha=float(adapted.alpha),
        targets=adapted.targets,
        trainable=adapted.trainable,
        train="b",
        in_axes=dict(adapted.in_axes),
        merged=adapted.merged,
    ).replace(**functions_of(adapted))


def with_residual(model: Model) -> ResidualLoRA:
    r"""Returns a model with adapters whose base the server can change, for `aggregators.FedEx`.

    .. math:: y = x (W + \frac{\alpha}{r} R) + \frac{\alpha}{r} (x A) B

    The residuals R, zeros at first, are the state of the model. Only the server changes them:
    clients neither train, send nor copy them.

    Args:
        model: From `lora`, with both factors trained.

    Raises:
        ValueError: If it has no adapters, or A is fixed.

    References:
        Singhal, Ponkshe, Vepakomma, *FedEx-LoRA: Exact Aggregation for Federated and Efficient
        Fine-Tuning of Foundation Models*, 2024, https://arxiv.org/abs/2410.09432

    Examples:
        >>> import fedjax_fair as ff
        >>> network = ff.models.mlp(10, hidden=(32,))
        >>> x = jnp.zeros((1, 64))
        >>> adapted = ff.models.lora(network, network.init(jax.random.key(0), x), rank=4)
        >>> variables = with_residual(adapted).init(jax.random.key(1), x)
        >>> jax.tree.map(jnp.shape, variables.state)
        {'residual': {'body/Dense_0/kernel': (64, 32), 'head/kernel': (32, 10)}}
    """
    adapted = check_lora("with_residual", model)
    return ResidualLoRA(**_fields(adapted))


class ResidualLoRA(LoRA):
    """A network with adapters and residuals of their kernels, from `with_residual`."""

    def init(self, key, x):
        variables = super().init(key, x)
        if jax.tree.leaves(variables.state):
            raise ValueError(
                "with_residual: the running statistics of the network are trained; expected "
                "frozen ones; choose none of their layers in trainable."
            )
        residual = {
            path: jnp.zeros((pair["a"].shape[0], pair["b"].shape[1]), pair["b"].dtype)
            for path, pair in variables.params["adapters"].items()
        }
        return Variables(variables.params, {"residual": residual})

    def bind_state(self, state: PyTree) -> LoRA:
        """Returns the network with adapters whose kernels contain the residuals."""
        scale = self.scale

        def changed(path: Any, kernel: Any) -> Any:
            if (residual := state["residual"].get(name_of(path))) is None:
                return kernel
            return kernel + (scale * residual).reshape(kernel.shape)

        params = jax.tree_util.tree_map_with_path(changed, self.base.params)
        return LoRA(**_fields(self)).replace(base=Variables(params, self.base.state))

    def apply(self, params, state, x, *, train, key, example_mask=None):
        bound = self.bind_state(state)
        outputs, _ = bound.apply(params, {}, x, train=train, key=key, example_mask=example_mask)
        return outputs, state

    def features(self, params, state, x):
        return self.bind_state(state).features(params, {}, x)

    def merge(self, variables):
        return self.bind_state(variables.state).merge(Variables(variables.params, {}))


def _fields(model: LoRA) -> dict[str, Any]:
    return {field.name: getattr(model, field.name) for field in dataclasses.fields(LoRA)}
