"""RoLoRA: one factor of low-rank adapters is trained in even rounds, the other in odd ones."""

from __future__ import annotations

from fedjax_fair.models.lora_variants import adapter_masks, check_lora
from fedjax_fair.roles import Client, Variables
from fedjax_fair.solvers.wrapped_sgd import WrappedSGD

__all__ = ["RoLoRA"]


class RoLoRA(WrappedSGD):
    r"""SGD on the factors :math:`B` of adapters in even rounds, and on :math:`A` in odd ones.

    In each round the other factor is equal on all clients, so that the mean of the trained one is
    the mean of the products:

    .. math:: \sum_i p_i A B_i = A \sum_i p_i B_i, \qquad \sum_i p_i A_i B = (\sum_i p_i A_i) B

    Clients send the trained factor and the arrays that are trained as a whole, and receive all
    factors, because they may have been absent in the last round. The paper counts the trained
    factor in both directions. :math:`B` comes first, since the gradient of :math:`A` is zero as
    long as :math:`B` is.

    Args:
        solver: SGD.

    Raises:
        ValueError: If the solver is no `SGD`; in `Round`, without adapters of which both factors
            are trained, and with compression or privacy, which would change the fixed factor.

    References:
        Chen, Guo, Ju, Dalal, Zhu, Khisti, *Robust Federated Finetuning of LLMs via Alternating
        Optimization of LoRA*, 2025, https://arxiv.org/abs/2502.01755

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> rolora = RoLoRA(SGD(0.1, batch_size=10, epochs=1))
    """

    def check_model(self, model):
        check_lora("solver: RoLoRA", model)

    def is_sent(self, variables: Variables, client: Client) -> Variables:
        """Returns which factors are trained in the round."""
        factor = {"a": client.round % 2 == 1, "b": client.round % 2 == 0}
        return adapter_masks(variables, lambda pair: factor)

    def solve(self, key, variables, client):
        is_trained = self.is_sent(variables, client)
        return self.solver.solve(key, variables, client, is_trained=is_trained)
