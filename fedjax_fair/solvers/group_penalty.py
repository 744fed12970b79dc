"""Local SGD with a penalty on differences between groups of people."""

from __future__ import annotations

from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from fedjax_fair import checks
from fedjax_fair.base import Number
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["GroupPenalty"]

PenaltyCriterion = Literal["demographic_parity", "equal_opportunity"]


class GroupPenalty(WrappedSGD):
    r"""SGD on the minibatch loss plus a penalty on differences of the groups' mean scores.

    With the mean :math:`s_a` of the predicted probability of class 1 over the people of group
    :math:`a` in the minibatch, a step descends on the mean loss plus

    .. math:: \lambda \sum_{a < b} (s_a - s_b)^2.

    For ``"equal_opportunity"`` only people with label 1 count. The penalty of a minibatch with
    fewer than two groups is 0. Groups are the combinations of all sensitive features. The
    probability is computed from the loss, which must be cross-entropy. A baseline of this package:
    each client treats its groups equally, so that only the differences within clients decrease.

    Args:
        solver: SGD.
        strength: :math:`\lambda` >= 0, in nats; 0 is SGD.
        criterion: ``"demographic_parity"`` or ``"equal_opportunity"``.

    Raises:
        ValueError: If the solver is no `SGD`, a setting is invalid, or (when traced) the data has
            no sensitive features.

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fair = GroupPenalty(SGD(0.1, batch_size=32, epochs=1), strength=2.0)
    """

    strength: Number = 1.0
    criterion: PenaltyCriterion = "demographic_parity"

    def __post_init__(self):
        super().__post_init__()
        checks.non_negative("strength", self.strength)
        checks.one_of("criterion", self.criterion, get_args(PenaltyCriterion))

    def solve(self, key, variables, client):
        codes, labels = client.examples.sensitive_features, client.examples.labels
        if codes is None:
            raise ValueError(
                "GroupPenalty: the data has no sensitive features; expected data from "
                "data.from_arrays(..., sensitive_features={'sex': column}) or data.from_table."
            )

        def batch_loss(losses, mask, indices):
            is_positive = labels[indices] == 1
            right = jnp.exp(-losses)
            scores = jnp.where(is_positive, right, 1 - right)
            counted = mask & is_positive if self.criterion == "equal_opportunity" else mask
            penalty = _squared_differences(scores, counted, codes[indices])
            return jnp.mean(losses, where=mask) + self.strength * penalty

        return self.solver.solve(key, variables, client, batch_loss=batch_loss)


def _squared_differences(
    scores: Float[Array, " batch"],
    counted: Bool[Array, " batch"],
    codes: Int[Array, "batch features"],
) -> Float[Array, ""]:
    """Sums the squared differences of the groups' mean scores over pairs of groups."""
    is_same = jnp.all(codes[:, None] == codes[None], axis=-1) & counted[None]
    same = is_same.astype(scores.dtype)
    size = jnp.maximum(jnp.sum(same, axis=1), 1)
    means = jnp.sum(same * scores[None], axis=1) / size
    # The weights of the people of a group sum to 1.
    weights = jnp.where(counted, 1 / size, 0)
    gaps = (means[:, None] - means[None]) ** 2
    return jnp.sum(weights[:, None] * weights[None] * gaps) / 2
