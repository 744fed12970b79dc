"""The interface of models."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, Key, PyTree, Shaped

from fedjax_fair.numerics.dependence import dependence
from fedjax_fair.numerics.trees import tree_bytes
from fedjax_fair.utils.tree import Tree

Task = Literal["classification", "regression", "multi_label"]


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
        task: What it predicts, which determines the metrics of results
            (`fedjax_fair.metrics.quantities.quantities_of`).
        loss_unit: Unit of the loss.
        bind_state: Method ``bind_state(state) -> Model``, if only the server changes
            ``Variables.state``: clients and roles then see this model, which holds the state, and
            variables without state. The aggregator changes it by ``Aggregation.state_update``.
    """

    # Arrays in the model and not in the variables, so that clients neither copy, store nor send
    # them, and privacy, compression and robust rules do not see them.
    bind_state: ClassVar[Callable[..., Model] | None] = None

    _: KW_ONLY
    loss: Callable[..., Float[Array, " batch"]] = optax.softmax_cross_entropy_with_integer_labels
    accuracy: Callable[..., Float[Array, " batch"]] = is_correct
    predict: Callable[..., Shaped[Array, "batch ..."]] = top_class
    probabilities: Callable[..., Float[Array, "batch classes"]] | None = jax.nn.softmax
    task: Task = "classification"
    loss_unit: str = "nat"

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
        example_mask: Bool[Array, " batch"] | None = None,
    ) -> tuple[Float[Array, "batch ..."], PyTree]:
        """Returns outputs and the new state.

        The network scales raw ``uint8`` images itself. The random key of dropout may be None when
        ``train`` is false. Statistics of the batch count only the examples of ``example_mask``, or
        all without one; a model whose state does not read examples need not have this parameter.
        """

    @abstractmethod
    def features(
        self, params: PyTree, state: PyTree, x: Shaped[Any, "batch ..."]
    ) -> Float[Array, "batch width"]:
        """Returns activations of the last hidden layer, in evaluation mode."""

    @property
    def frozen(self) -> PyTree:
        """Arrays of the network that are no variables, because nothing changes them."""
        return ()

    def merge(self, variables: Variables) -> Variables:
        """Returns the variables of the whole network."""
        return variables

    def client_bytes(self, variables: Variables) -> int:
        """Returns the bytes of the arrays that a client has copies of while it trains."""
        return tree_bytes(variables)

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

    def apply(self, params, state, x, *, train, key, example_mask=None):
        return apply_masked(self.apply_fn, params, state, x, train, key, example_mask)

    def features(self, params, state, x):
        return self.features_fn(params, state, x)


def apply_masked(
    apply: Callable[..., Any],
    params: PyTree,
    state: PyTree,
    x: Shaped[Any, "batch ..."],
    train: bool,
    key: Key[Array, ""] | None,
    example_mask: Bool[Array, " batch"] | None,
) -> Any:
    """Calls `Model.apply`, or a function in its place, with the mask if it takes one.

    Raises:
        ValueError: If it takes none, and its new state depends on examples.
    """
    settings: dict[str, Any] = {"train": train, "key": key}
    if example_mask is not None:
        if takes_mask(apply):
            settings["example_mask"] = example_mask
        elif jax.tree.leaves(state):
            refuse_statistics("apply", lambda x: apply(params, state, x, **settings)[1], x)
    return apply(params, state, x, **settings)


def takes_mask(function: Callable[..., Any]) -> bool:
    """Returns whether a function has a parameter ``example_mask``."""
    return "example_mask" in inspect.signature(function).parameters


def refuse_statistics(name: str, statistics: Callable[..., PyTree], x: Shaped[Any, "..."]) -> None:
    """Checks that arrays of a new state, a function of the examples, do not depend on them.

    Raises:
        ValueError: If they do.
    """
    if dependence(statistics, x)[0]:
        raise ValueError(
            f"{name}: the new state depends on the examples, of which some are padding if a "
            "minibatch is smaller than batch_size. Give it a parameter example_mask=None, "
            "[batch], and count only examples where it is true (all if it is None), such as "
            "jnp.mean(x, 0, where=example_mask[:, None]) or BatchNorm(...)(x, mask=...), which "
            "nn.jit, nnx.jit and nnx.remat hide; or draw minibatches that are never smaller, with "
            "SGD(..., replacement=True)."
        )
