"""Interface of the optimizers of the server."""

from __future__ import annotations

from abc import abstractmethod

from jaxtyping import PyTree

from fedjax_fair.utils.tree import Tree

__all__ = ["ServerOptimizer"]


class ServerOptimizer(Tree):
    """Turns the aggregated update into the step of the global parameters.

    A subclass is a frozen dataclass with hyperparameters as fields, as roles are.
    """

    @abstractmethod
    def init(self, params: PyTree) -> PyTree:
        """Returns the state at the initial parameters."""

    @abstractmethod
    def step(self, update: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
        """Returns what is added to the parameters, and the new state.

        The update is new minus old parameters, the negative of a gradient.
        """
