"""FedFB: weights of groups and labels, or of clients, that follow a measure of unfairness."""

from __future__ import annotations

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.aggregators.cells import Cells, client_cells, client_labels, info_of_groups
from fedjax_fair.aggregators.mean import scheme_weights
from fedjax_fair.data.sensitive import find_groups
from fedjax_fair.numerics.simplex import project
from fedjax_fair.roles import Aggregation, Aggregator, Number, ServerView, setting
from fedjax_fair.utils import checks

__all__ = ["FedFBMean"]

Criterion = Literal["demographic_parity", "equal_opportunity", "client_parity"]


class _State(NamedTuple):
    """Weights of groups, and numbers of training examples of all clients by group and label."""

    weights: Float[Array, " groups"]
    people: Float[Array, "groups 2"]


class FedFBMean(Aggregator):
    r"""Federated averaging with weights of groups or clients that follow a measure of unfairness.

    With :math:`n` training examples of all clients, :math:`n_a` of group :math:`a` and
    :math:`n_{ay}` of label :math:`y`, clients train on :math:`n v_i \ell_i`, with the weight
    :math:`v_i` of the group and label of example :math:`i`, and updates are averaged by sizes.

    - ``"demographic_parity"``: :math:`v = \lambda_a / n_a` for label 0 and
      :math:`(2 n_a / n - \lambda_a) / n_a` for label 1, at first :math:`\lambda_a = n_a / n`. With
      the sum :math:`L'_{y,a}` of losses of group :math:`a` and label :math:`y` at the new model,
      divided by :math:`n_a`,

      .. math:: F_a = -L'_{0,0} + L'_{1,0} + L'_{0,a} - L'_{1,a} + n_{00} / n_0 - n_{a0} / n_a,

      which is the difference of selection rates :math:`P(\hat y = 1 | a) - P(\hat y = 1 | 0)` if
      :math:`\ell` is the error. A step is :math:`\lambda_a \leftarrow
      \mathrm{clip}(\lambda_a + \alpha_t \mu_a / \lVert \mu \rVert, 0, 2 n_a / n)` with
      :math:`\mu = (-\sum_{a \ge 1} F_a, F_1, \dots)`.
    - ``"equal_opportunity"``: :math:`v = \lambda_a / n_{a1}` for label 1, at first
      :math:`\lambda_a = n_{a1} / n`, and :math:`1 / n` for label 0. :math:`\mu_a` is the mean loss
      of group :math:`a` with label 1, less the mean of the groups, and :math:`\lambda` is projected
      to non-negative values of an unchanged sum. (For two groups this is the paper's form; for more
      it is a generalization.)
    - ``"client_parity"``: Clients are the groups, so that no sensitive features are needed. They
      train on :math:`\ell_i`, and updates are averaged with the weights :math:`\lambda_k` instead,
      at first :math:`n_k / n`. With the mean loss :math:`F_k` of a participant at the new model,
      :math:`\lambda_k \leftarrow \max(0, \lambda_k + \alpha_t \mu_k / \lVert \mu \rVert)` with
      :math:`\mu_k = F_k - F_r` for :math:`k \ne r` and :math:`\mu_r = -\sum_{k \ne r} \mu_k`.
      The paper compares with its first client; here :math:`r` is the responding client with the
      lowest id, which is the same if all clients take part. Weights of the responding clients are
      divided by their sum, and are :math:`n_k` if that is 0.

    :math:`\alpha_t = \alpha / \sqrt t`. Steps are normalized, as the losses of all participants are
    summed; the authors' code takes :math:`\mu` itself. Groups and labels without examples of the
    participants do not count. The communication of losses at the new model is not counted; a
    deployment would send :math:`2 A` scalars per participant, or one with client parity.
    `WithServerOptimizer` refuses this aggregator, as the optimizer would lead to another model than
    the one whose losses are measured.

    Info: ``weight_of_group_<a>``, each :math:`\lambda_a` after the step, or ``weight_of_client``,
    that of each participant.

    Args:
        alpha: :math:`\alpha` >= 0; 0 is FedAvg.
        criterion: ``"demographic_parity"``, ``"equal_opportunity"`` or ``"client_parity"``.
        sensitive_feature: Name of the sensitive feature whose values are the groups; None for the
            combinations of all. Not used by client parity.

    Raises:
        ValueError: If a setting is invalid, or (when traced) groups are of people and the data
            lacks sensitive features or has more than one label per example.

    References:
        Zeng, Chen, Lee, *Improving Fairness via Federated Learning*, 2021,
        https://arxiv.org/abs/2110.15545

    Examples:
        >>> aggregator = FedFBMean(alpha=0.1, criterion="equal_opportunity")
    """

    alpha: Number = setting(checks.non_negative, default=0.1)
    criterion: Criterion = "demographic_parity"
    sensitive_feature: str | None = None

    @property
    def server_view(self) -> ServerView:
        return "scalars" if self.criterion == "client_parity" else "vectors"

    def __post_init__(self):
        if self.criterion == "client_parity" and self.sensitive_feature is not None:
            raise ValueError(
                f"sensitive_feature={self.sensitive_feature!r} is not used by "
                "criterion='client_parity', whose groups are the clients; remove it."
            )

    def _groups(self, context):
        return find_groups("FedFBMean", context.sensitive_names, self.sensitive_feature)

    def init(self, context):
        if self.criterion == "client_parity":
            sizes = context.sizes.astype(jnp.float32)
            return sizes / jnp.sum(sizes)
        people = jnp.sum(client_labels(context, self._groups(context)), axis=0)
        counted = people[:, 1] if self.criterion == "equal_opportunity" else jnp.sum(people, axis=1)
        return _State(counted / jnp.sum(people), people)

    def broadcast(self, state, context):
        if self.criterion == "client_parity":
            # All examples are of one cell; no array may be empty.
            strides = jnp.zeros(max(1, len(context.sensitive_names or ())), jnp.int32)
            return {"cell_weights": jnp.ones((1, 2)), "group_strides": strides}
        total = jnp.sum(state.people)
        if self.criterion == "equal_opportunity":
            positive = state.weights / jnp.maximum(state.people[:, 1], 1)
            columns = [jnp.ones_like(positive), total * positive]
        else:
            sizes = jnp.maximum(jnp.sum(state.people, axis=1), 1)
            negative = total * state.weights / sizes
            columns = [negative, 2 - negative]
        return {
            "cell_weights": jnp.stack(columns, axis=1),
            "group_strides": jnp.asarray(self._groups(context).strides),
        }

    def aggregate(self, state, cohort, results, context):
        if self.criterion == "client_parity":
            return self._aggregate_clients(state, cohort, results, context)
        weights = scheme_weights("num_examples", cohort, context)
        update = context.weighted_sum(weights, results.update)
        groups = self._groups(context)
        moved = jax.tree.map(jnp.add, context.variables, update)
        cells = context.map_clients(
            lambda client, _: client_cells(context, moved, groups, client), cohort.clients
        )
        counted = cohort.is_last_response[:, None, None]
        people, losses = (
            jnp.sum(jnp.where(counted, leaf, 0.0), axis=0)
            for leaf in Cells(jnp.sum(cells.counts, axis=3), cells.losses)
        )
        rate = self._rate(context)
        step = _equal_opportunity_step if self.criterion == "equal_opportunity" else _parity_step
        new = step(state, people, losses, rate)
        new = jnp.where(jnp.all(jnp.isfinite(new)), new, state.weights)
        info = info_of_groups("weight", new)
        return update, _State(new, state.people), Aggregation(weights, info)

    def _rate(self, context):
        return self.alpha / jnp.sqrt(context.round.astype(jnp.float32) + 1)

    def _aggregate_clients(self, state, cohort, results, context):
        """Averages with the weights of clients, and takes a step towards client parity."""
        known = jnp.where(cohort.responded_mask, state[cohort.clients], 0)
        total = jnp.sum(known)
        shares = scheme_weights("num_examples", cohort, context)  # For clients without weight.
        weights = jnp.where(total > 0, known / jnp.where(total > 0, total, 1), shares)
        update = context.weighted_sum(weights, results.update)
        moved = jax.tree.map(jnp.add, context.variables, update)
        losses = context.losses(moved, cohort.clients)
        counted = cohort.is_last_response
        step = self._rate(context) * _client_parity_direction(cohort.clients, losses, counted)
        step = jnp.where(jnp.all(jnp.isfinite(step)), step, 0)
        places = jnp.where(counted, cohort.clients, jnp.iinfo(cohort.clients.dtype).max)
        state = state.at[places].set(jnp.maximum(known + step, 0), mode="drop")
        info = {"weight_of_client": state[cohort.clients]}
        return update, state, Aggregation(weights, info)


