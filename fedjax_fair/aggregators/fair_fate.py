"""FAIR-FATE: momentum of the updates that make the model fairer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from fedjax_fair.aggregators.cells import pooled_counts
from fedjax_fair.aggregators.whole_cohort import gather_updates, normalize_weights, weighted_sum
from fedjax_fair.data.sensitive import SensitiveGroups, find_two_groups
from fedjax_fair.numerics.trees import scale_tree
from fedjax_fair.roles import Aggregation, Aggregator, Context, Number, Variables, setting
from fedjax_fair.utils import checks

__all__ = ["FairFATE"]

_CRITERIA = ("demographic_parity", "equal_opportunity", "equalized_odds")


class FairFATE(Aggregator):
    r"""Adds momentum of the updates of those clients whose models are fairer than the server's.

    With the update :math:`U_k = w_k - w` of a participant, the fairness :math:`F_k` of its model
    and :math:`F_s` of the received model, both on the validation examples of all clients, and
    shares :math:`p_k` by number of training examples,

    .. math::

        \alpha_F = \frac{\sum_{F_k > F_s} F_k U_k}{\sum_{F_k > F_s} F_k}, \qquad
        v \leftarrow \beta_t v + (1 - \beta_t)\, \alpha_F, \qquad
        w \leftarrow w + \lambda_t \frac{v}{1 - \beta_t^t} + (1 - \lambda_t) \sum_k p_k U_k,

    where :math:`\alpha_F = 0` if no model is fairer, :math:`\beta_t = \beta_0 (1 - t / T) / ((1 -
    \beta_0) + \beta_0 (1 - t / T))` and :math:`\lambda_t = \min(1, \lambda_0 (1 + \rho)^t)` in
    round :math:`t` of :math:`T`, from 1. Fairness is the sum of the ``criteria``, each scaled to
    the range of the values of :math:`F_s` and all :math:`F_k`. A criterion is the ratio of the
    smaller to the larger rate of two groups: 1 is fair, also if both are 0 or a group has no people
    that the rate counts. Class 1 is the favorable one.

    The server needs validation examples of its own, for which the pooled validation examples of the
    clients stand. Metrics of validation examples are therefore too good to choose settings by.
    Every model of a round predicts all of these examples. The authors' code has :math:`T = 100` and
    lets :math:`\lambda_t` exceed 1. Updates of the whole cohort are in memory. Updates that are
    not finite do not count. Normalization statistics are averaged by size.

    Weights are those of the new updates: :math:`\lambda_t` times the ones in :math:`\alpha_F`, plus
    :math:`(1 - \lambda_t) p_k`. Info: the ``fairness`` :math:`F_k` of every participant and the
    ``server_fairness`` :math:`F_s`.

    Args:
        num_rounds: :math:`T`.
        criteria: Criteria of fairness on the validation examples of all clients: one or more of
            ``"demographic_parity"``, ``"equal_opportunity"`` and ``"equalized_odds"``.
        sensitive_feature: Name of a sensitive feature with two values; None if there is only one.
        beta: Momentum :math:`\beta_0`, in ``[0, 1)``.
        strength: Share :math:`\lambda_0` of the momentum in a step before it grows, in ``[0, 1]``;
            0 is ``Mean("num_examples")``.
        growth: Relative growth :math:`\rho` of this share per round, >= 0.

    Raises:
        ValueError: If a setting is out of range, or (when traced) the data has no validation
            examples, no two sensitive groups, or several labels per example.

    References:
        Salazar, Fernandes, Araújo, Abreu, *FAIR-FATE: Fair Federated Learning with Momentum*, 2023,
        https://arxiv.org/abs/2209.13678

    Examples:
        >>> aggregator = FairFATE(num_rounds=50)
    """

    num_rounds: int = setting(checks.positive_int)
    _: KW_ONLY
    criteria: Sequence[str] = ("demographic_parity",)
    sensitive_feature: str | None = None
    beta: Number = setting(checks.unit_interval, default=0.9)
    strength: Number = setting(checks.fraction, default=0.1)
    growth: Number = setting(checks.non_negative, default=0.05)

    def __post_init__(self):
        if not self.criteria:
            raise ValueError("criteria=(): expected one or more; name demographic_parity.")
        for criterion in self.criteria:
            checks.one_of("criteria", criterion, _CRITERIA)
        self._convert(criteria=tuple(self.criteria))

    def init(self, context):
        if context.validation is None:
            raise ValueError(
                "FairFATE: the data has no validation examples, by which the server measures "
                "fairness; hold some out by validation_fraction=0.2 (--data.validation-fraction "
                "0.2)."
            )
        self._groups(context)
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
        decay = self.beta * rest / ((1 - self.beta) + self.beta * rest)
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

    def _groups(self, context: Context) -> SensitiveGroups:
        return find_two_groups("FairFATE", context.sensitive_names, self.sensitive_feature)

    def _ratios(self, variables: Variables, context: Context) -> Float[Array, " criteria"]:
        """Returns the criteria of a model on the validation examples of all clients."""
        assert context.validation is not None  # `init` has checked it.
        groups = self._groups(context)
        counts = pooled_counts(context.model, variables, context.validation, groups)
        opportunity = _ratio(counts[:, 1])
        values = {
            "demographic_parity": _ratio(jnp.sum(counts, axis=1)),
            "equal_opportunity": opportunity,
            "equalized_odds": jnp.minimum(opportunity, _ratio(counts[:, 0])),
        }
        return jnp.stack([values[criterion] for criterion in self.criteria])


def _ratio(counts: Float[Array, "groups 2"]) -> Float[Array, ""]:
    """Returns the ratio of the groups' rates of prediction 1; 1 if none is positive or defined."""
    people = jnp.sum(counts, axis=1)
    rates = counts[:, 1] / jnp.maximum(people, 1)
    highest = jnp.max(rates)
    is_defined = jnp.all(people > 0) & (highest > 0)
    return jnp.where(is_defined, jnp.min(rates) / jnp.where(is_defined, highest, 1), 1.0)


def _scale_and_sum(
    of_clients: Float[Array, "cohort criteria"],
    of_server: Float[Array, " criteria"],
    valid: Bool[Array, " cohort"],
) -> tuple[Float[Array, " cohort"], Float[Array, ""]]:
    """Scales each criterion to the range of its values, and sums over criteria."""
    counted = valid[:, None]
    low = jnp.minimum(jnp.min(of_clients, axis=0, where=counted, initial=jnp.inf), of_server)
    high = jnp.maximum(jnp.max(of_clients, axis=0, where=counted, initial=-jnp.inf), of_server)
    width = jnp.where(high > low, high - low, 1)
    of_clients = jnp.sum((of_clients - low[None]) / width[None], axis=1)
    return jnp.where(valid, of_clients, 0), jnp.sum((of_server - low) / width)
