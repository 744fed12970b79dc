"""Networks that start from given variables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedjax_fair import checks
from fedjax_fair.base import Model, Variables
from fedjax_fair.models.wrap import settings_of

__all__ = ["Pretrained", "pretrained"]


def pretrained(model: Model, variables: Variables) -> Model:
    """The same network, which starts from given variables instead of random ones.

    Args:
        model: The network.
        variables: Of one model: from `FitResult.variables_for`, or ``Variables(params, state)`` of what a Flax
            module was trained to elsewhere.

    Returns:
        The model. All seeds start alike.

    Raises:
        ValueError: If the variables are not those of such a network (when training starts, which is
            when the shape of inputs is known).

    Examples:
        >>> import fedjax_fair as ff
        >>> data = ff.data.load("digits")
        >>> def method(model):
        ...     return ff.Round(
        ...         model, ff.selectors.Uniform(10), ff.solvers.SGD(0.1, 10, steps=5),
        ...         ff.aggregators.Mean(),
        ...     )
        >>> first = ff.train(method(ff.models.logistic(10)), data, rounds=10)
        >>> start = ff.models.pretrained(first.model, first.variables_for(seed=0))
        >>> second = ff.train(method(start), data, rounds=10)
        >>> after, before = first.dataset.test_loss[0, -1], second.dataset.test_loss[0, 0]
        >>> bool((after == before).all())
        True
    """
    return Pretrained(model, variables, **settings_of(model))


class Pretrained(Model):
    """A model that starts from given variables, from `pretrained`.

    Args:
        model: The network.
        variables: What it starts from. Others of the same shapes do not recompile.
    """

    model: Model
    variables: PyTree

    def __post_init__(self):
        checks.instance("variables", self.variables, Variables, "fitted.variables_for(seed=0)")

    def init(self, key, x):
        variables = self.variables
        expected = jax.eval_shape(self.model.init, key, x)
        if jax.tree.structure(expected) != jax.tree.structure(variables):
            raise ValueError(f"variables: expected {_named(expected)}, got {_named(variables)}.")
        named = jax.tree_util.tree_leaves_with_path(expected)
        for (path, wanted), given in zip(named, jax.tree.leaves(variables), strict=True):
            own = jnp.asarray(given)
            if (own.shape, own.dtype) != (wanted.shape, wanted.dtype):
                raise ValueError(
                    f"variables: {jax.tree_util.keystr(path)} is {own.dtype}{list(own.shape)}: "
                    f"expected {wanted.dtype}{list(wanted.shape)}."
                )
        return jax.tree.map(jnp.asarray, variables)

    def apply(self, params, state, x, *, train, key):
        return self.model.apply(params, state, x, train=train, key=key)

    def features(self, params, state, x):
        return self.model.features(params, state, x)


def _named(variables: Variables) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    return ", ".join(jax.tree_util.keystr(path) for path, _ in leaves) or "none"
