"""LG-FedAvg: a shared head, and a body that stays on each client."""

from __future__ import annotations

import jax

from fedjax_fair.solvers.split import HeadSolver

__all__ = ["LGFedAvg"]


class LGFedAvg(HeadSolver):
    r"""SGD on a personal body :math:`\phi_i` and a shared head :math:`h`, trained together.

    .. math:: (\phi_i, h) \leftarrow (\phi_i, h) - \eta \nabla f_i(\phi_i, h; B)

    The server averages the head: the parts of `FedPer`, exchanged. As in the paper the layers near
    the output are shared; the authors' code for CIFAR-10 shares the convolutions instead. Clients
    start from the first global model. The authors start from a model of FedAvg, as
    `models.pretrained` does.

    Args:
        solver: SGD.
        head_layers: Layers of the head, as of `FedPer`.

    Raises:
        ValueError: As of `FedPer`.

    References:
        Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency, *Think Locally, Act
        Globally: Federated Learning with Local and Global Representations*, 2020,
        https://arxiv.org/abs/2001.01523

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> lg_fedavg = LGFedAvg(SGD(0.1, batch_size=10, epochs=1))
    """

    def is_personal(self, variables, model, x):
        is_head = super().is_personal(variables, model, x)
        return jax.tree.map(lambda head: not head, is_head)
