"""FedBABU: FedAvg of the body with a head that is never trained, then fine-tuning."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fedjax_fair.numerics.tree_paths import Chosen, check_patterns
from fedjax_fair.solvers.split import find_head
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD
from fedjax_fair.utils import checks
from fedjax_fair.utils.tree import setting

__all__ = ["FedBABU"]


class FedBABU(WrappedSGD):
    """SGD on the body; the head keeps its initial value, and is trained in evaluations only.

    The global model has the averaged body and the initial head. Every evaluation fine-tunes the
    whole model on the training examples of each client, also of those that never took part, and
    discards the result. The head is sent once, which does not count as communication.

    Args:
        solver: SGD of the body, and of fine-tuning with the learning rate of the current round.
        head_layers: Layers of the head, as of `FedPer`.
        finetune_epochs: Epochs of fine-tuning, >= 0; 5 in the paper.

    Raises:
        ValueError: As of `FedPer`, or if ``finetune_epochs`` is negative.

    References:
        Oh, Kim, Yun, *FedBABU: Towards Enhanced Representation for Federated Image Classification*,
        2022, https://arxiv.org/abs/2106.06042

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fedbabu = FedBABU(SGD(0.1, batch_size=50, epochs=4, momentum=0.9), finetune_epochs=5)
    """

    head_layers: Chosen | None = setting(check_patterns, default=None)
    finetune_epochs: int = setting(checks.non_negative_int, default=5, at_most=checks.MAX_INT)

    def is_personal(self, variables, model, x):
        return find_head(self.head_layers, variables, model, x)

    def solve(self, key, variables, client):
        is_head = self.is_personal(variables, client.model, client.examples.features[:1])
        is_body = jax.tree.map(lambda head: not head, is_head)
        return self.solver.solve(key, variables, client, is_trained=is_body)

    def personalize(self, key, variables, client):
        if self.finetune_epochs == 0:
            return variables
        solver = self.solver.replace(steps=None, epochs=self.finetune_epochs)
        update = solver.solve(key, variables, client).update
        return jax.tree.map(jnp.add, variables, update)
