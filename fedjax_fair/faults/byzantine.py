"""Byzantine clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.parallel import collectives
from fedjax_fair.roles import Cohort, Context, Faults, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["Byzantine"]

_STRENGTHS = {"sign_flip": 1.0, "scaling": 10.0, "noise": 1.0, "nan": 0.0, "alie": 1.0, "ipm": 0.5}
_COLLUDING = ("alie", "ipm")


# Byzantine clients are the first of a seeded permutation of ids, which needs no state and does not
# depend on the cohort.
class Byzantine(Faults):
    r"""Sends something else in place of the updates of Byzantine clients.

    With :math:`u` the update of a Byzantine client, :math:`a` the strength, and :math:`\bar u, s`
    the mean and standard deviation of every coordinate over the honest responding clients:

    ============= ================================================== ================
    attack        sent in place of :math:`u`                         default strength
    ============= ================================================== ================
    ``sign_flip`` :math:`-a\,u`                                      1
    ``scaling``   :math:`a\,u`                                       10
    ``noise``     :math:`u + a\,z`, :math:`z \sim N(0, I)`           1
    ``nan``       NaN                                                (none)
    ``alie``      :math:`\bar u - a\,s` (a little is enough)         1
    ``ipm``       :math:`-a\,\bar u` (inner product manipulation)    0.5
    ============= ================================================== ================

    Other values that the client sends, except integers, are replaced in the same way. Metrics in
    results are of all clients, Byzantine ones included: an attack on the model is measured on all
    of them.

    ``alie`` and ``ipm`` need the updates of the whole cohort in memory. For attacks by training
    data see `fedjax_fair.data.flip_labels`.

    Args:
        clients: Ids of the Byzantine clients, or their fraction of all clients, in ``[0, 1]``,
            rounded to the nearest count.
        attack: One of the attacks above.
        strength: Strength :math:`a` >= 0.
        seed: Seed of the choice of clients if a fraction is given.

    Raises:
        ValueError: If a setting is out of range, or (before training, or when a round with known
            ids is traced) an id belongs to no client.

    References:
        Baruch, Baruch, Goldberg, *A Little Is Enough: Circumventing Defenses For Distributed
        Learning*, 2019, https://arxiv.org/abs/1902.06156

        Xie, Koyejo, Gupta, *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
        Manipulation*, 2019, https://arxiv.org/abs/1903.03936

    Examples:
        >>> sign_flips = Byzantine(0.2, "sign_flip")
        >>> two_clients = Byzantine([3, 7], "alie", strength=1.5)
    """

    clients: Number | Int[Array | np.ndarray, " byzantine"] | Sequence[int]
    attack: Literal["sign_flip", "scaling", "noise", "nan", "alie", "ipm"]
    strength: Number | None = setting(checks.non_negative, default=None)
    _: KW_ONLY
    seed: int = setting(checks.non_negative_int, default=0)

    def __post_init__(self):
        if not isinstance(self.clients, (list, tuple)) and np.ndim(self.clients) == 0:
            checks.probability("clients", self.clients)
        else:
            checks.items("clients", self.clients, np.iinfo(np.int32).max)
            if not isinstance(self.clients, Tracer):
                self._convert(clients=np.asarray(self.clients, np.int32))

    def check(self, num_clients):
        if np.ndim(self.clients):
            checks.items("clients", self.clients, num_clients)

    @property
    def send(self) -> Callable[..., Variables] | None:
        """The method for attacks that use a client's update alone; None for colluding attacks."""
        return None if self.attack in _COLLUDING else self._send_alone

    @property
    def collude(self) -> Callable[..., Variables] | None:
        """The method for attacks that use all updates; None for others."""
        return self._send_together if self.attack in _COLLUDING else None

    @property
    def _strength(self) -> Number:
        return _STRENGTHS[self.attack] if self.strength is None else self.strength

    def _is_byzantine(self, ids: Int[Array, "..."], num_clients: int) -> Bool[Array, "..."]:
        if np.ndim(self.clients) == 0:
            count = jnp.round(jnp.asarray(self.clients, jnp.float32) * num_clients)
            places = permutation_at(jax.random.key(self.seed), ids, num_clients)
            return places < count.astype(places.dtype)
        self.check(num_clients)
        return jnp.isin(ids, jnp.asarray(self.clients, ids.dtype))

    def _send_alone(self, key, context, update):
        strength = self._strength
        if self.attack == "nan":
            false = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), update)
        elif self.attack == "noise":
            leaves, structure = jax.tree.flatten(update)
            keys = [jax.random.fold_in(key, index) for index in range(len(leaves))]
            false = jax.tree.map(
                lambda leaf, key: leaf + strength * jax.random.normal(key, leaf.shape, leaf.dtype),
                update,
                jax.tree.unflatten(structure, keys),
            )
        else:
            factor = -strength if self.attack == "sign_flip" else strength
            false = jax.tree.map(lambda leaf: factor * leaf, update)
        is_byzantine = self._is_byzantine(context.client, context.num_clients)
        return jax.tree.map(partial(jnp.where, is_byzantine), false, update)

    def _send_together(self, cohort: Cohort, updates: Variables, context: Context) -> Variables:
        is_byzantine = self._is_byzantine(cohort.clients, context.num_clients)
        responded = is_local = cohort.responded_mask
        if context.examples.devices is not None:
            is_local = responded & collectives.is_local(context.examples, cohort.clients)
        honest = (responded & ~is_byzantine).astype(jnp.float32)
        shares = honest / jnp.maximum(jnp.sum(honest), 1)
        mean = context.weighted_sum(shares, updates)
        strength = self._strength
        if self.attack == "ipm":
            crafted = jax.tree.map(lambda leaf: -strength * leaf, mean)
        else:
            squares = jax.tree.map(lambda leaf, m: (leaf - m[None]) ** 2, updates, mean)
            # On other devices updates are zeros, whose distance from the mean is not zero.
            variance = context.weighted_sum(jnp.where(is_local, shares, 0), squares)
            crafted = jax.tree.map(lambda m, v: m - strength * jnp.sqrt(v), mean, variance)
        replace = partial(jax.vmap(jnp.where, in_axes=(0, None, 0)), is_byzantine & is_local)
        return jax.tree.map(replace, crafted, updates)
