"""Networks that compute with fewer bits than they are kept in."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Shaped

from fedjax_fair.base import Model
from fedjax_fair.models.wrap import as_float, settings_of

__all__ = ["Bfloat16", "in_bfloat16"]


def in_bfloat16(model: Model) -> Model:
    """The same network, whose layers compute in ``bfloat16``.

    Parameters, logits, features, losses and updates stay in ``float32``: parameters and inputs are
    rounded on their way into the network, and what comes out is converted back, as are gradients.
    Matrix units of accelerators multiply such numbers several times as fast and add them up in
    ``float32``. A CPU gains nothing.

    Args:
        model: A network without state: running statistics would be lost in rounding.

    Returns:
        The model. Its ``init`` is that of the given one, so both start alike.

    Raises:
        ValueError: If the network has state (when its variables are made).

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
            raise ValueError("model: expected one without state, whose layers may be rounded.")
        return variables

    def apply(self, params, state, x, *, train, key):
        logits, state = self.model.apply(_rounded(params), state, _image(x), train=train, key=key)
        return logits.astype(jnp.float32), state

    def features(self, params, state, x):
        return self.model.features(_rounded(params), state, _image(x)).astype(jnp.float32)


def _image(x: Shaped[Array, "batch ..."]) -> Array:
    return as_float(x).astype(jnp.bfloat16)


def _rounded(params: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
