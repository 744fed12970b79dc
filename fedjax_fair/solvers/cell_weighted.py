"""SGD on losses that are weighted by sensitive group and label."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from fedjax_fair.numerics.labels import check_one_label
from fedjax_fair.roles import Client
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["CellWeighted"]


# One solver for FedFB, FedMinMax and reweighing, whose aggregators differ in the weights that they
# broadcast.
class CellWeighted(WrappedSGD):
    r"""SGD in which the loss of an example is multiplied by the weight of its cell.

    With the weight :math:`W(a, y)` of group :math:`a` and label :math:`y`, which is 0 for all
    classes but 1, a step descends on
    :math:`\frac{1}{|B|} \sum_{i \in B} W(a_i, y_i)\, \ell_i`. The sum of weights in a minibatch is
    not divided out, which would undo part of the weighting. Equal weights of 1 are SGD.

    The server broadcasts ``cell_weights``, ``[groups, 2]``, and ``group_strides``, which make the
    group of an example from the codes of its sensitive features. The instruction ``cell_weights``
    has weights of each client instead. Sequences of labels have no cells: with a single group,
    training is SGD.

    Args:
        solver: SGD.

    Raises:
        ValueError: If the solver is no `SGD`, or (when traced) there are several groups and the
            data has more than one label per example.

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> weighted = CellWeighted(SGD(0.1, batch_size=10, epochs=1))
    """

    needs = ("group_strides",)

    def solve(self, key, variables, client):
        weights = client.instructions.get("cell_weights", client.broadcast.get("cell_weights"))
        assert weights is not None
        labels, num_groups = client.examples.labels, weights.shape[0]
        if labels.ndim > 1 and num_groups == 1:
            return self.solver.solve(key, variables, client)
        check_one_label(labels, f"CellWeighted has weights of {num_groups} groups and two labels")

        def batch_loss(losses, mask, indices, outputs):
            of_examples = _example_weights(client, weights, indices)
            return jnp.mean(of_examples * losses, where=mask)

        return self.solver.solve(key, variables, client, batch_loss=batch_loss)


def _example_weights(
    client: Client, weights: Float[Array, "groups 2"], indices: Int[Array, " batch"]
) -> Float[Array, " batch"]:
    """Returns the weights of some examples of a client."""
    strides, examples = client.broadcast["group_strides"], client.examples
    labels = (examples.labels[indices] == 1).astype(jnp.int32)
    if examples.sensitive_features is None:
        return weights[jnp.zeros_like(labels), labels]
    codes = examples.sensitive_features[indices]
    return weights[jnp.sum(codes * strides[None], axis=1, dtype=jnp.int32), labels]
