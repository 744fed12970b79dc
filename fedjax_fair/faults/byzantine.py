"""Byzantine clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Int

from fedjax_fair import checks
from fedjax_fair.base import Cohort, Context, Faults, Number, Variables
from fedjax_fair.numerics.permutation import permutation_at
from fedjax_fair.parallel import collectives

__all__ = ["Byzantine"]

_STRENGTHS = {
    "sign_flip": 1.0,
    "scaling": 10.0,
    "noise": 1.0,
    "nan": 0.0,
    "alie": 1.0,
    "ipm": 0.5,
}
_COLLUDING = ("alie", "ipm")


class Byzantine(Faults):
    r"""Some clients send something else than what they have learned.

    With :math:`u` the update of a Byzantine client, and :math:`\bar u, s` mean and standard deviation, at every
    coordinate, of the updates of those participants who answer honestly, it sends, for a strength
    :math:`a`:

    ================= ============================================== ============
    attack            sent in place of :math:`u`                     strength
    ================= ============================================== ============
    ``sign_flip``     :math:`-a\,u`                                  1
    ``scaling``       :math:`a\,u`                                   10
    ``noise``         :math:`u + a\,z`, :math:`z \sim N(0, I)`       1
    ``nan``           not a number, everywhere                       (none)
    ``alie``          :math:`\bar u - a\,s` (a little is enough)     1
    ``ipm``           :math:`-a\,\bar u`                             0.5
    ================= ============================================== ============

    The last two know what all others send, which keeps the updates of a cohort in memory at once.
    Clients may be Byzantine by their data as well: `fedjax_fair.data.flip_labels`.

    Args:
        clients: Ids of the Byzantine clients, or their fraction of all clients, in ``[0, 1]``, to the nearest
            number; which ones follows from ``seed``.
        attack: What they send.
        strength: How much, >= 0. The default is in the table.
        seed: Chooses the Byzantine clients where a fraction is given.

    Raises:
        ValueError: If a setting is out of range.

    References:
        Baruch, Baruch, Goldberg, *A Little Is Enough: Circumventing Defenses For Distributed
        Learning*, 2019, https://arxiv.org/abs/1902.06156

        Xie, Koyejo, Gupta, *Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
        Manipulation*, 2019, https://arxiv.org/abs/1903.03936

    Examples:
        >>> byzantine = Byzantine(0.2, "sign_flip")
        >>> two = Byzantine([3, 7], "alie", strength=1.5)
    """

    clients: Number | Int[Array | np.ndarray, " byzantine"] | Sequence[int]
    attack: Literal["sign_flip", "scaling", "noise", "nan", "alie", "ipm"]
    strength: Number | None = None
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self):
        checks.one_of("attack", self.attack, tuple(_STRENGTHS))
        if self.strength is not None:
            checks.non_negative("strength", self.strength)
        checks.non_negative_int("seed", self.seed)
        if not isinstance(self.clients, (list, tuple)) and np.ndim(self.clients) == 0:
            checks.probability("clients", self.clients)
        else:
            checks.items("clients", self.clients, np.iinfo(np.int32).max)
            if not isinstance(self.clients, Tracer):
                self._convert(clients=np.asarray(self.clients, np.int32))

    @property
    def send(self) -> Callable[..., Variables] | None:
        """What a Byzantine client sends who knows nothing of the others; None for attacks of all at once."""
        return None if self.attack in _COLLUDING else self._send_alone

    @property
    def collude(self) -> Callable[..., Variables] | None:
        """What Byzantine clients send who know all updates; None for attacks of one alone."""
        return self._send_together if self.attack in _COLLUDING else None

    @property
    def _amount(self) -> Number:
        return _STRENGTHS[self.attack] if self.strength is None else self.strength

    def _is_byzantine(self, ids: Int[Array, "..."], num_clients: int) -> Bool[Array, "..."]:
        if np.ndim(self.clients) == 0:
            count = jnp.round(jnp.asarray(self.clients, jnp.float32) * num_clients)
            places = permutation_at(jax.random.key(self.seed), ids, num_clients)
            return places < count.astype(places.dtype)
        return jnp.isin(ids, jnp.asarray(self.clients, ids.dtype))

    def _send_alone(self, key, context, update):
        false = _alone(key, self.attack, self._amount, update)
        byzantine = self._is_byzantine(context.client, context.num_clients)
        return jax.tree.map(lambda own, sent: jnp.where(byzantine, sent, own), update, false)

    def _send_together(self, cohort: Cohort, updates: Variables, context: Context) -> Variables:
        byzantine = self._is_byzantine(cohort.clients, context.num_clients)
        responded = jnp.ones_like(byzantine) if cohort.responded is None else cohort.responded
        here = responded
        if context.examples.devices is not None:
            here = responded & collectives.is_local(context.examples, cohort.clients)
        honest = (responded & ~byzantine).astype(jnp.float32)
        shares = honest / jnp.maximum(jnp.sum(honest), 1)
        mean = context.weighted_sum(shares, updates)
        strength = self._amount
        if self.attack == "ipm":
            crafted = jax.tree.map(lambda leaf: -strength * leaf, mean)
        else:
            squares = jax.tree.map(lambda own, leaf: (own - leaf[None]) ** 2, updates, mean)
            variance = context.weighted_sum(jnp.where(here, shares, 0), squares)
            crafted = jax.tree.map(lambda leaf, v: leaf - strength * jnp.sqrt(v), mean, variance)

        def replace(own, leaf):
            mask = (byzantine & here).reshape(-1, *[1] * leaf.ndim)
            return jnp.where(mask, leaf, own)

        return jax.tree.map(replace, updates, crafted)


def _alone(key, attack: str, strength: Number, update: Variables) -> Variables:
    """What a Byzantine client sends who knows nothing of the others."""
    if attack == "nan":
        return jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), update)
    if attack == "noise":
        leaves, structure = jax.tree.flatten(update)
        keys = [jax.random.fold_in(key, place) for place in range(len(leaves))]
        noisy = [
            leaf + strength * jax.random.normal(own, leaf.shape, leaf.dtype)
            for own, leaf in zip(keys, leaves, strict=True)
        ]
        return jax.tree.unflatten(structure, noisy)
    factor = -strength if attack == "sign_flip" else strength
    return jax.tree.map(lambda leaf: factor * leaf, update)
