"""FedBN: batch normalization that stays on each client."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import PyTree

from fedjax_fair.roles import Variables
from fedjax_fair.solvers.split import SplitSolver

__all__ = ["FedBN"]


class FedBN(SplitSolver):
    """SGD on a model whose batch normalization is personal: scale, bias and running statistics.

    The server averages all other layers. Batch normalization is recognized by its type, not by
    names: state with exactly a ``mean`` and a ``var``, as of Flax, and ``scale`` and ``bias`` of
    the same module. Group and layer normalization are shared. A client that never took part has the
    initial batch normalization.

    Args:
        solver: SGD.

    Raises:
        ValueError: If the solver is no `SGD`; while tracing, if the model has no batch
            normalization.

    References:
        Li, Jiang, Zhang, Kamp, Dou, *FedBN: Federated Learning on Non-IID Features via Local Batch
        Normalization*, 2021, https://arxiv.org/abs/2102.07623

    Examples:
        >>> from fedjax_fair.solvers import SGD
        >>> fedbn = FedBN(SGD(0.01, batch_size=32, epochs=1))
    """

    def is_personal(self, variables, model, x):
        modules = {path for path, keys in _groups(variables.state).items() if keys == _STATISTICS}
        if not modules:
            none = "none that is trained" if jax.tree.leaves(model.frozen) else "none"
            raise ValueError(
                "FedBN needs a model with batch normalization, such as models.resnet18(10, "
                f"norm='batch'); this one has {none}."
            )
        params = _groups(variables.params)
        # The state of Flax's Linen has a collection around the modules, the state of NNX has not.
        with_params = {path if path in params else path[1:] for path in modules}

        def is_statistic(path, leaf):
            return _keys(path)[:-1] in modules

        def is_affine(path, leaf):
            *module, name = _keys(path)
            return tuple(module) in with_params and name in ("scale", "bias")

        return Variables(
            jax.tree_util.tree_map_with_path(is_affine, variables.params),
            jax.tree_util.tree_map_with_path(is_statistic, variables.state),
        )


_STATISTICS = {"mean", "var"}


def _keys(path: Any) -> tuple[str, ...]:
    return tuple(jax.tree_util.keystr((key,), simple=True) for key in path)


def _groups(tree: PyTree) -> dict[tuple[str, ...], set[str]]:
    """Returns the names of the arrays of each module by its path."""
    groups: dict[tuple[str, ...], set[str]] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        *module, name = _keys(path)
        groups.setdefault(tuple(module), set()).add(name)
    return groups
