"""Split models: some layers are shared, the others stay on the clients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from fedjax_fair.numerics.dependence import dependence
from fedjax_fair.roles import Client, LocalResult, Model, Variables
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["SplitSolver", "check_head_layers", "find_head"]


class SplitSolver(WrappedSGD):
    """Base class of solvers of split models, whose state is the personal part of the model.

    Personal arrays start from the first global model, equal on all clients. Evaluations
    use the current shared part with the client's personal part after its last response.
    """

    has_global_model: ClassVar[bool] = False

    @abstractmethod
    def is_personal(self, variables: Variables, model: Model, x: Shaped[Any, "..."]) -> Variables:
        """Returns which arrays are personal."""

    def mask(self, variables: Variables, client: Client) -> Variables:
        """Returns which arrays are personal, for a client."""
        return self.is_personal(variables, client.model, client.examples.features[:1])

    def init(self, key, variables, client):
        return _personal(self.mask(variables, client), variables)

    def solve(self, key, variables, client):
        mask = self.mask(variables, client)
        start = _insert(mask, variables, client.state)
        result = self.solver.solve(key, variables, client, start=start, anchor=start.params)
        return keep_personal(mask, start, result)

    def personalize(self, key, variables, client):
        return _insert(self.mask(variables, client), variables, client.state)


def keep_personal(mask: Variables, start: Variables, result: LocalResult) -> LocalResult:
    """Moves the personal part of a result from its update, and what it sends, to its state."""
    trained = jax.tree.map(jnp.add, start, result.update)
    update = jax.tree.map(
        lambda personal, leaf: jnp.zeros_like(leaf) if personal else leaf, mask, result.update
    )
    return result._replace(update=update, state=_personal(mask, trained), sends={})


def check_head_layers(head_layers: Any) -> None:
    """Checks the setting ``head_layers``."""
    is_tuple = isinstance(head_layers, tuple) and all(isinstance(n, str) for n in head_layers)
    if head_layers is not None and not is_tuple:
        raise ValueError(
            f"head_layers={head_layers!r}: expected None or names of layers, such as ('head',)."
        )


def find_head(
    head_layers: Sequence[str] | None, variables: Variables, model: Model, x: Shaped[Any, "..."]
) -> Variables:
    """Returns which arrays belong to the head of a model.

    Args:
        head_layers: Names of its layers, which are paths of parameters; None for the layers after
            `Model.features`: arrays that the outputs depend on, but the features do not.
        variables: The variables.
        model: The model.
        x: A batch of inputs.

    Raises:
        ValueError: If there is no layer of a name, or the features do not divide the model.
    """
    if head_layers is None:
        return _after_features(variables, model, x)
    names = _layer_names(variables)
    for name in head_layers:
        if not any(_is_inside(path, name) for path in names):
            raise ValueError(f"head_layers: {name!r} is no layer; expected some of {_list(names)}.")

    def is_head(path: Any, leaf: Array) -> bool:
        keys = _keys(path)[1:]
        # Flax's Linen puts the name of a collection before the name of the layer.
        paths = ["/".join(keys)] + ["/".join(keys[1:])] * (path[0].name == "state")
        return any(_is_inside(each, name) for each in paths for name in head_layers)

    return jax.tree_util.tree_map_with_path(is_head, variables)


def _after_features(variables: Variables, model: Model, x: Shaped[Any, "..."]) -> Variables:
    def outputs(params, state, x):
        return model.apply(params, state, x, train=False, key=None)[0]

    names = _list(_layer_names(variables))
    try:
        in_features = jax.tree.leaves(dependence(model.features, *variables, x)[:2])
    except ValueError as error:
        raise ValueError(f"head_layers=None: {error} Or name some of {names}.") from error
    in_outputs = jax.tree.leaves(dependence(outputs, *variables, x)[:2])
    pairs = zip(in_outputs, in_features, strict=True)
    is_head = [output and not feature for output, feature in pairs]
    num_params = len(jax.tree.leaves(variables.params))
    if not any(is_head[:num_params]) or all(is_head[:num_params]):
        part = "no" if not any(is_head[:num_params]) else "only"
        raise ValueError(
            f"head_layers=None: the model has {part} layers after Model.features; expected layers "
            f"before and after; name the head's layers among {names}."
        )
    return jax.tree.unflatten(jax.tree.structure(variables), is_head)


def _keys(path: Any) -> list[str]:
    return [jax.tree_util.keystr((key,), simple=True) for key in path]


def _layer_names(variables: Variables) -> list[str]:
    """Returns the paths of all parameters."""
    leaves = jax.tree_util.tree_leaves_with_path(variables.params)
    return ["/".join(_keys(path)) for path, _ in leaves]


def _list(paths: list[str]) -> str:
    """Lists the layers of parameters, or parameters that are in none."""
    return ", ".join(dict.fromkeys(path.rpartition("/")[0] or path for path in paths))


def _is_inside(path: str, layer: str) -> bool:
    return f"{path}/".startswith(f"{layer}/")


def _personal(mask: Variables, variables: Variables) -> tuple[Array, ...]:
    pairs = zip(jax.tree.leaves(mask), jax.tree.leaves(variables), strict=True)
    return tuple(leaf for personal, leaf in pairs if personal)


def _insert(mask: Variables, variables: Variables, personal: tuple[Array, ...]) -> Variables:
    """Returns the variables with personal arrays in their places."""
    parts = iter(personal)
    return jax.tree.map(
        lambda is_personal, leaf: next(parts) if is_personal else leaf, mask, variables
    )
