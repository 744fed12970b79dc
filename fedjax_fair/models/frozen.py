"""Networks of which a part is trained, sent and stored, while the rest is frozen."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import PyTree

from fedjax_fair.models.wrappers import check_variables, functions_of
from fedjax_fair.numerics.dependence import dependence
from fedjax_fair.numerics.tree_paths import (
    Chosen,
    check_patterns,
    insert_part,
    layers_of,
    mask_of,
    names_of,
    part_of,
)
from fedjax_fair.roles import Model, Variables
from fedjax_fair.roles.model import apply_masked
from fedjax_fair.utils import checks

__all__ = ["Frozen", "check_network", "freeze", "is_trained", "split_network"]


def freeze(model: Model, variables: Variables, trainable: Chosen, *, fresh: bool = False) -> Frozen:
    """Returns the same network, of which only the chosen arrays are trained.

    The others are frozen: clients do not send them, no role sees them, and all clients and seeds
    share one copy. Running statistics stay as given if any array of them is frozen; the network
    then runs in evaluation mode also in training, without dropout.

    Args:
        model: The network.
        variables: Variables of the whole network, of one seed: from `FitResult.variables_for`, or
            ``Variables(params, state)`` of a module that was trained elsewhere.
        trainable: Regular expressions of paths, such as ``("head",)`` for a layer or
            ``("head/bias", "body/Dense_.*")``, or a function ``(path, array) -> bool``. A path is
            the keys of an array joined by ``/``.
        fresh: Whether the trained arrays start from ``model.init`` of each seed instead of the
            given values. ``variables`` may then lack them, or have them in other shapes.

    Returns:
        The model, whose variables are the trained arrays. `Model.merge` returns those of the
        whole network.

    Raises:
        ValueError: If ``variables`` has NaN, an expression matches nothing, or a wrapper has to be
            inside; in ``init``, if the network has other variables, or its running statistics are
            trained behind frozen layers.

    Examples:
        >>> import fedjax_fair as ff
        >>> network = ff.models.mlp(10, hidden=(32,))
        >>> base = network.init(jax.random.key(0), jnp.zeros((1, 64)))
        >>> model = freeze(network, base, ("head",))
        >>> print(model)
        Frozen(
            model=LinenModel(module=Classifier(body=Body(hidden=(32,)), num_classes=10)),
            trainable=('head',),
        )
        trained and sent: 330 parameters in 2 arrays
        frozen: 2,080 parameters in 2 arrays
    """
    check_network("freeze", model)
    base, start, trainable = split_network(variables, trainable, fresh=fresh)
    if start is not None and not jax.tree.leaves(start.params):
        raise ValueError(
            f"trainable={trainable!r} chooses no parameter: expected some of "
            f"{layers_of(names_of(variables.params))}; name a layer."
        )
    return Frozen(model, base, start, trainable, **functions_of(model))


class Frozen(Model):
    """A model of which a part is trained, from `freeze`.

    Args:
        model: The network.
        base: Variables of the network, with None in place of the trained arrays. Others of the
            same shapes do not cause recompilation.
        start: Initial values of the trained arrays, as nested dicts; None for those of ``init``.
        trainable: Expressions or function that choose the trained arrays.
    """

    model: Model
    base: PyTree = dataclasses.field(repr=False)
    start: PyTree | None = dataclasses.field(repr=False)
    trainable: Chosen

    def init(self, key, x):
        network = jax.eval_shape(self.model.init, key, x)
        if self.start is None:
            check_patterns("trainable", self.trainable, _names(network))
            drawn = self.model.init(key, x)
            mask = is_trained(drawn, self.trainable)
            start = Variables(*map(part_of, drawn, mask))
        else:
            start = jax.tree.map(jnp.asarray, self.start)
        whole = Frozen.merge(self, start)
        check_variables(network, whole)
        if jax.tree.leaves(start.state):
            self._check_statistics(whole, x, key)
        return start

    def _check_statistics(self, whole: Variables, x: Any, key: Any) -> None:
        """Raises ``ValueError`` if trained statistics depend on frozen parameters."""

        def statistics(params):
            return self.model.apply(params, whole.state, x, train=True, key=key)[1]

        mask = is_trained(whole, self.trainable).params
        (used,) = dependence(statistics, whole.params)
        pairs = zip(names_of(mask), jax.tree.leaves(mask), jax.tree.leaves(used), strict=True)
        if names := [name for name, is_part, is_used in pairs if is_used and not is_part]:
            raise ValueError(
                f"trainable={self.trainable!r}: running statistics "
                f"({layers_of(names_of(whole.state))}) are trained, but layers before them are "
                f"frozen ({layers_of(names)}); freeze the statistics too, or train these layers."
            )

    @property
    def frozen(self):
        return self.base

    def merge(self, variables):
        return jax.tree.map(jnp.asarray, Variables(*map(insert_part, self.base, variables)))

    @property
    def has_frozen_state(self) -> bool:
        """True if running statistics are frozen."""
        return bool(jax.tree.leaves(self.base.state))

    def apply(self, params, state, x, *, train, key, example_mask=None):
        whole = Frozen.merge(self, Variables(params, state))
        return self._run(whole, state, x, train, key, example_mask)

    def _run(self, whole, state, x, train, key, example_mask):
        # In training mode layers would be normalized by the clients' batches, and their averages
        # would drift while the layers that feed them stay.
        if self.has_frozen_state:
            outputs, _ = self.model.apply(whole.params, whole.state, x, train=False, key=key)
            return outputs, state
        outputs, new = apply_masked(
            self.model.apply, whole.params, whole.state, x, train, key, example_mask
        )
        return outputs, part_of(new, jax.tree.map(lambda _: True, new)) if state else state

    def features(self, params, state, x):
        whole = Frozen.merge(self, Variables(params, state))
        return self.model.features(whole.params, whole.state, x)

    def __str__(self) -> str:
        return f"{self!r}\n{self._describe()}"

    def _describe(self) -> str:
        return f"{_count('trained and sent', self.start)}\n{_count('frozen', self.frozen)}"


def _count(what: str, tree: PyTree) -> str:
    if tree is None:
        return f"{what}: arrays from init of each seed"
    leaves = jax.tree.leaves(tree)
    size = sum(leaf.size for leaf in leaves)
    return f"{what}: {size:,} parameters in {len(leaves)} arrays"


def split_network(
    variables: Variables, trainable: Chosen, *, fresh: bool = False
) -> tuple[Variables, Variables | None, Chosen]:
    """Returns the frozen part, with None for other arrays, the trained part, and the choice.

    Raises:
        ValueError: As `freeze`.
    """
    checks.instance("variables", variables, Variables, "fitted.variables_for(seed=0)")
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables):
        if not isinstance(leaf, Tracer) and not np.isfinite(leaf).all():
            raise ValueError(
                f"variables: {jax.tree_util.keystr(path)} has NaN or infinite values: expected "
                "finite numbers; pass the variables of a run that did not diverge."
            )
    names = None if fresh else _names(variables)
    trainable = check_patterns("trainable", trainable, names)
    mask = is_trained(variables, trainable)
    base = jax.tree.map(lambda is_part, leaf: None if is_part else leaf, mask, variables)
    start = None if fresh else Variables(*map(part_of, variables, mask))
    return base, start, trainable


def _names(variables: Variables) -> list[str]:
    return names_of(variables.params) + names_of(variables.state, in_collections=True)


def is_trained(variables: Variables, trainable: Chosen) -> Variables:
    """Returns which arrays of a network are trained; of its state all or none."""
    state = mask_of(trainable, variables.state, in_collections=True)
    all_trained = all(jax.tree.leaves(state))
    return Variables(
        mask_of(trainable, variables.params), jax.tree.map(lambda _: all_trained, state)
    )


def check_network(function: str, model: Model) -> None:
    """Raises ``ValueError`` if a part of a model is frozen already."""
    if jax.tree.leaves(model.frozen):
        raise ValueError(
            f"{function}: {type(model).__name__} is frozen in part: expected the network itself; "
            "choose all trained arrays in one call of freeze or lora."
        )