def _parity_step(
    state: _State, people: Float[Array, "groups 2"], losses: Float[Array, "groups 2"], rate: Number
) -> Float[Array, " groups"]:
    """Returns weights after a step towards demographic parity."""
    sizes = jnp.sum(people, axis=1)
    is_known = (sizes > 0) & (sizes[0] > 0)
    means = losses / jnp.maximum(sizes, 1)[:, None]
    negatives = people[:, 0] / jnp.maximum(sizes, 1)
    gaps = means[:, 0] - means[:, 1] - negatives
    gaps = jnp.where(is_known, gaps - gaps[0], 0)
    direction = _normalize(gaps.at[0].set(-jnp.sum(gaps[1:])))
    shares = jnp.sum(state.people, axis=1) / jnp.sum(state.people)
    return jnp.clip(state.weights + rate * direction, 0, 2 * shares)


def _equal_opportunity_step(
    state: _State, people: Float[Array, "groups 2"], losses: Float[Array, "groups 2"], rate: Number
) -> Float[Array, " groups"]:
    """Returns weights after a step towards equal losses of people with label 1."""
    is_known = people[:, 1] > 0
    means = losses[:, 1] / jnp.maximum(people[:, 1], 1)
    average = jnp.sum(jnp.where(is_known, means, 0)) / jnp.maximum(
        jnp.sum(is_known, dtype=jnp.float32), 1
    )
    direction = _normalize(jnp.where(is_known, means - average, 0))
    total = jnp.sum(state.people[:, 1]) / jnp.sum(state.people)
    scaled = (state.weights + rate * direction) / jnp.where(total > 0, total, 1)
    return total * project(scaled, jnp.zeros_like(scaled), jnp.ones_like(scaled))


def _client_parity_direction(
    clients: Int[Array, " cohort"], losses: Float[Array, " cohort"], counted: Bool[Array, " cohort"]
) -> Float[Array, " cohort"]:
    """Returns the direction towards equal losses, compared with the lowest id that counts."""
    reference = jnp.argmin(jnp.where(counted, clients, jnp.iinfo(clients.dtype).max))
    gaps = jnp.where(counted, losses - losses[reference], 0)
    return _normalize(gaps.at[reference].set(-jnp.sum(gaps)))


def _normalize(vector: Float[Array, " groups"]) -> Float[Array, " groups"]:
    length = jnp.sqrt(jnp.sum(vector**2))
    return vector / jnp.where(length > 0, length, 1)
