"""FedPer: a shared body, and a head that stays on each client."""

from __future__ import annotations

from fedjax_fair.solvers.split import HeadSolver

__all__ = ["FedPer"]


class FedPer(HeadSolver):
    r"""SGD on a shared body :math:`\phi` and a personal head :math:`h_i`, trained together.

    .. math:: (\phi, h_i) \leftarrow (\phi, h_i) - \eta \nabla f_i(\phi, h_i; B)

    The server averages the body. All heads start equal; the paper draws each. Normalization
    statistics belong to the part of their layer.

    Args:
        solver: SGD.
        head_layers: Expressions of the paths of the head's layers, such as ``("head",)`` or
            ``("body/Dense_1", "head")``, or a function, as ``trainable`` of `models.freeze`; by
            default the layers after `Model.features`.

    Raises:
        ValueError: If the solver is no `SGD`; while tracing, if an expression matches nothing, or
            by default no layer is before or after `Model.features`.

    References:
        Arivazhagan, Aggarwal, Singh, Choudhary, *Federated Learning with Personalization Layers*,
        2019, https://arxiv.org/abs/1912.00818

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fedper = FedPer(SGD(0.1, batch_size=10, epochs=1))
        >>> two_layers = fedper.replace(head_layers=("body/Dense_1", "head"))
    """
