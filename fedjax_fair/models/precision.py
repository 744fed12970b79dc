"""Networks that compute in ``bfloat16``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from fedjax_fair.base import Model
from fedjax_fair.models.wrap import as_float, settings_of

__all__ = ["Bfloat16", "in_bfloat16"]


def in_bfloat16(model: Model) -> Model:
    """Returns the same network with layers that compute in ``bfloat16``.

    Parameters, logits, features, losses and updates are ``float32``. Matrix units of accelerators
    multiply ``bfloat16`` several times as fast; a CPU does not benefit.

    Args:
        model: A network without state, as rounding would destroy running statistics.

    Returns:
        The model. Both have the same initial variables.

    Raises:
        ValueError: In ``init``, if the network has state.

    Examples:
        >>> import fedjax_fair as ff
        >>> model = in_bfloat16(ff.models.lenet(10))
        >>> images = jnp.zeros((2, 28, 28, 1), jnp.uint8)
        >>> variables = model.init(jax.random.key(0), images)
        >>> logits, _ = model.apply(*variables, images, train=False, key=None)
        >>> {str(leaf.dtype) for leaf in jax.tree.leaves((variables, logits))}
        {'float32'}
    """
    return Bfloat16(model, **settings_of(model))


class Bfloat16(Model):
    """A model whose layers compute in ``bfloat16``, from `in_bfloat16`.

    Args:
        model: The model that computes.
    """

    model: Model

    def init(self, key, x):
        variables = self.model.init(key, x)
        if jax.tree.leaves(variables.state):
            raise ValueError(
                "in_bfloat16: model has state; expected a model without, such as lenet."
            )
        return variables

    def apply(self, params, state, x, *, train, key):
        logits, state = self.model.apply(
            _rounded(params), state, _rounded(as_float(x)), train=train, key=key
        )
        return logits.astype(jnp.float32), state

    def features(self, params, state, x):
        x = _rounded(as_float(x))
        return self.model.features(_rounded(params), state, x).astype(jnp.float32)


def _rounded(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), tree)
