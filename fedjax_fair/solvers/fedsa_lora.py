"""FedSA-LoRA: shared factors A of low-rank adapters, and factors B that stay on each client."""

from __future__ import annotations

from fedjax_fair.models.lora_variants import adapter_masks, check_lora
from fedjax_fair.solvers.split import SplitSolver

__all__ = ["FedSALoRA"]


class FedSALoRA(SplitSolver):
    r"""SGD on shared factors :math:`A` and personal factors :math:`B_i`, trained together.

    The server averages :math:`A`. Arrays that are trained as a whole, such as a head, are personal
    too, as in the authors' code. All :math:`B_i` start at zero, so that a client that never took
    part has the network without adapters.

    Args:
        solver: SGD.

    Raises:
        ValueError: If the solver is no `SGD`; in `Round`, without adapters of which both factors
            are trained.

    References:
        Guo, Zeng, Wang, Fan, Wang, Qu, *Selective Aggregation for Low-Rank Adaptation in Federated
        Learning*, 2024, https://arxiv.org/abs/2410.01463

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fedsa = FedSALoRA(SGD(0.02, batch_size=128, steps=10))
    """

    def check_model(self, model):
        check_lora("solver: FedSALoRA", model)

    def is_personal(self, variables, model, x):
        return adapter_masks(variables, lambda pair: {"a": False, "b": True})
