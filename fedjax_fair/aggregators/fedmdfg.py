"""FedMDFG: a common descent direction that turns losses towards equality, and a line search."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.aggregators.fair_descent import fair_direction, shortest_vector
from fedjax_fair.aggregators.whole_cohort import (
    gather_updates,
    normalize_or_equal,
    normalize_weights,
    write_rows,
)
from fedjax_fair.numerics.products import product
from fedjax_fair.numerics.sketch import ravel
from fedjax_fair.roles import Aggregation, Aggregator, Cohort, Context, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["FedMDFG"]

_MIN_NORM = 1e-6
_SLACK = 1e-4


class _History(NamedTuple):
    """The last update and losses of each client.

    Attributes:
        updates: Its last scaled update.
        rounds: The round of this update; -1 before the first one.
        expected: The running mean of its losses that did not exceed this mean.
        responses: Number of its responses.
    """

    updates: Float[Array, "clients width"]
    rounds: Int[Array, " clients"]
    expected: Float[Array, " clients"]
    responses: Int[Array, " clients"]


class _Search(NamedTuple):
    """A line search.

    Attributes:
        size: Step size of the next trial.
        chosen: Step size to take.
        total: Sum of losses at this step size.
        is_lower: Whether this sum is below that of the received model.
        is_accepted: Whether the search is over.
    """

    size: Float[Array, ""]
    chosen: Float[Array, ""]
    total: Float[Array, ""]
    is_lower: Bool[Array, ""]
    is_accepted: Bool[Array, ""]


class FedMDFG(Aggregator):
    r"""Steps along a common descent direction that also makes losses more equal.

    With :math:`\Delta_k = w - w_k` scaled to the mean norm of all participants as :math:`\bar g_k`,
    the vector :math:`F` of their losses on the received model, :math:`l = F / \lVert F \rVert` and
    :math:`p = (1, \ldots, 1) / \sqrt m`, the direction :math:`d` is the shortest vector in the
    convex hull of

    - all :math:`\bar g_k`, and those of the previous round of clients that are absent now,
    - :math:`\sum_k h_k \bar g_k` with :math:`h \propto \langle l, p \rangle l - p`, along which the
      cosine of :math:`F` and :math:`p` grows, if the angle between them exceeds ``max_angle``, or
      some but not all losses exceed the clients' running means of their best losses.

    All these vectors :math:`v` have :math:`\langle v, d \rangle \ge \lVert d \rVert^2`. The model
    stays if :math:`d` is shorter than a thousandth of the vectors, as without any. The step
    :math:`\eta d` has the norm of the mean of :math:`\bar g_k` at :math:`\eta = 1`. A line search
    halves :math:`\eta`, from :math:`2^s`, or from 1 if a client of the previous round is absent, to
    :math:`2^{-s}` of the step before scaling. It takes the first :math:`\eta` at which no loss
    exceeds :math:`F_k` by more than :math:`10^{-4} \eta \langle \bar g_k, d \rangle`, and at which
    the cosine grows if the second kind of vector is present; otherwise the largest with a smaller
    sum of losses; otherwise the one of the smallest sum.

    The authors' code compares cosines with :math:`1 / \sqrt m`, which nearly all exceed. It has
    gradients of all examples as :math:`\Delta_k`. The last updates take the memory of one model for
    each client, on every device. Updates with a norm below :math:`10^{-6}`, and those that are not
    finite, are ignored. Normalization statistics are averaged by size. Losses of a trial count as
    no communication; a deployment sends :math:`d` and at most :math:`3 s + 1` losses of each
    participant.

    Weights are the non-negative coefficients of the cohort's updates in :math:`d`, divided by their
    sum. Info: the ``received_loss`` of every participant, the ``angle`` between :math:`F` and
    :math:`p` in degrees, whether the direction ``is_guided`` towards equality, and the
    ``step_size`` :math:`\eta`.

    Args:
        max_angle: Angle in degrees, in ``[0, 90]``, up to which losses count as equal.
        halvings: :math:`s` >= 0.
        requires_decrease: Whether all losses have to fall by the amount by which they may rise
            (Armijo's rule).

    Raises:
        ValueError: If a setting is out of range.

    References:
        Pan, Wang, Li, Wang, Tang, Zhao, *FedMDFG: Federated Learning with Multi-Gradient Descent
        and Fair Guidance*, 2023, https://doi.org/10.1609/aaai.v37i8.26122

    Examples:
        >>> aggregator = FedMDFG(max_angle=11.25)
    """

    max_angle: Number = setting(checks.acute_angle, default=11.25)
    _: KW_ONLY
    halvings: int = setting(checks.non_negative_int, default=5, at_most=20)
    requires_decrease: bool = False

    def init(self, context):
        size, width = context.num_clients, ravel(context.variables.params).shape[0]
        never = jnp.full(size, -1, jnp.int32)
        zeros = jnp.zeros(size)
        return _History(jnp.zeros((size, width)), never, zeros, jnp.zeros(size, jnp.int32))

    def aggregate(self, state, cohort, results, context):
        gathered = gather_updates(cohort, results, context)
        losses = context.losses(context.variables, cohort.clients)
        vectors = -gathered.vectors
        norms = jnp.linalg.norm(vectors, axis=1)
        used = gathered.valid & (norms > _MIN_NORM) & jnp.isfinite(losses)
        uniform = normalize_weights(used)
        mean_norm = jnp.sum(uniform * norms)
        scales = jnp.where(used, mean_norm / jnp.where(used, norms, 1), 0)
        rows = scales[:, None] * vectors
        old, count = state.expected[cohort.clients], state.responses[cohort.clients]
        is_above = used & (count > 0) & (losses > old)
        is_some_above = jnp.any(is_above) & ~jnp.all(is_above | ~used)
        turn, angle = fair_direction(losses, used)
        is_guided = ((angle > self.max_angle) | is_some_above) & jnp.any(turn != 0)
        absent, is_absent = _absent_rows(state, cohort, context)
        hull = jnp.concatenate([rows, product(turn, rows)[None], absent])
        is_vertex = jnp.concatenate([used, is_guided[None], is_absent])
        direction, mixture = shortest_vector(hull, is_vertex, mean_norm)
        norm = jnp.linalg.norm(direction)
        length = jnp.linalg.norm(product(uniform, rows))
        scale = jnp.where(norm > 0, length / jnp.where(norm > 0, norm, 1), 0)
        direction = scale * direction
        size = self._search(
            *(direction, product(rows, direction), losses, used, is_guided),
            *(~jnp.any(is_absent), scale, cohort, context),
        )
        earlier = count.astype(jnp.float32)
        lowered = (earlier * old + losses) / (earlier + 1)
        expected = jnp.where((count > 0) & (losses > old), old, lowered)
        new = _History(rows, context.round, expected, count + 1)
        state = write_rows(state, cohort, used, new)
        update = gathered.from_vector(-size * direction)
        cohort_size = cohort.clients.shape[0]
        coefficients = (mixture[:cohort_size] + mixture[cohort_size] * turn) * scales
        coefficients = jnp.maximum(coefficients, 0)
        weights = normalize_or_equal(gathered.valid, coefficients)
        info = {
            "received_loss": losses,
            "angle": angle,
            "is_guided": is_guided,
            "step_size": size,
        }
        return update, state, Aggregation(weights, info)

    def _search(
        self,
        direction: Float[Array, " width"],
        slopes: Float[Array, " cohort"],
        losses: Float[Array, " cohort"],
        used: Bool[Array, " cohort"],
        is_guided: Bool[Array, ""],
        is_same: Bool[Array, ""],
        scale: Float[Array, ""],
        cohort: Cohort,
        context: Context,
    ) -> Float[Array, ""]:
        """Returns the step size; 0 without any direction or finite loss."""
        _, unravel = ravel_pytree(context.variables.params)
        cosine = _cosine(losses, used)
        start_total = jnp.sum(losses, where=used)
        allowed = (-_SLACK if self.requires_decrease else _SLACK) * slopes
        first = jnp.where(is_same, 2.0**self.halvings, 1.0)
        # Without a bound, the search at a stationary point would not end.
        last = 0.5**self.halvings / jnp.clip(scale, 1, 2.0**self.halvings)

        def is_searching(search):
            return ~search.is_accepted & (search.size >= last) & jnp.any(used) & (scale > 0)

        def try_size(search):
            step = unravel(-search.size * direction)
            params = jax.tree.map(jnp.add, context.variables.params, step)
            found = context.losses(Variables(params, context.variables.state), cohort.clients)
            rises = jnp.where(used, found - losses, 0)
            is_accepted = jnp.all(rises <= search.size * allowed)
            is_accepted &= ~is_guided | (_cosine(found, used) > cosine)
            total = jnp.sum(found, where=used)
            is_chosen = is_accepted | (~search.is_lower & (total < search.total))
            return _Search(
                search.size / 2,
                jnp.where(is_chosen, search.size, search.chosen),
                jnp.where(is_chosen, total, search.total),
                search.is_lower | (total < start_total),
                is_accepted,
            )

        infinity, no = jnp.array(jnp.inf, jnp.float32), jnp.array(False)
        start = _Search(first, jnp.zeros(()), infinity, no, no)
        return jax.lax.while_loop(is_searching, try_size, start).chosen


def _cosine(losses: Float[Array, " cohort"], used: Bool[Array, " cohort"]) -> Float[Array, ""]:
    """Returns the cosine of losses and equal ones, without the constant factor."""
    losses = jnp.where(used, losses, 0)
    return jnp.sum(losses) / jnp.maximum(jnp.linalg.norm(losses), 1e-30)


def _absent_rows(
    history: _History, cohort: Cohort, context: Context
) -> tuple[Float[Array, "cohort width"], Bool[Array, " cohort"]]:
    """Returns updates of the previous round of clients that are absent now, and which exist."""
    size = context.num_clients
    is_previous = (history.rounds == context.round - 1) & (history.rounds >= 0)
    is_absent = is_previous & ~cohort.is_present(size)
    (ids,) = jnp.nonzero(is_absent, size=cohort.clients.shape[0], fill_value=size)
    return history.updates.at[ids].get(mode="fill", fill_value=0), ids < size
