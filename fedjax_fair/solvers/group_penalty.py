"""Local SGD with a penalty on differences between sensitive groups."""

from __future__ import annotations

from typing import Any, Literal

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair.data.sensitive import find_groups
from fedjax_fair.numerics.labels import check_one_label
from fedjax_fair.roles import Client, Model, Number, setting
from fedjax_fair.solvers.sgd import BatchLoss
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks

__all__ = ["GroupPenalty", "PenaltyCriterion", "penalized_loss"]

PenaltyCriterion = Literal["demographic_parity", "equal_opportunity"]


class GroupPenalty(WrappedSGD):
    r"""SGD on the minibatch loss plus a penalty on differences of the groups' mean scores.

    With the mean :math:`s_a` of the predicted probability of class 1 over the people of group
    :math:`a` in the minibatch, and their mean :math:`s` over all people, a step descends on the
    mean loss plus :math:`\lambda` times

    .. math:: (s_0 - s_1)^2 \text{ for two groups}, \qquad \sum_a (s_a - s)^2 \text{ for more}.

    For ``"equal_opportunity"`` only people with label 1 count. Groups that are absent from a
    minibatch do not count; the penalty of a minibatch with fewer than two groups is 0. The
    probability is computed from the loss, which must be cross-entropy. A baseline of this package:
    each client treats its groups equally, so that only the differences within clients decrease.

    Args:
        solver: SGD.
        strength: :math:`\lambda` >= 0, in nats; 0 is SGD.
        criterion: ``"demographic_parity"`` or ``"equal_opportunity"``.
        sensitive_feature: Name of the sensitive feature whose values are the groups; None for the
            combinations of all.

    Raises:
        ValueError: If the solver is no `SGD`, a setting is invalid, or (when traced) the data has
            no sensitive features, none of this name, or more than one label per example.

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fair = GroupPenalty(SGD(0.1, batch_size=32, epochs=1), strength=2.0)
    """

    strength: Number = setting(checks.non_negative, default=1.0)
    criterion: PenaltyCriterion = "demographic_parity"
    sensitive_feature: str | None = None

    def solve(self, key, variables, client):
        return self.solver.solve(key, variables, client, batch_loss=penalized_loss(self, client))


def penalized_loss(solver: Any, client: Client) -> BatchLoss:
    """Returns the mean loss of a minibatch plus the penalty of `GroupPenalty`.

    Args:
        solver: A solver with the settings of `GroupPenalty`.
        client: The client.
    """
    name, examples = type(solver).__name__, client.examples
    groups = find_groups(name, client.sensitive_names, solver.sensitive_feature)
    check_one_label(examples.labels, f"{name} compares scores of class 1")

    def batch_loss(losses, mask, indices, outputs):
        labels = examples.labels[indices]
        scores = _scores(client.model, outputs, labels, losses)
        counted = mask & (labels == 1) if solver.criterion == "equal_opportunity" else mask
        people = groups.of(examples, indices)
        penalty = _squared_differences(scores, counted, people, groups.number)
        return jnp.mean(losses, where=mask) + solver.strength * penalty

    return batch_loss


def _scores(
    model: Model,
    outputs: Float[Array, "batch classes"],
    labels: Int[Array, " batch"],
    losses: Float[Array, " batch"],
) -> Float[Array, " batch"]:
    """Computes the predicted probabilities of class 1."""
    if outputs.shape[-1] != 2:
        return jnp.exp(-model.loss(outputs, jnp.ones_like(labels)))
    # Of two classes the losses are known. Other computations would change results by rounding.
    right = jnp.exp(-losses)
    return jnp.where(labels == 1, right, 1 - right)


def _squared_differences(
    scores: Float[Array, " batch"],
    counted: Bool[Array, " batch"],
    people: Int[Array, " batch"],
    num_groups: int,
) -> Float[Array, ""]:
    """Computes the squared differences of the mean scores of groups, without the strength."""
    is_member = (people[None] == jnp.arange(num_groups)[:, None]) & counted[None]
    sizes = jnp.sum(is_member, axis=1, dtype=scores.dtype)
    sums = jnp.sum(jnp.where(is_member, scores[None], 0), axis=1)
    means, is_present = sums / jnp.maximum(sizes, 1), sizes > 0
    if num_groups == 2:
        return jnp.where(jnp.all(is_present), means[0] - means[1], 0) ** 2
    overall = jnp.sum(sums) / jnp.maximum(jnp.sum(sizes), 1)
    return jnp.sum(jnp.where(is_present, means - overall, 0) ** 2)
