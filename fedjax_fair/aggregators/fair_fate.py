"""FAIR-FATE: momentum of the updates that make the model fairer."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from fedjax_fair.aggregators.root_examples import as_root, check_types
from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, weighted_sum
from fedjax_fair.evaluation.client_predictions import apply_model
from fedjax_fair.numerics.trees import scale_tree
from fedjax_fair.roles import Aggregation, Aggregator, Context, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["FairFATE"]

FairnessRatio = Literal["demographic_parity", "equal_opportunity", "equalized_odds"]


class FairFATE(Aggregator):
    r"""Adds momentum of the updates of those clients whose models are fairer than the server's.

    With the update :math:`U_k = w_k - w` of a participant, the fairness :math:`F_k` of its model
    and :math:`F_s` of the received model, both on examples of the server, and shares :math:`p_k` by
    number of examples,

    .. math::

        \alpha_F = \frac{\sum_{F_k > F_s} F_k U_k}{\sum_{F_k > F_s} F_k}, \qquad
        v \leftarrow \beta_t v + (1 - \beta_t)\, \alpha_F, \qquad
        w \leftarrow w + \lambda_t \frac{v}{1 - \beta_t^t} + (1 - \lambda_t) \sum_k p_k U_k,

    where :math:`\alpha_F = 0` if no model is fairer, :math:`\beta_t = \beta_0 (1 - t / T) / ((1 -
    \beta_0) + \beta_0 (1 - t / T))` and :math:`\lambda_t = \min(1, \lambda_0 (1 + \rho)^t)` in
    round :math:`t` of :math:`T`, from 1. Fairness is the sum of the ``metrics``, each scaled to the
    range of the values of :math:`F_s` and all :math:`F_k`. A metric is the ratio of the smaller to
    the larger rate of two groups: 1 is fair, also if both are 0. Class 1 is the favorable one.

    The authors' code has :math:`T = 100` and lets :math:`\lambda_t` exceed 1. Updates of the whole
    cohort are in memory. This is not a method of the command line, because the examples of the
    server are arrays. Updates that are not finite do not count. Normalization statistics are
    averaged by size.

    Weights are those of the new updates: :math:`\lambda_t` times the ones in :math:`\alpha_F`, plus
    :math:`(1 - \lambda_t) p_k`. Info: the ``fairness`` :math:`F_k` of every participant and the
    ``server_fairness`` :math:`F_s`.

    Args:
        root: Examples of the server, features ``[n, ...]`` and labels ``[n]``, of the clients'
            shapes and types (floats become float32, integers other than uint8 features int32).
        root_groups: Sensitive group of each of these examples, 0 or 1.
        num_rounds: :math:`T`.
        metrics: One or more of ``"demographic_parity"``, ``"equal_opportunity"`` and
            ``"equalized_odds"``.
        momentum: :math:`\beta_0`, in ``[0, 1)``.
        strength: :math:`\lambda_0`, in ``[0, 1]``; 0 is ``Mean("num_examples")``.
        growth: :math:`\rho` >= 0.

    Raises:
        ValueError: If a setting is out of range, a group has no examples of class 1 or none of
            others, or (when traced) the examples have other shapes or types than the clients'.

    References:
        Salazar, Fernandes, Araújo, Abreu, *FAIR-FATE: Fair Federated Learning with Momentum*, 2023,
        https://arxiv.org/abs/2209.13678

    Examples:
        >>> trusted = np.ones((4, 8)), [0, 1, 0, 1]
        >>> aggregator = FairFATE(trusted, [0, 0, 1, 1], num_rounds=50)
    """

    root: tuple[ArrayLike, ArrayLike] = setting(as_root)
    root_groups: ArrayLike
    _: KW_ONLY
    num_rounds: int = setting(checks.positive_int)
    metrics: tuple[FairnessRatio, ...] = ("demographic_parity",)
    momentum: Number = setting(checks.unit_interval, default=0.9)
    strength: Number = setting(checks.fraction, default=0.1)
    growth: Number = setting(checks.non_negative, default=0.05)

    def __post_init__(self):
        if not self.metrics:
            raise ValueError("metrics=(): expected one or more; name demographic_parity.")
        for metric in self.metrics:
            checks.one_of("metrics", metric, get_args(FairnessRatio))
        self._convert(root_groups=_check_groups(self.root_groups, self.root[1]))

    def init(self, context):
        return jax.tree.map(jnp.zeros_like, context.variables.params)

    def aggregate(self, state, cohort, results, context):
        updates, valid, shares = gather_updates(cohort, results, context)
        of_clients = jax.lax.map(
            lambda update: self._ratios(jax.tree.map(jnp.add, context.variables, update), context),
            updates,
        )
        of_server = self._ratios(context.variables, context)
        fairness, server = _scale_and_sum(of_clients, of_server, valid)
        fair = normalize_weights(valid, jnp.where(fairness > server, fairness, 0))
        time = context.round.astype(jnp.float32) + 1
        rest = jnp.maximum(1 - time / self.num_rounds, 0)
        decay = self.momentum * rest / ((1 - self.momentum) + self.momentum * rest)
        strength = jnp.minimum(self.strength * (1 + self.growth) ** time, 1)
        fair_update = weighted_sum(updates.params, fair)
        velocity = jax.tree.map(
            lambda old, new: decay * old + (1 - decay) * new, state, fair_update
        )
        mean = weighted_sum(updates, shares)
        params = jax.tree.map(
            jnp.add,
            scale_tree(velocity, strength / (1 - decay**time)),
            scale_tree(mean.params, 1 - strength),
        )
        weights = strength * jnp.where(jnp.any(fair > 0), fair, shares) + (1 - strength) * shares
        info = {"fairness": fairness, "server_fairness": server}
        return Variables(params, mean.state), velocity, Aggregation(weights, info)

    def _ratios(self, variables: Variables, context: Context) -> Float[Array, " metrics"]:
        """Returns the metrics of a model on the examples of the server."""
        features, labels = check_types(self.root, context.examples)
        predicted = context.model.predict(apply_model(context.model, variables, features)) == 1
        is_of_one, is_positive = jnp.asarray(self.root_groups) == 1, labels == 1

        def ratio(counted):
            people = jnp.stack([~is_of_one & counted, is_of_one & counted])
            rates = jnp.mean(predicted[None] & people, axis=1, dtype=jnp.float32)
            rates /= jnp.mean(people, axis=1, dtype=jnp.float32)
            highest = jnp.max(rates)
            return jnp.where(highest > 0, jnp.min(rates) / jnp.where(highest > 0, highest, 1), 1.0)

        opportunity = ratio(is_positive)
        values = {
            "demographic_parity": ratio(jnp.ones_like(is_positive)),
            "equal_opportunity": opportunity,
            "equalized_odds": jnp.minimum(opportunity, ratio(~is_positive)),
        }
        return jnp.stack([values[metric] for metric in self.metrics])


def _scale_and_sum(
    of_clients: Float[Array, "cohort metrics"],
    of_server: Float[Array, " metrics"],
    valid: Bool[Array, " cohort"],
) -> tuple[Float[Array, " cohort"], Float[Array, ""]]:
    """Scales each metric to the range of its values, and sums over metrics."""
    counted = valid[:, None]
    low = jnp.minimum(jnp.min(of_clients, axis=0, where=counted, initial=jnp.inf), of_server)
    high = jnp.maximum(jnp.max(of_clients, axis=0, where=counted, initial=-jnp.inf), of_server)
    width = jnp.where(high > low, high - low, 1)
    of_clients = jnp.sum((of_clients - low[None]) / width[None], axis=1)
    return jnp.where(valid, of_clients, 0), jnp.sum((of_server - low) / width)


def _check_groups(groups: Any, labels: Any) -> Any:
    """Returns the groups as integers, if all cells of group and label have examples."""
    if isinstance(groups, Tracer) or isinstance(labels, Tracer):
        return groups
    groups, is_positive = np.asarray(groups), np.asarray(labels) == 1
    cells = {(int(g), int(y)) for g, y in zip(groups.ravel(), is_positive.ravel(), strict=False)}
    is_of_two = groups.shape == is_positive.shape and groups.dtype.kind in "iub"
    if not is_of_two or cells != {(0, 0), (0, 1), (1, 0), (1, 1)}:
        raise ValueError(
            f"root_groups of shape {groups.shape} and type {groups.dtype}: expected a 0 or 1 for "
            f"each of {len(is_positive)} labels, each with examples of class 1 and of others; "
            "combine groups, or give the server more examples."
        )
    return groups.astype(np.int32)
