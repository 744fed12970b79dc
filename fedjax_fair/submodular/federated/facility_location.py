"""Every client is served by the item of the set that it likes best."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from fedjax_fair.submodular import multilinear
from fedjax_fair.submodular.base import SetFunction, as_finite
from fedjax_fair.submodular.facility_location import facility_location as total_facility_location
from fedjax_fair.submodular.federated.problem import ClientFunction, Problem, family
from fedjax_fair.submodular.federated.sparse import (
    SparseScores,
    clipped,
    entries,
    per_client_max,
    run_of,
)

__all__ = ["OFFERS", "facility_location", "sparse_facility_location"]

OFFERS = ClientFunction(
    value=lambda offers, mask: jnp.max(
        offers.scores,
        where=mask.at[offers.items].get(mode="fill", fill_value=False),
        initial=0,
    ),
    gains=lambda offers, mask: multilinear.facility_location_gradient(
        offers, mask.astype(offers.scores.dtype)
    ),
    extension=lambda offers, key, x: multilinear.facility_location_value(offers, x),
    gradient=lambda offers, key, x: multilinear.facility_location_gradient(offers, x),
)


def facility_location(scores: ArrayLike | SparseScores) -> Problem:
    r"""``f_i(S) = max_{j in S} c_ij``: ratings, similarities, closeness.

    Args:
        scores: What each item is worth to each client, ``[clients, n]``, or ``sparse_scores`` where
            most of them are 0. Negative ones count as 0, with a warning.

    Returns:
        The problem, with an exact extension. Its gradient costs two passes over the scores, and in
        the sparse form over those that are not 0.

    Raises:
        ValueError: If a score is not finite, or shapes do not fit.

    Examples:
        >>> problem = facility_location([[3.0, 1.0, 0.0], [0.0, 2.0, 0.0]])
        >>> float(problem.value(jnp.array([False, True, False])))
        1.5
    """
    if isinstance(scores, SparseScores):
        return sparse_facility_location("facility_location", scores)
    matrix = as_finite("scores", scores, "clients n")
    if not isinstance(matrix, Tracer):
        clipped("scores", np.asarray(matrix))
    matrix = jnp.maximum(matrix, 0)
    return family(
        "facility_location",
        jax.vmap(multilinear.ranked)(matrix),
        OFFERS,
        size=matrix.shape[1],
        exact=True,
        total=lambda weights: total_facility_location(matrix * weights[:, None]),
    )


def sparse_facility_location(name: str, sparse: SparseScores) -> Problem:
    """The same of a list of scores, gone through once for all clients."""

    def served(mask: Array) -> Float[Array, " clients"]:
        offered = jnp.where(mask[sparse.items], sparse.scores, 0)
        return jnp.maximum(per_client_max(sparse, offered), 0)

    def extensions(key, x):
        return _by_levels(sparse, x)[0] if sparse.levels is not None else _by_rank(sparse, x)[0]

    def gradients(key, x):
        form = _by_levels if sparse.levels is not None else _by_rank
        return entries(sparse, form(sparse, x)[1])

    def own(client):
        places = run_of(sparse, client)
        return multilinear.Ranked(
            sparse.scores.at[places].get(mode="fill", fill_value=0),
            sparse.items.at[places].get(mode="fill", fill_value=sparse.size),
        )

    return Problem(
        name=name,
        num_clients=sparse.num_clients,
        size=sparse.size,
        exact=True,
        own=own,
        function=OFFERS,
        values=served,
        extensions=extensions,
        gradients=gradients,
        gains=lambda mask: gradients(None, mask.astype(sparse.scores.dtype)),
        total=lambda weights: _total(sparse, weights),
    )


def _by_levels(
    sparse: SparseScores, x: Float[Array, " size"]
) -> tuple[Float[Array, " clients"], Float[Array, " entries"]]:
    """Extension and gradient from products over the levels of each client."""
    assert sparse.levels is not None
    assert sparse.steps is not None
    num_levels = sparse.steps.shape[0]
    present = x[sparse.items]
    certain = present >= 1
    absent = jnp.where(certain, 1, 1 - present)
    cells = sparse.owners * num_levels + sparse.levels
    number = sparse.num_clients * num_levels

    def from_above(per_cell, accumulate):
        return accumulate(per_cell.reshape(-1, num_levels), axis=1, reverse=True)

    # Certain items are counted rather than multiplied, so that each can be left out.
    products = from_above(jax.ops.segment_prod(absent, cells, number), jax.lax.cumprod)
    sure = from_above(jax.ops.segment_sum(certain.astype(jnp.int32), cells, number), jax.lax.cumsum)
    nothing = sparse.steps[None] * products
    values = jnp.sum(sparse.steps[None] - jnp.where(sure == 0, nothing, 0), axis=1)
    without_any = jnp.cumsum(jnp.where(sure == 0, nothing, 0), axis=1).ravel()[cells]
    without_own = jnp.cumsum(jnp.where(sure <= 1, nothing, 0), axis=1).ravel()[cells]
    return values, jnp.where(certain, without_own, without_any / absent)


def _by_rank(
    sparse: SparseScores, x: Float[Array, " size"]
) -> tuple[Float[Array, " clients"], Float[Array, " entries"]]:
    """Extension and gradient from the two prefix passes, over all runs at once."""
    present, scores = x[sparse.items], sparse.scores
    leads = jnp.append(True, sparse.owners[1:] != sparse.owners[:-1])
    ends = jnp.append(leads[1:], True)
    # Nothing better there: starts with 1 in each run, then times what the one before leaves.
    before = jnp.append(0.0, 1 - present[:-1])
    better = _recurrence(jnp.where(leads, 0, before), leads.astype(x.dtype))
    after = jnp.append((1 - present)[1:], 0.0)
    offered = jnp.append((present * scores)[1:], 0.0)
    worse = _recurrence(jnp.where(ends, 0, after), jnp.where(ends, 0, offered), reverse=True)
    firsts = jnp.where(leads, present * scores + (1 - present) * worse, 0)
    values = jax.ops.segment_sum(firsts, sparse.owners, sparse.num_clients, indices_are_sorted=True)
    return values, better * (scores - worse)


def _recurrence(
    factors: Float[Array, " entries"], terms: Float[Array, " entries"], *, reverse: bool = False
) -> Float[Array, " entries"]:
    """``y_k = factors_k * y_{k-1} + terms_k``, in logarithmic depth."""

    def then(first, second):
        return first[0] * second[0], second[0] * first[1] + second[1]

    return jax.lax.associative_scan(then, (factors, terms), reverse=reverse)[1]


def _total(sparse: SparseScores, weights: Float[Array, " clients"]) -> SetFunction:
    """The memo is how well every client is served."""
    own_weights = weights[sparse.owners]

    def served(mask):
        return jnp.maximum(per_client_max(sparse, jnp.where(mask, sparse.scores, 0)), 0)

    def gains(best):
        better = jnp.maximum(sparse.scores - best[sparse.owners], 0)
        return jax.ops.segment_sum(own_weights * better, sparse.items, sparse.size)

    return SetFunction(
        size=sparse.size,
        value=lambda mask: weights @ served(mask[sparse.items]),
        init=lambda: jnp.zeros(sparse.num_clients),
        gains=gains,
        gain=lambda best, item: weights @ jnp.maximum(served(sparse.items == item) - best, 0),
        add=lambda best, item: jnp.maximum(best, served(sparse.items == item)),
    )
