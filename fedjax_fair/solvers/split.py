"""Split models: some layers are shared, the others stay on the clients."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Shaped

from fedjax_fair.numerics.dependence import dependence
from fedjax_fair.numerics.tree_paths import Chosen, check_patterns, layers_of, mask_of, names_of
from fedjax_fair.roles import Client, LocalResult, Model, Variables, setting
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["HeadSolver", "SplitSolver", "find_head"]


class SplitSolver(WrappedSGD):
    """Base class of solvers of split models, whose state is the personal part of the model.

    Personal arrays start from the first global model, equal on all clients. Evaluations
    use the current shared part with the client's personal part after its last response.
    """

    has_global_model = False

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


class HeadSolver(SplitSolver):
    """Base class of solvers of models with a personal head.

    Attributes:
        head_layers: Layers of the head, as of `find_head`.
    """

    head_layers: Chosen | None = setting(check_patterns, default=None)

    def is_personal(self, variables, model, x):
        return find_head(self.head_layers, variables, model, x)


def keep_personal(mask: Variables, start: Variables, result: LocalResult) -> LocalResult:
    """Moves the personal part of a result from its update, and what it sends, to its state."""
    trained = jax.tree.map(jnp.add, start, result.update)
    update = jax.tree.map(
        lambda personal, leaf: jnp.zeros_like(leaf) if personal else leaf, mask, result.update
    )
    return result._replace(update=update, state=_personal(mask, trained), sends={})


def find_head(
    head_layers: Chosen | None, variables: Variables, model: Model, x: Shaped[Any, "..."]
) -> Variables:
    """Returns which arrays belong to the head of a model.

    Args:
        head_layers: Expressions of paths or a function, as ``trainable`` of `models.freeze`; None
            for the layers after `Model.features`: arrays that the outputs depend on, but the
            features do not.
        variables: The variables.
        model: The model.
        x: A batch of inputs.

    Raises:
        ValueError: If an expression matches nothing, or the features do not divide the model.
    """
    if head_layers is None:
        return _after_features(variables, model, x)
    names = names_of(variables.params) + names_of(variables.state, in_collections=True)
    check_patterns("head_layers", head_layers, names)
    return Variables(
        mask_of(head_layers, variables.params),
        mask_of(head_layers, variables.state, in_collections=True),
    )


def _after_features(variables: Variables, model: Model, x: Shaped[Any, "..."]) -> Variables:
    def outputs(params, state, x):
        return model.apply(params, state, x, train=False, key=None)[0]

    names = layers_of(names_of(variables.params))
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
        frozen = ", because the others are frozen" if jax.tree.leaves(model.frozen) else ""
        raise ValueError(
            f"head_layers=None: the model has {part} layers after Model.features{frozen}; "
            f"expected layers before and after; name the head's layers among {names}."
        )
    return jax.tree.unflatten(jax.tree.structure(variables), is_head)


def _personal(mask: Variables, variables: Variables) -> tuple[Array, ...]:
    pairs = zip(jax.tree.leaves(mask), jax.tree.leaves(variables), strict=True)
    return tuple(leaf for personal, leaf in pairs if personal)


def _insert(mask: Variables, variables: Variables, personal: tuple[Array, ...]) -> Variables:
    """Returns the variables with personal arrays in their places."""
    parts = iter(personal)
    return jax.tree.map(
        lambda is_personal, leaf: next(parts) if is_personal else leaf, mask, variables
    )
