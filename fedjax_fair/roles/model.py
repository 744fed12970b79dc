"""The interface of models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key, PyTree, Shaped

from fedjax_fair.utils.tree import Tree


class Variables(NamedTuple):
    """The variables of a model.

    Attributes:
        params: Trained parameters.
        state: Running statistics of normalization layers, averaged like parameters but not part
            of distances or server optimizers; an empty dict for most models.
    """

    params: PyTree
    state: PyTree


def is_correct(
    logits: Float[Array, "*batch classes"], labels: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Returns 1 where the largest logit belongs to the label, 0 elsewhere."""
    return (top_class(logits) == labels).astype(logits.dtype)


def top_class(logits: Float[Array, "*batch classes"]) -> Int[Array, "*batch"]:
    """Returns the class of the largest logit."""
    return jnp.argmax(logits, axis=-1)


class Model(Tree):
    """A network and its loss as pure functions.

    Attributes:
        loss: ``loss(outputs, labels) -> [batch]``; by default cross-entropy in nats. If labels are
            sequences, ``[batch, length]``, so are losses; losses of masked labels are ignored.
        accuracy: ``accuracy(outputs, labels) -> [batch]``, in ``[0, 1]``; NaN where undefined, as
            in regression. ``[batch, length]`` like losses.
        predict: ``predict(outputs) -> [batch, ...]``, labels; by default the largest logit's class.
        probabilities: ``probabilities(outputs) -> [batch, classes]``; by default the softmax. None
            where outputs are not logits.
    """

    _: KW_ONLY
    loss: Callable[..., Float[Array, " batch"]] = optax.softmax_cross_entropy_with_integer_labels
    accuracy: Callable[..., Float[Array, " batch"]] = is_correct
    predict: Callable[..., Shaped[Array, "batch ..."]] = top_class
    probabilities: Callable[..., Float[Array, "batch classes"]] | None = jax.nn.softmax

    @abstractmethod
    def init(self, key: Key[Array, ""] | Any, x: Shaped[Any, "batch ..."]) -> Variables:
        """Returns initial variables; only the shape and dtype of ``x`` matter."""

    @abstractmethod
    def apply(
        self,
        params: PyTree,
        state: PyTree,
        x: Shaped[Any, "batch ..."],
        *,
        train: bool,
        key: Key[Array, ""] | None,
    ) -> tuple[Float[Array, "batch ..."], PyTree]:
        """Returns outputs and the new state.

        The network scales raw ``uint8`` images itself. The random key of dropout may be None when
        ``train`` is false.
        """

    @abstractmethod
    def features(
        self, params: PyTree, state: PyTree, x: Shaped[Any, "batch ..."]
    ) -> Float[Array, "batch width"]:
        """Returns activations of the last hidden layer, in evaluation mode."""

    @staticmethod
    def from_functions(
        init: Callable[..., Variables],
        apply: Callable[..., Any],
        features: Callable[..., Any],
        **settings: Any,
    ) -> Model:
        """Makes a model of functions in place of the methods; settings are the attributes."""
        return FunctionModel(init, apply, features, **settings)


class FunctionModel(Model):
    """A model from `Model.from_functions`."""

    init_fn: Callable[..., Variables]
    apply_fn: Callable[..., Any]
    features_fn: Callable[..., Any]

    def init(self, key, x):
        return self.init_fn(key, x)

    def apply(self, params, state, x, *, train, key):
        return self.apply_fn(params, state, x, train=train, key=key)

    def features(self, params, state, x):
        return self.features_fn(params, state, x)
